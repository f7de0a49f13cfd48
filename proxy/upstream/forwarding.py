"""Requests of clients on their way to the upstream, over aiohttp: the only module that knows it.

Nothing is added to a request and nothing in a reply is decoded: no cookies, no redirects, no proxies of the
environment, no headers of the library's own. Why aiohttp, and when a request is sent a second time, is in
docs/decisions/0011-aiohttp-for-the-relay.md.
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
from proxy.upstream.messages import late, unreachable

IDLE = 4.0
"""Seconds that an idle connection is kept: less than the 5 s after which common servers close theirs."""
_ACKED_AT, _ACKED_UP_TO = 120, 128  # where Linux has `tcpi_bytes_acked` in what TCP_INFO gives
_UNWANTED: CIMultiDict[None] = CIMultiDict({hdrs.CONTENT_TYPE: None})
_BUFFER = 65_536
_APART = 65_536
"""Bytes of a body from which on it is not copied to be one packet with its head."""
_LONGEST_LINE = 65_536
_MOST_HEADERS = 1_000

Pairs = list[tuple[str, str]]


class ConnectionLost(aiohttp.ClientConnectionError):
    """A connection ended without a reply; `unread` where the server cannot have read the request."""

    def __init__(self, *, unread: bool) -> None:
        super().__init__("The connection was closed.")
        self.unread = unread


class Forwarder:
    """One pool of connections; made inside of a running loop."""

    def __init__(self, settings: UpstreamSettings, tls: ssl.SSLContext) -> None:
        self._session = aiohttp.ClientSession(
            connector=_Pool(settings, tls),
            cookie_jar=aiohttp.DummyCookieJar(),
            request_class=_Request,
            auto_decompress=False,
            read_bufsize=_BUFFER,
            max_line_size=_LONGEST_LINE,
            max_field_size=_LONGEST_LINE,
            max_headers=_MOST_HEADERS,
            timeout=aiohttp.ClientTimeout(
                connect=settings.read_timeout, sock_connect=settings.connect_timeout, sock_read=settings.read_timeout
            ),
        )

    async def send(self, method: str, url: str, headers: Pairs, body: bytes | AsyncIterator[bytes]) -> ForwardedReply:
        """Sends a request and returns when the answer's head is there; raises `UpstreamUnavailable`."""
        content = _Bytes(body) if isinstance(body, bytes) else _Upload(body)
        try:
            return ForwardedReply(await self._answer(method, URL(url, encoded=True), headers, content))
        except TimeoutError as error:
            raise late() from error
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
    """An answer whose head is there; `chunks` may be iterated once."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response
        self.status = response.status
        self.headers: Headers = list(response.raw_headers)

    def chunks(self) -> AsyncIterator[bytes]:
        """The body's bytes as they come in; what came in together is one chunk."""
        return _Chunks(self._response.content)

    async def close(self) -> None:
        """Ends the call. A connection that is still at work is cut: a farewell would wait for the other side."""
        connection = self._response.connection
        if connection is not None and connection.transport is not None:
            connection.transport.abort()
        self._response.close()


class _Chunks(AsyncIterator[bytes]):
    """What is read of a body; as an object, for the loop keeps a register of generators."""

    def __init__(self, content: aiohttp.StreamReader) -> None:
        self._content = content
        self._failure: UpstreamUnavailable | None = None

    async def __anext__(self) -> bytes:
        if self._failure is not None:
            raise self._failure
        try:
            chunk = await self._content.readany()
        except (TimeoutError, aiohttp.ClientError) as error:
            self._failure = late() if isinstance(error, TimeoutError) else unreachable(error)
            self._failure.__cause__ = error
            # What came in before the end is still to be had, though the public methods raise first.
            if rest := self._content._read_nowait(-1):  # noqa: SLF001
                return rest
            raise self._failure from error
        if not chunk:
            raise StopAsyncIteration
        return chunk


class _Request(aiohttp.ClientRequest):
    """A request without headers of the library's own, and its `content-length: 0` for every method but GET."""

    def update_auto_headers(self, skip_auto_headers: Iterable[str] | None) -> None:
        # Told which ones to skip, the library would sort and copy them for each request.
        self._skip_auto_headers = _UNWANTED

    def update_body_from_data(self, body: Any, _stacklevel: int = 3) -> None:
        if body is not None:
            super().update_body_from_data(body, _stacklevel)


class _Bytes(Payload):
    """A body that is whole. The library's own warns of large ones, which are usual here."""

    _autoclose = True

    def __init__(self, value: bytes) -> None:
        super().__init__(value)
        self._size = len(value)

    def __bool__(self) -> bool:
        return bool(self._value)

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        return str(self._value, encoding, errors)

    async def write(self, writer: AbstractStreamWriter) -> None:
        if len(self._value) >= _APART:
            # By itself: the library would copy the body to join it with the head. The loop writes both at one go.
            writer.send_headers()
        await writer.write(self._value)


class _Upload(AsyncIterator[bytes]):
    """A body that comes in parts, and what ended it early: the library reports only that something did."""

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
    """Connections that know whether they may have lost a request."""

    def __init__(self, settings: UpstreamSettings, tls: ssl.SSLContext) -> None:
        super().__init__(
            limit=settings.max_connections,
            keepalive_timeout=IDLE,
            ssl=tls,
            resolver=_Resolver(settings.connect_timeout),
        )
        made: type[ResponseHandler] = _Connection
        self._factory = functools.partial(made, loop=asyncio.get_running_loop())


class _Connection(ResponseHandler):
    """A connection; when it ends, `ConnectionLost` says whether its last request can have been read.

    It cannot where the connection had served before, not a byte came back, and the other side's system has acknowledged
    nothing of the request: then the server had closed it while it was idle. All other losses are errors: nothing of the
    library's own is retried.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self._requests = 0
        self._heard = False
        self._acked_before: int | None = None
        self._acked: int | None = None

    def set_response_params(self, **params: Any) -> None:
        """Called when a request is about to be sent."""
        self._requests += 1
        self._heard = False
        self._acked_before = _acknowledged(self.transport)
        super().set_response_params(**params)

    def data_received(self, data: bytes) -> None:
        self._heard = True
        super().data_received(data)

    def resume_reading(self, resume_parser: bool = True) -> None:
        """Called with each of HTTP's chunks that is read; parses nothing and tells nobody where nothing was paused."""
        if self._reading_paused:
            super().resume_reading(resume_parser)

    def eof_received(self) -> None:
        # Now, for the socket may be closed when the connection is said to be lost.
        self._acked = _acknowledged(self.transport)
        super().eof_received()

    def set_exception(self, exc: BaseException, *cause: Any) -> None:
        if isinstance(exc, aiohttp.ClientOSError | aiohttp.ServerDisconnectedError):
            untouched = self._acked is not None and self._acked == self._acked_before
            exc = ConnectionLost(unread=self._requests > 1 and not self._heard and untouched)
        super().set_exception(exc, *cause)


def _acknowledged(transport: asyncio.BaseTransport | None) -> int | None:
    """Bytes of a connection that the other side's system has acknowledged; None where the system does not say."""
    sock = transport.get_extra_info("socket") if transport is not None else None
    if sock is None or not hasattr(socket, "TCP_INFO"):
        return None
    try:
        info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _ACKED_UP_TO)
    except OSError:
        return None
    return int.from_bytes(info[_ACKED_AT:], sys.byteorder) if len(info) == _ACKED_UP_TO else None


class _Resolver(aiohttp.ThreadedResolver):
    """The system's resolver, within the time that a connection may take."""

    def __init__(self, timeout: float) -> None:
        super().__init__()
        self._timeout = timeout

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        async with asyncio.timeout(self._timeout):
            return await super().resolve(host, port, family)
