"""What every request gets on any route: an id, a line in the log, and an end when the server stops.

`Serving` is an ASGI app around another. The id is the client's own `x-request-id` where it can be shown as it is, and
is sent as `X-Condenser-Request-Id`. When the server stops and a reply still runs after the time that it was given, its
task is cancelled by the server: a stream then ends with an error event in the form of its protocol, and a request
without a reply gets 503.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable
from contextlib import suppress

from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from proxy.endpoints.table import PATHS, endpoint_at
from proxy.errors import ProxyError, ShuttingDown
from proxy.http.content_encoding import encoding_of
from proxy.http.headers import Headers, first
from proxy.http.sse import between_events, event, is_event_stream
from proxy.log import RequestLine
from proxy.runtime.drain import Drain

ENDING = 1.0
"""Seconds that a client may take to receive the last event of a reply that the server ends."""
_LINE = "condenser.line"
_ID = b"x-condenser-request-id"
_PLAIN_ID = re.compile(rb"[!-~]{1,128}")
_SEQUENCE = re.compile(rb'"sequence_number": ?(\d+)')


def line_of(scope: Scope) -> RequestLine:
    """The line that the log will have of a request."""
    line: RequestLine = scope[_LINE]
    return line


def error_response(error: ProxyError, path: str) -> Response:
    """The response for an error of the proxy's own, in the form of the endpoint at a path."""
    endpoint = endpoint_at(path)
    return Response(endpoint.error_body(error), error.status, dict(error.headers), media_type="application/json")


class Serving:
    """Serves requests by `app`; `new_id` makes an id for a request that came without one."""

    def __init__(self, app: ASGIApp, drain: Drain, new_id: Callable[[], str]) -> None:
        self._app = app
        self._drain = drain
        self._new_id = new_id

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request, and writes its line when its reply has ended."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        line = scope[_LINE] = RequestLine(self._id(scope["headers"]), scope["method"], scope["path"])
        reply = _Reply(line, send)
        try:
            await self._app(scope, receive, reply.send)
        except asyncio.CancelledError:
            if not self._drain.is_over:
                raise
            await reply.end(scope["path"])
        finally:
            line.write()

    def _id(self, headers: Headers) -> str:
        for name, value in headers:
            if name == b"x-request-id" and _PLAIN_ID.fullmatch(value):
                return value.decode("ascii")
        return self._new_id()


class _Reply:
    """One reply on its way out."""

    def __init__(self, line: RequestLine, send: Send) -> None:
        self._line = line
        self._send = send
        self._headers: Headers = []
        self._newest = b""

    def send(self, message: Message) -> Awaitable[None]:
        """Sends a message of the reply; no coroutine itself, since a stream sends one for each of its pieces."""
        if message["type"] == "http.response.start":
            self._line.status = message["status"]
            self._headers = [*message.get("headers", ()), (_ID, self._line.id.encode())]
            message = {**message, "headers": self._headers}
        else:
            self._newest = message.get("body") or self._newest
            self._line.is_complete = not message.get("more_body", False)
        return self._send(message)

    async def end(self, path: str) -> None:
        """Ends the reply because the server stops; one that is no stream of plain events is left unfinished."""
        error = ShuttingDown()
        self._line.error = error.code
        with suppress(TimeoutError):
            async with asyncio.timeout(ENDING):
                if self._line.status is None:
                    headers = [(b"content-type", b"application/json")]
                    await self.send({"type": "http.response.start", "status": error.status, "headers": headers})
                    await self.send({"type": "http.response.body", "body": endpoint_at(path).error_body(error)})
                elif not self._line.is_complete and self._takes_events():
                    last = between_events(self._newest) + _error_event(path, error, self._newest)
                    await self._send({"type": "http.response.body", "body": last})

    def _takes_events(self) -> bool:
        is_open = first(self._headers, b"content-length") is None and not encoding_of(self._headers)
        return is_open and is_event_stream(self._headers)


def _error_event(path: str, error: ShuttingDown, newest: bytes) -> bytes:
    """The error as an event of the protocol at this path; `newest` are the last bytes that were sent."""
    if path in PATHS:
        return PATHS[path].error_event(error, newest)
    match path.rstrip("/"):
        case "/v1/responses":
            numbers = _SEQUENCE.findall(newest)
            number = int(numbers[-1]) + 1 if numbers else 0
            members = {"code": error.code, "message": error.message, "param": None, "sequence_number": number}
            return b"event: error\n" + event(json.dumps({"type": "error", **members}).encode())
    return event(error.to_json())
