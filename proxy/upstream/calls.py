"""The proxy's own calls, over httpx. No other module imports that library.

Clients' requests also go this way if aiohttp cannot send them, because a header of theirs is not UTF-8, or if a
transport replaces the network. httpx costs more CPU time and can do both.
"""

from __future__ import annotations

import os
import ssl
import zlib
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from http.cookiejar import CookieJar, DefaultCookiePolicy

import httpx

from proxy.http.content_encoding import decoder_for
from proxy.http.headers import Headers
from proxy.settings.tables import UpstreamSettings
from proxy.upstream.messages import JsonReply, timed_out, unreachable

Transport = httpx.AsyncBaseTransport
MAX_ANSWER = 8 * 1024 * 1024
"""Bytes of an answer to one of the proxy's own calls, unpacked; a longer one is cut, and so cannot be read."""


def tls_context() -> ssl.SSLContext:
    """A context that trusts certifi's authorities, or those that SSL_CERT_FILE or SSL_CERT_DIR names; cached."""
    return _trusting(os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR"))


@cache
def _trusting(*_places: str | None) -> ssl.SSLContext:
    # httpx reads the same variables, so they need not be passed on.
    context = httpx.create_ssl_context()
    context.set_alpn_protocols(["http/1.1"])
    return context


class JsonClient:
    """One pool of connections over httpx."""

    def __init__(self, settings: UpstreamSettings, tls: ssl.SSLContext, transport: Transport | None) -> None:
        most = settings.max_connections
        self._client = httpx.AsyncClient(
            verify=tls,
            timeout=httpx.Timeout(settings.read_timeout, connect=settings.connect_timeout),
            limits=httpx.Limits(max_connections=most, max_keepalive_connections=most, keepalive_expiry=30),
            transport=transport,
            headers={"accept-encoding": "gzip, deflate"},  # what `Decoder` can bound
            trust_env=False,
            follow_redirects=False,
            # No cookies are kept: one from the reply to one caller must not be sent on behalf of another.
            cookies=CookieJar(DefaultCookiePolicy(allowed_domains=[])),
        )

    async def forward(self, method: str, url: str, headers: Headers, body: bytes | AsyncIterator[bytes]) -> CalledReply:
        """Sends a client's request and returns when the reply's head has come; raises `UpstreamUnavailable`."""
        request = httpx.Request(method, url, headers=headers, content=body or None)
        request.extensions["timeout"] = self._client.timeout.as_dict()
        with _translated_errors():
            return CalledReply(await self._client.send(request, stream=True))

    async def ask(self, url: str, headers: Headers, data: bytes, timeout: float) -> JsonReply:
        """Posts JSON and reads the reply, `timeout` in seconds; raises `UpstreamUnavailable`."""
        typed = [*headers, (b"content-type", b"application/json")]
        with _translated_errors():
            async with self._client.stream("POST", url, headers=typed, content=data, timeout=timeout) as response:
                return await _read_reply(response, MAX_ANSWER)

    async def page(self, url: str, headers: Headers, timeout: float, most_bytes: int) -> JsonReply:
        """Gets a page, cut off after about `most_bytes`; `timeout` in seconds. Raises `UpstreamUnavailable`."""
        with _translated_errors():
            async with self._client.stream("GET", url, headers=headers, timeout=timeout) as response:
                return await _read_reply(response, most_bytes)

    async def close(self) -> None:
        await self._client.aclose()


class CalledReply:
    """A reply over httpx whose head has come; `chunks` may be iterated once."""

    def __init__(self, response: httpx.Response) -> None:
        self._response = response
        self.status = response.status_code
        self.headers: Headers = list(response.headers.raw)

    async def chunks(self) -> AsyncIterator[bytes]:
        """The body's bytes as they come in."""
        with _translated_errors():
            async for chunk in self._response.aiter_raw():
                yield chunk

    async def close(self) -> None:
        """Ends the call."""
        await self._response.aclose()


@dataclass(frozen=True, slots=True)
class Address:
    """The scheme, host and port of a base URL, and its path, both without a slash at the end."""

    server: str
    path: str


def address(base_url: str) -> Address:
    """The address in a base URL, without any credentials."""
    url = httpx.URL(base_url)
    return Address(f"{url.scheme}://{url.netloc.decode()}", url.raw_path.decode().rstrip("/"))


async def _read_reply(response: httpx.Response, most_bytes: int) -> JsonReply:
    """Reads a reply, cut off after about `most_bytes`; one that cannot be decoded is empty."""
    body, decoder = bytearray(), decoder_for(response.headers.get("content-encoding", ""))
    try:
        async for chunk in response.aiter_raw():
            body += decoder.feed(chunk) if decoder else b""
            if len(body) > most_bytes:
                break
    except zlib.error:
        body.clear()
    return JsonReply(response.status_code, bytes(body), response.headers.get("retry-after"))


@contextmanager
def _translated_errors() -> Iterator[None]:
    try:
        yield
    except httpx.TimeoutException as error:
        raise timed_out() from error
    except httpx.HTTPError as error:
        raise unreachable(error) from error
