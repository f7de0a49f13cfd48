"""Bounds what a request body may hold, while it is read: its messages, its members, and the JSON values in them.

A value takes far more memory and time than the bytes that it is written in: `{},` is three bytes and becomes an object
of 72. A limit of bytes alone therefore bounds neither. A body is read piece by piece, where a piece is one message or
one member; the scanner of the standard library reads a piece in one call, which nothing can interrupt. So a piece is
looked at before it is read (`check_piece`) and counted afterwards (`add`).

Values are counted by the marks that begin them: `{`, `[` and `,` outside of strings. Nearly always their number in
the whole text is small enough, and then strings need not be told from what is between them.
"""

from __future__ import annotations

import json
import re
from codecs import utf_8_decode
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from proxy.errors import BadRequest, BodyTooLarge
from strategies.core.parsing import decode

MAX_LEVELS = 255
"""The most levels of nesting in a piece, because later readers are recursive; a scalar has one."""
PIECE_SHARE = 10
"""One piece may have 1 / PIECE_SHARE of the values of a body."""
TOO_DEEP = "The request body is nested too deeply."

_FEW_MARKS = 64
_FIRST_SLICE = 2_048
"""Length of the text that is tried first to read a piece; where that is too short, `_SLICE_GROWTH` times as much."""
_SLICE_GROWTH = 8
_TOKEN = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|[\[\]{},]', re.DOTALL)


class Bounds(NamedTuple):
    """What one body may hold."""

    messages: int = 10_000
    members: int = 1_000
    """Members of the body itself."""
    values: int = 250_000
    """JSON values, nested ones included."""


DEFAULT_BOUNDS = Bounds()


class Tally:
    """What was read of one body so far; every method raises `BodyTooLarge` when a bound is exceeded."""

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds
        self._piece = bounds.values // PIECE_SHARE
        self.values = 0
        """JSON values so far."""

    def check_piece(self, text: str, name: str) -> None:
        """Checks the piece at the beginning of a text, which may go on behind it or break off in it."""
        if _marks(text) > self._piece and _exceeds(text, self._piece):
            raise BodyTooLarge(f"{name} holds more than {self._piece:,} values.", param=name)

    def add(self, value: Any, text: str | bytes) -> None:
        """Counts a piece that was read from `text`; raises `BadRequest` if it is nested too deeply."""
        marks = _marks(text)
        if marks > _FEW_MARKS:
            marks = count_values(value)
        self.values += marks
        if self.values > self._bounds.values:
            raise BodyTooLarge(f"The request body holds more than {self._bounds.values:,} values.")

    def check_messages(self, count: int) -> None:
        """Checks the number of messages."""
        if count > self._bounds.messages:
            raise BodyTooLarge(f"There are more than {self._bounds.messages:,} messages.", param="messages")

    def check_members(self, count: int) -> None:
        """Checks the number of members."""
        if count > self._bounds.members:
            raise BodyTooLarge(f"The request body has more than {self._bounds.members:,} members.")


def decode_piece(text: str, at: int, name: str, tally: Tally) -> tuple[Any, int]:
    """The JSON value at index `at` and the index where it ends; raises `ValueError` if there is none."""
    if text[at : at + 1] not in ("{", "["):
        return decode(text, at)  # a scalar is one value; of a number, a slice would be another one
    for width, is_rest in _widths(len(text) - at):
        part = text[at : at + width]
        tally.check_piece(part, name)
        try:
            value, size = decode(part)
        except json.JSONDecodeError as error:
            if is_rest:
                raise json.JSONDecodeError(error.msg, text, at + error.pos) from None
        else:
            tally.add(value, part[:size])
            return value, at + size
    raise AssertionError("the last width is the rest of the text")


def decode_object(data: bytes, at: int, name: str, tally: Tally) -> tuple[Any, bytes]:
    """The JSON object or array at byte `at` of a text in UTF-8, and its bytes; decodes little more than it needs."""
    for width, is_rest in _widths(len(data) - at):
        part, _ = utf_8_decode(data[at : at + width], "strict", is_rest)
        tally.check_piece(part, name)
        try:
            value, size = decode(part)
        except ValueError:
            if is_rest:
                raise
        else:
            text = data[at : at + (size if part.isascii() else len(part[:size].encode()))]
            tally.add(value, text)
            return value, text
    raise AssertionError("the last width is the rest of the text")


def _widths(length: int) -> Iterator[tuple[int, bool]]:
    """Growing widths for a text of `length`, each with whether it is the last, which takes in all of the text."""
    width = _FIRST_SLICE
    while width < length:
        yield width, False
        width *= _SLICE_GROWTH
    yield width, True


def count_values(value: Any) -> int:
    """The number of JSON values in one, itself included; raises `BadRequest` if it has more than `MAX_LEVELS` levels.

    Works without recursion.
    """
    level, count = [value], 0
    for _ in range(MAX_LEVELS + 1):
        if not level:
            return count
        count += len(level)
        level = [inner for outer in level if isinstance(outer, (dict, list)) for inner in _inside(outer)]
    raise BadRequest(TOO_DEEP)


def _marks(text: str | bytes) -> int:
    """The number of marks in a text, those in strings included; never fewer than the values that begin in it."""
    if isinstance(text, str):
        return text.count(",") + text.count("{") + text.count("[")
    return text.count(b",") + text.count(b"{") + text.count(b"[")


def _exceeds(text: str, most: int) -> bool:
    """Whether the value at the beginning of a text has more than `most` marks outside of strings."""
    depth = 0
    for found in _TOKEN.finditer(text):
        match found[0]:
            case "{" | "[":
                depth += 1
                most -= 1
            case "}" | "]":
                depth -= 1
            case ",":
                most -= 1
        if most < 0:
            return True
        if depth == 0:
            return False
    return False


def _inside(value: dict[str, Any] | list[Any]) -> Iterable[Any]:
    return value.values() if isinstance(value, dict) else value
