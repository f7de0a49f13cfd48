"""Conversations between their requests: recognising a request's session, storing it, and reading its history.

session      what is stored of a conversation, and how a request finds its branch
recognition  finds the session of a request
lookup       reads the sessions that this takes, in few steps
stored       reads and writes sessions, and bounds how long a request waits for that
keeping      writes a session back after a request was decided
records      a cache of decoded sessions and condensations
blocks       the blocks that a history is stored in
histories    a cache of decoded blocks
restoring    puts back the messages that a client left out
append       append mode
admin        sessions for an operator
"""
