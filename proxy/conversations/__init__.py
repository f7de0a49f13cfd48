"""Conversations between their requests: recognising a request's session, storing it, and reading its history.

session      what is stored of a conversation, and how a request finds its branch
recognition  which session a request names, and finding it
stored       reads and writes sessions, caches what it decoded, and bounds how long a request waits for that
keeping      writes a session back after a request was decided
codec        the stored form of sessions, condensations and blocks
histories    the history in the blocks of a session
supply       the messages that a client did not send: in append mode, after a reply that it names, or if it trims
cards        memory cards that a person changed, and those that sessions share
requests     what is kept of each request
totals       what requests have amounted to, in figures and in words
searching    the memory tool's hidden rounds
own          a caller's own sessions
admin        sessions for an operator
"""
