"""Keep-alive: sends bytes to the client of a stream while it waits for the first byte of its reply.

The request is served undisturbed in its own task. A timer beside it sends a sign of life (a "beat") each time the
interval is over. If the reply's head has not been sent by the first beat, a head of the proxy's own is sent: from then
on the status is 200, and `proxy/reply/pending.py` turns whatever the upstream answers into a continuation of that. The
proxy's head is therefore never sent while the request waits for the upstream, whose answer, however late, must reach
the client with its status and headers. A stream that begins in time costs the timer and nothing else.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

from starlette.types import Message, Send

from proxy.errors import UpstreamUnavailable
from proxy.http.headers import Headers
from proxy.reply.pending import Continuation, allows_beats, continuation, early_headers, error_event

T = TypeVar("T")

BROKEN_OFF = "The upstream broke off in the middle of its reply."

_log = logging.getLogger(__name__)


class KeepAlive:
    """Sends beats and then the reply to one client.

    `interval` is in seconds, None for no beats at all; `beat` makes the bytes of one.
    """

    has_sent_head: bool
    """Whether the proxy has sent a head of its own, or is about to."""
    waits_for_upstream: bool
    """To be set while the request waits for the upstream: the proxy's own head is not sent then."""
    decision_headers: Callable[[], list[tuple[str, str]]]
    """Gives the headers of the decision; to be set once there is one."""

    def __init__(self, interval: float | None, beat: Callable[[], bytes]) -> None:
        self.has_sent_head = self.waits_for_upstream = False
        self.decision_headers = list
        self._interval = interval
        self._beat = beat
        self._send: Send
        self._timer: asyncio.TimerHandle | None = None
        self._beating: asyncio.Task[None] | None = None
        self._continuation: Continuation | None = None
        self._reply_head: tuple[int, Headers] | None = None  # set when it has been sent
        self._has_chosen_head = self._has_sent_reply = self._is_over = False

    def start(self, send: Send) -> Send:
        """Starts the timer; the reply must be sent through the function that is returned."""
        if self._interval is None:
            return send
        self._send = send
        self._start_timer(self._interval)
        return self._send_message

    async def own_work(self, work: Awaitable[T]) -> T:
        """Awaits work of the proxy's own that interrupts the wait for the upstream, so that beats may be sent."""
        before, self.waits_for_upstream = self.waits_for_upstream, False
        try:
            return await work
        finally:
            self.waits_for_upstream = before

    async def disable(self) -> None:
        """Sends no more beats, whatever the client waits for."""
        self._interval = None
        await self.stop()

    async def stop(self) -> None:
        """Stops the timer, after a beat that is being sent has been sent."""
        await self._finish_beat()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def close(self) -> None:
        """Stops the timer. If the proxy has begun a stream that the reply has not ended, ends it with an error."""
        await self.stop()
        if self.has_sent_head and not self._is_over:
            between = b"\n\n" if self._has_sent_reply else b""
            await self._send(_body(between + error_event(UpstreamUnavailable(BROKEN_OFF)), more=False))

    async def _finish_beat(self) -> None:
        """Returns when no beat is being sent."""
        if self._beating is not None:
            beating, self._beating = self._beating, None
            await beating

    def _start_timer(self, interval: float) -> None:
        self._timer = asyncio.get_running_loop().call_later(interval, self._on_timer, interval)

    def _on_timer(self, interval: float) -> None:
        self._timer = None
        if self._reply_head is not None and not allows_beats(*self._reply_head):
            return
        if self._must_wait():
            self._start_timer(interval)
            return
        begins = not self._has_chosen_head
        if begins:
            # Set before the task runs: a request that goes upstream meanwhile must know of the head.
            self._has_chosen_head = self.has_sent_head = True
        self._beating = asyncio.ensure_future(self._send_beat(interval, begins=begins))

    def _must_wait(self) -> bool:
        """Whether no beat may be sent yet: while the upstream is to give the head, or its head is being sent."""
        if self._has_chosen_head:
            return self._reply_head is None and not self.has_sent_head
        return self.waits_for_upstream

    async def _send_beat(self, interval: float, *, begins: bool) -> None:
        if begins:
            headers = early_headers(self.decision_headers())
            await self._send({"type": "http.response.start", "status": 200, "headers": headers})
        await self._send(_body(self._beat(), more=True))
        self._start_timer(interval)

    async def _send_message(self, message: Message) -> None:
        """Sends an ASGI message of the reply, or what continues the proxy's own head in its place."""
        if message["type"] == "http.response.start":
            await self._send_head(message)
        else:
            await self._send_body(message.get("body", b""), more=message.get("more_body", False))

    async def _send_head(self, message: Message) -> None:
        await self._finish_beat()
        head = message["status"], message["headers"]
        if self.has_sent_head:
            self._continuation = continuation(*head)
        else:
            self._has_chosen_head = True
            await self._send(message)
            self._reply_head = head

    async def _send_body(self, chunk: bytes, *, more: bool) -> None:
        if self._continuation is not None:
            chunk = self._continuation.feed(chunk) + (b"" if more else self._continuation.end())
        if not chunk and more:
            return
        await self.stop()
        self._has_sent_reply, self._is_over = True, not more
        await self._send(_body(chunk, more=more))


def _body(chunk: bytes, *, more: bool) -> Message:
    return {"type": "http.response.body", "body": chunk, "more_body": more}
