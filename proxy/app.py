"""The ASGI application: routes, error handlers and lifespan.

`create_app` builds all of it and nothing is global, so several apps can run in one process. Chat completions do not
pass through the framework's layers: `_FastPath` calls their endpoint directly, and handles errors as the layers do.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from http import HTTPStatus
from random import getrandbits

from fastapi import FastAPI
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from proxy.browsers import guarded
from proxy.endpoints.table import COUNT_PATHS, PATHS
from proxy.errors import DEFECT, ProxyError, http_error_body
from proxy.http.admission import PLACE
from proxy.quoting import printable
from proxy.request.callers import OWNER
from proxy.routes.admin import admin
from proxy.routes.chat import chat
from proxy.routes.counting import count_tokens
from proxy.routes.health import livez, metrics, readyz, root
from proxy.routes.passthrough import pass_through
from proxy.runtime.drain import Drain
from proxy.services import open_services
from proxy.serving import Serving, error_response, line_of
from proxy.settings import Settings
from proxy.store.base import SessionStore
from proxy.upstream import Transport

_JSON = "application/json"
_ADMIN = "/_condenser/"
_MAX_ADDRESS = 255


def _new_request_id() -> str:
    return f"{getrandbits(64):016x}"  # need not be hard to guess, and asks the system for nothing


def create_app(
    settings: Settings,
    *,
    store: SessionStore | None = None,
    transport: Transport | None = None,
    clock: Callable[[], float] = time.time,
    drain: Drain | None = None,
    new_request_id: Callable[[], str] = _new_request_id,
) -> FastAPI:
    """An app with these settings; `drain` is how a server tells it that it stops.

    `store`, `transport`, `clock` and `new_request_id` replace the real ones in tests.
    """

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with open_services(settings, store=store, transport=transport, clock=clock) as built:
            app.state.services = built
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
            *(Route(path, _Admitted(partial(chat, endpoint)), methods=["POST"]) for path, endpoint in PATHS.items()),
            *(Route(at, _Admitted(partial(count_tokens, each)), methods=["POST"]) for at, each in COUNT_PATHS.items()),
            Route("/v1/{path:path}", _Admitted(pass_through)),
            Route("/_condenser/{path:path}", _AnyMethod(admin)),
            Route("/", _AnyMethod(root)),
            Route("/livez", livez),
            Route("/readyz", readyz),
            Route("/metrics", metrics),
        ]
    )
    return app


class _App(FastAPI):
    """FastAPI with a fast path for chat completions, because its layers take a tenth of the time of a small one.

    A middleware that somebody adds is around everything: then there is no fast path.
    """

    def build_middleware_stack(self) -> ASGIApp:
        """The fast path in front of the layers and all routes; the layers alone if there is a middleware."""
        layers = super().build_middleware_stack()
        served = layers if self.user_middleware else _FastPath(layers)
        return Serving(guarded(served, self.state.settings), self.state.drain, self.state.new_request_id)


class _FastPath:
    """Sends chat completions straight to their endpoint and everything else to `app`; both answer errors alike."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._served = {path: _Admitted(partial(chat, endpoint)) for path, endpoint in PATHS.items()}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # An app that is mounted below another one has a root path, with which only the router can deal.
        is_post = scope["type"] == "http" and scope["method"] == "POST" and not scope.get("root_path")
        served = self._served.get(scope["path"]) if is_post else None
        if served is None:
            await self._app(scope, receive, send)
            return
        try:
            await served(scope, receive, send)
        except ProxyError as error:
            await (await _on_proxy_error(Request(scope), error))(scope, receive, send)
        except Exception as error:
            await (await _on_unexpected_error(Request(scope), error))(scope, receive, send)
            raise  # the server logs it


class _AnyMethod:
    """An endpoint as an ASGI app, because a route to a function would only allow the methods that it lists."""

    def __init__(self, endpoint: Callable[[Request], Awaitable[Response]]) -> None:
        self._endpoint = endpoint

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        response = await self._endpoint(Request(scope, receive, send))
        await response(scope, receive, send)


class _Admitted:
    """An endpoint under `/v1/`, whose requests have a place until their reply has ended (`proxy/http/admission.py`)."""

    def __init__(self, endpoint: Callable[[Request], Awaitable[ASGIApp]]) -> None:
        self._endpoint = endpoint

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        services, client = scope["app"].state.services, scope.get("client")
        owner = scope[OWNER] = services.tenants.owner(scope["headers"], client[0] if client else None)
        place = scope[PLACE] = await services.admission.enter(owner.tenant)
        try:
            response = await self._endpoint(Request(scope, receive, send))
            await response(scope, receive, send)
        finally:
            place.leave()


async def _on_proxy_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ProxyError)
    line_of(request.scope).error = error.code or error.type
    return error_response(error, request.scope["path"])


async def _on_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    body = http_error_body(error.status_code, _explanation(request, error))
    return Response(body, error.status_code, error.headers, media_type=_JSON)


def _explanation(request: Request, error: HTTPException) -> str:
    """What is wrong with the method, path or token of a request; "" where the status' own phrase says enough."""
    method, path = printable(request.method), printable(request.scope["path"])
    match error.status_code:
        case HTTPStatus.NOT_FOUND if request.scope["path"].startswith(_ADMIN):
            return f"There is no such path or session under {_ADMIN}, or it is closed because there is no admin.token."
        case HTTPStatus.NOT_FOUND:
            return f"Nothing is served at {method} {path}; the API is under /v1: set base_url to {_base_url(request)}."
        case HTTPStatus.METHOD_NOT_ALLOWED:
            allowed = set(Headers(error.headers).get("allow", "").split(", ")) - {"HEAD"}
            return f"{method} is not allowed at {path}; use {' or '.join(sorted(allowed))}."
        case HTTPStatus.UNAUTHORIZED:
            return "The admin token is missing or wrong; send it as Authorization: Bearer TOKEN."
    return ""


def _base_url(request: Request) -> str:
    """The `base_url` that the client should use: the address in its Host header, with `/v1`."""
    return f"{printable(str(request.base_url), _MAX_ADDRESS)}v1"


async def _on_unexpected_error(request: Request, _error: Exception) -> Response:
    return error_response(ProxyError(DEFECT), request.scope["path"])
