"""Conversations between their requests: how they are recognised, what is kept of them, and where it is read."""
