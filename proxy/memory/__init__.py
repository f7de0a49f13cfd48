"""Memory: a session's memory for an operator (`admin`).

What needs a request's context is in `proxy/condensing`: `recall` searches and puts a block before a message, and
`searching` runs the tool `search_memory`, whose parts are in `proxy/searching`.
"""
