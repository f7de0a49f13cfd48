"""Replays recorded conversations through strategies, offline: `condenser replay`.

recorded   reads conversations from a file (JSON, JSONL, gzip)
play       decides every request of a conversation with the real driver
scripted   takes the place of the summarizer and the judges
measures   computes what a strategy sent, saved, kept and cost (pure)
report     makes the table and the JSON document (pure)
"""
