"""Memory in the proxy: what was said earlier reaches the model again.

recall      the indexes of sessions, and searching them
inject      the block before a user message
"""
