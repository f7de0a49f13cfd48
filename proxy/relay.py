"""The relay: an upstream's answer, byte for byte, to the client.

Two things end a relay early. When the client goes away, the upstream call is cancelled, also while the upstream is
silent: so the disconnect is waited for all the time, from when the request's body has been read. When the upstream
breaks off in the middle of an event stream, the client gets one error event and a close without `[DONE]`, for no
status can be sent any more; in the middle of anything else it gets a connection that breaks off too.

Before the last byte leaves, `settle` is awaited: what the next request depends on is stored by then. The last byte
is known where the answer says its length, or is a stream that ends with `[DONE]`; else it is the end itself.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from typing import Any, TypeVar

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from proxy.capture import Capture
from proxy.errors import UpstreamUnavailable
from proxy.headers import Headers, first, to_client
from proxy.upstream import UpstreamReply

T = TypeVar("T")
_DONE = b"data: [DONE]"
_log = logging.getLogger(__name__)


class ClientGone(Exception):
    """The client closed its connection."""


class Incoming:
    """The client's side of a request: its body, and whether it is still there."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._read = asyncio.Event()

    async def body(self) -> AsyncIterator[bytes]:
        """The parts of the body as they come in; raises `ClientGone`."""
        more = not self._read.is_set()
        while more:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ClientGone
            more = message.get("more_body", False)
            if part := message.get("body", b""):
                yield part
        self._read.set()

    async def gone(self) -> None:
        """Returns when the client has left; says nothing before the body has been read."""
        await self._read.wait()
        while (await self._receive())["type"] != "http.disconnect":
            pass

    async def unless_gone(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs `work`; when the client leaves first, cancels it and raises `ClientGone`."""
        task = asyncio.ensure_future(work)
        gone = asyncio.ensure_future(self.gone())
        try:
            await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
            raise ClientGone
        finally:
            for each in (task, gone):
                each.cancel()
            await asyncio.gather(task, gone, return_exceptions=True)


class Relay(Response):
    """An ASGI response that passes on a reply; `settle` is awaited before the last byte.

    Where there is a `capture`, it is fed the reply, and `settle` is given the message that it makes.
    `follow` is called at the end where the reply came in whole.
    """

    def __init__(
        self,
        incoming: Incoming,
        reply: UpstreamReply,
        ours: Headers,
        settle: Callable[[Mapping[str, Any] | None], Awaitable[None]] | None = None,
        capture: Capture | None = None,
        follow: Callable[[], None] | None = None,
    ) -> None:
        self._incoming = incoming
        self._reply = reply
        self._sent = [*to_client(reply.headers), *ours]
        self._settle = settle
        self._capture = capture
        self._over: Callable[[], None] | None = None
        self._follow = follow
        self.status_code = reply.status
        self.background = None

    def when_over(self, over: Callable[[], None]) -> None:
        """Has `over` called when all is over, however it ended."""
        self._over = over

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Streams until the upstream ends or the client is gone."""
        try:
            await self._incoming.unless_gone(self._stream(send))
        except ClientGone:
            pass
        finally:
            await self._reply.close()
            # Settled: all of the reply came, though the client may have gone at its last event.
            if self._follow is not None and self._settle is None:
                self._follow()
            if self._over is not None:
                self._over()

    async def _stream(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self._reply.status, "headers": self._sent})
        left = _length(self._sent)
        tail = b""
        try:
            async for chunk in self._reply.chunks():
                left -= len(chunk)
                if self._capture is not None:
                    self._capture.feed(chunk)
                if left == 0 or _DONE in chunk[-32:]:
                    await self._settled()
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
                tail = chunk[-4:]
        except UpstreamUnavailable as error:
            _log.warning("an upstream broke off in the middle of its reply: %s", error.message)
            if not _is_event_stream(self._sent):
                return
            await send({"type": "http.response.body", "body": _event(error, tail), "more_body": True})
        else:
            await self._settled()
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _settled(self) -> None:
        settle, self._settle = self._settle, None
        if settle is not None:
            await settle(self._capture.message() if self._capture else None)


def _event(error: UpstreamUnavailable, tail: bytes) -> bytes:
    """An error as an event of its own, also where the upstream broke off inside of one."""
    between = b"" if not tail or tail.endswith((b"\n\n", b"\r\n\r\n", b"\r\r")) else b"\n\n"
    return between + b"data: " + error.to_json() + b"\n\n"


def _length(headers: Headers) -> int:
    """The bytes that the answer says it has; -1 where it does not."""
    value = first(headers, b"content-length")
    return int(value) if value and value.isdigit() else -1


def _is_event_stream(headers: Headers) -> bool:
    return (first(headers, b"content-type") or "").startswith("text/event-stream")
