"""Keep-alive: signs of life ("beats") in the pauses of an event stream whose head has left.

Before the upstream's own head nothing is sent: its status and headers must reach the client, however late they come.
After it a stream may pause, for example while the proxy searches and asks the upstream again. A beat is sent only
between two events, so that every event of the reply passes as it came.
"""

from __future__ import annotations

import asyncio

from starlette.types import Message, Send

from proxy.http.headers import Headers, encoding_of, first, is_event_stream, is_success
from proxy.http.sse import between_events

_LONGEST_END = 4  # bytes of the longest end of an event


class KeepAlive:
    """Sends one client its reply, and a beat whenever `interval` seconds pass between two events of a stream."""

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
            self._end = (self._end + message["body"])[-_LONGEST_END:]
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
