"""The upstream: where requests go, and the only package that knows HTTP clients.

Two clients, one to each kind of call. A client's request goes over aiohttp (`forwarding`), whose bytes are made
elsewhere, and comes back as status, headers and raw chunks. Our own calls send and read JSON over httpx (`calls`).
Neither follows redirects or reads proxies from the environment: a request goes where the settings say.
"""

from __future__ import annotations

import logging
from functools import lru_cache

from proxy.errors import BadRequest, UpstreamUnavailable
from proxy.http.headers import Headers
from proxy.settings.tables import UpstreamSettings
from proxy.upstream.calls import Address, Calls, Transport, address, tls_context
from proxy.upstream.forwarding import Forwarder
from proxy.upstream.messages import JsonReply, UpstreamReply, UpstreamRequest

__all__ = ["JsonReply", "Transport", "Upstream", "UpstreamReply", "UpstreamRequest"]

PREFIX = "/v1"
_PATHS = 64
_REACHABLE_WITHIN = 5.0

_log = logging.getLogger(__name__)


class Upstream:
    """One upstream by its settings; made inside of a running loop. A `transport` takes the place of the network."""

    def __init__(self, settings: UpstreamSettings, transport: Transport | None = None) -> None:
        tls = tls_context()
        self._base_url = settings.base_url
        self._base = address(settings.base_url)
        self._calls = Calls(settings, tls, transport)
        self._forwarder = None if transport else Forwarder(settings, tls)

    async def send(self, request: UpstreamRequest) -> UpstreamReply:
        """Sends a request and returns when the answer's head is there; the caller closes the reply.

        Raises `UpstreamUnavailable`, and `BadRequest` for a path that does not stay behind the base.
        """
        url = self._base.server + self._base.path + _target(request.path, request.query)
        headers = request.framed()
        pairs = _as_text(headers)
        try:
            if self._forwarder is None or pairs is None:
                return await self._calls.forward(request.method, url, headers, request.body)
            return await self._forwarder.send(request.method, url, pairs, request.body)
        except UpstreamUnavailable as error:
            _log.warning("the upstream gave no answer: %s", error.message)
            raise

    def server(self, base_url: str | None) -> str:
        """What is one server to its clients: scheme, host and port of an address, or of the upstream's own."""
        return self._address(base_url).server + "/"

    async def ask(self, base_url: str | None, headers: Headers, data: bytes, timeout: float) -> JsonReply:
        """A chat completion of our own, `timeout` in seconds; raises `UpstreamUnavailable`."""
        base = self._address(base_url)
        return await self._calls.ask(f"{base.server}{base.path}/chat/completions", headers, data, timeout)

    async def embed(self, base_url: str | None, headers: Headers, data: bytes, timeout: float) -> JsonReply:
        """Embeddings for ourselves, `timeout` in seconds; raises `UpstreamUnavailable`."""
        base = self._address(base_url)
        return await self._calls.ask(f"{base.server}{base.path}/embeddings", headers, data, timeout)

    async def reachable(self) -> int:
        """The status that the upstream's model list answers with; raises `UpstreamUnavailable`."""
        return (await self.page("/models", [], _REACHABLE_WITHIN, 0)).status

    async def page(
        self, path: str, headers: Headers, timeout: float, most_bytes: int, *, beside_v1: bool = False
    ) -> JsonReply:
        """A page of the upstream's server, below its base URL or, `beside_v1`, below what comes before `/v1` there.

        A longer body is cut off after about `most_bytes`. `timeout` in seconds; raises `UpstreamUnavailable`.
        """
        base = self._base.path.removesuffix(PREFIX) if beside_v1 else self._base.path
        url = self._base.server + base + path
        return await self._calls.page(url, headers, timeout, most_bytes)

    async def close(self) -> None:
        """Closes all connections."""
        await self._calls.close()
        if self._forwarder is not None:
            await self._forwarder.close()

    def _address(self, base_url: str | None) -> Address:
        return address(base_url) if base_url else self._base


def _target(path: bytes, query: bytes) -> str:
    """What stands behind a base URL; nothing in it can change the host or climb. Raises `BadRequest`."""
    return f"{_rest(path)}?{_text(query)}" if query else _rest(path)


@lru_cache(_PATHS)
def _rest(path: bytes) -> str:
    # Kept, for nearly all requests have one of a few paths.
    rest = path.removeprefix(PREFIX.encode())
    if not is_plain(rest):
        raise BadRequest("The path has segments that climb.", code="bad_path")
    return _text(rest)


def _text(part: bytes) -> str:
    try:
        return part.decode()
    except UnicodeDecodeError:
        raise BadRequest("The path is not UTF-8.", code="bad_path") from None


def is_plain(path: bytes) -> bool:
    """Whether a path has no dot segments, however they are written, and no backslash."""
    lowered = path.lower().replace(b"%2e", b".").replace(b"%2f", b"/").replace(b"%5c", b"\\")
    return b"\\" not in lowered and not any(part in (b".", b"..") for part in lowered.split(b"/"))


def _as_text(headers: Headers) -> list[tuple[str, str]] | None:
    """Headers as UTF-8, which is how aiohttp writes them; None where some are not."""
    try:
        return [(name.decode(), value.decode()) for name, value in headers]
    except UnicodeDecodeError:
        return None
