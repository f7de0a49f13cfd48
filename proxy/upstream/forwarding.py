"""Forwards clients' requests to the upstream over aiohttp. No other module imports that library.

Nothing is added to a request and nothing in a reply is decoded: no cookies, no redirects, no proxies from the
environment, no headers of the library's own, and no request is sent twice. For why aiohttp is used, see
docs/decisions/0011-aiohttp-for-the-relay.md.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
from aiohttp import hdrs
from aiohttp.abc import AbstractStreamWriter, ResolveResult
from aiohttp.payload import Payload
from yarl import URL

from proxy.errors import UpstreamUnavailable
from proxy.http.headers import Headers
from proxy.settings.tables import UpstreamSettings
from proxy.upstream.messages import timed_out, unreachable

IDLE = 4.0
"""Seconds that an idle connection is kept: less than the 5 s after which common servers close theirs."""
_BUFFER = 65_536
_SEPARATE_WRITE = 65_536
"""A body of this many bytes or more is not copied in order to be sent in one write with the head."""

_SENT_ONCE = frozenset((hdrs.METH_POST, hdrs.METH_PATCH))
"""Methods whose requests the library never repeats, because they might act twice."""

Pairs = list[tuple[str, str]]


class BrokenOff(aiohttp.ClientConnectionError):
    """A connection ended without a reply; after this error the library does not repeat the request."""


async def _never_again(request: aiohttp.ClientRequest, send: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
    """Sends a request once: the library would repeat a GET, HEAD, PUT or DELETE whenever its connection breaks."""
    try:
        return await send(request)
    except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError) as error:
        raise BrokenOff from error


class Forwarder:
    """One pool of connections over aiohttp; must be made in a running event loop."""

    def __init__(self, settings: UpstreamSettings, tls: ssl.SSLContext) -> None:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                limit=settings.max_connections,
                keepalive_timeout=IDLE,
                ssl=tls,
                resolver=_Resolver(settings.connect_timeout),
            ),
            cookie_jar=aiohttp.DummyCookieJar(),
            request_class=_Request,
            middlewares=(_never_again,),
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
        content = _Bytes(body) if isinstance(body, bytes) else _Upload(body)
        try:
            response = await self._session.request(
                method,
                URL(url, encoded=True),
                headers=headers,
                data=content or None,
                allow_redirects=False,
                middlewares=() if method in _SENT_ONCE else None,
            )
        except TimeoutError as error:
            raise timed_out() from error
        except aiohttp.ClientError as error:
            if isinstance(content, _Upload) and content.failure is not None:
                raise content.failure from None
            raise unreachable(error) from error
        return ForwardedReply(response)

    async def close(self) -> None:
        await self._session.close()


class ForwardedReply:
    """A reply over aiohttp whose head has come; `chunks` may be iterated once."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response
        self.status = response.status
        self.headers: Headers = list(response.raw_headers)

    def chunks(self) -> AsyncIterator[bytes]:
        """The body's bytes as they arrive; bytes that were received together are one chunk."""
        return _Chunks(self._response.content)

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
        if self._failure is not None:
            raise self._failure
        try:
            chunk = await self._content.readany()
        except (TimeoutError, aiohttp.ClientError) as error:
            self._failure = timed_out() if isinstance(error, TimeoutError) else unreachable(error)
            self._failure.__cause__ = error
            # The library returns the bytes received before the failure only after the failure is cleared.
            self._content.set_exception(None)  # type: ignore[arg-type]
            if rest := self._content.read_nowait():
                return rest
            raise self._failure from error
        if not chunk:
            raise StopAsyncIteration
        return chunk


class _Request(aiohttp.ClientRequest):
    """A request without the library's `content-length: 0` for every method but GET."""

    def update_body_from_data(self, body: Any, *args: Any) -> None:
        if body is not None:
            super().update_body_from_data(body, *args)


class _Bytes(Payload):
    """A body in one piece. The library's own class warns of large bodies, which are usual here."""

    autoclose = True

    def __init__(self, value: bytes) -> None:
        super().__init__(value)
        self._body = value

    def __bool__(self) -> bool:
        return bool(self._body)

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
