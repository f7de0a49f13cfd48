"""Keep-alive: a client that waits for a stream hears so until its first byte is there.

What the client waits for goes on undisturbed in the request's own task. A timer beside it sends a sign of life each
time the interval is over. Where the reply's own head has not left by the first one, a head of ours does: from then on
the status is 200, and whatever comes is passed on as `proxy/reply/pending.py` continues it. So none leaves while it is
the upstream that the client waits for: what that answers, however late, must reach the client with its status and
headers. A stream that is not waited for costs the timer and nothing else.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import ExitStack
from typing import Any, TypeVar

from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from proxy.errors import DEFECT, ProxyError, UpstreamUnavailable
from proxy.http.headers import Headers
from proxy.reply.pending import Continuation, continuation, early_headers, error_event, may_wait
from proxy.reply.relay import CLIENT_CLOSED_REQUEST, ClientGone, Incoming

T = TypeVar("T")

BROKEN_OFF = "The upstream broke off in the middle of its reply."

_log = logging.getLogger(__name__)


class KeepAlive:
    """The way to one client. `interval` in seconds, None keeps it silent; `beat` makes a sign of life.

    `has_begun` says whether a head of ours has left. `decided` gives the headers of the decision, once there is one.
    `is_elsewhere` is set while it is the upstream that is waited for: until that is over, no head of ours leaves.
    """

    def __init__(self, interval: float | None, beat: Callable[[], bytes]) -> None:
        self.has_begun = self.is_elsewhere = False
        self.decided: Callable[[], list[tuple[str, str]]] = list
        self._interval = interval
        self._beat = beat
        self._send: Send
        self._timer: asyncio.TimerHandle | None = None
        self._beating: asyncio.Task[None] | None = None
        self._continued: Continuation | None = None
        self._head: tuple[int, Headers] | None = None  # the reply's own, once it has left
        self._is_headed = self._has_flowed = self._is_over = False

    def start(self, send: Send) -> Send:
        """Begins to wait; what the client gets must go through the `send` that is returned."""
        if self._interval is None:
            return send
        self._send = send
        self._arm(self._interval)
        return self._passed

    async def ours(self, work: Awaitable[T]) -> T:
        """What work of ours comes to that the client waits for, in the middle of waiting for the upstream."""
        was, self.is_elsewhere = self.is_elsewhere, False
        try:
            return await work
        finally:
            self.is_elsewhere = was

    async def silence(self) -> None:
        """Says nothing from now on, whoever is waited for."""
        self._interval = None
        await self.hush()

    async def hush(self) -> None:
        """Ends the signs of life; one that is on its way gets there first."""
        await self._has_beaten()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def close(self) -> None:
        """Ends a stream that we have begun and nobody has ended, with an error: its reply has not come whole."""
        await self.hush()
        if self.has_begun and not self._is_over:
            between = b"\n\n" if self._has_flowed else b""
            await self._send(_body(between + error_event(UpstreamUnavailable(BROKEN_OFF)), more=False))

    async def _has_beaten(self) -> None:
        """Returns when no sign of life is on its way."""
        if self._beating is not None:
            beating, self._beating = self._beating, None
            await beating

    def _arm(self, interval: float) -> None:
        self._timer = asyncio.get_running_loop().call_later(interval, self._due, interval)

    def _due(self, interval: float) -> None:
        self._timer = None
        if self._head is not None and not may_wait(*self._head):
            return
        if self._is_held():
            self._arm(interval)
            return
        begins = not self._is_headed
        if begins:
            # Told at once: what is sent upstream before the task begins must know of it.
            self._is_headed = self.has_begun = True
        self._beating = asyncio.ensure_future(self._beaten(interval, begins=begins))

    def _is_held(self) -> bool:
        """Whether no sign of life may leave yet: before a head of the upstream's, or while that leaves."""
        if self._is_headed:
            return self._head is None and not self.has_begun
        return self.is_elsewhere

    async def _beaten(self, interval: float, *, begins: bool) -> None:
        if begins:
            headers = early_headers(self.decided())
            await self._send({"type": "http.response.start", "status": 200, "headers": headers})
        await self._send(_body(self._beat(), more=True))
        self._arm(interval)

    async def _passed(self, message: Message) -> None:
        """Sends a message of the reply's, or what becomes of it behind a head of ours."""
        if message["type"] == "http.response.start":
            await self._headed(message)
        else:
            await self._flowed(message.get("body", b""), more=message.get("more_body", False))

    async def _headed(self, message: Message) -> None:
        await self._has_beaten()
        head = message["status"], message["headers"]
        if self.has_begun:
            self._continued = continuation(*head)
        else:
            self._is_headed = True
            await self._send(message)
            self._head = head

    async def _flowed(self, part: bytes, *, more: bool) -> None:
        if self._continued is not None:
            part = self._continued.feed(part) + (b"" if more else self._continued.end())
        if not part and more:
            return
        await self.hush()
        self._has_flowed, self._is_over = True, not more
        await self._send(_body(part, more=more))


class Awaited(Response):
    """An ASGI response that is not there yet: `answer` makes it, and it is sent the way that `keep_alive` goes.

    What prevents it is answered as an error. All of it ends when the client leaves; then, or when all was sent,
    `under_way` is closed.
    """

    def __init__(
        self,
        incoming: Incoming,
        keep_alive: KeepAlive,
        answer: Callable[[], Coroutine[Any, Any, Response]],
        under_way: ExitStack,
    ) -> None:
        self._incoming = incoming
        self._keep_alive = keep_alive
        self._answer = answer
        self._under_way = under_way
        self.background = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Waits for the response and sends it, or what is answered in its place."""
        with self._under_way:
            passed = self._keep_alive.start(send)
            try:
                response = await self._response()
                await response(scope, receive, passed)
                await self._keep_alive.close()
            finally:
                self._incoming.close()
                await self._keep_alive.hush()

    async def _response(self) -> Response:
        try:
            return await self._incoming.unless_gone(self._answer())
        except ClientGone:
            return Response(status_code=CLIENT_CLOSED_REQUEST)
        except ProxyError as error:
            return refusal(error)
        except Exception:  # noqa: BLE001
            _log.exception("a request failed")
            return refusal(ProxyError(DEFECT))


def refusal(error: ProxyError) -> Response:
    """An error of ours as a response."""
    return Response(error.to_json(), error.status, dict(error.headers), media_type="application/json")


def _body(part: bytes, *, more: bool) -> Message:
    return {"type": "http.response.body", "body": part, "more_body": more}
