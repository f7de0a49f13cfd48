"""What a long-running process is made of: tasks, threads, bounded memories, garbage, secrets in files."""
