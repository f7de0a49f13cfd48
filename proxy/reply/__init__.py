"""Passes the upstream's reply to the client: keep-alive before it, retry checks at its start, usage read meanwhile."""
