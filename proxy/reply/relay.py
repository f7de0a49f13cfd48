"""The relay: an upstream's answer, byte for byte, to the client.

Two things end a relay early. When the client goes away, the upstream call is cancelled, also while the upstream is
silent: so the disconnect is waited for, from a moment after the request's body has been read. When the upstream breaks
off in the middle of an event stream, the client gets one error event and a close without `[DONE]`, for no
status can be sent any more; in the middle of anything else it gets a connection that breaks off too.

Before the last byte leaves, the reply is settled: what the next request depends on is stored by then. The last byte
is known where the answer says its length, or is a stream that ends with `[DONE]`; else it is the end itself.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from typing import Any, TypeVar

from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from proxy.errors import UpstreamUnavailable
from proxy.http.headers import Headers, first, to_client
from proxy.http.sse import event, is_event_stream
from proxy.reply.capture import Capture
from proxy.reply.opening import UpstreamAnswer
from proxy.reply.reporting import Editor

SOON = 0.05
"""Seconds of a piece of work before the client is watched: a reply that comes at once is not worth a task for that."""
CLIENT_CLOSED_REQUEST = 499  # for the access log: whom it is sent to has left

T = TypeVar("T")
Settle = Callable[[Mapping[str, Any] | None], Awaitable[None] | None]
"""Called when a reply has come whole, with its message where that is wanted; gives what is still to be stored of it."""

_DONE = b"data: [DONE]"
_LONGEST_DONE = 32
_LENGTH = b"content-length"
_log = logging.getLogger(__name__)


class ClientGone(Exception):
    """The client closed its connection."""


class Incoming:
    """The client's side of a request: its body, and whether it is still there."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._read = asyncio.Event()
        self._watch: _Watch | None = None
        self._watching: asyncio.TimerHandle | asyncio.Task[None] | None = None
        self._has_left = False

    async def body(self) -> AsyncIterator[bytes]:
        """The parts of the body as they come in; raises `ClientGone`."""
        while (part := await self.part()) is not None:
            if part:
                yield part

    async def part(self) -> bytes | None:
        """The next part of the body, which may be empty, None behind the last; raises `ClientGone`."""
        if self._read.is_set():
            return None
        message = await self._receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        if not message.get("more_body", False):
            self._read.set()
        part: bytes = message.get("body", b"")
        return part

    async def gone(self) -> None:
        """Returns when the client has left; says nothing before the body has been read."""
        await self._read.wait()
        while (await self._receive())["type"] != "http.disconnect":
            pass

    async def unless_gone(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs `work`; when the client leaves first, cancels it and raises `ClientGone`.

        As with `asyncio.timeout`, the work runs in the caller's task: only watching costs a task, where the work takes
        longer than a moment. That is kept for the work which follows on what has ended well; `close` ends it.
        """
        watch = self._watched()
        try:
            return await work
        except BaseException as error:
            self.close()
            if isinstance(error, asyncio.CancelledError) and watch.is_the_only_one():
                raise ClientGone from None
            raise
        finally:
            self._watch = None
            watch.forget()

    def close(self) -> None:
        """Watches the client no longer."""
        if self._watching is not None:
            self._watching.cancel()
            self._watching = None

    def _watched(self) -> _Watch:
        """What cancels the caller's task when the client leaves, or soon where it has left already."""
        watch = self._watch = _Watch()
        if self._has_left:
            asyncio.get_running_loop().call_soon(watch.strike)
        elif self._watching is None:
            self._watching = asyncio.get_running_loop().call_later(SOON, self._begin_to_watch)
        return watch

    def _begin_to_watch(self) -> None:
        self._watching = asyncio.ensure_future(self._until_gone())

    async def _until_gone(self) -> None:
        await self.gone()
        self._has_left = True
        if self._watch is not None:
            self._watch.strike()


class _Watch:
    """Cancels the task that made it when it is struck, unless it was forgotten before."""

    def __init__(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._before = task.cancelling()
        self._struck = self._is_over = False

    def strike(self) -> None:
        if not self._is_over:
            self._struck = True
            self._task.cancel()

    def is_the_only_one(self) -> bool:
        """Whether nobody else has cancelled the task."""
        return self._struck and self._task.cancelling() == self._before + 1

    def forget(self) -> None:
        """Takes the cancellation back: what became of it is the caller's matter now."""
        self._is_over = True
        if self._struck:
            self._task.uncancel()


class Relay(Response):
    """An ASGI response that passes on a reply, and settles it before the last byte.

    Where there is a `capture`, it is fed the reply, and `settle` is given the message that it makes. What `settle`
    gives is awaited too, in a task that `own` starts: that goes on though the client has left. A defect in either is
    logged, and the reply goes on. Where the reply came in whole, `follow` is called when it has left and is settled.
    An `editor` changes what is passed on.
    """

    def __init__(
        self,
        incoming: Incoming,
        reply: UpstreamAnswer,
        ours: Headers,
        settle: Settle | None = None,
        capture: Capture | None = None,
        follow: Callable[[], None] | None = None,
        editor: Editor | None = None,
        own: Callable[[Coroutine[Any, Any, None]], asyncio.Future[None]] = asyncio.ensure_future,
    ) -> None:
        self._incoming = incoming
        self._editor = editor
        self._reply = reply
        passed = to_client(reply.headers)
        if editor is not None:
            # A body that is changed on its way has another length.
            passed = [pair for pair in passed if pair[0] != _LENGTH]
        self._sent = passed + ours
        self._settle = settle
        self._storing: asyncio.Future[None] | None = None
        self._is_whole = False
        self._capture = capture
        self._follow = follow
        self._own = own
        self.status_code = reply.status
        self.background = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Streams until the upstream ends or the client is gone."""
        try:
            await self._incoming.unless_gone(self._stream(send))
        except ClientGone:
            pass
        finally:
            self._incoming.close()
            await self._reply.close()
            self._followed()

    async def _stream(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self._reply.status, "headers": self._sent})
        left, in_events = _length(self._reply.headers), is_event_stream(self._sent)
        tail = b""
        whole = False
        try:
            async for chunk in self._reply.chunks():
                left -= len(chunk)
                whole = left == 0
                self._noted(chunk)
                edited = self._edited(chunk, whole=whole)
                await self._pass_on(send, edited, _done_at(edited, tail) if in_events else -1, whole=whole)
                tail = edited[-4:] or tail
        except UpstreamUnavailable as error:
            # Its message may quote what the upstream has said, and that the request.
            _log.warning("an upstream broke off in the middle of its reply: %s", error.code)
            if not whole and in_events:
                rest = self._edited(b"", whole=True)
                await send(_body(rest + _event(error, (tail + rest)[-4:]), more=False))
            return
        await self._settled()
        if not whole:
            await send(_body(self._edited(b"", whole=True), more=False))

    def _edited(self, chunk: bytes, *, whole: bool) -> bytes:
        if self._editor is None:
            return chunk
        return self._editor.feed(chunk) + (self._editor.end() if whole else b"")

    async def _pass_on(self, send: Send, chunk: bytes, done: int, *, whole: bool) -> None:
        """Sends a chunk, in which the stream's end stands at `done`, -1 where it has none.

        What ends the reply waits for what is stored; what came in with it does not.
        """
        if done > 0:
            try:
                await send(_body(chunk[:done]))
            finally:
                # A client that leaves meanwhile has had its whole reply.
                self._begin_to_settle()
        if whole or done >= 0:
            await self._settled()
        await send(_body(chunk[max(done, 0) :], more=not whole))

    def _begin_to_settle(self) -> None:
        if self._is_whole:
            return
        self._is_whole = True
        try:
            message = self._capture.message() if self._capture else None
            storing = self._settle(message) if self._settle else None
        except Exception:  # noqa: BLE001
            _log.exception("a reply was not settled")
            return
        if storing is not None:
            self._storing = self._own(_guarded(storing))

    async def _settled(self) -> None:
        self._begin_to_settle()
        if self._storing is not None:
            await asyncio.shield(self._storing)

    def _followed(self) -> None:
        """Has a reply followed that came in whole, though the client may have gone at its last event."""
        follow, storing = self._follow, self._storing
        if follow is None or not self._is_whole:
            return
        if storing is None or storing.done():
            follow()
        else:
            storing.add_done_callback(lambda _: follow())

    def _noted(self, chunk: bytes) -> None:
        try:
            if self._capture is not None:
                self._capture.feed(chunk)
        except Exception:  # noqa: BLE001
            self._capture = None
            _log.exception("a reply was not read")


async def _guarded(storing: Awaitable[None]) -> None:
    try:
        await storing
    except Exception:  # noqa: BLE001
        _log.exception("a reply was not settled")


def _done_at(chunk: bytes, tail: bytes) -> int:
    """Where in a chunk behind the bytes `tail` the event stands that ends a stream; -1 where it does not end with one.

    A text may speak of it, but not in a line of its own: in a stream's JSON there are no bare line ends. Comments may
    follow it.
    """
    at = chunk.rfind(_DONE, -_LONGEST_DONE)
    if at < 0 or (chunk[:at] or tail)[-1:] not in b"\r\n":
        return -1
    ends, *behind = chunk[at + len(_DONE) :].splitlines() or [b""]
    return at if not ends and all(not line or line.startswith(b":") for line in behind) else -1


def _body(part: bytes, *, more: bool = True) -> Message:
    return {"type": "http.response.body", "body": part, "more_body": more}


def _event(error: UpstreamUnavailable, tail: bytes) -> bytes:
    """An error as an event of its own, also where the upstream broke off inside of one."""
    between = b"" if not tail or tail.endswith((b"\n\n", b"\r\n\r\n", b"\r\r")) else b"\n\n"
    return between + event(error.to_json())


def _length(headers: Headers) -> int:
    """The bytes that the answer says it has; -1 where it does not."""
    value = first(headers, b"content-length")
    return int(value) if value and value.isdigit() else -1
