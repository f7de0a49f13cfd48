"""Scans the text of a request body within bounds: the members of its object, each with its value and its place.

Theory of operation. A body is scanned piece by piece, where a piece is one message or one member. The decoder of the
standard library reads a piece, so numbers have no limit, and lone surrogates and the order of keys are kept. It reads
in one call, which nothing can interrupt, and a value takes far more memory and time than its bytes: `{},` is three
bytes and becomes an object of 72. A limit of bytes alone therefore bounds neither. So a piece is checked before it is
decoded (`Tally.check_piece`) and its values are counted afterwards (`Tally.add`).

Values are counted by the delimiters that begin them: `{`, `[` and `,` outside of strings. A text that has no more
characters than it may have values is not even looked at.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from typing import Any, NamedTuple, NoReturn

from proxy.errors import BadRequest, BodyTooLarge
from proxy.protocols.endpoint import Endpoint
from proxy.runtime.lru import Lru
from proxy.runtime.owned_tasks import offload
from proxy.values import count_at
from strategies.core.parsing import STEP, decode, delimiters

MAX_BYTES = 4 * 1024 * 1024
MIN_ENTRIES = 4  # an envelope that would take more than 1 / MIN_ENTRIES of the cache is not kept
MAX_LEVELS = 255  # maximum levels of nesting in a piece, because later readers are recursive; a scalar has one
PIECE_SHARE = 20  # one piece may have 1 / PIECE_SHARE of the values of a body
EXTENSION = "condenser"  # the member in which a client may put the proxy's own controls; it is never forwarded
TOO_DEEP = "The request body is nested too deeply."

_DIGEST_BYTES = 16
_MEMORY_PER_BYTE = 4
"""Bytes of memory for one byte of an envelope: one itself, one as text, and about two for the parsed values."""
_ENTRY_BYTES = 1_500
_LOAD_BYTES = 200  # bytes of an envelope that take about as long as a message
_FEW_DELIMITERS = 64
_LONG = 4_096
_DELIMITERS = b"{[,"
_BYTE_ORDER_MARK = "\ufeff"  # which some editors and shells put before a text; most servers skip it
_SPACE = re.compile(r"[ \t\n\r]*")


class Bounds(NamedTuple):
    messages: int = 50_000
    members: int = 1_000
    values: int = 500_000  # JSON values, nested ones included


DEFAULT_BOUNDS = Bounds()


class Member(NamedTuple):
    value: Any
    start: int  # index of the first character of the key
    value_start: int  # index of the first character of the value
    end: int  # index just after the value


class Tally:
    """What was read so far of a body of `size` bytes; every method raises `BodyTooLarge` when a bound is exceeded."""

    def __init__(self, endpoint: Endpoint, bounds: Bounds, size: int) -> None:
        self.endpoint = endpoint
        self.bounds = bounds
        self.max_messages = bounds.messages
        self.max_piece = bounds.values // PIECE_SHARE
        self._counts = size > bounds.values
        self._values = 0

    def check_piece(self, text: str, name: str, at: int) -> bool:
        """Checks the piece at index `at` of a text that may end within the piece or continue after it.

        It may have no more delimiters outside of strings than a piece may have values. Returns whether it is complete;
        raises `BadRequest` for a piece that is nested too deeply.
        """
        depth, left = 0, self.max_piece
        for delimiter in delimiters(text, at):
            if delimiter in ("{", "[", ","):
                left -= 1
                depth += delimiter != ","
            else:
                depth -= 1
            if depth > MAX_LEVELS:
                raise BadRequest(TOO_DEEP)
            if left < 0:
                raise BodyTooLarge(f"{name} holds more than {self.max_piece:,} values.", param=name)
            if depth <= 0:
                return True
        return False

    def add(self, value: Any, data: bytes) -> None:
        """Counts a piece that was read from `data`; raises `BadRequest` if it is nested too deeply."""
        if not self._counts and len(data) < MAX_LEVELS:
            return
        # A short text has no more values than delimiters, even if those in strings are counted.
        if len(data) < _LONG and (found := len(data) - len(data.translate(None, _DELIMITERS))) <= _FEW_DELIMITERS:
            self._values += found
        else:
            self._values += count_values(value)
        if self._values > self.bounds.values:
            raise BodyTooLarge(f"The request body holds more than {self.bounds.values:,} values.")

    def refuse_messages(self) -> NoReturn:
        raise BodyTooLarge(f"There are more than {self.max_messages:,} messages.", param=self.endpoint.list_member)


@dataclass(frozen=True)
class Envelope:
    text: str
    members: Mapping[str, Member]
    endpoint: Endpoint

    @cached_property
    def values(self) -> Mapping[str, Any]:
        return {key: member.value for key, member in self.members.items() if key != self.endpoint.list_member}

    @cached_property
    def reply_limit(self) -> int | None:
        """The maximum length of the reply in tokens, if the request bounds it."""
        limits = (count_at(self.values, key) for key in self.endpoint.reply_limits)
        return next(filter(None, limits), None)

    @cached_property
    def counted_length(self) -> int:
        """Characters of the members besides the list that cost tokens."""
        return sum(len(self.raw_value(key)) for key in self.endpoint.counted_members)

    @cached_property
    def outside_digest(self) -> bytes:
        """A digest of the members besides the list that cost tokens; empty if there are none."""
        raw_values = [self.raw_value(key) for key in self.endpoint.counted_members]
        data = "\0".join(raw_values).encode()
        return blake2b(data, digest_size=_DIGEST_BYTES, key=b"outside").digest() if any(raw_values) else b""

    def raw_value(self, key: str) -> str:
        """The JSON text of a member's value as the client wrote it, or ""."""
        member = self.members.get(key)
        return "" if member is None else self.text[member.value_start : member.end]


class Envelopes:
    """A least-recently-used cache of envelopes, by their bytes; it takes at most about `max_bytes` of memory.

    A client sends the same model, options and tools with every request of a conversation, and tools are long. Requests
    with the same bytes around their messages share one envelope, so nothing may change its values.
    """

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._kept: Lru[tuple[str, bytes, bytes], Envelope] = Lru(max_bytes)

    def __len__(self) -> int:
        return len(self._kept)

    async def read(self, before: bytes, after: bytes, tally: Tally, owner: str = "") -> Envelope | None:
        """The envelope of a body with these bytes around its list; None if what they surround is not the list.

        A thread scans a long one. Raises what `scan_members` does, and `RecursionError`.
        """
        key = owner, before, after
        if (kept := self._kept.use(key)) is not None:
            return kept
        envelope = await offload((len(before) + len(after)) // _LOAD_BYTES, _scanned, before, after, tally)
        if envelope is None:
            return None
        cost = _MEMORY_PER_BYTE * sum(map(len, key)) + _ENTRY_BYTES
        if cost <= self._max_bytes // MIN_ENTRIES:
            self._kept.put(key, envelope, cost)
        return envelope


def _scanned(before: bytes, after: bytes, tally: Tally) -> Envelope | None:
    opening = before.decode()
    text = opening + after.decode()
    envelope = Envelope(text, scan_members(text, tally), tally.endpoint)
    messages = envelope.members.get(tally.endpoint.list_member)
    is_list = messages is not None and messages.value == [] and messages.end == len(opening) + 1
    return envelope if is_list else None


def scan_members(text: str, tally: Tally) -> dict[str, Member]:
    """The members of a body by their keys; if a key occurs twice, the last one counts.

    The value of the list of messages, if it is an array, becomes one of (value, JSON text) for its elements. Raises
    `ValueError` if the text is not JSON, `BadRequest` if it is but cannot be a body, and `BodyTooLarge`.
    """
    at = skip_space(text, text.startswith(_BYTE_ORDER_MARK))
    if text[at : at + 1] != "{":
        decode(text, at)
        raise BadRequest("The request body must be a JSON object.")
    members: dict[str, Member] = {}
    at = skip_space(text, at + 1)
    while text[at : at + 1] != "}":
        if members:
            at = _expect(text, at, ",")
        if len(members) >= tally.bounds.members:
            raise BodyTooLarge(f"The request body has more than {tally.bounds.members:,} members.")
        key, end = decode(text, at)
        if not isinstance(key, str):
            raise ValueError(f"a key must be a string (character {at})")  # noqa: TRY004
        end = _expect(text, end, ":")
        is_list = key == tally.endpoint.list_member and text[end : end + 1] == "["
        value, stop = _scan_array(text, end, tally) if is_list else _decode_piece(text, end, key, tally)
        if key in members and key in (tally.endpoint.list_member, "model", EXTENSION):
            raise BadRequest(f"The member '{key}' stands twice in the request body.", param=key)
        members[key] = Member(value, at, end, stop)
        at = skip_space(text, stop)
    end = skip_space(text, at + 1)
    if end != len(text):
        raise ValueError(f"something follows the object (character {end})")
    return members


def _scan_array(text: str, at: int, tally: Tally) -> tuple[list[tuple[Any, str]], int]:
    """The elements of the array at `at`, each with its JSON text, and the index just after the array."""
    elements: list[tuple[Any, str]] = []
    at = skip_space(text, at + 1)
    while text[at : at + 1] != "]":
        if elements:
            at = _expect(text, at, ",")
        if len(elements) >= tally.max_messages:
            tally.refuse_messages()
        value, stop = _decode_piece(text, at, f"{tally.endpoint.list_member}[{len(elements)}]", tally)
        elements.append((value, text[at:stop]))
        at = skip_space(text, stop)
    return elements, at + 1


def _decode_piece(text: str, at: int, name: str, tally: Tally) -> tuple[Any, int]:
    """The JSON value at index `at` and the index where it ends; raises `ValueError` if there is none."""
    if len(text) - at > tally.max_piece:
        tally.check_piece(text, name, at)
    value, end = decode(text, at)
    if isinstance(value, (dict, list)):
        tally.add(value, text[at:end].encode())
    return value, end


def skip_space(text: str, at: int) -> int:
    """The index of the first character, at `at` or later, that is not white space."""
    found = _SPACE.match(text, at, at + STEP)
    return found.end() if found else at


def _expect(text: str, at: int, delimiter: str) -> int:
    """The index of what follows a delimiter and the white space around it; raises `ValueError` if it is missing."""
    at = skip_space(text, at)
    if text[at : at + 1] != delimiter:
        raise ValueError(f"'{delimiter}' is missing (character {at})")
    return skip_space(text, at + 1)


def count_values(value: Any) -> int:
    """The number of JSON values in one, itself included; raises `BadRequest` above `MAX_LEVELS` levels."""
    level, count = [value], 0
    for _ in range(MAX_LEVELS + 1):
        if not level:
            return count
        count += len(level)
        containers = [outer for outer in level if isinstance(outer, (dict, list))]
        level = [inner for outer in containers for inner in (outer.values() if isinstance(outer, dict) else outer)]
    raise BadRequest(TOO_DEEP)
