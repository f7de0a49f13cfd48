"""What clients put into user messages that no user has said: their environment, standing instructions, reminders.

`strategies/keywords/keywords.toml` has the tags of such blocks. A message of nothing else states no task.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence

from strategies.core.parsing import STEP, in_steps
from strategies.keywords import keywords

_NAMES = "|".join(map(re.escape, keywords("client_tags")))
_TAG = re.compile(rf"<(/?)({_NAMES})(?![\w-])[^<>]*>")
_ANY_TAG = re.compile(r"</?[A-Za-z][\w:-]*(?:\s[^<>]*)?>")
_TAGGED = rf"<(?P<tag>{_NAMES})(?![\w-])[^<>]*>.*?</(?P=tag)>"
_BLOCKS = [re.compile(pattern, re.DOTALL) for pattern in (_TAGGED, *keywords("client_blocks"))]
_SPACE = re.compile(r"\s*")


def is_context(text: str) -> bool:
    """Whether a text consists of such blocks only, none longer than `STEP`.

    Each is matched where the one before ends, so in linear time.
    """
    at = start = _end_of_space(text, 0)
    while at < len(text):
        for pattern in _BLOCKS:
            if block := pattern.match(text, at, at + STEP):
                break
        else:
            return False
        at = _end_of_space(text, block.end())
    return at > start


def users_words(text: str) -> str:
    """A text without the client's blocks."""
    spans = _spans(text)
    return "".join(_between(spans, text)) if spans else text


def clients_words(text: str) -> str:
    """What the client's blocks say, without their tags, which name nothing."""
    return "\n".join(_without_tags(text[start:end]) for start, end in _spans(text))


def _without_tags(text: str) -> str:
    return " ".join(_between([match.span() for match in in_steps(_ANY_TAG, text)], text))


def _between(spans: Sequence[tuple[int, int]], text: str) -> Iterator[str]:
    """What is left of a text without these spans of it."""
    ends, starts = (0, *(end for _, end in spans)), (*(start for start, _ in spans), len(text))
    return (text[end:start] for end, start in zip(ends, starts, strict=True))


def _spans(text: str) -> list[tuple[int, int]]:
    """Where the client's blocks begin and end.

    Text inside a block cannot end it: tags are counted, and a closing tag too many belongs to the block before it.
    """
    if "</" not in text:
        return []
    if is_context(text):
        return [(0, len(text))]
    tags = [(match.span(), bool(match[1]), match[2]) for match in in_steps(_TAG, text)]
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
    while (match := _SPACE.match(text, at, at + STEP)) and match.end() > at:
        at = match.end()
    return at
