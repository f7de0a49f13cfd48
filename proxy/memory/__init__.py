"""Memory: ranking by an embedding model too (`meaning`), and the memory of a session for its operator (`admin`).

What needs a request's context is in `proxy/condensing`: `recall` searches, `inject` puts a block before a message, and
`searching` runs the tool `search_memory`, whose parts are in `proxy/searching`.
"""
