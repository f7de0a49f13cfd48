"""Handles: short names of messages that a view shows no longer, or only in part.

The line in a message's place carries its handle, and a search for the handle alone finds the message word for word. It
is the beginning of the message's digest: the same on every replica, and known only where the message itself is.
"""

from __future__ import annotations

import re

from strategies.core.messages import Message

_DIGITS = 8
_ALONE = re.compile(rf"\W*(?:(?:handle|句柄)\W*)?([0-9a-f]{{{_DIGITS}}})\W*", re.IGNORECASE)


def handle_of(message: Message) -> str:
    return message.digest.hex()[:_DIGITS]


def handle_in(query: str) -> str | None:
    """The handle that a query consists of, if it is nothing else."""
    found = _ALONE.fullmatch(query.strip()) if len(query) < 4 * _DIGITS else None
    return found.group(1).lower() if found else None
