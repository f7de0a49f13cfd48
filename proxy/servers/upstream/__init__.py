"""Calls to the upstream. No other package knows an HTTP client library.

Clients' requests are forwarded over aiohttp (`forwarding`) as bytes, and their replies come back as status, headers
and raw chunks. The proxy's own calls send and read JSON over httpx, which no other module imports. A client's request
goes over httpx too if aiohttp cannot send it, because one of its headers is not UTF-8. Neither library follows
redirects or reads proxies from the environment: a request goes where the settings say.
"""

from __future__ import annotations

import logging
import os
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from functools import cache, lru_cache
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import NamedTuple

import httpx

from proxy.errors import UpstreamUnavailable
from proxy.http.encodings import ACCEPTED, NotDecodable, decoder_for
from proxy.http.headers import Headers
from proxy.http.paths import V1
from proxy.quoting import redacted
from proxy.servers.upstream.choice import Destination
from proxy.servers.upstream.forwarding import Forwarder
from proxy.servers.upstream.messages import JsonReply, UpstreamReply, UpstreamRequest, unavailable
from proxy.settings.tables import UpstreamSettings

__all__ = ["JsonReply", "Upstream", "UpstreamReply", "UpstreamRequest", "server_of"]

MAX_ANSWER = 8 * 1024 * 1024
"""Maximum bytes of an answer to one of the proxy's own calls, unpacked; a longer one is cut, and so unreadable."""
_TYPE = b"content-type"
_WITH_BODY = ("POST", "PUT", "PATCH")  # even an empty one
_PROBE_TIMEOUT = 5.0  # seconds

_log = logging.getLogger(__name__)


class Upstream:
    """Calls any upstream, with a pool of connections for each library; must be made in a running event loop."""

    def __init__(self, settings: UpstreamSettings) -> None:
        # httpx reads the same variables, so they need not be passed on.
        tls = _trusting(os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR"))
        most = settings.max_connections
        self._forwarder = Forwarder(settings, tls)
        self.silent: dict[str, str] = {}
        """The addresses that gave the last client's request no answer, each with the code of its error."""
        self._client = httpx.AsyncClient(
            verify=tls,
            timeout=httpx.Timeout(settings.read_timeout, connect=settings.connect_timeout),
            limits=httpx.Limits(max_connections=most, max_keepalive_connections=most, keepalive_expiry=30),
            headers={"accept-encoding": ACCEPTED},
            trust_env=False,
            follow_redirects=False,
            # No cookies are kept: a cookie from one caller's reply must not be sent for another caller.
            cookies=CookieJar(DefaultCookiePolicy(allowed_domains=[])),
        )

    async def close(self) -> None:
        await self._client.aclose()
        await self._forwarder.close()

    # -- clients' requests ---------------------------------------------------------------------------

    async def send(self, request: UpstreamRequest) -> UpstreamReply:
        """Forwards a request and returns when the head of the reply has come; the caller must close the reply.

        If the whole body is known, its length is added to the headers.
        Raises `UpstreamUnavailable`. The path and the query are in the form that `proxy/http/paths.py` leaves.
        """
        base_url, method, path, query, headers, body = request
        url = _url(_address(base_url), path.decode())
        if query:
            url = f"{url}?{query.decode()}"
        if isinstance(body, bytes) and (body or method in _WITH_BODY):
            headers = [*headers, (b"content-length", str(len(body)).encode())]
        try:
            if (pairs := _as_text(headers)) is None:
                reply: UpstreamReply = await self._forward(method, url, headers, body)
            else:
                reply = await self._forwarder.send(method, url, pairs, body)
        except UpstreamUnavailable as error:
            self.silent[base_url] = error.code or error.type
            _log.warning("the upstream %s gave no answer: %s", redacted(base_url), error.message)
            raise
        if self.silent:
            self.silent.pop(base_url, None)
        return reply

    async def _forward(
        self, method: str, url: str, headers: Headers, body: bytes | AsyncIterator[bytes]
    ) -> UpstreamReply:
        request = httpx.Request(method, url, headers=headers, content=body or None)
        request.extensions["timeout"] = self._client.timeout.as_dict()
        with _translated_errors():
            return _HttpxReply(await self._client.send(request, stream=True))

    # -- the proxy's own calls -----------------------------------------------------------------------

    async def ask(self, base_url: str, path: str, headers: Headers, data: bytes, timeout: float) -> JsonReply:
        """Posts JSON to a path; raises `UpstreamUnavailable`. `timeout` is in seconds."""
        # A client's headers have a type already, and many servers refuse two.
        typed = [*(pair for pair in headers if pair[0] != _TYPE), (_TYPE, b"application/json")]
        return await self._call("POST", _url(_address(base_url), path), typed, timeout, MAX_ANSWER, data)

    async def probe(self, upstream: Destination) -> int:
        """Asks for the model list of an upstream, with the operator's key if there is one, and returns the status.

        Raises `UpstreamUnavailable`.
        """
        return (await self.page(upstream, "/models", _PROBE_TIMEOUT, 0)).status

    async def page(
        self,
        upstream: Destination,
        path: str,
        timeout: float,
        most_bytes: int,
        *,
        beside_v1: bool = False,
        headers: Headers | None = None,
    ) -> JsonReply:
        """Gets a page of an upstream's server, with the operator's key if there is one; raises `UpstreamUnavailable`.

        `path` is appended to the base URL, without its `/v1` if `beside_v1` is set. The body is cut off after about
        `most_bytes`; `timeout` is in seconds.
        """
        base = _address(upstream.base_url)
        place = base.path.removesuffix(V1) if beside_v1 else base.path
        own = upstream.headers if headers is None else headers
        return await self._call("GET", base.server + place + path, own, timeout, most_bytes)

    async def _call(
        self, method: str, url: str, headers: Headers, timeout: float, most_bytes: int, data: bytes | None = None
    ) -> JsonReply:
        """Sends a request and reads the reply: cut off after about `most_bytes`, empty if it cannot be decoded."""
        body = bytearray()
        with _translated_errors():
            async with self._client.stream(method, url, headers=headers, content=data, timeout=timeout) as response:
                decoder = decoder_for(response.headers.get("content-encoding", ""))
                try:
                    async for chunk in response.aiter_raw():
                        body += decoder.feed(chunk) if decoder else b""
                        if len(body) > most_bytes:
                            break
                except NotDecodable:
                    body.clear()
            del response.stream  # the two know each other, and with them the request
        return JsonReply(response.status_code, bytes(body), response.headers.get("retry-after"))


class _HttpxReply:
    """A reply over httpx whose head has come; `chunks` may be iterated once."""

    def __init__(self, response: httpx.Response) -> None:
        self._response = response
        self.status = response.status_code
        self.headers: Headers = list(response.headers.raw)

    async def chunks(self) -> AsyncIterator[bytes]:
        with _translated_errors():
            async for chunk in self._response.aiter_raw():
                yield chunk

    async def close(self) -> None:
        await self._response.aclose()


@contextmanager
def _translated_errors() -> Iterator[None]:
    try:
        yield
    except httpx.HTTPError as error:
        raise unavailable(error, is_late=isinstance(error, httpx.TimeoutException)) from error


@cache
def _trusting(*_places: str | None) -> ssl.SSLContext:
    """A context that trusts certifi's authorities, or those named by SSL_CERT_FILE or SSL_CERT_DIR."""
    context = httpx.create_ssl_context()
    context.set_alpn_protocols(["http/1.1"])
    return context


# -- addresses -------------------------------------------------------------------------------------------


class _Address(NamedTuple):
    """A base URL: its scheme, host and port, and its path; both without a slash at the end."""

    server: str
    path: str


@lru_cache(1_000)
def _address(base_url: str) -> _Address:
    """The address in a base URL, without any credentials."""
    url = httpx.URL(base_url)
    return _Address(f"{url.scheme}://{url.netloc.decode()}", url.raw_path.decode().rstrip("/"))


def server_of(base_url: str) -> str:
    """The scheme, host and port of a base URL, which identify a server."""
    return _address(base_url).server + "/"


def _url(base: _Address, path: str) -> str:
    """Where a path leads: `/v1` is the base URL itself, and a provider's prefix takes the place of its final `/v1`."""
    if f"{path}/".startswith(f"{V1}/"):
        return base.server + base.path + path[len(V1) :]
    return base.server + base.path.removesuffix(V1) + path


def _as_text(headers: Headers) -> list[tuple[str, str]] | None:
    """Headers decoded as UTF-8, which aiohttp writes; None if some are not UTF-8."""
    try:
        return [(name.decode(), value.decode()) for name, value in headers]
    except UnicodeDecodeError:
        return None
