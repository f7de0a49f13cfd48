"""The relay: an upstream's answer, byte for byte, to the client.

Two things end a relay early. When the client goes away, the upstream call is cancelled, also while the upstream is
silent: so a second task waits for the disconnect all the time. When the upstream breaks off in the middle of an
event stream, the client gets one error event and a close without `[DONE]`, for no status can be sent any more.

Before the last byte leaves, `settle` is awaited: what the next request depends on is stored by then. The last byte
is known where the answer says its length, or is a stream that ends with `[DONE]`; else it is the end itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from proxy.errors import UpstreamUnavailable
from proxy.headers import Headers, first, to_client
from proxy.upstream import UpstreamReply

T = TypeVar("T")
_DONE = b"data: [DONE]"


class ClientGone(Exception):
    """The client closed its connection."""


class Relay(Response):
    """An ASGI response that passes on a reply; `settle` is awaited before the last byte, `close` at the end."""

    def __init__(
        self,
        reply: UpstreamReply,
        ours: Headers,
        settle: Callable[[], Awaitable[None]] | None = None,
        close: Callable[[], None] | None = None,
    ) -> None:
        self._reply = reply
        self._ours = ours
        self._settle = settle
        self._close = close
        self.status_code = reply.status
        self.background = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Streams until the upstream ends or the client is gone."""
        try:
            await unless_gone(receive, self._stream(send))
        except ClientGone:
            pass
        finally:
            await self._reply.close()
            if self._close is not None:
                self._close()

    async def _stream(self, send: Send) -> None:
        headers = [*to_client(self._reply.headers), *self._ours]
        await send({"type": "http.response.start", "status": self._reply.status, "headers": headers})
        left = _length(headers)
        try:
            async for chunk in self._reply.chunks():
                left -= len(chunk)
                if left == 0 or _DONE in chunk[-32:]:
                    await self._settled()
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
        except UpstreamUnavailable as error:
            if not _is_event_stream(headers):
                raise
            event = b"data: " + error.to_json() + b"\n\n"
            await send({"type": "http.response.body", "body": event, "more_body": True})
        else:
            await self._settled()
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _settled(self) -> None:
        settle, self._settle = self._settle, None
        if settle is not None:
            await settle()


async def unless_gone(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """Runs `work`; when the client disconnects first, cancels it and raises `ClientGone`."""
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ClientGone
    finally:
        for each in (task, gone):
            each.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _length(headers: Headers) -> int:
    """The bytes that the answer says it has; -1 where it does not."""
    value = first(headers, b"content-length")
    return int(value) if value and value.isdigit() else -1


def _is_event_stream(headers: Headers) -> bool:
    return (first(headers, b"content-type") or "").startswith("text/event-stream")
