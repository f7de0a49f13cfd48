"""What stands around the messages of a body: its other members, each with its place in the text.

A scan with the standard library's decoder gives every member's value and where it stands. Its numbers have no limit, it
keeps lone surrogates and the order of keys.

A client sends the same model, options and tools with every request of a conversation, and tools are long. So what
stands around the messages is kept by its bytes (`Envelopes`), and neither decoded nor parsed again. Nobody may change a
value that was read here: it is that of every request with these bytes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from typing import Any, NamedTuple

from proxy.errors import BadRequest
from proxy.request.nesting import DEEPEST, is_deeper
from proxy.runtime.lru import SizedLru
from strategies.core.parsing import decode

MOST_BYTES = 4 * 1024 * 1024
LARGEST_SHARE = 4
"""An envelope that takes more than this part of all is not kept."""

OUTSIDE = ("tools", "functions", "tool_choice", "function_call", "response_format")
"""The members that make tokens besides the messages."""
TOO_DEEP = "The request body is nested too deeply."

_SPACE = re.compile(r"[ \t\n\r]*")
_READ_ONCE = ("messages", "model", "condenser")
_DIGEST_BYTES = 16
_TIMES = 4
"""Bytes that keeping one byte of an envelope takes: as it came, as text, and twice as much in values."""
_ENTRY_BYTES = 1_500


class Member(NamedTuple):
    """A member of the body: [start, end) from its key to its value's end, `at` where the value starts."""

    key: str
    value: Any
    start: int
    at: int
    end: int


@dataclass(frozen=True)
class Envelope:
    """The text of a body and the members that stand in it."""

    text: str
    members: Mapping[str, Member]

    @classmethod
    def of(cls, text: str) -> Envelope:
        """Scans a text; raises `ValueError` where it is no JSON, `BadRequest` where it can be no body.

        An array of `messages` is read as a list of its elements, each with its text.
        """
        return cls(text, _members(text))

    @cached_property
    def values(self) -> Mapping[str, Any]:
        """All members but the messages."""
        return {key: member.value for key, member in self.members.items() if key != "messages"}

    @cached_property
    def outside(self) -> bytes:
        """A digest of what makes tokens besides the messages; empty where there is none of that."""
        written = [self.written(key) for key in OUTSIDE]
        data = "\0".join(written).encode()
        return blake2b(data, digest_size=_DIGEST_BYTES, key=b"outside").digest() if any(written) else b""

    def written(self, key: str) -> str:
        """The text of a member's value as it came in, or ""."""
        member = self.members.get(key)
        return "" if member is None else self.text[member.at : member.end]


class Envelopes:
    """The envelopes that were read of late, by their bytes: about `most_bytes` of memory at most."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most = most_bytes
        self._kept: SizedLru[tuple[bytes, bytes], Envelope] = SizedLru(most_bytes)

    def __len__(self) -> int:
        return len(self._kept)

    def around(self, before: bytes, behind: bytes) -> Envelope | None:
        """The envelope of a body whose messages stand between these bytes; None where they are not its `messages`.

        Raises `ValueError`, `RecursionError` or `BadRequest` where it can be read in no way.
        """
        key = before, behind
        if (kept := self._kept.use(key)) is not None:
            return kept
        opening = before.decode()
        envelope = Envelope.of(opening + behind.decode())
        check_depth(envelope.values.values(), DEEPEST)
        messages = envelope.members.get("messages")
        if messages is None or messages.value != [] or messages.end != len(opening) + 1:
            return None
        if (cost := _cost(key)) <= self._most // LARGEST_SHARE:
            self._kept.put(key, envelope, cost)
        return envelope


def _cost(key: tuple[bytes, bytes]) -> int:
    """About what keeping an envelope takes in bytes."""
    return _TIMES * sum(map(len, key)) + _ENTRY_BYTES


def check_depth(values: Iterable[Any], levels: int) -> None:
    """Raises `BadRequest` for a value that the recursion of any later reader could not stand."""
    if is_deeper(values, levels):
        raise BadRequest(TOO_DEEP)


def skip(text: str, at: int) -> int:
    """The place behind the space that stands at `at`."""
    found = _SPACE.match(text, at)
    return found.end() if found else at


def _members(text: str) -> dict[str, Member]:
    at = skip(text, 0)
    if text[at : at + 1] != "{":
        decode(text, at)
        raise BadRequest("The request body must be a JSON object.")
    members: dict[str, Member] = {}
    for member in _object(text, at):
        if member.key in members and member.key in _READ_ONCE:
            raise BadRequest(f"The member '{member.key}' stands twice in the request body.", param=member.key)
        members[member.key] = member
    return members


def _object(text: str, at: int) -> Iterator[Member]:
    end = skip(text, at + 1)
    if text[end : end + 1] == "}":
        return _check_end(text, end + 1)
    while True:
        start = end
        key, end = decode(text, start)
        if not isinstance(key, str):
            raise ValueError(f"a key must be a string (character {start})")  # noqa: TRY004
        end = _expect(text, end, ":")
        value, stop = _array(text, end) if key == "messages" and text[end : end + 1] == "[" else decode(text, end)
        yield Member(key, value, start, end, stop)
        end = skip(text, stop)
        if text[end : end + 1] == "}":
            return _check_end(text, end + 1)
        end = _expect(text, end, ",")


def _check_end(text: str, at: int) -> None:
    end = skip(text, at)
    if end != len(text):
        raise ValueError(f"something follows the object (character {end})")


def _expect(text: str, at: int, mark: str) -> int:
    at = skip(text, at)
    if text[at : at + 1] != mark:
        raise ValueError(f"'{mark}' is missing (character {at})")
    return skip(text, at + 1)


def _array(text: str, at: int) -> tuple[list[tuple[Any, str]], int]:
    """The elements of the array at `at`, each with its text, and where the array ends."""
    elements: list[tuple[Any, str]] = []
    end = skip(text, at + 1)
    if text[end : end + 1] == "]":
        return elements, end + 1
    while True:
        value, stop = decode(text, end)
        elements.append((value, text[end:stop]))
        end = skip(text, stop)
        if text[end : end + 1] == "]":
            return elements, end + 1
        end = _expect(text, end, ",")
