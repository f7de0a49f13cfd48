"""Memory: a session's memory for an operator (`admin`).

The parts that need a request's context are in `proxy/condensing`: `recall` searches and puts a block before a message,
and `searching` runs the tool `search_memory`, whose parts are in `proxy/searching`.
"""
