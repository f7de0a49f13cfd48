"""Memory in the proxy: what was said earlier reaches the model again.

recall      the indexes of sessions, and searching them
meaning     ranking by an embedding model too
vectors     what that says of texts, and how close two are
inject      the block before a user message

The tool `search_memory`, whose calls are run here and hidden from the client:

tool        its definition, and its arguments
offering    which requests are offered it, and the hidden rounds that their views show
heard       what a reply says, and which of its calls are hidden
deltas      the same of one choice that is streamed
stream      several event streams as one
rounds      the hidden rounds of a request, and what is kept of them
following   asks the upstream to go on after a round, and what else where that is refused
replies     replies that are read whole
joined      several replies as the one that the client sees
searching   the driver
"""
