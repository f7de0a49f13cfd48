"""The bodies of requests: read from bytes, recognised by what was read before, and counted."""
