"""Relays an upstream's reply to the client, byte for byte.

Two events end a relay early. When the client disconnects, the upstream call is cancelled (`ClientStream`).
When the upstream breaks off in the middle of an event stream, the client gets one error event in place of the last
event, since a status can no longer be sent; in the middle of anything else the client's connection breaks off too.

Before the last byte is sent, the reply is settled: whatever the next request depends on is stored by then. The relay
recognises the last byte by the reply's content length, or by the event that ends a stream of the protocol. If neither
shows it, the reply is settled when the upstream ends it.

If a reply must be settled and cannot be, a stream ends with an error event. A reply in one piece is held back until it
is settled, so that an error can replace it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass
from typing import Any, Protocol

from starlette.types import Message, Receive, Scope, Send

from proxy.errors import DEFECT, ProxyError
from proxy.http.headers import Headers, encode_headers, encoding_of, first, is_event_stream, is_success, to_client
from proxy.http.sse import between_events
from proxy.protocols.endpoint import Endpoint
from proxy.protocols.watching import MAX_HELD, UsageRemover
from proxy.servers.upstream import UpstreamReply
from proxy.turn.reading import ClientGone, ClientStream

Settle = Callable[[], Awaitable[None] | None]
"""Called when a reply is complete. Returns an awaitable that stores what is still to be stored, or None."""

_LENGTH = b"content-length"
_HELD = 1024 * 1024  # the bytes of a stream's last event that are held until it is complete
_END = 4  # bytes at the end of an event that show it
_log = logging.getLogger(__name__)


class KeepAlive:
    """Sends one client its reply, and a sign of life (`beat`) in the pauses of an event stream whose head has left.

    Before the upstream's own head nothing is sent: its status and headers must reach the client, however late they
    come. After it a stream may pause, for example while the proxy searches and asks the upstream again. A beat is sent
    only between two events, whenever `interval` seconds pass there, so that every event of the reply passes as it came.
    """

    def __init__(self, send: Send, interval: float, beat: bytes) -> None:
        self._send = send
        self._interval = interval
        self._beat = beat
        self._end = b""  # the newest bytes that were sent
        self._is_between_messages = False
        self._last = 0.0  # when something was sent, by the event loop's clock
        self._timer: asyncio.TimerHandle | None = None
        self._beating: asyncio.Task[None] | None = None

    async def send(self, message: Message) -> None:
        """Sends a message of the reply, after a beat that is being sent."""
        self._is_between_messages = False
        if self._beating is not None:
            await self._beating
            self._beating = None
        await self._send(message)
        loop = asyncio.get_running_loop()
        self._last = loop.time()
        if message["type"] == "http.response.start":
            if allows_beats(message["status"], message["headers"]):
                self._timer = loop.call_later(self._interval, self._on_timer)
        elif not message.get("more_body"):
            self._stop_timer()
        else:
            self._end = (self._end + message["body"])[-_END:]
        self._is_between_messages = True

    async def stop(self) -> None:
        """Sends no more beats; one that is being sent is finished first."""
        self._stop_timer()
        if self._beating is not None:
            await self._beating

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _on_timer(self) -> None:
        # Messages do not set the timer anew, because a stream has many and pauses seldom.
        loop = asyncio.get_running_loop()
        left = self._last + self._interval - loop.time()
        if left <= 0:
            left = self._interval
            is_free = self._is_between_messages and (self._beating is None or self._beating.done())
            if is_free and not between_events(self._end):
                message = {"type": "http.response.body", "body": self._beat, "more_body": True}
                self._beating = asyncio.ensure_future(self._send(message))
        self._timer = loop.call_later(left, self._on_timer)


def allows_beats(status: int, headers: Headers) -> bool:
    """Whether events of the proxy's own may follow this head.

    They need a successful event stream of plain bytes, whose head announces no length.
    """
    is_open = first(headers, b"content-length") is None and not encoding_of(headers)
    return is_open and is_success(status) and is_event_stream(headers)


class Watching(Protocol):
    """What reads along while a reply is relayed."""

    def feed(self, chunk: bytes) -> None: ...


@dataclass(slots=True)
class Relay:
    """An ASGI app that passes on a reply, and settles it before the last byte.

    `own_headers` are added to those of the upstream. `watched` is fed the reply, and then `settle` is called. The
    awaitable that `settle` returns is awaited in a task started by `start_task`, which continues even if the client
    leaves. A defect in `watched` or `settle` is logged and does not stop the reply. `follow` is called after a complete
    reply has been sent and settled. An `editor` changes the bytes that are passed on.
    """

    endpoint: Endpoint
    client: ClientStream
    reply: UpstreamReply
    own_headers: Headers
    _: KW_ONLY
    settle: Settle | None = None
    watched: Watching | None = None
    follow: Callable[[], None] | None = None
    editor: UsageRemover | None = None
    start_task: Callable[[Coroutine[Any, Any, None]], asyncio.Future[None]] = asyncio.ensure_future
    must_settle: bool = False  # whether a `ProxyError` that `settle` raises replaces what has not been sent yet
    has_sent_all: bool = False
    """Whether the last event of a stream has been sent; some clients leave then, before the stream ends."""
    error: ProxyError | None = None  # what ended the reply before its end
    _storing: asyncio.Future[None] | None = None
    _unsettled: ProxyError | None = None
    _newest: bytes = b""  # the newest bytes that were sent
    _last_event: bytes = b""  # the part of it that has come, until it is complete
    _is_complete: bool = False
    _is_over: bool = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Streams until the upstream ends or the client disconnects."""
        with suppress(ClientGone), self.client.unless_gone():
            await self.pass_on(send)

    async def pass_on(self, send: Send) -> None:
        """Streams until the upstream ends, for a caller that watches the client itself (`ClientStream.unless_gone`)."""
        try:
            await self._stream(send)
        finally:
            self.client.close()
            await self.reply.close()
            if self.follow is not None and self._is_complete:
                self._follow_up(self.follow)

    async def _stream(self, send: Send) -> None:
        headers = to_client(self.reply.headers) + self.own_headers
        in_events = is_event_stream(headers)
        if self.editor is not None or self.must_settle:
            # Editing, or an error in place of the end, changes the length of the body.
            headers = [pair for pair in headers if pair[0] != _LENGTH]
        held = _Held(send) if self.must_settle and not in_events else None
        passing = held or send
        await passing({"type": "http.response.start", "status": self.reply.status, "headers": headers})
        try:
            await self._pass_all(passing, held, in_events=in_events)
        except ProxyError as error:
            self.error = error.with_traceback(None)  # in which this relay is
            if error is not self._unsettled:
                # Not its message: that may quote the upstream, which may quote the request.
                _log.warning("an upstream broke off in the middle of its reply: %s", error.code)
            if in_events and not self._is_over:
                rest = self._edit(b"", is_last=True)
                sent = self._newest + rest
                last = between_events(sent) + self.endpoint.error_event(error, sent)
                await send(body_message(rest + last, more=False))
            elif held is not None:
                headers = [(b"content-type", b"application/json"), *encode_headers(error.headers)]
                await send({"type": "http.response.start", "status": error.status, "headers": headers})
                await send(body_message(self.endpoint.error_body(error), more=False))
        else:
            if held is not None:
                await held.release()

    async def _pass_all(self, send: Send, held: _Held | None, *, in_events: bool) -> None:
        """Passes on the whole reply; raises `UpstreamUnavailable`, or the error that kept it from being settled."""
        length = first(self.reply.headers, _LENGTH)
        bytes_left = int(length) if length and length.isdigit() else -1  # -1 if the length is not known
        async for chunk in self.reply.chunks():
            bytes_left -= len(chunk)
            if self.watched is not None:
                self._feed(self.watched, chunk)
            is_last = bytes_left == 0
            edited = chunk if self.editor is None else self._edit(chunk, is_last=is_last)
            if in_events:
                await self._pass_events(send, edited, is_last=is_last)
            else:
                if is_last:
                    await self._settle_reply()
                await self._send(send, edited, more=not is_last)
            if is_last or (held is not None and held.size > MAX_HELD):
                break
        if not self._is_over:
            await self._settle_reply()
            rest = b"" if self.editor is None else self._edit(b"", is_last=True)
            await self._send(send, self._last_event + rest, more=False)

    async def _send(self, send: Send, chunk: bytes, *, more: bool) -> None:
        self._is_over = not more
        await send({"type": "http.response.body", "body": chunk, "more_body": more})
        self._newest = chunk or self._newest

    def _edit(self, chunk: bytes, *, is_last: bool) -> bytes:
        if self.editor is None:
            return chunk
        return self.editor.feed(chunk) + (self.editor.end() if is_last else b"")

    async def _pass_events(self, send: Send, chunk: bytes, *, is_last: bool) -> None:
        """Sends a chunk of a stream. The last event waits until the reply is settled, but nothing before it does."""
        at = 0 if self._last_event else self.endpoint.last_event_at(chunk, self._newest)
        if at < 0 and not is_last:
            await self._send(send, chunk, more=True)
            return
        before, last = (chunk[:at], self._last_event + chunk[at:]) if at >= 0 else (b"", chunk)
        is_whole = is_last or not self.endpoint.last_event_has_data or not between_events(last)
        if not is_whole and len(last) > _HELD:
            before, last = before + last[:-_END], last[-_END:]
        self._last_event = b"" if is_whole else last
        if before:
            try:
                await self._send(send, before, more=True)
            finally:
                # A client that disconnects now has had its whole reply.
                if is_whole:
                    self._begin_to_settle()
        if is_whole:
            await self._settle_reply()
            await self._send(send, last, more=not is_last)
            self.has_sent_all = True

    def _begin_to_settle(self) -> None:
        if self._is_complete:
            return
        self._is_complete = True
        try:
            storing = self.settle() if self.settle else None
        except Exception:  # noqa: BLE001
            self._note_defect()
            return
        if storing is not None:
            self._storing = self.start_task(self._store(storing))

    async def _store(self, storing: Awaitable[None]) -> None:
        try:
            await storing
        except ProxyError as error:
            self._unsettled = error
        except Exception:  # noqa: BLE001
            self._note_defect()

    def _note_defect(self) -> None:
        _log.exception("work at the end of a reply failed")
        self._unsettled = ProxyError(DEFECT) if self.must_settle else None

    async def _settle_reply(self) -> None:
        self._begin_to_settle()
        if self._storing is not None:
            await asyncio.shield(self._storing)
        if self._unsettled is not None:
            raise self._unsettled

    def _follow_up(self, follow: Callable[[], None]) -> None:
        """Calls `follow` after a complete reply, once that is stored, even if the client left at its last event."""
        storing = self._storing
        if storing is None or storing.done():
            follow()
        else:
            storing.add_done_callback(lambda _: follow())

    def _feed(self, watched: Watching, chunk: bytes) -> None:
        try:
            watched.feed(chunk)
        except Exception:  # noqa: BLE001
            self.watched = None
            _log.exception("reading a reply failed")


class _Held:
    """A `send` that keeps the messages of a reply back until they are released."""

    def __init__(self, send: Send) -> None:
        self.size = 0
        self._send = send
        self._messages: list[Message] = []

    async def __call__(self, message: Message) -> None:
        self.size += len(message.get("body", b""))
        self._messages.append(message)

    async def release(self) -> None:
        for message in self._messages:
            await self._send(message)


def body_message(chunk: bytes, *, more: bool) -> Message:
    return {"type": "http.response.body", "body": chunk, "more_body": more}
