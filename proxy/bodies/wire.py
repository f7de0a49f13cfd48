"""Reads a request body and writes the changed one, so that everything left unchanged keeps its bytes.

Theory of operation. A scan (`proxy/bodies/scanning.py`) gives the value of every member and its place in the text.
`Body.spliced` replaces only the spans that change and never encodes anything else again: the list of messages, the
value of `model` if it carried a suffix, the removed `condenser` member, and single members such as `tools`.

Most of a body is messages that came with an earlier request. So `read_through_cache` compares the array of messages
with cached bytes and leaves it out of the scanned text (`Body.hole`); the text around it is cached as well. If this
fast path fails for any reason, the whole body is parsed instead. Only that slow path decides which bodies are refused,
and with which message. Tests check that both give the same body, for all kinds of bodies and caches.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Collection, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

from proxy.bodies.message_cache import IS_TEXT, Element, MessageCache
from proxy.bodies.scanning import (
    DEFAULT_BOUNDS,
    EXTENSION,
    TOO_DEEP,
    Bounds,
    Envelope,
    Member,
    Tally,
    scan_members,
    skip_space,
)
from proxy.callers.tenants import ALWAYS, Ping, Trust
from proxy.controls import Controls
from proxy.errors import BadRequest
from proxy.http.admission import Place
from proxy.http.headers import PROVES_LOGIN, Headers
from proxy.protocols.endpoint import Endpoint, MalformedElement, Question
from proxy.runtime.owned_tasks import next_step
from proxy.servers import LessonScope
from proxy.servers.upstream.choice import Destination
from strategies.core.messages import dump
from strategies.core.parsing import STEP

# What separates the members of the outermost object: a key of the extension, other strings, brackets and commas.
_TOKEN = re.compile(rb'("condenser"[ \t\n\r]*+:)|"(?:[^"\\]++|\\.)*+"?|[{}\[\],]|[^"{}\[\],]++', re.DOTALL)
_MAX_INLINE = 24 * 1024  # bytes of a body that is parsed as a whole on the event loop, in about half a millisecond
_MAX_OPENING = 256  # bytes of a name and the white space behind it, so that one is found where two steps meet
_MAX_UNREAD = 2 * 1024 * 1024  # in an unreadable body of more bytes the extension is not looked for


class Body(NamedTuple):
    endpoint: Endpoint
    data: bytes  # the body, decompressed
    envelope: Envelope  # the members and their text: all of `data`, or `data` without the messages if there is a `hole`
    values: Mapping[str, Any]
    elements: Sequence[Element]  # the messages, with those that the store has supplied
    size: int  # bytes of the request and of the supplied messages
    is_text: bool  # whether all messages are text only; the bytes of a picture, for example, do not bound its tokens
    has_tools: bool  # whether it offers tools to the model
    hole: slice | None = None
    """The bytes of the messages, which `envelope` leaves out; they belong before the bracket that closes the array."""

    @property
    def threshold(self) -> int | None:
        """The tokens of a prompt at which the client wants its history compacted by the server; None if it does not."""
        return self.endpoint.compact_threshold(self.values)

    def with_supplied(self, stored: Sequence[Element], at: int = 0) -> Body:
        """The same request with `stored` messages among its own, before the one at this index."""
        elements = [*self.elements[:at], *stored, *self.elements[at:]]
        size = self.size + sum(len(element.data) for element in stored)
        is_text = self.is_text and False not in map(IS_TEXT, stored)
        return self._replace(elements=elements, size=size, is_text=is_text)

    def tools_with(self, tool: str) -> str:
        """The JSON text of `tools` with one more tool at the end; the client's own tools keep their bytes."""
        return f"{self.envelope.raw_value('tools')[:-1]},{tool}]" if self.values.get("tools") else f"[{tool}]"

    def spliced(
        self,
        *,
        messages: bytes | None = None,
        model: str | None = None,
        members: Mapping[str, str] | None = None,
        without: Collection[str] = (),
    ) -> bytes:
        """The bytes to forward: without the extension, and with the list of messages and `model` replaced if given.

        `members` maps other members to their new JSON text; those that the body does not have are added at its end.
        Those in `without` are left out.
        """
        changed = {key: text.encode() for key, text in members.items()} if members else {}
        if messages is not None:
            changed[self.endpoint.list_member] = messages
        if model is not None:
            changed["model"] = json.dumps(model).encode()
        edits = [self._member_edit(key, value) for key, value in changed.items()]
        removed = [name for name in (EXTENSION, *without) if name in self.envelope.members]
        edits += [(*self._removal(name, removed), b"") for name in removed]
        if not edits:
            return self.data
        if self.hole is not None and messages is None:
            at = self.envelope.members[self.endpoint.list_member].end - 1
            edits.append((at, at, self.data[self.hole]))
        return _edited(self.envelope.text, edits)

    def _member_edit(self, key: str, value: bytes) -> tuple[int, int, bytes]:
        members = self.envelope.members
        if key in members:
            return members[key].value_start, members[key].end, value
        end = max(member.end for member in members.values())
        return end, end, b",%s:%s" % (json.dumps(key).encode(), value)

    def _removal(self, key: str, removed: Collection[str]) -> tuple[int, int]:
        """The span of a member and of one comma beside it; of several `removed` members, each needs one of its own."""
        member, text, members = self.envelope.members[key], self.envelope.text, self.envelope.members
        after = skip_space(text, member.end)
        kept_before = any(at.start < member.start for name, at in members.items() if name not in removed)
        if text[after] == "," and not (len(removed) > 1 and kept_before):
            return member.start, skip_space(text, after + 1)
        before = text.rfind(",", 0, member.start)
        return (member.start if before < 0 else before), member.end


class ClientRequest(NamedTuple):
    tenant: str
    headers: Headers  # the client's headers to forward, without those that describe a content encoding of the body
    body: Body
    upstream: Destination
    model: str  # the model's id without a strategy suffix
    has_suffix: bool
    controls: Controls
    path: bytes = b""  # the path to forward it to, if that is not the endpoint's own
    query: bytes = b""
    received_at: float = 0.0  # when the request came in, in seconds since the epoch
    encoded_body: bytes = b""  # the body as the client sent it if it had a content encoding, else empty
    encoding_headers: Sequence[tuple[bytes, bytes]] = ()
    trust: Trust = ALWAYS
    place: Place | None = None  # where what is made of it is counted; None for one that nobody sent
    until_answered: AsyncExitStack | None = None  # what is held until the reply has been sent; None if nothing can be

    @property
    def target(self) -> bytes:
        return self.path or self.body.endpoint.path.encode()

    async def prove(self) -> None:
        """Makes sure that the caller may see what is stored; raises `ProxyError`.

        If the upstream must be asked, it is asked a question of one token: nothing stored is sent before the answer.
        """
        if self.trust.may_see_stored:
            return
        endpoint, question = self.body.endpoint, Question(self.model, "", "ping", 1)
        target = self.target.decode() + (f"?{self.query.decode()}" if self.query else "")
        refused = [frozenset(endpoint.reply_limits[:i]) for i in range(len(endpoint.reply_limits))]
        bodies = [endpoint.question(replace(question, without=each)) for each in refused]
        headers = [pair for pair in self.headers if PROVES_LOGIN(pair[0]) or not self.trust.is_claimed]
        await self.trust.prove(headers, Ping(self.upstream.base_url, target, bodies, endpoint.answer))

    @property
    def lesson_scope(self) -> LessonScope:
        """The scope of the lessons that an answer to this request teaches."""
        return LessonScope(self.model, self.tenant, self.upstream.base_url)


async def read_through_cache(
    data: bytes, endpoint: Endpoint, cache: MessageCache, bounds: Bounds, *, owner: str = ""
) -> Body:
    """Reads as `read` does, but parses nothing again that the owner has in the cache; others can run meanwhile."""
    owner = f"{endpoint.dialect.name} {owner}"
    body = await _recognised(data, endpoint, cache, bounds, owner)
    if body is None and len(data) > _MAX_INLINE:
        return await asyncio.to_thread(read, data, endpoint, bounds, owner)
    return body or read(data, endpoint, bounds, owner)


async def _recognised(data: bytes, endpoint: Endpoint, cache: MessageCache, bounds: Bounds, owner: str) -> Body | None:
    """The body, its messages read through the cache.

    None if only the slow path knows whether anything is wrong, and what; also if the first `"messages":[` is not the
    member `messages`.
    """
    pattern, at = _opening(endpoint.list_member), 0
    while (opening := pattern.search(data, at, at + STEP)) is None:
        if (at := at + STEP - _MAX_OPENING) >= len(data):
            return None
        await next_step()
    start, tally = opening.end(), Tally(endpoint, bounds, len(data))
    try:
        elements, end = await cache.read_array(data, start, tally, owner)
        envelope = await cache.envelopes.read(data[:start], data[end:], tally, owner)
    except (ValueError, RecursionError, BadRequest):
        return None
    if envelope is None:
        return None
    return _body(endpoint, data, envelope, elements, slice(start, end))


@cache
def _opening(list_member: str) -> re.Pattern[bytes]:
    return re.compile(rb'"%s"[ \t\n\r]*:[ \t\n\r]*\[[ \t\n\r]*' % list_member.encode())


def read(data: bytes, endpoint: Endpoint, bounds: Bounds = DEFAULT_BOUNDS, owner: str = "") -> Body:
    """Reads a body that came to an endpoint.

    Raises `BadRequest`, which says what is wrong and where, and `BodyTooLarge` if the bounds are exceeded.
    """
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadRequest(f"The request body is not valid UTF-8 (byte {error.start}).") from None
    try:
        envelope = Envelope(text, scan_members(text, Tally(endpoint, bounds, len(data))), endpoint)
        elements = _parsed_elements(envelope.members, endpoint, owner)
    except RecursionError:
        raise BadRequest(TOO_DEEP) from None
    except ValueError as error:
        raise BadRequest(f"The request body is not valid JSON: {error}.") from None
    return _body(endpoint, data, envelope, elements)


def _body(
    endpoint: Endpoint, data: bytes, envelope: Envelope, elements: Sequence[Element], hole: slice | None = None
) -> Body:
    values, systems, is_text = envelope.values, endpoint.dialect.system_roles, False not in map(IS_TEXT, elements)
    has_tools = endpoint.offers_tools(values, (each.data for each in elements if each.role in systems))
    return Body(endpoint, data, envelope, values, elements, len(data), is_text, has_tools, hole)


def _parsed_elements(members: Mapping[str, Member], endpoint: Endpoint, owner: str) -> list[Element]:
    """The messages of a fully parsed body; raises `BadRequest`, which names the one that is wrong."""
    name = endpoint.list_member
    member = members.get(name)
    if member is None:
        if endpoint.list_is_optional:
            return []
        raise BadRequest(f"The request body has no '{name}'.", param=name)
    if isinstance(member.value, str) and endpoint.from_text is not None:
        value = endpoint.from_text(member.value)
        return [Element(dump(value).encode(), value, endpoint, owner)]
    if not isinstance(member.value, list):
        raise BadRequest(f"'{name}' must be an array of messages.", param=name)
    if not member.value and not endpoint.list_is_optional:
        raise BadRequest(f"'{name}' must not be empty.", param=name)
    elements: list[Element] = []
    for value, text in member.value:
        try:
            elements.append(Element(text.encode(), value, endpoint, owner))
        except MalformedElement as error:
            place = f"{name}[{len(elements)}]"
            raise BadRequest(f"{place} {error}", param=place + error.member) from None
    return elements


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
    """An unreadable body without the extension, if that can be found; nothing is parsed."""
    parts: list[bytes] = []
    depth = done = 0
    start: int | None = None
    comma: int | None = None
    for token in _TOKEN.finditer(data if len(data) <= _MAX_UNREAD else b""):
        text = token[0]
        depth += (text in (b"{", b"[")) - (text in (b"}", b"]"))
        is_over = depth == 0 and text == b"}"
        if is_over or (depth == 1 and text == b","):
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
