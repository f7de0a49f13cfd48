"""Scans a request body: the members of its top-level object, each with its value and its place in the text.

The scan uses the decoder of the standard library, so numbers have no limit, and lone surrogates and the order of keys
are kept.

A client sends the same model, options and tools with every request of a conversation, and tools are long. `Envelopes`
therefore caches the text around the messages by its bytes, so that it is neither decoded nor parsed again. Values read
here must not be changed: all requests with these bytes share them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from typing import Any, NamedTuple

from proxy.errors import BadRequest
from proxy.request.bounds import Tally, decode_piece
from proxy.runtime.lru import SizedLru
from strategies.core.parsing import decode

MAX_BYTES = 4 * 1024 * 1024
LARGEST_SHARE = 4
"""An envelope that would take more than 1 / LARGEST_SHARE of the cache is not kept."""

COUNTED_MEMBERS = ("tools", "functions", "tool_choice", "function_call", "response_format")
"""The members besides `messages` that cost prompt tokens."""

_SPACE = re.compile(r"[ \t\n\r]*")
_READ_ONCE = ("messages", "model", "condenser")
_DIGEST_BYTES = 16
_MEMORY_PER_BYTE = 4
"""Bytes of memory for one byte of an envelope: one as it came, one as text, and about two for the parsed values."""
_ENTRY_BYTES = 1_500
"""Bytes of memory that an entry takes besides."""


class Member(NamedTuple):
    """A member of the body, and where it stands in the text."""

    key: str
    value: Any
    start: int
    """Index of the first character of the key."""
    value_start: int
    """Index of the first character of the value."""
    end: int
    """Index just after the value."""


@dataclass(frozen=True)
class Envelope:
    """The text of a body and the members that stand in it."""

    text: str
    members: Mapping[str, Member]

    @classmethod
    def parse(cls, text: str, tally: Tally) -> Envelope:
        """Scans a text; raises `ValueError` if it is not JSON, and `BadRequest` if it is but cannot be a body.

        The value of `messages`, if it is an array, becomes a list of (value, JSON text) for its elements. Raises
        `BodyTooLarge` if the tally's bounds are exceeded.
        """
        return cls(text, _scan(text, tally))

    @cached_property
    def values(self) -> Mapping[str, Any]:
        """The values of all members but `messages`."""
        return {key: member.value for key, member in self.members.items() if key != "messages"}

    @cached_property
    def outside_digest(self) -> bytes:
        """A digest of the members besides `messages` that cost tokens; empty if there are none."""
        raw_values = [self.raw_value(key) for key in COUNTED_MEMBERS]
        data = "\0".join(raw_values).encode()
        return blake2b(data, digest_size=_DIGEST_BYTES, key=b"outside").digest() if any(raw_values) else b""

    def raw_value(self, key: str) -> str:
        """The JSON text of a member's value as it came in, or ""."""
        member = self.members.get(key)
        return "" if member is None else self.text[member.value_start : member.end]


class Envelopes:
    """A least-recently-used cache of envelopes, by their bytes; it takes about `most_bytes` of memory at most."""

    def __init__(self, most_bytes: int = MAX_BYTES) -> None:
        self._most = most_bytes
        self._kept: SizedLru[tuple[str, bytes, bytes], Envelope] = SizedLru(most_bytes)

    def __len__(self) -> int:
        return len(self._kept)

    def read(self, before: bytes, after: bytes, tally: Tally, owner: str = "") -> Envelope | None:
        """The envelope of a tenant's body whose messages stand between these bytes; None if these are not `messages`.

        Raises `ValueError`, `RecursionError`, `BadRequest` or `BodyTooLarge` if the two together cannot be parsed as a
        body within the tally's bounds.
        """
        key = owner, before, after
        if (kept := self._kept.use(key)) is not None:
            return kept
        opening = before.decode()
        envelope = Envelope.parse(opening + after.decode(), tally)
        messages = envelope.members.get("messages")
        if messages is None or messages.value != [] or messages.end != len(opening) + 1:
            return None
        if (cost := _cost(key)) <= self._most // LARGEST_SHARE:
            self._kept.put(key, envelope, cost)
        return envelope


def _cost(key: tuple[str, bytes, bytes]) -> int:
    """About the bytes of memory that an envelope takes."""
    return _MEMORY_PER_BYTE * sum(map(len, key)) + _ENTRY_BYTES


def skip_space(text: str, at: int) -> int:
    """The index of the first character from `at` on that is not white space."""
    found = _SPACE.match(text, at)
    return found.end() if found else at


def _scan(text: str, tally: Tally) -> dict[str, Member]:
    """The members of a text by their keys; of a key that stands twice, the last one counts."""
    at = skip_space(text, 0)
    if text[at : at + 1] != "{":
        decode(text, at)
        raise BadRequest("The request body must be a JSON object.")
    members: dict[str, Member] = {}
    for member in _scan_object(text, at, tally):
        tally.check_members(len(members) + 1)
        if member.key in members and member.key in _READ_ONCE:
            raise BadRequest(f"The member '{member.key}' stands twice in the request body.", param=member.key)
        members[member.key] = member
    return members


def _scan_object(text: str, at: int, tally: Tally) -> Iterator[Member]:
    """The members of the object at `at`, which must be all that is left of the text."""
    end = skip_space(text, at + 1)
    if text[end : end + 1] == "}":
        return _check_end(text, end + 1)
    while True:
        start = end
        key, end = decode(text, start)
        if not isinstance(key, str):
            raise ValueError(f"a key must be a string (character {start})")  # noqa: TRY004
        end = _expect(text, end, ":")
        if key == "messages" and text[end : end + 1] == "[":
            value, stop = _scan_array(text, end, tally)
        else:
            value, stop = decode_piece(text, end, key, tally)
        yield Member(key, value, start, end, stop)
        end = skip_space(text, stop)
        if text[end : end + 1] == "}":
            return _check_end(text, end + 1)
        end = _expect(text, end, ",")


def _check_end(text: str, at: int) -> None:
    end = skip_space(text, at)
    if end != len(text):
        raise ValueError(f"something follows the object (character {end})")


def _expect(text: str, at: int, mark: str) -> int:
    """The index of what follows a mark and the white space around it; raises `ValueError` if the mark is missing."""
    at = skip_space(text, at)
    if text[at : at + 1] != mark:
        raise ValueError(f"'{mark}' is missing (character {at})")
    return skip_space(text, at + 1)


def _scan_array(text: str, at: int, tally: Tally) -> tuple[list[tuple[Any, str]], int]:
    """The elements of the array at `at`, each with its JSON text, and the index just after the array."""
    elements: list[tuple[Any, str]] = []
    end = skip_space(text, at + 1)
    if text[end : end + 1] == "]":
        return elements, end + 1
    while True:
        tally.check_messages(len(elements) + 1)
        value, stop = decode_piece(text, end, f"messages[{len(elements)}]", tally)
        elements.append((value, text[end:stop]))
        end = skip_space(text, stop)
        if text[end : end + 1] == "]":
            return elements, end + 1
        end = _expect(text, end, ",")
