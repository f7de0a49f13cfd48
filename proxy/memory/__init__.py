"""Memory in the proxy: what was said earlier reaches the model again.

recall      the indexes of sessions, and searching them
inject      the block before a user message

The tool `search_memory`, whose calls are run here and hidden from the client:

tool        how it is offered, and its arguments
heard       what a reply says, and which of its calls are hidden
deltas      the same of one choice that is streamed
stream      several event streams as one
rounds      the hidden rounds of a request, and what is kept of them
searching   the driver: asks the upstream again, until there is an answer
"""
