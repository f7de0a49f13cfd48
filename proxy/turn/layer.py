"""What every request gets on any route: an id, a line in the log, and an end when the server stops.

`Serving` is the one layer around everything that is served. The id is the client's own `x-request-id` if that is plain
text, and is sent as `X-Condenser-Request-Id`. Web pages are refused (`Guard`). If a reply is still running
when a stopping server's time is up, the server cancels its task: a stream then ends with an error event in the form of
its protocol, and a request without a reply gets 503.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import ip_address
from random import getrandbits
from time import perf_counter

from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from proxy.callers.tenants import TrustedProxies
from proxy.errors import DEFECT, ProxyError, ShuttingDown
from proxy.http.headers import Headers
from proxy.http.paths import ADMIN, UNLISTED, Paths, check_listener, read_path
from proxy.http.server import Drain
from proxy.http.sse import between_events
from proxy.log import CURRENT, LINE, RequestLine, ServedRequest
from proxy.protocols import PATHS, endpoint_at, endpoint_serving
from proxy.quoting import quoted
from proxy.settings import Settings
from proxy.settings.token import is_loopback
from proxy.turn.relay import allows_beats, body_message

ENDING = 1.0  # seconds that a client may take to receive the last event of a reply that the server ends
_GIVEN_ID, _ID, _PROTOCOL = b"x-request-id", b"x-condenser-request-id", b"X-Condenser-Protocol"
_TRACE = b"traceparent"
_PLAIN_ID = re.compile(rb"[!-~]{1,128}")
_FORWARDED = b"x-forwarded-proto"
_MAX_KNOWN = 64
_HOST = re.compile(r"\[?([^\[\]]*?)\]?(?::\d*)?")


def error_response(error: ProxyError, path: str) -> Response:
    """The response for an error of the proxy's own, in the form of the endpoint at a path."""
    endpoint = endpoint_at(path)
    return Response(endpoint.error_body(error), error.status, dict(error.headers), media_type="application/json")


def new_request_id() -> str:
    """An id for a request that came without one; cheap, because it need not be hard to guess."""
    return f"{getrandbits(64):016x}"


class NotAllowed(ProxyError):
    """The host of a request, or the page that sent it, is not among those of the settings."""

    status = 403
    type = "invalid_request_error"


class Guard:
    """Keeps web pages out: checks the `Host` and `Origin` of a request.

    A page in a browser can send requests to any address that its user's machine can reach, and can read the replies if
    a name that the page controls leads to that address (DNS rebinding). The browser then sends the page in `Origin` and
    that name in `Host`. Programs send no `Origin`, and the host that they were told to use.
    """

    def __init__(self, settings: Settings) -> None:
        hosts = settings.server.hosts
        self._is_strict = bool(hosts) or settings.open_to_all or is_loopback(settings.host)
        admin = settings.admin.address
        self._strict_port = admin[1] if admin is not None and is_loopback(admin[0]) else None
        self._names = {"localhost", settings.host.lower(), *hosts}
        self._endings = (".localhost", *(host[1:] for host in hosts if host.startswith("*")))
        self._origins = set(settings.server.origins)
        self._trusted = TrustedProxies(settings.server.trusted_proxies)
        self.known = {b""}
        """Some of the proxy's own hosts; a request for one of them, without an origin, needs no further check.

        HTTP/1.0 has no host, and no browser speaks it.
        """

    def check(self, headers: Mapping[bytes, bytes], peer: str | None, port: int | None = None) -> None:
        """Raises `NotAllowed` for a request of a foreign page, or to a host name that is not ours.

        `peer` is the address that it came from, `port` the one of ours that it came to.
        """
        host, origin = headers.get(b"host", b""), headers.get(b"origin")
        is_own = host in self.known or self._is_own(host)
        if not is_own and (self._is_strict or (port is not None and port == self._strict_port)):
            name = quoted(host.decode("latin-1"))
            message = f"{name} is not known as a name of this proxy; server.hosts lists those that it has."
            raise NotAllowed(message, param="Host", code="host_not_allowed")
        if origin is None or self._origins & {"*", origin.decode("latin-1")}:
            return
        scheme = b"https" if self.is_over_tls(headers, peer) else b"http"
        if not (is_own and origin == scheme + b"://" + host.lower()):
            page = quoted(origin.decode("latin-1"))
            message = f"Pages of {page} may not use this proxy; server.origins lists those that may."
            raise NotAllowed(message, param="Origin", code="origin_not_allowed")

    def is_over_tls(self, headers: Mapping[bytes, bytes], peer: str | None) -> bool:
        """Whether the client speaks TLS: our server does not, so only a trusted proxy before it can tell."""
        return headers.get(_FORWARDED, b"").strip().lower() == b"https" and peer in self._trusted

    def _is_own(self, value: bytes) -> bool:
        match = _HOST.fullmatch(value.decode("latin-1").lower())
        name = match[1] if match else ""
        try:
            is_own = bool(ip_address(name))
        except ValueError:
            is_own = name in self._names or name.endswith(self._endings)
        if is_own and len(self.known) < _MAX_KNOWN:
            self.known.add(value)
        return is_own


@dataclass(slots=True, eq=False)
class Serving:
    """Hands requests to `app`, and a POST to one of the plain paths in `shortcuts` directly to its app.

    `new_id` makes an id for a request that came without one. `begin`, if there is one, is called at its beginning.
    """

    _app: ASGIApp
    _shortcuts: Mapping[bytes, ASGIApp]
    _guard: Guard
    _paths: Paths
    _drain: Drain
    _new_id: Callable[[], str]
    _begin: Callable[[Scope, RequestLine], None] | None
    _admin_port: int | None  # that of `admin.listen`

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request, and writes its line when its reply has ended."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        is_given = _GIVEN_ID in headers and _PLAIN_ID.fullmatch(headers[_GIVEN_ID])
        request_id = headers[_GIVEN_ID].decode("ascii") if is_given else self._new_id()
        trace = headers.get(_TRACE, b"")
        path = scope["path"]
        endpoint = PATHS.get(path) or endpoint_serving(path)
        line = scope[LINE] = RequestLine(request_id, scope["method"], path, endpoint=endpoint, trace=trace)
        if self._begin is not None and line.protocol != "own":
            self._begin(scope, line)
        CURRENT.set(served := ServedRequest(request_id))
        reply = _Reply(line, send)
        try:
            if b"origin" in headers or headers.get(b"host", b"") not in self._guard.known:
                client = scope.get("client")
                self._guard.check(headers, client[0] if client else None, (scope.get("server") or (None, None))[1])
            if self._admin_port is not None:
                check_listener(scope["path"], is_admin=scope["server"][1] == self._admin_port)
            # An app that is mounted below another one has a root path, which only the router can handle.
            is_short = scope["method"] == "POST" and not scope.get("root_path")
            app = self._shortcuts.get(scope["raw_path"]) if is_short else None
            if app is None:
                self._read_path(scope)
            await (app or self._app)(scope, receive, reply.send)
        except asyncio.CancelledError:
            if not self._drain.is_over:
                raise
            await reply.end(scope["path"])
        except Exception as error:
            if not await reply.answers(error, scope, receive):
                raise
        finally:
            served.is_over = True
            del scope[LINE]  # the connection keeps the scope until its next request
            line.write()
            scope["app"].state.services.note(line)

    def _read_path(self, scope: Scope) -> None:
        """Puts the path as it is matched and forwarded into the scope; raises `ProxyError` for one that is refused."""
        root = scope.get("root_path", "")
        raw = scope["raw_path"].removeprefix(root.encode())
        if raw.startswith(ADMIN.encode()):
            return  # nothing of it is forwarded, and its parts hold ids of any form
        path, scope["raw_path"] = read_path(raw, scope["query_string"])
        scope["path"] = root + path
        scope[UNLISTED] = self._paths.check(scope["method"], path)


class _Reply:
    def __init__(self, line: RequestLine, send: Send) -> None:
        self._line = line
        self._send = send
        self._headers: Headers = []
        self._newest = b""

    def send(self, message: Message) -> Awaitable[None]:
        """Sends a message of the reply. Not a coroutine itself, because it is called for each piece of a stream."""
        if message["type"] == "http.response.start":
            self._line.status = message["status"]
            self._headers = [*message.get("headers", ()), (_ID, self._line.id.encode())]
            if (endpoint := self._line.endpoint) is not None:
                self._headers.append((_PROTOCOL, endpoint.dialect.name.encode()))
            message = {**message, "headers": self._headers}
        else:
            body = message.get("body")
            if body and not self._newest:
                self._line.first_byte = perf_counter() - self._line.started
                if self._line.turn is not None:
                    self._line.turn.timing.first_byte = self._line.first_byte * 1000
            self._newest = body or self._newest
            self._line.is_complete = not message.get("more_body", False)
        return self._send(message)

    async def answers(self, error: Exception, scope: Scope, receive: Receive) -> bool:
        """Sends an error in place of a reply that has not begun; returns False if the server must log the error."""
        if self._line.status is not None:
            return False
        shown = ProxyError(DEFECT)
        if isinstance(error, ProxyError):
            shown, self._line.error = error, error.code or error.type
        await error_response(shown, scope["path"])(scope, receive, self.send)
        return shown is error

    async def end(self, path: str) -> None:
        """Ends the reply because the server stops; only a stream of plain events can still be finished."""
        error = ShuttingDown()
        self._line.error = error.code
        with suppress(TimeoutError):
            async with asyncio.timeout(ENDING):
                if self._line.status is None:
                    headers = [(b"content-type", b"application/json")]
                    await self.send({"type": "http.response.start", "status": error.status, "headers": headers})
                    await self.send({"type": "http.response.body", "body": endpoint_at(path).error_body(error)})
                elif not self._line.is_complete and allows_beats(self._line.status, self._headers):
                    last = between_events(self._newest) + endpoint_at(path).error_event(error, self._newest)
                    await self._send(body_message(last, more=False))
