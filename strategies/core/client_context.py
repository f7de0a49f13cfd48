"""What clients put into user messages that no user has said: their environment, standing instructions, reminders.

`strategies/keywords/keywords.toml` has the tags of such blocks. A message of nothing else states no task.
"""

from __future__ import annotations

import re
from collections import Counter

from strategies.keywords import keywords

_NAMES = "|".join(map(re.escape, keywords("client_tags")))
_TAG = re.compile(rf"<(/?)({_NAMES})(?![\w-])[^<>]*>")
_ANY_TAG = re.compile(r"</?[A-Za-z][\w:-]*(?:\s[^<>]*)?>")
_TAGGED = rf"<(?P<tag>{_NAMES})(?![\w-])[^<>]*>.*?</(?P=tag)>"
_BLOCKS = [re.compile(pattern, re.DOTALL) for pattern in (_TAGGED, *keywords("client_blocks"))]
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


def users_words(text: str) -> str:
    """A text without the client's blocks."""
    spans = _spans(text)
    ends = (0, *(end for _, end in spans))
    starts = (*(start for start, _ in spans), len(text))
    return "".join(text[end:start] for end, start in zip(ends, starts, strict=True)) if spans else text


def clients_words(text: str) -> str:
    """What the client's blocks say, without their tags, which name nothing."""
    return "\n".join(_ANY_TAG.sub(" ", text[start:end]) for start, end in _spans(text))


def _spans(text: str) -> list[tuple[int, int]]:
    """Where the client's blocks begin and end.

    Text inside a block cannot end it: tags are counted, and a closing tag too many belongs to the block before it.
    """
    if "</" not in text:
        return []
    if is_context(text):
        return [(0, len(text))]
    tags = [(match.span(), bool(match[1]), match[2]) for match in _TAG.finditer(text)]
    to_come = Counter(name for _, closes, name in tags if closes)
    spans: list[tuple[int, int]] = []
    inside, depth = "", 0
    for (start, stop), closes, name in tags:
        if closes:
            to_come[name] -= 1
        if closes and name == inside:
            # After the last closing tag nothing of the block is left, whatever its text has opened.
            spans[-1], depth = (spans[-1][0], stop), depth - 1 if depth and to_come[name] else 0
        elif not closes and depth:
            depth += name == inside
        elif not closes and to_come[name]:
            spans.append((start, stop))
            inside, depth = name, 1
    return spans


def _end_of_space(text: str, at: int) -> int:
    return match.end() if (match := _SPACE.match(text, at)) else at
