"""Recorded conversations through strategies, offline: `condenser replay`.

recorded   conversations from a file                                  (JSON, JSONL, gzip)
play       every request of a conversation, decided by the real driver; a script stands for the summarizer
measures   what a strategy sent, saved, kept and cost                 (pure)
report     the table and the JSON document                            (pure)
"""
