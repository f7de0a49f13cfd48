"""Calls over httpx, the only module that knows it: those that the proxy makes itself.

And those of clients that aiohttp cannot carry, because a header of theirs is not UTF-8, or may not, because a
transport takes the network's place. httpx costs more CPU and can do both.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from http.cookiejar import CookieJar, DefaultCookiePolicy

import httpx

from proxy.http.headers import Headers
from proxy.settings.tables import UpstreamSettings
from proxy.upstream.messages import JsonReply, late, unreachable

Transport = httpx.AsyncBaseTransport


def tls_context() -> ssl.SSLContext:
    """Trusts certifi's authorities, or those that SSL_CERT_FILE or SSL_CERT_DIR names; each are read once."""
    return _trusting(os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR"))


@cache
def _trusting(*_places: str | None) -> ssl.SSLContext:
    # httpx reads the same variables.
    context = httpx.create_ssl_context()
    context.set_alpn_protocols(["http/1.1"])
    return context


class Calls:
    """One pool of connections."""

    def __init__(self, settings: UpstreamSettings, tls: ssl.SSLContext, transport: Transport | None) -> None:
        most = settings.max_connections
        self._client = httpx.AsyncClient(
            verify=tls,
            timeout=httpx.Timeout(settings.read_timeout, connect=settings.connect_timeout),
            limits=httpx.Limits(max_connections=most, max_keepalive_connections=most, keepalive_expiry=30),
            transport=transport,
            trust_env=False,
            follow_redirects=False,
            # A cookie that came with one caller's reply is that caller's: no other call may send it.
            cookies=CookieJar(DefaultCookiePolicy(allowed_domains=[])),
        )

    async def forward(self, method: str, url: str, headers: Headers, body: bytes | AsyncIterator[bytes]) -> CalledReply:
        """Sends a client's request and returns when the answer's head is there; raises `UpstreamUnavailable`."""
        request = httpx.Request(method, url, headers=headers, content=body or None)
        request.extensions["timeout"] = self._client.timeout.as_dict()
        with _in_our_words():
            return CalledReply(await self._client.send(request, stream=True))

    async def ask(self, url: str, headers: Headers, data: bytes, timeout: float) -> JsonReply:
        """Posts JSON, `timeout` in seconds; raises `UpstreamUnavailable`."""
        typed = [*headers, (b"content-type", b"application/json")]
        with _in_our_words():
            response = await self._client.post(url, headers=typed, content=data, timeout=timeout)
        return JsonReply(response.status_code, response.content, response.headers.get("retry-after"))

    async def page(self, url: str, headers: Headers, timeout: float, most_bytes: int) -> JsonReply:
        """Gets a page; a longer one is cut off after about `most_bytes`. Raises `UpstreamUnavailable`."""
        body = bytearray()
        with _in_our_words():
            async with self._client.stream("GET", url, headers=headers, timeout=timeout) as response:
                async for chunk in response.aiter_bytes():
                    body += chunk
                    if len(body) > most_bytes:
                        break
        return JsonReply(response.status_code, bytes(body), response.headers.get("retry-after"))

    async def close(self) -> None:
        """Closes all connections."""
        await self._client.aclose()


class CalledReply:
    """An answer whose head is there; `chunks` may be iterated once."""

    def __init__(self, response: httpx.Response) -> None:
        self._response = response
        self.status = response.status_code
        self.headers: Headers = list(response.headers.raw)

    async def chunks(self) -> AsyncIterator[bytes]:
        """The body's bytes as they come in."""
        with _in_our_words():
            async for chunk in self._response.aiter_raw():
                yield chunk

    async def close(self) -> None:
        """Ends the call."""
        await self._response.aclose()


@dataclass(frozen=True, slots=True)
class Address:
    """A base URL in its parts, each without a slash at its end."""

    server: str
    path: str


def address(base_url: str) -> Address:
    """What a base URL says, which holds no credential."""
    url = httpx.URL(base_url)
    return Address(f"{url.scheme}://{url.netloc.decode()}", url.raw_path.decode().rstrip("/"))


@contextmanager
def _in_our_words() -> Iterator[None]:
    try:
        yield
    except httpx.TimeoutException as error:
        raise late() from error
    except httpx.HTTPError as error:
        raise unreachable(error) from error
