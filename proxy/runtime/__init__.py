"""Tools of a long-running process.

owned_tasks     tasks that the app owns, and who waits for them; long work in a thread
lru             bounded caches
"""
