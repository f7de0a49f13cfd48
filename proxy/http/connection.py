"""The server's side of a client connection: uvicorn's protocol with joined heads, bounds, and errors in JSON.

Joined heads. An ASGI server writes the head of a reply and each part of its body separately. Each write is a system
call and often a packet, which is the largest cost of a small reply. So the head is held until the first part of the
body is written, for at most one step of the event loop. Parts of a body are not held, unless they begin like a head.

Bounds. Before the application sees a request, these are bounded: the bytes of the head and the time until it is
complete, the time of the body, and the number of connections. A body may take `limits.body_timeout` seconds, and one
more for each `limits.body_rate` bytes; time in which the proxy itself does not read does not count.

If all connections are taken, or all of one address, one of them is closed in favour of a new one: the one that has had
no request for the longest time, else the one whose request has been incomplete for the longest time. Only if all of
them have a complete request is a new one refused. Trusted proxies have no bound, because many clients share them.

A connection whose request was answered before a large rest of its body has come is closed. It is read for a moment
more, because a system that closes a connection with unread bytes tells the client to forget the answer.
"""

from __future__ import annotations

import asyncio
import resource
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from http import HTTPStatus
from time import monotonic
from typing import Any, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from proxy.errors import Overloaded, ProxyError
from proxy.http.admission import RefusalLog
from proxy.settings import LimitSettings

OTHER_DESCRIPTORS = 40  # files and sockets that are open for other purposes than clients and their upstreams

SWALLOWED = 64 * 1024
"""Bytes of a body that are taken in and thrown away after the reply, so that the connection can be used again."""
LINGERING = 2.0  # seconds for which a connection that was closed within a body is still read

_HEAD_START = b"HTTP/1."
_UNKNOWN = 1 << 62  # bytes of a body without a length


class BadHttp(ProxyError):
    """The client's bytes cannot be served as HTTP; the connection is closed."""

    type = "invalid_request_error"
    code = "bad_http"

    def __init__(self, message: str, status: int = 400, code: str = "bad_http") -> None:
        super().__init__(message, code=code)
        self.status = status


@dataclass(frozen=True, slots=True)
class ConnectionBounds:
    """The bounds of all connections of a server; `max_connections` is the number that `limits` and the system allow."""

    limits: LimitSettings
    max_connections: int
    refusals: RefusalLog = field(default_factory=lambda: RefusalLog("connections"))
    idle: dict[Connection, None] = field(default_factory=dict)
    """The connections without a request; the one that has had none for the longest time comes first."""
    incomplete: dict[Connection, None] = field(default_factory=dict)
    """The connections whose request is not complete, the oldest first."""
    addresses: Counter[str] = field(default_factory=Counter)
    """How many connections each address has, except for trusted proxies."""
    is_trusted: Callable[[str], bool] = lambda _: False

    @classmethod
    def of(cls, limits: LimitSettings, is_trusted: Callable[[str], bool] = lambda _: False) -> ConnectionBounds:
        """The bounds in this process; raises its limit of descriptors as far as the system allows.

        A client takes one descriptor, and another one for its upstream.
        """
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if hard != resource.RLIM_INFINITY and soft < hard:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
        most = min(limits.connections, max((soft - OTHER_DESCRIPTORS) // 2, 1))
        return cls(limits, most, is_trusted=is_trusted)


class JoiningTransport:
    """Wraps a transport, and joins the head of a reply with the data that is written next."""

    is_in_body = False  # whether the rest of a body is still to come

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._head = b""
        self._lingers = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        """Writes data; a head is held until the next write or the next step of the event loop."""
        if self._head:
            head, self._head = self._head, b""
            self._transport.write(head + data)
        elif data.startswith(_HEAD_START):
            self._head = data
            asyncio.get_running_loop().call_soon(self.flush)
        else:
            self._transport.write(data)

    def is_closing(self) -> bool:
        return self._lingers or self._transport.is_closing()

    def close(self) -> None:
        """Closes the connection; within a body for writing only, and for reading after a moment."""
        if self.is_closing():
            return
        self.flush()
        if not self.is_in_body:
            self._transport.close()
            return
        self._lingers = True
        self._transport.resume_reading()
        if self._transport.can_write_eof():
            self._transport.write_eof()
        asyncio.get_running_loop().call_later(LINGERING, self._transport.close)

    def flush(self) -> None:
        """Writes the held head, if there is one and the connection still exists."""
        head, self._head = self._head, b""
        if head and not self._transport.is_closing():
            self._transport.write(head)


class Connection(HttpToolsProtocol):
    _deadline: asyncio.TimerHandle | None = None
    _head_bytes = 0
    _body_bytes = 0
    _body_left = 0
    _body_began = 0.0
    _method = b""  # the beginning of the newest head, as far as it tells whether it is HEAD
    address = ""  # the client's address; "" if its connections are not bounded

    def __init__(self, bounds: ConnectionBounds, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._bounds = bounds
        self._limits = bounds.limits

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._joining = JoiningTransport(transport)
        super().connection_made(cast("asyncio.Transport", self._joining))
        bounds, address = self._bounds, self.client[0] if self.client else ""
        bounds.idle[self] = None
        if address and not bounds.is_trusted(address):
            self.address = address
            bounds.addresses[address] += 1
        if why := self._make_room():
            bounds.refusals.refuse(why)
            self._refuse(Overloaded("All connections of the proxy are taken."))
        else:
            bounds.refusals.serve()
            self._set_deadline(self._limits.header_timeout, self._end_head)

    def eof_received(self) -> None:
        self._joining.flush()
        super().eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_deadline()
        self._bounds.idle.pop(self, None)
        self._bounds.incomplete.pop(self, None)
        if self.address:
            self._bounds.addresses[self.address] -= 1
            if not self._bounds.addresses[self.address]:
                del self._bounds.addresses[self.address]
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Counts the bytes of a head before they are parsed."""
        if self.transport.is_closing():
            return
        if self._is_in_head:
            self._method = ((self._method if self._head_bytes else b"") + data[: len(b"HEAD ")])[: len(b"HEAD ")]
            room = self._limits.header_bytes - self._head_bytes
            self._head_bytes += len(data)
            if len(data) > room:
                super().data_received(data[:room])
                data = data[room:]
                if self._is_in_head:
                    message = f"The head of a request may have {self._limits.header_bytes:,} bytes."
                    self._refuse(BadHttp(message, HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "headers_too_large"))
                if self.transport.is_closing():
                    return
        super().data_received(data)
        if self._deadline is None and not self.transport.is_closing():
            self._await_rest()

    def on_headers_complete(self) -> None:
        """Refuses transfer encodings that HTTP/1.1 servers must refuse."""
        self._joining.is_in_body, self._head_bytes, self._body_bytes = True, 0, 0
        self._cancel_deadline()
        self._bounds.idle.pop(self, None)
        self._body_left = 0
        for name, value in self.headers:
            if name == b"content-length":
                self._body_left = int(value)  # the parser has read it
            if name == b"transfer-encoding":
                self._body_left = _UNKNOWN
            if name == b"transfer-encoding" and value.strip().lower() != b"chunked":
                self._refuse(BadHttp("Only the transfer encoding 'chunked' is known.", HTTPStatus.NOT_IMPLEMENTED))
                return
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        self._body_left -= len(body)
        if not self.transport.is_closing():
            super().on_body(body)

    def on_message_complete(self) -> None:
        self._joining.is_in_body = False
        self._cancel_deadline()
        self._bounds.incomplete.pop(self, None)
        if not self.transport.is_closing():
            super().on_message_complete()
        self._note_idle()

    def on_response_complete(self) -> None:
        if not self._is_in_head and self._body_left > SWALLOWED:
            self.transport.close()
        super().on_response_complete()
        self._note_idle()

    def _note_idle(self) -> None:
        if self.is_idle:
            self._bounds.idle.pop(self, None)
            self._bounds.idle[self] = None

    def send_400_response(self, msg: str) -> None:
        """Answers bytes that are not HTTP, which uvicorn refuses before they reach the application."""
        self._refuse(BadHttp(msg))

    def _refuse(self, error: ProxyError) -> None:
        if self.transport.is_closing():
            return
        body, more = error.to_json(), "".join(f"{name}: {value}\r\n" for name, value in error.headers)
        head = f"HTTP/1.1 {error.status} {HTTPStatus(error.status).phrase}\r\ncontent-type: application/json\r\n"
        head += f"content-length: {len(body)}\r\n{more}connection: close\r\n\r\n"
        self.transport.write(head.encode() + (b"" if self._method == b"HEAD " else body))
        self.transport.close()

    def _make_room(self) -> str:
        """Closes another connection if there are too many; returns why there is no room, "" if there is."""
        bounds, address, most = self._bounds, self.address, self._limits.per_address
        if address and bounds.addresses[address] > most and not self._close_another(address):
            return f"{address} has {most} requests"
        if len(self.connections) > bounds.max_connections and not self._close_another():
            return f"all {bounds.max_connections} have a request"
        return ""

    def _close_another(self, address: str = "") -> bool:
        """Closes the connection, of an address if one is given, that does least; returns whether there was one."""
        for others in (self._bounds.idle, self._bounds.incomplete):
            for other in others:
                is_closing = other is self or other.transport.is_closing()
                if not is_closing and (not address or other.address == address):
                    del others[other]
                    other.transport.close()
                    return True
        return False

    @property
    def is_idle(self) -> bool:
        cycle: RequestResponseCycle | None = self.cycle
        has_request = cycle is not None and not cycle.response_complete
        return self._is_in_head and not has_request and not self.transport.is_closing()

    @property
    def _is_in_head(self) -> bool:
        """Whether a head, or the rest of one, comes next; otherwise a body."""
        return not self._joining.is_in_body

    def _await_rest(self) -> None:
        """Sets the deadline for the rest of a request."""
        if not self._is_in_head:
            self._bounds.incomplete[self] = None
            self._body_began = monotonic()
            self._set_deadline(self._limits.body_timeout, self._check_body)
        elif self._head_bytes:
            self._set_deadline(self._limits.header_timeout, self._end_head)

    def _set_deadline(self, seconds: float, end: Callable[[], None]) -> None:
        self._cancel_deadline()
        self._deadline = self.loop.call_later(seconds, end)

    def _cancel_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _end_head(self) -> None:
        """Ends a connection whose head did not come in time; if no request began, there is no answer."""
        if self._head_bytes:
            self._refuse(BadHttp("The head of the request did not come in time.", HTTPStatus.REQUEST_TIMEOUT))
        else:
            self.transport.close()

    def _check_body(self) -> None:
        """Ends a connection whose body comes too slowly; else checks again when it could have become too slow."""
        self._deadline = None
        if self.flow.read_paused:  # the proxy does not read, so the sender is not to blame
            self._body_began, self._body_bytes = monotonic(), 0
        limits = self._limits
        left = self._body_began + limits.body_timeout + self._body_bytes / limits.body_rate - monotonic()
        if left > 0:
            self._set_deadline(left, self._check_body)
        elif self.cycle.response_started:
            self.transport.close()
        else:
            message = "The body of the request came too slowly."
            self._refuse(BadHttp(message, HTTPStatus.REQUEST_TIMEOUT, "body_timeout"))
