"""Reads a request body and writes the changed one, so that everything left unchanged keeps its bytes.

Theory of operation. A scan (`proxy/request/scanning.py`) gives the value of every member and its place in the text.
`Body.spliced` replaces only the spans that change and never encodes anything else again: inside `messages`, the value
of `model` where it carried a suffix, the removed `condenser` member, and single members such as `tools`.

Most of a body are messages that came with an earlier request. Given a cache of messages, `read` compares the array of
messages with the cached bytes and leaves it out of the scanned text (`Body.hole`); the text around it is cached as
well. If this fast path fails for any reason, the whole body is parsed instead. Only that slow path decides which bodies
are refused, and with which message. Both give the same body, which tests hold for all kinds of bodies and caches.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from proxy.errors import BadRequest
from proxy.request.message_cache import Element, MessageCache, Span, are_text
from proxy.request.scanning import DEFAULT_BOUNDS, TOO_DEEP, Bounds, Envelope, Member, Tally, scan_members, skip_space

_MESSAGES = re.compile(rb'"messages"[ \t\n\r]*:[ \t\n\r]*\[[ \t\n\r]*')
EXTENSION = "condenser"
"""The member in which a client may put the proxy's own controls; it is never forwarded."""

# What tells members of the outermost object: a key of the extension, other strings, brackets and commas.
_TOKEN = re.compile(rb'("condenser"[ \t\n\r]*+:)|"(?:[^"\\]++|\\.)*+"?|[{}\[\],]|[^"{}\[\],]++', re.DOTALL)
_MAX_INLINE = 24 * 1024
"""Bytes of a body that is parsed as a whole on the event loop, in about half a millisecond."""
_MAX_UNREAD = 2 * 1024 * 1024
"""Bytes of a body that cannot be read in which the extension is looked for."""


@dataclass(frozen=True)
class Body:
    """A chat completion request as it came in."""

    data: bytes
    """The body, decompressed."""
    envelope: Envelope
    """The members and their text: all of `data`, or `data` without the messages if there is a `hole`."""
    elements: Sequence[Element]
    """The messages, in append mode after those that the store supplied."""
    units: Sequence[Element | Span]
    """The same, with a span in the place of messages that were recognised as one piece."""
    hole: slice | None = None
    """The bytes of the messages that `envelope` is without; their place is before the bracket that closes the array."""
    supplied_bytes: int = 0
    """Bytes of `elements` if append mode supplied the history, else 0."""

    @property
    def size(self) -> int:
        """Bytes of the request; in append mode an upper bound, which counts the appended messages twice."""
        return len(self.data) + self.supplied_bytes

    @property
    def members(self) -> Mapping[str, Member]:
        """The members, each with its place in the text of `envelope`."""
        return self.envelope.members

    @cached_property
    def is_text(self) -> bool:
        """Whether all messages are text only; the bytes of a picture, for example, do not bound its tokens."""
        return are_text(self.units)

    def with_history(self, elements: Sequence[Element]) -> Body:
        """The same request with these `elements` as its messages: the stored history and its own."""
        return replace(
            self, elements=elements, units=elements, supplied_bytes=sum(len(element.data) for element in elements)
        )

    def get(self, key: str) -> Any:
        """The parsed value of a member other than `messages`, or None."""
        return self.envelope.values.get(key)

    @property
    def values(self) -> Mapping[str, Any]:
        """All members but the messages."""
        return self.envelope.values

    def raw_value(self, key: str) -> str:
        """The JSON text of the value of a member other than `messages`, as it came in, or ""."""
        return self.envelope.raw_value(key)

    def tools_with(self, tool: str) -> str:
        """The JSON text of `tools` with one more tool at the end; the client's own tools keep their bytes."""
        return f"{self.raw_value('tools')[:-1]},{tool}]" if self.get("tools") else f"[{tool}]"

    def spliced(
        self, *, messages: bytes | None = None, model: str | None = None, members: Mapping[str, str] | None = None
    ) -> bytes:
        """The bytes to forward: without the extension, and with `messages` and `model` replaced if given.

        `members` maps other members to their new JSON text; those that the body does not have are added at its end.
        """
        edits: list[tuple[int, int, bytes]] = []
        if members:
            edits += [self._member_edit(key, text) for key, text in members.items()]
        if messages is not None:
            edits.append((*self._span("messages"), messages))
        if model is not None:
            edits.append((*self._span("model"), json.dumps(model).encode()))
        if EXTENSION in self.envelope.members:
            edits.append((*self._removal(EXTENSION), b""))
        if not edits:
            return self.data
        if self.hole is not None and messages is None:
            at = self.members["messages"].end - 1
            edits.append((at, at, self.data[self.hole]))
        return _edited(self.envelope.text, edits)

    def _member_edit(self, key: str, text: str) -> tuple[int, int, bytes]:
        """The edit that sets a member to a value, or adds it."""
        if key in self.members:
            return (*self._span(key), text.encode())
        end = max(member.end for member in self.members.values())
        return end, end, f",{json.dumps(key)}:{text}".encode()

    def _span(self, key: str) -> tuple[int, int]:
        member = self.members[key]
        return member.value_start, member.end

    def _removal(self, key: str) -> tuple[int, int]:
        """The span of a member and of one comma beside it, if there is any."""
        member, text = self.members[key], self.envelope.text
        after = skip_space(text, member.end)
        if text[after] == ",":
            return member.start, skip_space(text, after + 1)
        before = text.rfind(",", 0, member.start)
        is_first = before < 0 or skip_space(text, before + 1) < member.start
        return (member.start if is_first else before), member.end


def read(data: bytes, cache: MessageCache | None = None, bounds: Bounds = DEFAULT_BOUNDS, *, owner: str = "") -> Body:
    """Reads a body, without parsing again what is in the `cache` of the tenant that owns it.

    Raises `BadRequest` that says what is wrong where, and `BodyTooLarge` if the bounds are exceeded.
    """
    body = None if cache is None else _result(_recognised(data, cache, bounds, owner))
    return body or _parse_all(data, bounds, owner)


async def read_in_turns(data: bytes, cache: MessageCache, bounds: Bounds, *, owner: str = "") -> Body:
    """Reads a body as `read` does, but lets other requests run meanwhile if it is large."""
    body = await _recognised(data, cache, bounds, owner)
    if body is None and len(data) > _MAX_INLINE:
        return await asyncio.to_thread(_parse_all, data, bounds, owner)
    return body or _parse_all(data, bounds, owner)


def _result(reading: Coroutine[Any, Any, Body | None]) -> Body | None:
    """The result of a coroutine that waits for nothing but its next turn."""
    while True:
        try:
            reading.send(None)
        except StopIteration as end:
            body: Body | None = end.value
            return body


async def _recognised(data: bytes, cache: MessageCache, bounds: Bounds, owner: str) -> Body | None:
    """The body, its messages read through the cache.

    None if only the slow path knows whether anything is wrong, and what; also if the first `"messages":[` is not the
    member `messages`.
    """
    opening = _MESSAGES.search(data)
    if opening is None:
        return None
    start, tally = opening.end(), Tally(bounds, len(data))
    try:
        elements, units, end = await cache.read_array(data, start, tally, owner)
        envelope = cache.envelopes.read(data[:start], data[end:], tally, owner)
    except (ValueError, RecursionError, BadRequest):
        return None
    return None if envelope is None else Body(data, envelope, elements, units, slice(start, end))


def _parse_all(data: bytes, bounds: Bounds, owner: str) -> Body:
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadRequest(f"The request body is not valid UTF-8 (byte {error.start}).") from None
    try:
        envelope = Envelope(text, scan_members(text, Tally(bounds, len(data))))
        elements = _parsed_elements(envelope.members, owner)
    except RecursionError:
        raise BadRequest(TOO_DEEP) from None
    except ValueError as error:
        raise BadRequest(f"The request body is not valid JSON: {error}.") from None
    return Body(data, envelope, elements, elements)


def _parsed_elements(members: Mapping[str, Member], owner: str) -> list[Element]:
    """The messages of a fully parsed body; raises `BadRequest` that names the one that is wrong."""
    member = members.get("messages")
    if member is None:
        raise BadRequest("The request body has no 'messages'.", param="messages")
    if not isinstance(member.value, list):
        raise BadRequest("'messages' must be an array of messages.", param="messages")
    if not member.value:
        raise BadRequest("'messages' must not be empty.", param="messages")
    for i, (value, _) in enumerate(member.value):
        if not isinstance(value, dict):
            raise BadRequest(f"messages[{i}] must be an object.", param=f"messages[{i}]")
        if not isinstance(value.get("role"), str):
            raise BadRequest(f"messages[{i}] has no 'role', or one that is no string.", param=f"messages[{i}].role")
    return [Element(text.encode(), value, owner) for value, text in member.value]


def _edited(text: str, edits: Sequence[tuple[int, int, bytes]]) -> bytes:
    """The text as UTF-8, each span [start, end) of `edits` replaced by its bytes."""
    parts: list[bytes] = []
    done = 0
    for start, end, new in sorted(edits):
        parts += (text[done:start].encode(), new)
        done = end
    parts.append(text[done:].encode())
    return b"".join(parts)


def without_extension(data: bytes) -> bytes:
    """A body that cannot be read, without the extension where that can be found; nothing is parsed."""
    parts: list[bytes] = []
    depth = done = 0
    start: int | None = None
    comma: int | None = None
    for token in _TOKEN.finditer(data if len(data) <= _MAX_UNREAD else b""):
        mark = token[0]
        depth += (mark in (b"{", b"[")) - (mark in (b"}", b"]"))
        is_over = depth == 0 and mark == b"}"
        if is_over or (depth == 1 and mark == b","):
            if start is not None:
                parts.append(data[done : start if comma is None else comma])
                done = token.start() if is_over or comma is not None else token.end()
            if is_over:
                break
            comma = comma if start is not None and comma is None else token.start()
            start = None
        elif depth == 1 and token[1]:
            start = token.start()
    return b"".join([*parts, data[done:]])
