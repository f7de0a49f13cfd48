"""Proof: whom a lesson holds for, and what an error says without the text that a caller controls.

What an error teaches holds at once for the tenant that met it. It holds for everyone only if the error teaches the
same without all that it may have quoted of the request: values, runs of two words or more, and numbers.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, NamedTuple

from proxy.values import json_or_none

MAX_COMPARED = 256 * 1024
"""Bytes of a request that are compared with an error; one to a longer request proves nothing."""
MAX_WORDS = 400
"""Words of an error that is compared; a longer one proves nothing."""
_DEEPEST = 32
_PROTOCOL = frozenset(
    """
    messages role content name type text id model user assistant system developer tool tools function functions
    tool_calls tool_call_id arguments parameters description properties required object string stream stream_options
    include_usage max_tokens max_completion_tokens temperature
    """.split()  # noqa: SIM905 - a table of words
)
"""Words of the protocol: that an error has one says nothing of where it comes from."""
_SHORT = 64  # characters of a value that an error may quote as one word
_MARKS = re.compile(r"[`'\"*\\“”‘’]+|(?<=\d),(?=\d{3})")
_WORD = re.compile(r"[^\W_]+")


class Scope(NamedTuple):
    """A model, and the tenant that a lesson about it holds for; None for everyone."""

    model: str
    tenant: str | None = None

    @property
    def everyone(self) -> Scope:
        """The same model for everyone."""
        return Scope(self.model)


class CallersText:
    """The text of one request that its caller controls, to be taken out of errors."""

    def __init__(self, body: bytes) -> None:
        self._is_known = len(body) <= MAX_COMPARED
        values = list(_values(json_or_none(body), _DEEPEST)) if self._is_known else []
        self._values = {_plain(value) for value in values if len(value) <= _SHORT}
        self._text = f" {_plain(' '.join(values))} "

    def removed_from(self, text: str) -> str:
        """The text with a semicolon for each word that may come from the request; "" if it is too long to tell."""
        text = _unmarked(text)
        words = [word.lower() for word in _WORD.findall(text)]
        if not self._is_known or len(words) > MAX_WORDS:
            return ""
        quoted = [word in self._values or (word.isdigit() and f" {word} " in self._text) for word in words]
        for at, pair in enumerate(pairwise(words)):
            if " {} {} ".format(*pair) in self._text:
                quoted[at] = quoted[at + 1] = True
        left = iter(quoted)
        return _WORD.sub(lambda word: ";" if next(left) else word.group(), text)


def _plain(text: str) -> str:
    return " ".join(_WORD.findall(_unmarked(text).lower()))


def _unmarked(text: str) -> str:
    """The text without quotation marks, and without the commas in numbers."""
    return _MARKS.sub("", text)


def _values(value: Any, depth: int) -> Iterator[str]:
    """All keys, strings and numbers of a body, except the model's name: lessons are kept by that."""
    match value:
        case dict() if depth:
            for key, inner in value.items():
                if depth < _DEEPEST or key != "model":
                    yield from _values(key, depth)
                    yield from _values(inner, depth - 1)
        case list() if depth:
            for inner in value:
                yield from _values(inner, depth - 1)
        case str() | int() | float() if value not in _PROTOCOL:
            yield str(value)
