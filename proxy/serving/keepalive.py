"""Keep-alive: sends bytes to the client of a stream while it waits for the first byte of its reply.

The request is served undisturbed in its own task. A timer sends a sign of life (a "beat") at each interval. If the
reply's head has not been sent by the first beat, the proxy sends a head of its own. It never does so while the request
waits for the upstream, whose answer, however late, must reach the client with its status and headers. A stream that
begins in time costs the timer and nothing else.

After the proxy's own head the client has the status 200 and the content type of server-sent events, and every reply
must fit them: events are passed on as they come, a reply in one piece becomes an event, and an error takes the form of
errors in the middle of a stream (`Continuation`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

from starlette.types import Message, Send

from proxy.endpoints.endpoint import Endpoint
from proxy.errors import UpstreamUnavailable
from proxy.http.headers import Headers, decoded, encode_headers, encoding_of, first, is_event_stream, is_success
from proxy.reasons import Action
from proxy.serving.relay import body_message

T = TypeVar("T")

BROKEN_OFF = "The upstream broke off in the middle of its reply."

COMMENT = b": keep-alive\n\n"

_HEAD: Headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]

_FINAL = frozenset(f"X-Condenser-{name}" for name in ("Session", "Session-Source", "Strategy", "Tokens-Before", "Head"))
"""Headers whose values no retry changes, so that they can be sent as soon as there is a decision."""

_MAX_QUOTED = 1_000  # characters of an error in a form that the protocol does not know

_log = logging.getLogger(__name__)


class KeepAlive:
    """Sends beats and then the reply to one client; `interval` is in seconds, `beat` makes the bytes of one."""

    def __init__(self, endpoint: Endpoint, interval: float, beat: Callable[[], bytes]) -> None:
        self.has_sent_head = False
        """Whether the proxy has sent a head of its own, or is about to."""
        self.waits_for_upstream = False
        """Set while the request waits for the upstream: then the proxy's own head is not sent."""
        self.decision_headers: Callable[[], list[tuple[str, str]]] = list
        """Gives the headers of the decision; set once there is one."""
        self._endpoint = endpoint
        self._interval = interval
        self._beat = beat
        self._send: Send
        self._timer: asyncio.TimerHandle | None = None
        self._beating: asyncio.Task[None] | None = None
        self._continuation: Continuation | None = None
        self._reply_head: tuple[int, Headers] | None = None  # set when it has been sent
        self._has_chosen_head = self._is_over = False
        self._newest = b""  # the newest bytes of the reply that were sent

    def start(self, send: Send) -> Send:
        """Starts the timer; the reply must be sent through the function that is returned."""
        self._send = send
        self._start_timer()
        return self._send_message

    async def lets_beats_out(self, work: Awaitable[T]) -> T:
        """Awaits the proxy's own work in the middle of the wait for the upstream; beats may be sent during it."""
        before, self.waits_for_upstream = self.waits_for_upstream, False
        try:
            return await work
        finally:
            self.waits_for_upstream = before

    async def stop(self) -> None:
        """Sends no more beats; one that is being sent is finished first."""
        if self._beating is not None:
            await self._finish_beat()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def close(self) -> None:
        """Stops the timer. If the proxy has begun a stream that the reply has not ended, ends it with an error."""
        if self._timer is not None or self._beating is not None:
            await self.stop()
        if self.has_sent_head and not self._is_over:
            between = b"\n\n" if self._newest else b""
            last = self._endpoint.error_event(UpstreamUnavailable(BROKEN_OFF), self._newest)
            await self._send(body_message(between + last, more=False))

    async def _finish_beat(self) -> None:
        """Returns when no beat is being sent."""
        if self._beating is not None:
            beating, self._beating = self._beating, None
            await beating

    def _start_timer(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._interval, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        if self._reply_head is not None and not allows_beats(*self._reply_head):
            return
        if self._must_wait():
            self._start_timer()
            return
        begins = not self._has_chosen_head
        if begins:
            # Set before the task runs: a request that goes upstream meanwhile must know of the head.
            self._has_chosen_head = self.has_sent_head = True
        self._beating = asyncio.ensure_future(self._send_beat(begins=begins))

    def _must_wait(self) -> bool:
        """Whether no beat may be sent yet, because the upstream's head is waited for or is being sent."""
        if self._has_chosen_head:
            return self._reply_head is None and not self.has_sent_head
        return self.waits_for_upstream

    async def _send_beat(self, *, begins: bool) -> None:
        if begins:
            headers = early_headers(self.decision_headers())
            await self._send({"type": "http.response.start", "status": 200, "headers": headers})
        await self._send(body_message(self._beat(), more=True))
        self._start_timer()

    async def _send_message(self, message: Message) -> None:
        """Sends an ASGI message of the reply, or, after the proxy's own head, what continues that."""
        if message["type"] != "http.response.start":
            await self._send_body(message.get("body", b""), more=message.get("more_body", False))
            return
        await self._finish_beat()
        head = message["status"], message["headers"]
        if self.has_sent_head:
            self._continuation = Continuation(self._endpoint, *head)
        else:
            self._has_chosen_head = True
            await self._send(message)
            self._reply_head = head

    async def _send_body(self, chunk: bytes, *, more: bool) -> None:
        if self._continuation is not None:
            chunk = self._continuation.feed(chunk, is_last=not more)
        if not chunk and more:
            return
        await self.stop()
        self._newest, self._is_over = chunk or self._newest, not more
        await self._send(body_message(chunk, more=more))


def early_headers(decision_headers: Iterable[tuple[str, str]]) -> Headers:
    """The headers of a head that is sent before the reply; `decision_headers` is empty before the decision."""
    final = [pair for pair in decision_headers if pair[0] in _FINAL]
    return [*_HEAD, *encode_headers([("X-Condenser-Action", Action.PENDING), *final])]


class Continuation:
    """Turns a reply into the rest of an event stream, after its head could no longer be sent.

    Events pass as they come. Any other reply is collected to its end: an error, a completion from a server that does
    not stream, or a stream that a server has encoded without being asked to.
    """

    def __init__(self, endpoint: Endpoint, status: int, headers: Headers) -> None:
        self._endpoint = endpoint
        self._status = status
        self._headers = headers
        self._is_stream = is_success(status) and is_event_stream(headers)
        self._chunks: list[bytes] | None = [] if encoding_of(headers) or not self._is_stream else None

    def feed(self, chunk: bytes, *, is_last: bool) -> bytes:
        """Takes in the next chunk of the reply and returns what can be sent now."""
        if self._chunks is None:
            return chunk
        self._chunks.append(chunk)
        if not is_last:
            return b""
        data = decoded(b"".join(self._chunks), self._headers)
        return data if self._is_stream and data else self._as_events(data or b"")

    def _as_events(self, data: bytes) -> bytes:
        """A reply in one piece as events; one that the protocol does not know becomes an error."""
        if (events := self._endpoint.as_events(data, is_success=is_success(self._status))) is not None:
            return events
        quoted = data.decode("utf-8", "replace").strip()[:_MAX_QUOTED]
        message = f"The upstream answered {self._status}: {quoted}"
        return self._endpoint.error_event(UpstreamUnavailable(message, code="upstream_error"), b"")


def allows_beats(status: int, headers: Headers) -> bool:
    """Whether events of the proxy's own may follow this head.

    They need a successful event stream of plain bytes, whose head announces no length.
    """
    is_open = first(headers, b"content-length") is None and not encoding_of(headers)
    return is_open and is_success(status) and is_event_stream(headers)
