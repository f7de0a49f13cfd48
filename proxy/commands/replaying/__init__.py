"""Plays recorded conversations through strategies, offline: for `condenser replay` and `demo`, `bench` and `eval`.

recorded       reads conversations from a file (JSON, JSONL, gzip), and writes them in another protocol
session_files  reads files of agents and exported sessions (pure)
play           decides every request of a conversation with the real driver
models         takes the place of the summarizer and the judges: scripts, or real ones
measures       computes what a strategy sent, saved, kept and cost (pure)
live           asks a real model what it does next, with and without the view
results        reads the file of what was measured, from which the next run goes on
agreement      compares next actions, and bounds what a sample can show (pure)
report         prints tables, and makes the JSON document and the HTML page of a replay (pure)
"""
