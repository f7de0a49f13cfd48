"""Memory: ranking by meaning with an embedding model (`meaning`), and a session's memory for an operator (`admin`).

What needs a request's context is in `proxy/condensing`: `recall` searches, `inject` puts a block before a message, and
`searching` runs the tool `search_memory`, whose parts are in `proxy/searching`.
"""
