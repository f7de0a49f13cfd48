"""The ASGI application: routes, error handlers and lifespan.

`create_app` builds all of it, and nothing that a request brings is kept outside of its app: several can run in one
process. Requests that are condensed do not pass through the framework's layers: `Serving` calls their route directly,
and handles errors as the layers do.
"""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from http import HTTPStatus

from fastapi import FastAPI
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from proxy.callers.tenants import TrustedProxies
from proxy.errors import DEFECT, ProxyError, http_error_body
from proxy.http.connection import Connection, ConnectionBounds
from proxy.http.paths import ADMIN, Paths
from proxy.http.server import Drain, Renew, ServerConfig, give_back_memory, use_one_heap
from proxy.log import LINE, RequestLine, configure_logging
from proxy.operator.routes import admin, livez, metrics, own, readyz, root
from proxy.protocols import COMPACT_PATHS, COUNT_PATHS, ENDINGS, PATHS
from proxy.quoting import printable
from proxy.services import OTLP, open_services
from proxy.settings import Settings
from proxy.store.base import Store
from proxy.turn.compress import PATH, Compress
from proxy.turn.drive import CondensedEndpoint
from proxy.turn.layer import Guard, Serving, error_response, new_request_id
from proxy.turn.passing import PassThrough
from proxy.turn.read_only import ReadOnly

_JSON = "application/json"
_MAX_ADDRESS = 255
_COLLECT_AFTER = 20_000
"""New objects until cycles are searched for: requests leave none, and each one makes more than Python's default 700."""
_SWITCH = 0.000_5
"""Seconds for which a thread that reads or counts keeps the event loop waiting; Python's default is ten times that."""
_CONDENSED = {path: CondensedEndpoint(endpoint) for path, endpoint in PATHS.items()}
_READ_ONLY = {
    **{path: ReadOnly(endpoint) for path, endpoint in COUNT_PATHS.items()},
    **{path: ReadOnly(endpoint, compacts=True) for path, endpoint in COMPACT_PATHS.items()},
}
_SERVED: dict[str, ASGIApp] = {**_CONDENSED, **_READ_ONLY}


def create_app(
    settings: Settings,
    *,
    store: Store | None = None,
    clock: Callable[[], float] = time.time,
    drain: Drain | None = None,
    new_request_id: Callable[[], str] = new_request_id,
    is_alone: bool = False,
) -> FastAPI:
    """An app with these settings; by `drain` a server tells it that it is stopping.

    `store`, `clock` and `new_request_id` replace the real ones in tests. If the app `is_alone` in its process, the
    garbage collector does not search what exists once the app is built.
    """

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with open_services(settings, store=store, clock=clock) as built:
            app.state.services = built
            if is_alone:
                gc.collect()
                await built.loops.start("memory", 60, give_back_memory)
                gc.freeze()
                gc.set_threshold(_COLLECT_AFTER)
            yield

    app = _App(
        title="Condenser",
        lifespan=lifespan,
        openapi_url=None,
        redirect_slashes=False,
        # Asking OpenTelemetry each time whether anyone has set it up costs more than routing. Ours is at /metrics.
        telemetry={"tracing": False, "metrics": False, "logs": False},
        exception_handlers={
            ProxyError: _on_proxy_error,
            HTTPException: _on_http_error,
            Exception: _on_unexpected_error,
        },
    )
    app.state.settings = settings
    app.state.drain = drain or Drain()
    app.state.new_request_id = new_request_id
    app.router.routes.extend(
        [
            *(Route(path, served, methods=["POST"]) for path, served in _SERVED.items()),
            *(Route(path, Compress(), methods=["POST"]) for path in (PATH, f"{PATH}/")),
            Route("/v1/{path:path}", PassThrough()),
            Route(ADMIN, _AnyMethod(_dashboard)),
            Route(f"{ADMIN}pages/{{path:path}}", _AnyMethod(_dashboard)),
            Route(f"{ADMIN}own/{{action}}", _AnyMethod(own)),
            Route(f"{ADMIN}{{path:path}}", _AnyMethod(admin)),
            *_prefixed_routes(settings.server.prefixes),
            Route("/", _AnyMethod(root)),
            *(Route(path, livez) for path in ("/livez", "/health", "/healthz")),
            Route("/readyz", readyz),
            Route("/metrics", metrics),
        ]
    )
    return app


def _prefixed_routes(listed: Iterable[str]) -> Iterator[Route]:
    """Routes of paths with a provider's prefix: `/api/coding/v1/messages`, and all else below a `listed` one."""
    for ending, path in ENDINGS.items():
        yield Route(f"/{{prefix:path}}{ending}", _SERVED[path], methods=["POST"])
    for prefix in listed:
        first, *parts = prefix.split("*")
        pattern = first + "".join(f"{{part{n}}}{part}" for n, part in enumerate(parts))
        yield Route(f"{pattern}/{{path:path}}", PassThrough())


class _App(FastAPI):
    """FastAPI with a shortcut to the condensed endpoints, because its layers take a tenth of a small request's time.

    If there is a middleware, there is no shortcut, because a middleware is around everything. Nor is there one to a
    path that is not passed on.
    """

    def build_middleware_stack(self) -> ASGIApp:
        """The framework's layers, and `Serving` around them."""
        layers: ASGIApp = super().build_middleware_stack()
        settings = self.state.settings
        origins = settings.server.origins
        if origins:
            every = ["*"]
            layers = CORSMiddleware(layers, origins, every, every, expose_headers=every, allow_private_network=True)
        paths = Paths(settings.server.prefixes, settings.server.paths, ENDINGS, settings.operator_keys)
        is_bare = not origins and not self.user_middleware
        shortcuts = {path.encode(): each for path, each in _CONDENSED.items() if is_bare and paths.allows("POST", path)}
        state, admin = self.state, settings.admin.address
        begin = self._begin if OTLP in os.environ else None
        rest = state.drain, state.new_request_id, begin, admin[1] if admin is not None else None
        return Serving(layers, shortcuts, Guard(settings), paths, *rest)

    def _begin(self, scope: Scope, line: RequestLine) -> None:
        if self.state.services.tracing is not None:
            self.state.services.tracing.begin(scope, line)


class _AnyMethod:
    """An endpoint as an ASGI app, because a route to a function would only allow the methods that it lists."""

    def __init__(self, endpoint: Callable[[Request], Awaitable[Response]]) -> None:
        self._endpoint = endpoint

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        response = await self._endpoint(Request(scope, receive, send))
        await response(scope, receive, send)


async def _on_proxy_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ProxyError)
    request.scope[LINE].error = error.code or error.type
    return error_response(error, request.scope["path"])


async def _on_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    body = http_error_body(error.status_code, _explanation(request, error))
    return Response(body, error.status_code, error.headers, media_type=_JSON)


def _explanation(request: Request, error: HTTPException) -> str:
    """What is wrong with the method, path or token of a request; "" if the status' own phrase is enough."""
    method, path = printable(request.method), printable(request.scope["path"])
    match error.status_code:
        case HTTPStatus.NOT_FOUND if request.scope["path"].startswith(ADMIN):
            return f"There is no such path or session under {ADMIN}, or it is closed because there is no admin.token."
        case HTTPStatus.NOT_FOUND:
            base_url = f"{printable(str(request.base_url), _MAX_ADDRESS)}v1"  # by the request's Host header
            return f"Nothing is served at {method} {path}; the API is under /v1: set base_url to {base_url}."
        case HTTPStatus.METHOD_NOT_ALLOWED:
            allowed = set(Headers(error.headers).get("allow", "").split(", ")) - {"HEAD"}
            return f"{method} is not allowed at {path}; use {' or '.join(sorted(allowed))}."
        case HTTPStatus.UNAUTHORIZED:
            return "The admin token is missing or wrong; send it as Authorization: Bearer TOKEN."
    return ""


async def _on_unexpected_error(request: Request, _error: Exception) -> Response:
    return error_response(ProxyError(DEFECT), request.scope["path"])


async def _dashboard(request: Request) -> Response:
    # Most processes never show a page. The first one loads the pages and Jinja2, for which no other request waits.
    answer = await asyncio.to_thread(_load_dashboard)
    return await answer(request)


def _load_dashboard() -> Callable[[Request], Awaitable[Response]]:
    from proxy.operator.dashboard import dashboard  # noqa: PLC0415

    return dashboard


def worker_app(settings: Settings, drain: Drain) -> FastAPI:
    """The app of one worker process, with logging configured."""
    configure_logging(settings.log)
    use_one_heap()
    sys.setswitchinterval(_SWITCH)
    return create_app(settings, drain=drain, is_alone=True)


def renew(app: FastAPI, settings: Settings) -> None:
    """Makes an app use settings that were read again."""
    configure_logging(settings.log)
    app.state.services.renew(settings)


KEEP_ALIVE = 75  # seconds for an idle connection of a client


def server_config(settings: Settings, reread: Callable[[Settings, Renew], None] | None = None) -> ServerConfig:
    """The server's configuration: the upstream's own `date` and `server` headers, and no log but ours.

    uvicorn uses uvloop and httptools if they are installed. Each worker makes its own app.
    """
    is_trusted = TrustedProxies(settings.server.trusted_proxies).__contains__
    return ServerConfig(
        settings,
        worker_app,
        renew,
        reread,
        host=settings.host,
        port=settings.port,
        workers=settings.workers,
        lifespan="on",
        http=partial(Connection, ConnectionBounds.of(settings.limits, is_trusted)),
        ws="none",
        access_log=False,
        log_config=None,
        date_header=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=KEEP_ALIVE,
    )
