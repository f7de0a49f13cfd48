"""The upstream: the only module that knows the HTTP client.

Two uses of one pool. The relay sends a request whose bytes are made elsewhere and hands back status, headers
and raw chunks, nothing decoded. Our own calls send JSON and read JSON. Neither follows redirects, reads
proxies from the environment or retries: a request goes where the settings say, once.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import httpx

from proxy.errors import BadRequest, UpstreamUnavailable
from proxy.headers import Headers
from proxy.settings import UpstreamSettings

PREFIX = "/v1"
Transport = httpx.AsyncBaseTransport


@dataclass(frozen=True, slots=True)
class UpstreamRequest:
    """What is sent: `path` and `query` as they came in, `body` whole or as a stream."""

    method: str
    path: bytes
    query: bytes
    headers: Headers
    body: bytes | AsyncIterator[bytes]


class JsonReply(NamedTuple):
    """An answer to a call of our own, read whole and decoded."""

    status: int
    body: bytes


class UpstreamReply:
    """An answer whose head is there; `chunks` may be iterated once."""

    def __init__(self, response: httpx.Response) -> None:
        self._response = response
        self.status = response.status_code
        self.headers: Headers = list(response.headers.raw)

    async def chunks(self) -> AsyncIterator[bytes]:
        """The body's bytes as they come in, with their content encoding; raises `UpstreamUnavailable`."""
        try:
            async for chunk in self._response.aiter_raw():
                yield chunk
        except httpx.HTTPError as error:
            raise _unavailable(error) from error

    async def close(self) -> None:
        """Ends the call; an answer that was not read to its end is cancelled."""
        await self._response.aclose()


class Upstream:
    """One upstream by its settings."""

    def __init__(self, settings: UpstreamSettings, transport: httpx.AsyncBaseTransport | None = None) -> None:
        self._base = httpx.URL(settings.base_url)
        most = settings.max_connections
        limits = httpx.Limits(max_connections=most, max_keepalive_connections=most, keepalive_expiry=30)
        timeout = httpx.Timeout(settings.read_timeout, connect=settings.connect_timeout)
        self._client = httpx.AsyncClient(
            timeout=timeout, limits=limits, transport=transport, trust_env=False, follow_redirects=False
        )

    @asynccontextmanager
    async def exchange(self, request: UpstreamRequest) -> AsyncIterator[UpstreamReply]:
        """Sends a request; the reply ends with the block. Raises `UpstreamUnavailable`."""
        reply = await self.send(request)
        try:
            yield reply
        finally:
            await reply.close()

    async def send(self, request: UpstreamRequest) -> UpstreamReply:
        """Sends a request and returns when the answer's head is there; the caller closes the reply."""
        built = httpx.Request(
            request.method, self._target(request), headers=_framed(request), content=_content(request)
        )
        built.extensions["timeout"] = self._client.timeout.as_dict()
        try:
            return UpstreamReply(await self._client.send(built, stream=True))
        except httpx.HTTPError as error:
            raise _unavailable(error) from error

    async def ask(self, base_url: str | None, headers: Headers, body: Mapping[str, Any], timeout: float) -> JsonReply:
        """A chat completion of our own, `timeout` in seconds; raises `UpstreamUnavailable`."""
        base = httpx.URL(base_url) if base_url else self._base
        target = base.copy_with(raw_path=base.raw_path.rstrip(b"/") + b"/chat/completions")
        try:
            # ASCII, because a transcript may hold lone surrogates, which UTF-8 cannot.
            data = json.dumps(body).encode()
            typed = [*headers, (b"content-type", b"application/json")]
            response = await self._client.post(target, headers=typed, content=data, timeout=timeout)
        except httpx.HTTPError as error:
            raise _unavailable(error) from error
        return JsonReply(response.status_code, response.content)

    async def reachable(self) -> int:
        """The status that the upstream's model list answers with; raises `UpstreamUnavailable`."""
        target = self._base.copy_with(raw_path=self._base.raw_path.rstrip(b"/") + b"/models")
        try:
            return (await self._client.get(target, timeout=5.0)).status_code
        except httpx.HTTPError as error:
            raise _unavailable(error) from error

    async def close(self) -> None:
        """Closes all connections."""
        await self._client.aclose()

    def _target(self, request: UpstreamRequest) -> httpx.URL:
        """The base URL with what follows `/v1`; nothing in a request can change host or climb out of it."""
        rest = request.path.removeprefix(PREFIX.encode())
        if not is_plain(rest):
            raise BadRequest("The path has segments that climb.", code="bad_path")
        query = b"?" + request.query if request.query else b""
        return self._base.copy_with(raw_path=self._base.raw_path.rstrip(b"/") + rest + query)


def is_plain(path: bytes) -> bool:
    """Whether a path has no dot segments, however they are written, and no backslash."""
    lowered = path.lower().replace(b"%2e", b".").replace(b"%2f", b"/").replace(b"%5c", b"\\")
    return b"\\" not in lowered and not any(part in (b".", b"..") for part in lowered.split(b"/"))


def _framed(request: UpstreamRequest) -> Headers:
    if isinstance(request.body, bytes) and (request.body or request.method in ("POST", "PUT", "PATCH")):
        return [*request.headers, (b"content-length", str(len(request.body)).encode())]
    return request.headers


def _content(request: UpstreamRequest) -> bytes | AsyncIterator[bytes] | None:
    return request.body or None


def _unavailable(error: httpx.HTTPError) -> UpstreamUnavailable:
    if isinstance(error, httpx.TimeoutException):
        return UpstreamUnavailable("The upstream did not answer in time.", code="upstream_timeout")
    return UpstreamUnavailable(f"The upstream cannot be reached ({type(error).__name__}).")
