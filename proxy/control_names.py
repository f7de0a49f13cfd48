"""The names of the controls that a request may have: in a header, in the `condenser` member, some in the model."""

from __future__ import annotations

KEYS = (
    "session",
    "strategy",
    "options",
    "window",
    "history",
    "if-head",
    "memory",
    "memory-scope",
    "force",
    "no-store",
    "dry-run",
)
