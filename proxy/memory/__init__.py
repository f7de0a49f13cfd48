"""Memory in the proxy: brings earlier parts of a conversation back to the model.

recall      indexes of sessions, and searching them
meaning     ranking by an embedding model too
vectors     the vectors of texts, and how close they are to a query
inject      puts a block of memories before a user message
scopes      cards that several sessions share
editing     cards that a person adds or takes away
admin       the memory of a session for its operator

The tool `search_memory`, whose calls are run by the proxy and hidden from the client:

tool        its definition, and its arguments
offering    which requests offer it, and the hidden rounds that their views show
heard       reads a reply, and takes its hidden calls out
deltas      the same for one choice of a streamed reply
stream      joins several event streams into one
rounds      the hidden rounds of a request, and what is kept of them
following   sends the request after a hidden round, and falls back where it is refused
replies     replies that are read to their end
joined      joins several replies into the one that the client sees
searching   the driver
"""
