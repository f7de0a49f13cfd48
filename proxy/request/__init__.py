"""Reads a request: its body, its caller, and how many tokens it has."""
