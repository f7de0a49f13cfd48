"""Calls to the upstream. No other package knows an HTTP client library.

Each kind of call has its own library. Clients' requests are forwarded over aiohttp (`forwarding`) as the bytes they
are, and their replies come back as status, headers and raw chunks. The proxy's own calls send and read JSON over httpx
(`calls`). Neither follows redirects nor reads proxies from the environment: a request goes where the settings say.
"""

from __future__ import annotations

import logging
from functools import lru_cache

from proxy.errors import BadRequest, UpstreamUnavailable
from proxy.http.headers import Headers, to_upstream
from proxy.quoting import redacted
from proxy.settings.tables import UpstreamSettings
from proxy.upstream.calls import Address, JsonClient, Transport, address, tls_context
from proxy.upstream.forwarding import Forwarder
from proxy.upstream.messages import JsonReply, UpstreamReply, UpstreamRequest

__all__ = ["JsonReply", "Transport", "Upstream", "UpstreamReply", "UpstreamRequest"]

PREFIX = "/v1"
_CACHED_PATHS = 64
_WITH_BODY = ("POST", "PUT", "PATCH")  # even an empty one
_PROBE_TIMEOUT = 5.0  # seconds

_log = logging.getLogger(__name__)


class Upstream:
    """One upstream; to be made inside of a running event loop. A `transport` replaces the network, for tests."""

    def __init__(self, settings: UpstreamSettings, transport: Transport | None = None) -> None:
        tls = tls_context()
        self._shown = redacted(settings.base_url)
        self._base = address(settings.base_url)
        self._calls = JsonClient(settings, tls, transport)
        key = settings.api_key
        self._own_headers = to_upstream([], key.get_secret_value() if key else None)
        self._forwarder = None if transport else Forwarder(settings, tls)

    async def send(self, request: UpstreamRequest) -> UpstreamReply:
        """Forwards a request and returns when the head of the reply has come; the caller must close the reply.

        The length of a body that is known in whole is added to the headers.
        Raises `UpstreamUnavailable`, and `BadRequest` for a path that leads out of the base URL.
        """
        method, path, query, headers, body = request
        # A path cannot change the host, nor lead out of the base URL.
        url = _url(self._base, _checked(path))
        if query:
            url = f"{url}?{_text(query)}"
        if isinstance(body, bytes) and (body or method in _WITH_BODY):
            headers = [*headers, (b"content-length", str(len(body)).encode())]
        try:
            if self._forwarder is None or (pairs := _as_text(headers)) is None:
                return await self._calls.forward(method, url, headers, body)
            return await self._forwarder.send(method, url, pairs, body)
        except UpstreamUnavailable as error:
            _log.warning("the upstream %s gave no answer: %s", self._shown, error.message)
            raise

    def server(self, base_url: str | None) -> str:
        """The scheme, host and port of a base URL, which identify a server; None means the upstream itself."""
        return self._address(base_url).server + "/"

    async def ask(self, base_url: str | None, path: str, headers: Headers, data: bytes, timeout: float) -> JsonReply:
        """Sends a request of the proxy's own to a path; raises `UpstreamUnavailable`.

        `timeout` is in seconds.
        """
        return await self._calls.ask(_url(self._address(base_url), path), headers, data, timeout)

    async def probe(self) -> int:
        """Asks for the upstream's model list and returns the status; raises `UpstreamUnavailable`.

        It has the operator's key, if there is one.
        """
        return (await self.page("/models", self._own_headers, _PROBE_TIMEOUT, 0)).status

    async def page(
        self, path: str, headers: Headers, timeout: float, most_bytes: int, *, beside_v1: bool = False
    ) -> JsonReply:
        """Gets a page of the upstream's server; raises `UpstreamUnavailable`.

        `path` is appended to the base URL, without its `/v1` if `beside_v1` is set. A longer body is cut off after
        about `most_bytes`; `timeout` is in seconds.
        """
        base = self._base.path.removesuffix(PREFIX) if beside_v1 else self._base.path
        url = self._base.server + base + path
        return await self._calls.page(url, headers, timeout, most_bytes)

    async def close(self) -> None:
        await self._calls.close()
        if self._forwarder is not None:
            await self._forwarder.close()

    def _address(self, base_url: str | None) -> Address:
        return address(base_url) if base_url else self._base


def _url(base: Address, path: str) -> str:
    """Where a path leads: below the base URL if it begins with `/v1`, else to the same path of the server."""
    below = path.removeprefix(PREFIX)
    return base.server + (path if below == path else base.path + below)


@lru_cache(_CACHED_PATHS)  # nearly all requests have one of a few paths
def _checked(path: bytes) -> str:
    """A path as text; raises `BadRequest` for one that climbs or is not UTF-8."""
    if not is_plain(path):
        raise BadRequest("The path has segments that climb.", code="bad_path")
    return _text(path)


def _text(part: bytes) -> str:
    try:
        return part.decode()
    except UnicodeDecodeError:
        raise BadRequest("The path is not UTF-8.", code="bad_path") from None


def is_plain(path: bytes) -> bool:
    """Whether a path has no dot segments, percent-encoded or not, and no backslash."""
    lowered = path.lower().replace(b"%2e", b".").replace(b"%2f", b"/").replace(b"%5c", b"\\")
    return b"\\" not in lowered and not any(part in (b".", b"..") for part in lowered.split(b"/"))


def _as_text(headers: Headers) -> list[tuple[str, str]] | None:
    """Headers decoded from UTF-8, which aiohttp writes them in; None if some are not UTF-8."""
    try:
        return [(name.decode(), value.decode()) for name, value in headers]
    except UnicodeDecodeError:
        return None
