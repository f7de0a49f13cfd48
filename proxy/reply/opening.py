"""The opening of a reply: what must be read of it before a byte goes to the client.

An upstream that refuses a prompt for its length says so with an error status, with an error body under a good status,
or with an error as the first event of a stream. Where that may be, the beginning is held back until it is known: a
whole error body, or the first event. It is not held for long, nor for much; then it goes on as it came, byte for
byte. Many servers begin a stream by saying who speaks, before they have looked at the prompt: behind that the next
event is waited for too, but only for a moment, for a client takes it for the sign that its answer is being written.
"""

from __future__ import annotations

import asyncio
import re
import zlib
from collections.abc import AsyncIterator, Mapping
from http import HTTPStatus
from typing import NamedTuple, Protocol

from proxy.errors import UpstreamUnavailable
from proxy.http.content_encoding import decoder
from proxy.http.headers import Headers, first
from proxy.http.sse import is_event_stream
from proxy.overflow import Refusal, recognise
from proxy.overflow.reading import tells_error
from proxy.request.loose_json import json_or_none

MOST_HELD = 256 * 1024  # bytes
LONGEST_HELD = 10.0  # seconds
MOMENT = 0.25  # seconds that an event is held which says no more than who speaks
_REFUSING = (HTTPStatus.BAD_REQUEST, HTTPStatus.REQUEST_ENTITY_TOO_LARGE, HTTPStatus.UNPROCESSABLE_ENTITY)
_BEGINNING = re.compile(rb"(?:(?::[^\r\n]*)?(?>\r\n|\r|\n))*data:(?P<data>[^\r\n]*)(?>\r\n|\r|\n){2}")
"""The first event of a stream, with the comments before it, where it is one line of data."""
_ERROR, _CHOICES = b'"error"', b'"choices"'


class UpstreamAnswer(Protocol):
    """A reply whose head is there; `chunks` may be iterated once."""

    status: int
    headers: Headers

    def chunks(self) -> AsyncIterator[bytes]:
        """The body's bytes as they come in; raises `UpstreamUnavailable`."""
        ...

    async def close(self) -> None:
        """Ends the call."""
        ...


class _Begun(NamedTuple):
    """What is held of a reply, decoded, None where it cannot be: behind an event that `greets`, where it has one."""

    body: bytes | None
    greets: bool
    is_enough: bool


class OpenedReply:
    """A reply of which the beginning is read first; `chunks` give all of it."""

    def __init__(self, reply: UpstreamAnswer) -> None:
        self.status = reply.status
        self.headers = reply.headers
        self._reply = reply
        self._chunks = aiter(reply.chunks())
        self._is_stream = is_event_stream(reply.headers)
        self._held: list[bytes] = []
        self._next: asyncio.Task[bytes | None] | None = None

    async def chunks(self) -> AsyncIterator[bytes]:
        """The body's bytes as they come in; raises `UpstreamUnavailable`."""
        for chunk in self._held:
            yield chunk
        if self._next is not None:
            pending, self._next = self._next, None
            if (late := await pending) is None:
                return
            yield late
        async for chunk in self._chunks:
            yield chunk

    async def close(self) -> None:
        """Ends the call."""
        if self._next is not None:
            self._next.cancel()
            await asyncio.gather(self._next, return_exceptions=True)
        await self._reply.close()

    async def beginning(self) -> bytes | None:
        """As much of the body, decoded, as it takes to know what it refuses; None where it cannot be decoded.

        Of a stream the events are left out that say only who speaks.
        """
        clock = asyncio.get_running_loop().time
        deadline = clock() + LONGEST_HELD
        begun = self._begun()
        while not begun.is_enough and sum(map(len, self._held)) < MOST_HELD:
            if begun.greets:
                deadline = min(deadline, clock() + MOMENT)
            if not await self._held_one_more(deadline):
                break
            begun = self._begun()
        return begun.body

    async def _held_one_more(self, deadline: float) -> bool:
        """Whether there was another chunk before a time of the loop's clock."""
        if self._next is None:
            self._next = asyncio.ensure_future(_following(self._chunks))
            await asyncio.sleep(0)  # what came in with the head is there at the task's first step
        if not self._next.done():
            await asyncio.wait({self._next}, timeout=max(deadline - asyncio.get_running_loop().time(), 0))
        if not self._next.done() or isinstance(self._next.exception(), UpstreamUnavailable):
            return False  # what it raised, it raises again for who relays it
        chunk = self._next.result()
        if chunk is None:
            return False
        self._next = None
        self._held.append(chunk)
        return True

    def _begun(self) -> _Begun:
        """What is held."""
        body = self._decoded()
        if body is None:
            return _Begun(None, greets=False, is_enough=True)
        greets, rest = _greeted(body) if self._is_stream else (False, body)
        return _Begun(rest, greets, self._tells(rest))

    def _tells(self, body: bytes) -> bool:
        """Whether a beginning tells a refusal from anything else."""
        if self.status >= HTTPStatus.BAD_REQUEST or not self._held:
            return False
        return _has_event(body) if self._is_stream else _ERROR not in body[:2048] or _CHOICES in body[:2048]

    def _decoded(self) -> bytes | None:
        """What is held, without its content encoding; None where that is not known."""
        undoing = decoder(first(self.headers, b"content-encoding") or "")
        try:
            return undoing.feed(b"".join(self._held)) if undoing else None
        except zlib.error:
            return None


class Opened(NamedTuple):
    """A reply, the prompt that it refuses for its length, if it does, and the body of any error that was looked at.

    A body or an event may be an error under a good status too.
    """

    reply: UpstreamAnswer
    refusal: Refusal | None = None
    error: bytes = b""


async def opened(reply: UpstreamAnswer, *, looks: bool) -> Opened:
    """A reply, and what it refuses where one `looks`; ends the call where that is broken off."""
    if not looks:
        return Opened(reply)
    opening = OpenedReply(reply)
    try:
        body = await opening.beginning()
    except BaseException:
        await opening.close()
        raise
    if body is None:
        return Opened(opening)
    return Opened(opening, recognise(reply.status, body), body if _fails(reply.status, body) else b"")


def is_packed_refusal(reply: UpstreamAnswer) -> bool:
    """Whether an error that may refuse a request comes in an encoding that we cannot read, such as br or zstd."""
    return reply.status in _REFUSING and decoder(first(reply.headers, b"content-encoding") or "") is None


def _fails(status: int, body: bytes) -> bool:
    """Whether what was looked at is an error."""
    return status >= HTTPStatus.BAD_REQUEST or tells_error(body)


async def _following(chunks: AsyncIterator[bytes]) -> bytes | None:
    return await anext(chunks, None)


def _has_event(body: bytes) -> bool:
    """Whether an event with data is there whole; comments that keep a connection alive are none."""
    whole = body.replace(b"\r\n", b"\n").replace(b"\r", b"\n").rpartition(b"\n\n")[0]
    return any(line.startswith(b"data:") for line in whole.split(b"\n"))


def _greeted(body: bytes) -> tuple[bool, bytes]:
    """Whether a stream begins with an event that says only who speaks, and what stands behind that."""
    begun = _BEGINNING.match(body)
    if begun is None or not _says_who(json_or_none(begun["data"])):
        return False, body
    return True, body[begun.end() :]


def _says_who(chunk: object) -> bool:
    """Whether a chunk tells a role, and nothing else."""
    choices = chunk.get("choices") if isinstance(chunk, Mapping) else None
    return bool(choices) and isinstance(choices, list) and all(map(_is_greeting, choices))


def _is_greeting(choice: object) -> bool:
    delta = choice.get("delta") if isinstance(choice, Mapping) and choice.get("finish_reason") is None else None
    return isinstance(delta, Mapping) and [key for key, value in delta.items() if value] == ["role"]
