"""The proxy under test on a real socket, and what it means that a request crossed it unchanged."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from starlette.types import ASGIApp, Receive, Scope, Send

from proxy.store.base import Store
from tests.support.recording import CHAT, Exchange, Headers, Journal, Tap
from tests.support.server import serve
from tests.support.signals import BOUND
from tests.support.upstream import ScriptedUpstream

PLAIN: dict[str, Any] = {
    "strategy": "mask+half-window",
    "memory": {"default": "off"},
    "extract": {"depth": 1.0},
}
HOP_BY_HOP = {
    "connection",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
}
PER_HOP = HOP_BY_HOP | {"host", "content-length"}  # a new connection states these anew


Upstream = TypeVar("Upstream", bound=ScriptedUpstream)


@dataclass(frozen=True)
class Proxy:
    """Where the proxy listens, and what went in and out at its own socket."""

    url: str
    journal: Journal
    quiet: Callable[..., None]  # returns when no request and no work in the background is under way, in a bound
    served: Callable[[], None]  # returns when no request is under way, in a bound

    @property
    def base_url(self) -> str:
        """What a client is given as its `base_url`."""
        return self.url + "/v1"


@contextmanager
def running_proxy(
    upstream_url: str,
    *,
    clock: Callable[[], float] = time.time,
    opened: Store | None = None,
    as_shipped: bool = False,
    **settings: Any,
) -> Iterator[Proxy]:
    """The real app in front of `upstream_url`; `settings` replace the defaults below, key by key.

    Unlike in the product, a model is asked for records, nothing is cut deeper than the goal, and memory is off: tests
    see each of these only where they ask for it.

    Nothing is asked of the upstream that no test asks for: discovery is off unless a test turns it on. A store that is
    `opened` takes the place of that of the settings. `as_shipped`, the settings are the product's own, but for the
    store, which has time on a busy machine too.
    """
    # Imported here: conftest imports this module, and tests of the pure parts need no proxy to collect.
    from proxy.app import create_app
    from proxy.callers.tenants import TrustedProxies
    from proxy.http.connection import Connection, ConnectionBounds
    from proxy.settings import Settings

    upstream, memory = settings.pop("upstream", {}), settings.pop("memory", {})
    store = {"url": "memory://", "timeout": BOUND, **settings.pop("store", {})}
    if not as_shipped:
        upstream, memory = {"discover": False, **upstream}, {**PLAIN["memory"], **memory}
    own = {"upstream": {"base_url": upstream_url + "/v1", **upstream}, "memory": memory, "store": store}
    built = Settings(**{**({} if as_shipped else PLAIN), **own, **settings})
    app = create_app(built, store=opened, clock=clock)
    watched = _Watched(app)
    tap = Tap(watched)
    is_trusted = TrustedProxies(built.server.trusted_proxies).__contains__
    with serve(tap, http=partial(Connection, ConnectionBounds.of(built.limits, is_trusted))) as url:
        quiet = lambda bound=BOUND: watched.quiet(app.state.services.background.idle, bound)  # noqa: E731
        yield Proxy(url, tap.journal, quiet, lambda: watched.quiet(_nothing, BOUND))


@contextmanager
def proxy_before(server: Upstream, **settings: Any) -> Iterator[tuple[Upstream, Proxy]]:
    """An upstream that runs, and the proxy in front of it."""
    with server, running_proxy(server.url, **settings) as proxy:
        yield server, proxy


async def _nothing() -> None:
    """What is idle at once."""


class _Watched:
    """An app that knows when it has nothing to do."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._busy = 0
        self._over = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._loop = asyncio.get_running_loop()
        if scope["type"] == "lifespan":
            return await self._app(scope, receive, send)
        self._busy += 1
        self._over.clear()
        try:
            await self._app(scope, receive, send)
        finally:
            self._busy -= 1
            if not self._busy:
                self._over.set()

    def quiet(self, idle: Callable[[], Awaitable[None]], bound: float) -> None:
        """Blocks this thread until all requests are over, and then all work that they started."""

        async def waited() -> None:
            await self._over.wait()
            await idle()

        assert self._loop is not None
        asyncio.run_coroutine_threadsafe(waited(), self._loop).result(bound)


def assert_relayed(
    proxy: Proxy, upstream: ScriptedUpstream, path: str = CHAT, *, action: str | None = "passed"
) -> None:
    """Every exchange at `path` crossed the proxy byte for byte, both ways, and says so in its header."""
    outer, inner = proxy.journal.to(path), upstream.journal.to(path)
    assert outer, f"no request to {path} reached the proxy"
    assert len(inner) == len(outer)
    for client_side, upstream_side in zip(outer, inner, strict=True):
        _assert_same_request(client_side, upstream_side)
        _assert_same_response(client_side, upstream_side, action)


def _assert_same_request(client_side: Exchange, upstream_side: Exchange) -> None:
    assert (upstream_side.method, upstream_side.target) == (client_side.method, client_side.target)
    assert upstream_side.body == client_side.body
    assert end_to_end(upstream_side.headers) == end_to_end(client_side.headers)
    assert ours(upstream_side.headers) == []


def _assert_same_response(client_side: Exchange, upstream_side: Exchange, action: str | None) -> None:
    assert (client_side.status, client_side.sent) == (upstream_side.status, upstream_side.sent)
    missing = set(end_to_end(upstream_side.response_headers)) - set(client_side.response_headers)
    assert not missing
    if action is not None:
        assert client_side.response_header("x-condenser-action") == action


def end_to_end(headers: Headers) -> Headers:
    """The headers that are neither per hop nor ours, in an order that can be compared."""
    return sorted((k, v) for k, v in headers if k not in PER_HOP and (k, v) not in ours(headers))


def ours(headers: Headers) -> Headers:
    return [(k, v) for k, v in headers if k.startswith("x-condenser-")]
