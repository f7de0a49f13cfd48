"""Forwards clients' requests to the upstream over aiohttp. No other module imports that library.

Nothing is added to a request and nothing in a reply is decoded: no cookies, no redirects, no proxies from the
environment, no headers of the library's own. docs/decisions/0011-aiohttp-for-the-relay.md says why aiohttp, and when a
request is sent a second time.
"""

from __future__ import annotations

import asyncio
import functools
import socket
import ssl
import sys
from collections.abc import AsyncIterator, Iterable
from typing import Any

import aiohttp
from aiohttp import hdrs
from aiohttp.abc import AbstractStreamWriter, ResolveResult
from aiohttp.client_proto import ResponseHandler
from aiohttp.payload import Payload
from multidict import CIMultiDict
from yarl import URL

from proxy.errors import UpstreamUnavailable
from proxy.http.headers import Headers
from proxy.settings.tables import UpstreamSettings
from proxy.upstream.messages import timed_out, unreachable

IDLE = 4.0
"""Seconds that an idle connection is kept: less than the 5 s after which common servers close theirs."""
_ACKED_START, _ACKED_END = 120, 128  # the place of `tcpi_bytes_acked` in the struct of TCP_INFO on Linux
_UNWANTED: CIMultiDict[None] = CIMultiDict({hdrs.CONTENT_TYPE: None})
_BUFFER = 65_536
_SEPARATE_WRITE = 65_536
"""Bytes of a body from which on it is not copied to be sent in one write with the head."""
_LONGEST_LINE = 65_536
_MAX_HEADERS = 1_000

Pairs = list[tuple[str, str]]


class ConnectionLost(aiohttp.ClientConnectionError):
    """A connection ended without a reply; `unread` if the server cannot have read the request."""

    def __init__(self, *, unread: bool) -> None:
        super().__init__("The connection was closed.")
        self.unread = unread


class Forwarder:
    """One pool of connections over aiohttp; to be made inside of a running event loop."""

    def __init__(self, settings: UpstreamSettings, tls: ssl.SSLContext) -> None:
        self._session = aiohttp.ClientSession(
            connector=_Pool(settings, tls),
            cookie_jar=aiohttp.DummyCookieJar(),
            request_class=_Request,
            auto_decompress=False,
            read_bufsize=_BUFFER,
            max_line_size=_LONGEST_LINE,
            max_field_size=_LONGEST_LINE,
            max_headers=_MAX_HEADERS,
            timeout=aiohttp.ClientTimeout(
                connect=settings.read_timeout, sock_connect=settings.connect_timeout, sock_read=settings.read_timeout
            ),
        )

    async def send(self, method: str, url: str, headers: Pairs, body: bytes | AsyncIterator[bytes]) -> ForwardedReply:
        """Sends a request and returns when the reply's head has come; raises `UpstreamUnavailable`."""
        content = _Bytes(body) if isinstance(body, bytes) else _Upload(body)
        try:
            return ForwardedReply(await self._answer(method, URL(url, encoded=True), headers, content))
        except TimeoutError as error:
            raise timed_out() from error
        except aiohttp.ClientError as error:
            if isinstance(content, _Upload) and content.failure is not None:
                raise content.failure from None
            raise unreachable(error) from error

    async def _answer(self, method: str, url: URL, headers: Pairs, content: _Bytes | _Upload) -> aiohttp.ClientResponse:
        send = functools.partial(
            self._session.request, method, url, headers=headers, data=content or None, allow_redirects=False
        )
        try:
            return await send()
        except ConnectionLost as error:
            if not error.unread or isinstance(content, _Upload):
                raise
        return await send()

    async def close(self) -> None:
        """Closes all connections."""
        await self._session.close()


class ForwardedReply:
    """A reply over aiohttp whose head has come; `chunks` may be iterated once."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response
        self.status = response.status
        self.headers: Headers = list(response.raw_headers)

    def chunks(self) -> AsyncIterator[bytes]:
        """The body's bytes as they come in; bytes that were received together are one chunk."""
        return _Chunks(self._response.content)

    async def close(self) -> None:
        """Ends the call. A connection still in use is aborted: an orderly close would wait for the other side."""
        connection = self._response.connection
        if connection is not None and connection.transport is not None:
            connection.transport.abort()
        self._response.close()


class _Chunks(AsyncIterator[bytes]):
    """The chunks of a body. No generator, because the event loop keeps a register of those."""

    def __init__(self, content: aiohttp.StreamReader) -> None:
        self._content = content
        self._failure: UpstreamUnavailable | None = None

    async def __anext__(self) -> bytes:
        if self._failure is not None:
            raise self._failure
        try:
            chunk = await self._content.readany()
        except (TimeoutError, aiohttp.ClientError) as error:
            self._failure = timed_out() if isinstance(error, TimeoutError) else unreachable(error)
            self._failure.__cause__ = error
            # The bytes received before the failure are still in the buffer, though the public methods only raise.
            if rest := self._content._read_nowait(-1):  # noqa: SLF001
                return rest
            raise self._failure from error
        if not chunk:
            raise StopAsyncIteration
        return chunk


class _Request(aiohttp.ClientRequest):
    """A request without headers of the library's own, and its `content-length: 0` for every method but GET."""

    def update_auto_headers(self, skip_auto_headers: Iterable[str] | None) -> None:
        # Passed to the library as an argument, the headers to skip would be sorted and copied for each request.
        self._skip_auto_headers = _UNWANTED

    def update_body_from_data(self, body: Any, _stacklevel: int = 3) -> None:
        if body is not None:
            super().update_body_from_data(body, _stacklevel)


class _Bytes(Payload):
    """A body in one piece. The library's own class warns of large bodies, which are usual here."""

    _autoclose = True

    def __init__(self, value: bytes) -> None:
        super().__init__(value)
        self._size = len(value)

    def __bool__(self) -> bool:
        return bool(self._value)

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        return str(self._value, encoding, errors)

    async def write(self, writer: AbstractStreamWriter) -> None:
        if len(self._value) >= _SEPARATE_WRITE:
            # Otherwise the library copies the body to join it with the head. The loop writes both at once anyway.
            writer.send_headers()
        await writer.write(self._value)


class _Upload(AsyncIterator[bytes]):
    """A body in parts. Keeps the exception that ended it early, which the library does not report."""

    def __init__(self, parts: AsyncIterator[bytes]) -> None:
        self._parts = parts
        self.failure: Exception | None = None

    async def __anext__(self) -> bytes:
        try:
            return await anext(self._parts)
        except StopAsyncIteration:
            raise
        except Exception as error:
            self.failure = error
            raise


class _Pool(aiohttp.TCPConnector):
    """A pool whose connections know whether the server may have read a request that was lost."""

    def __init__(self, settings: UpstreamSettings, tls: ssl.SSLContext) -> None:
        super().__init__(
            limit=settings.max_connections,
            keepalive_timeout=IDLE,
            ssl=tls,
            resolver=_Resolver(settings.connect_timeout),
        )
        handler: type[ResponseHandler] = _Connection
        self._factory = functools.partial(handler, loop=asyncio.get_running_loop())


class _Connection(ResponseHandler):
    """A connection; when it is lost, `ConnectionLost` says whether its last request may have been read.

    The request was certainly not read if the connection had served a request before, not a byte came back, and the
    other side's system has acknowledged nothing of the request: then the server had closed the connection while it was
    idle. All other losses are errors. The library's own retries are not used.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self._requests = 0
        self._has_received = False
        self._acked_before: int | None = None
        self._acked: int | None = None

    def set_response_params(self, **params: Any) -> None:
        """Called when a request is about to be sent."""
        self._requests += 1
        self._has_received = False
        self._acked_before = _acknowledged(self.transport)
        super().set_response_params(**params)

    def data_received(self, data: bytes) -> None:
        self._has_received = True
        super().data_received(data)

    def resume_reading(self, resume_parser: bool = True) -> None:
        """Called for each chunk of the transfer encoding; does nothing, which saves time, unless reading was paused."""
        if self._reading_paused:
            super().resume_reading(resume_parser)

    def eof_received(self) -> None:
        # Read now, because the socket may be closed by the time the connection counts as lost.
        self._acked = _acknowledged(self.transport)
        super().eof_received()

    def set_exception(self, exc: BaseException, *cause: Any) -> None:
        if isinstance(exc, aiohttp.ClientOSError | aiohttp.ServerDisconnectedError):
            is_unacked = self._acked is not None and self._acked == self._acked_before
            exc = ConnectionLost(unread=self._requests > 1 and not self._has_received and is_unacked)
        super().set_exception(exc, *cause)


def _acknowledged(transport: asyncio.BaseTransport | None) -> int | None:
    """Bytes of a connection that the other side's system has acknowledged; None if this system does not know."""
    sock = transport.get_extra_info("socket") if transport is not None else None
    if sock is None or not hasattr(socket, "TCP_INFO"):
        return None
    try:
        info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _ACKED_END)
    except OSError:
        return None
    return int.from_bytes(info[_ACKED_START:], sys.byteorder) if len(info) == _ACKED_END else None


class _Resolver(aiohttp.ThreadedResolver):
    """The system's resolver, limited to the time that a connection may take."""

    def __init__(self, timeout: float) -> None:
        super().__init__()
        self._timeout = timeout

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        async with asyncio.timeout(self._timeout):
            return await super().resolve(host, port, family)
