"""Forwards clients' requests to the upstream over aiohttp. No other module imports that library.

Nothing is added to a request and nothing in a reply is decoded: no cookies, no redirects, no proxies from the
environment, no headers of the library's own. For why aiohttp is used, see docs/decisions/0011-aiohttp-for-the-relay.md.

Kept connections. A server may close a connection that it kept open at the moment when a request goes out on it, and
some close after each streamed reply without saying so. So a request whose connection ends before the first byte of a
reply is sent once more on a new one, if the connection had been used before. A body that comes in parts cannot be
repeated and takes a new connection from the beginning. On a connection that was not used before, the end is the answer.
A server that ended one after a stream is taken for one that always does, for some minutes: a restart looks the same.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import AsyncIterator
from time import monotonic
from typing import Any
from weakref import WeakKeyDictionary

import aiohttp
from aiohttp import hdrs
from aiohttp.abc import AbstractStreamWriter, ResolveResult
from aiohttp.client_reqrep import ConnectionKey
from aiohttp.payload import Payload
from yarl import URL

from proxy.errors import UpstreamUnavailable
from proxy.http.headers import Headers, is_event_stream
from proxy.servers.upstream.messages import unavailable
from proxy.settings.tables import UpstreamSettings

IDLE = 4.0  # seconds that an idle connection is kept: less than the 5 s after which common servers close theirs
ENDS_AFTER_STREAMS = 600.0
"""Seconds for which no connection is used again that had a stream, after one of them had ended."""
_BUFFER = 65_536
_SEPARATE_WRITE = 65_536
"""A body of this many bytes or more is not copied in order to be sent in one write with the head."""
_ENDED = (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError, aiohttp.ClientConnectionResetError)

Pairs = list[tuple[str, str]]
_log = logging.getLogger(__name__)


class BrokenOff(aiohttp.ClientConnectionError):
    """A connection ended without a reply; after this error the library does not repeat the request."""


class Forwarder:
    """One pool of connections over aiohttp; must be made in a running event loop."""

    def __init__(self, settings: UpstreamSettings, tls: ssl.SSLContext) -> None:
        self._connector = _Connector(
            limit=settings.max_connections,
            keepalive_timeout=IDLE,
            ssl=tls,
            resolver=_Resolver(settings.connect_timeout),
        )
        self._session = aiohttp.ClientSession(
            connector=self._connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            request_class=_Request,
            middlewares=(self._send_on_a_live_connection,),
            skip_auto_headers=(hdrs.ACCEPT, hdrs.ACCEPT_ENCODING, hdrs.CONTENT_TYPE, hdrs.USER_AGENT),
            auto_decompress=False,
            read_bufsize=_BUFFER,
            max_line_size=_BUFFER,
            max_field_size=_BUFFER,
            max_headers=1_000,
            timeout=aiohttp.ClientTimeout(
                connect=settings.read_timeout, sock_connect=settings.connect_timeout, sock_read=settings.read_timeout
            ),
        )

    async def send(self, method: str, url: str, headers: Pairs, body: bytes | AsyncIterator[bytes]) -> ForwardedReply:
        """Sends a request and returns when the reply's head has come; raises `UpstreamUnavailable`."""
        content = (_Bytes(body) if body else None) if isinstance(body, bytes) else _Upload(body)
        try:
            response = await self._session.request(
                method,
                URL(url, encoded=True),
                headers=headers,
                data=content,
                allow_redirects=False,
            )
        except (TimeoutError, aiohttp.ClientError) as error:
            if isinstance(content, _Upload) and content.failure is not None:
                raise content.failure from None
            raise unavailable(error, is_late=isinstance(error, TimeoutError)) from error
        return ForwardedReply(response)

    async def _send_on_a_live_connection(
        self, request: aiohttp.ClientRequest, send: aiohttp.ClientHandlerType
    ) -> aiohttp.ClientResponse:
        """Sends a request; a second time only if a kept connection ended. The library itself would repeat more."""
        assert isinstance(request, _Request)
        try:
            try:
                response = await send(request)
            except _ENDED as error:
                has_begun = getattr(error, "message", None) not in (None, "Server disconnected")
                if not request.is_on_used_connection or request.is_repeat or has_begun:
                    raise
                self._connector.note_end(request)
                request.is_repeat = True
                response = await send(request)
        except _ENDED as error:
            raise BrokenOff from error
        self._connector.note_reply(request, in_events=is_event_stream(response.raw_headers))
        return response

    async def close(self) -> None:
        await self._session.close()


class _Connector(aiohttp.TCPConnector):
    """Gives a request a connection, and knows of each whether it was used, and whether for a stream."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._last_was_stream: WeakKeyDictionary[Any, bool] = WeakKeyDictionary()
        self._ends_after_streams_until = 0.0

    async def connect(
        self, req: aiohttp.ClientRequest, traces: list[Any], timeout: aiohttp.ClientTimeout
    ) -> aiohttp.connector.Connection:
        assert isinstance(req, _Request)
        while True:
            req.is_on_used_connection = False
            connection = await super().connect(req, traces, timeout)
            req.protocol = connection.protocol
            streamed = self._last_was_stream.get(req.protocol)
            is_doubtful = streamed and monotonic() < self._ends_after_streams_until
            if streamed is None:
                self._last_was_stream[req.protocol] = False
                return connection
            if not (req.is_repeat or is_doubtful):
                req.is_on_used_connection = True
                return connection
            connection.close()

    def note_reply(self, request: _Request, *, in_events: bool) -> None:
        self._last_was_stream[request.protocol] = in_events

    def note_end(self, request: _Request) -> None:
        """A used connection ended before a reply."""
        if self._last_was_stream.get(request.protocol):
            self._ends_after_streams_until = monotonic() + ENDS_AFTER_STREAMS
            text = "the upstream %s closes connections after streams; for %.0f s, none is used again"
            _log.info(text, request.url.origin(), ENDS_AFTER_STREAMS)


class ForwardedReply:
    """A reply over aiohttp whose head has come; `chunks` may be iterated once."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response
        self.status = response.status
        self.headers: Headers = list(response.raw_headers)

    def chunks(self) -> AsyncIterator[bytes]:
        """The body's bytes as they arrive; bytes that were received together are one chunk."""
        return _Chunks(self._response.content)

    def arrived(self) -> bytes | None:
        """What has come of the body, which `chunks` then leaves out; b"" if nothing has, None if nothing more will."""
        content = self._response.content
        if content.exception() is not None:
            return b""  # `chunks` raises it
        return None if content.at_eof() else content.read_nowait()

    async def close(self) -> None:
        """Ends the call. A connection still in use is aborted: an orderly close would wait for the other side."""
        connection = self._response.connection
        if connection is not None and connection.transport is not None:
            connection.transport.abort()
        self._response.close()


class _Chunks(AsyncIterator[bytes]):
    """The chunks of a body. It is no generator, because the event loop keeps a register of generators."""

    def __init__(self, content: aiohttp.StreamReader) -> None:
        self._content = content
        self._failure: UpstreamUnavailable | None = None

    async def __anext__(self) -> bytes:
        if (failure := self._failure) is not None:
            self._failure = None  # its traceback refers to `self`: a circle
            raise failure
        try:
            chunk = await self._content.readany()
        except (TimeoutError, aiohttp.ClientError) as error:
            failure = unavailable(error, is_late=isinstance(error, TimeoutError))
            # The library returns the bytes received before the failure only after the failure is cleared.
            self._content.set_exception(None)  # type: ignore[arg-type]
            if rest := self._content.read_nowait():
                self._failure = failure
                return rest
            raise failure from error
        if not chunk:
            raise StopAsyncIteration
        return chunk


class _Request(aiohttp.ClientRequest):
    """A request without the library's `content-length: 0` for every method but GET."""

    is_upload = is_repeat = False
    is_on_used_connection = False
    protocol: Any = None  # the library's end of the connection that the request was given last

    @property
    def connection_key(self) -> ConnectionKey:
        """The name of the pool from which it takes its connection: one of its own if it cannot be repeated."""
        key = super().connection_key
        return key._replace(proxy_headers_hash=id(self)) if self.is_upload else key

    def update_body_from_data(self, body: Any, *args: Any) -> None:
        if body is not None:
            super().update_body_from_data(body, *args)
            self.is_upload = isinstance(body, _Upload)


class _Bytes(Payload):
    """A body in one piece. The library's own class warns of large bodies, which are usual here."""

    autoclose = True

    def __init__(self, value: bytes) -> None:
        super().__init__(value)
        self._body = value

    @property
    def size(self) -> int:
        return len(self._body)

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        return str(self._body, encoding, errors)

    async def write(self, writer: AbstractStreamWriter) -> None:
        if len(self._body) >= _SEPARATE_WRITE:
            # Otherwise the library copies the body to join it with the head. The loop writes both at once anyway.
            writer.send_headers()
        await writer.write(self._body)


class _Upload(AsyncIterator[bytes]):
    """A body in parts. It keeps the exception that ended it early, which the library does not report."""

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
