"""Tools of a long-running process.

loops           steps that are done again and again
owned_tasks     tasks that the app owns, and who waits for them; long work in a thread
lru             bounded caches
"""
