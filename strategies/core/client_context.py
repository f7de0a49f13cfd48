"""What clients put into user messages that no user has said: their environment, standing instructions, reminders.

`strategies/keywords/keywords.toml` has the patterns of such blocks. A message of nothing else states no task, and
beside a tool's result it is not the user's words.
"""

from __future__ import annotations

import re

from strategies.keywords import keywords

_BLOCKS = [re.compile(pattern, re.DOTALL) for pattern in keywords("client_context")]
_SPACE = re.compile(r"\s*")


def is_context(text: str) -> bool:
    """Whether a text consists of such blocks only. Each is matched where the one before ends, so in linear time."""
    at = start = _end_of_space(text, 0)
    while at < len(text):
        block = next(filter(None, (pattern.match(text, at) for pattern in _BLOCKS)), None)
        if block is None:
            return False
        at = _end_of_space(text, block.end())
    return at > start


def _end_of_space(text: str, at: int) -> int:
    return match.end() if (match := _SPACE.match(text, at)) else at
