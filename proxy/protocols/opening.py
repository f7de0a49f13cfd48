"""Inspects the beginning of a reply before any byte of it goes to the client, to recognise a refusal.

An upstream refuses a prompt for its length with an error status, with an error body under a good status, or with an
error as an event of a stream; some answer with an empty reply whose reason is the length. Other refusals, of a form or
of pictures, look alike. The beginning of the reply is held back, up to a bounded size, until the whole error body or
the first event is there, and then passed on byte for byte. Many servers begin a stream with greetings, such as an event
that only gives the role of the speaker, before they have looked at the prompt. If the prompt is so long that it may be
refused, greetings and comments are held back too, however long the next event takes: once they have left, nothing can
be mended. If it may be refused because nobody knows what the server takes, they are held for at most `MAX_SECONDS`.
Otherwise a greeting passes at once, and comments alone after at most `MAX_SECONDS`.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from http import HTTPStatus
from typing import NamedTuple

from proxy.errors import UpstreamUnavailable
from proxy.http.encodings import decoded
from proxy.http.headers import encoding_of, is_event_stream
from proxy.protocols.endpoint import Endpoint
from proxy.protocols.replies import ran_out_empty
from proxy.servers.refusals import NO_REFUSAL, Refusal, Size, Unit, read
from proxy.servers.upstream import UpstreamReply
from proxy.servers.upstream.forwarding import ForwardedReply
from proxy.values import json_or_none

MAX_HELD = 256 * 1024  # bytes
MAX_SECONDS = 10.0  # seconds
_EVENT = re.compile(rb"(?:(?:(?::|event:)[^\r\n]*)?(?>\r\n|\r|\n))*data:(?P<data>[^\r\n]*)(?>\r\n|\r|\n){2}")
"""The next event of a stream, if it is one line of data, with its name and the comments before it."""
_ERROR = b'"error"'
_FIRST = 2048  # bytes at the beginning of a reply in one piece that tell whether it is an error
_EMPTY = 64 * 1024  # the most bytes of a reply in one piece that has no text


class BufferedReply:
    """A reply whose beginning can be read in advance; `chunks` still gives all of it."""

    def __init__(self, endpoint: Endpoint, reply: UpstreamReply) -> None:
        self.status = reply.status
        self.headers = reply.headers
        self._endpoint = endpoint
        self._reply = reply
        self._chunks = aiter(reply.chunks())
        self._is_stream = is_event_stream(reply.headers)
        self._is_encoded = bool(encoding_of(reply.headers))
        self._held: list[bytes] = []
        self._next: asyncio.Task[bytes | None] | None = None

    async def chunks(self) -> AsyncIterator[bytes]:
        """The body's bytes as they come in; raises `UpstreamUnavailable`."""
        for chunk in self._held:
            yield chunk
        if self._next is not None:
            pending, self._next = self._next, None
            if (next_chunk := await pending) is None:
                return
            yield next_chunk
        async for chunk in self._chunks:
            yield chunk

    async def close(self) -> None:
        if self._next is not None:
            self._next.cancel()
            await asyncio.gather(self._next, return_exceptions=True)
        await self._reply.close()

    async def read_beginning(self, *, holds: bool, briefly: bool = False) -> bytes | None:
        """Reads and decodes enough of the body to tell whether it is a refusal; None if it cannot be decoded.

        The greeting of a stream is left out. Less is read if the body ends or breaks off, at the bound of size, unless
        it `holds` after the greeting, and unless it holds other than `briefly` at the bound of time.
        """
        deadline = None if holds and not briefly else asyncio.get_running_loop().time() + MAX_SECONDS
        while (body := self._held_plain()) is not None:
            greeted = self._greeting(body) if self._is_stream else 0
            rest = body[greeted:]
            is_enough = self._is_enough(rest, holds=holds and not briefly) or sum(map(len, self._held)) >= MAX_HELD
            is_enough = is_enough or (greeted > 0 and not holds)
            if is_enough or not await self._hold_one_more(deadline):
                return rest
        return None

    def _held_plain(self) -> bytes | None:
        """What is held, without its content encoding; None if it cannot be decoded."""
        held = b"".join(self._held)
        return decoded(held, self.headers) if self._is_encoded else held

    async def _hold_one_more(self, deadline: float | None) -> bool:
        """Reads one more chunk until `deadline`, a time of the loop's clock; returns whether there was one."""
        if self._next is None:
            # Most bodies come with the head. A task is for those only that must be waited for.
            arrived = self._reply.arrived() if isinstance(self._reply, ForwardedReply) else b""
            if arrived is None:
                return False
            if arrived:
                self._held.append(arrived)
                return True
            self._next = asyncio.ensure_future(_next_chunk(self._chunks))
            await asyncio.sleep(0)  # its first step returns what other replies have already
        if not self._next.done():
            left = None if deadline is None else max(deadline - asyncio.get_running_loop().time(), 0)
            await asyncio.wait({self._next}, timeout=left)
        if not self._next.done() or isinstance(self._next.exception(), UpstreamUnavailable):
            return False  # awaiting the task in `chunks` raises it again, for the relay
        chunk = self._next.result()
        if chunk is None:
            return False
        self._next = None
        self._held.append(chunk)
        return True

    def _greeting(self, body: bytes) -> int:
        """The number of bytes of greetings at the beginning of a stream."""
        at = 0
        while (event := _EVENT.match(body, at)) and self._endpoint.is_greeting(json_or_none(event["data"])):
            at = event.end()
        return at

    def _is_enough(self, body: bytes, *, holds: bool) -> bool:
        """Whether a beginning is enough to recognise a refusal; with an error status the whole body is needed."""
        if self.status >= HTTPStatus.BAD_REQUEST or not self._held:
            return False
        if self._is_stream:
            # A complete event with data; comments that keep a connection alive do not count.
            complete = body.replace(b"\r\n", b"\n").replace(b"\r", b"\n").rpartition(b"\n\n")[0]
            return any(line.startswith(b"data:") for line in complete.split(b"\n"))
        if holds and len(body) <= _EMPTY:
            return False  # an empty reply says at its end why
        return _ERROR not in body[:_FIRST] or self._endpoint.answer.search(body, 0, _FIRST) is not None


class OpenedReply(NamedTuple):
    """A reply, and what was found at its beginning."""

    reply: UpstreamReply  # the reply, of which `chunks` still gives every byte
    refusal: Refusal = NO_REFUSAL  # what it says, if it is an error, whatever the status

    @property
    def is_accepted(self) -> bool:
        """Whether nothing at its beginning refuses the request."""
        return self.reply.status < HTTPStatus.BAD_REQUEST and self.refusal is NO_REFUSAL


async def open_reply(endpoint: Endpoint, reply: UpstreamReply, *, holds: bool, briefly: bool = False) -> OpenedReply:
    """Inspects the beginning of a reply; closes it if that is cancelled or fails.

    With `holds` greetings are held back, `briefly` for at most `MAX_SECONDS`.
    """
    buffered = BufferedReply(endpoint, reply)
    try:
        body = await buffered.read_beginning(holds=holds, briefly=briefly)
    except BaseException:
        await buffered.close()
        raise
    return OpenedReply(buffered) if body is None else inspected(endpoint, buffered, body)


def inspected(endpoint: Endpoint, reply: UpstreamReply, body: bytes) -> OpenedReply:
    """A reply with what its beginning, or all of it, refuses."""
    if ran_out_empty(body):
        return OpenedReply(reply, Refusal(reply.status, (Size(Unit.PROMPT),)))
    return OpenedReply(reply, read(reply.status, body, answer=endpoint.answer, ours=endpoint.added_members))


async def _next_chunk(chunks: AsyncIterator[bytes]) -> bytes | None:
    return await anext(chunks, None)
