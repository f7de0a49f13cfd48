"""The application: built by `create_app`, so that two of them can live in one process."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from proxy.errors import DEFECT, ProxyError, http_error_body
from proxy.reply.keepalive import refusal
from proxy.routes.admin import admin
from proxy.routes.chat import chat
from proxy.routes.health import livez, metrics, readyz
from proxy.routes.passthrough import pass_through
from proxy.services import services
from proxy.settings import Settings
from proxy.store.base import SessionStore
from proxy.upstream import Transport

_JSON = "application/json"
_COMPLETIONS = ("/v1/chat/completions", "/v1/chat/completions/")


def create_app(
    settings: Settings,
    *,
    store: SessionStore | None = None,
    transport: Transport | None = None,
    clock: Callable[[], float] = time.time,
) -> FastAPI:
    """An app with these settings; `store`, `transport` and `clock` take the place of the real ones."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with services(settings, store=store, transport=transport, clock=clock) as built:
            app.state.services = built
            yield

    app = _App(
        title="Condenser",
        lifespan=lifespan,
        openapi_url=None,
        redirect_slashes=False,
        # Asking OpenTelemetry each time whether anyone has set it up costs more than routing. Ours is at /metrics.
        telemetry={"tracing": False, "metrics": False, "logs": False},
        exception_handlers={ProxyError: _ours, HTTPException: _http, Exception: _defect},
    )
    app.router.routes.extend(
        [
            *(Route(path, chat, methods=["POST"]) for path in _COMPLETIONS),
            Route("/v1/{path:path}", _AnyMethod(pass_through)),
            Route("/_condenser/{path:path}", _AnyMethod(admin)),
            Route("/livez", livez),
            Route("/readyz", readyz),
            Route("/metrics", metrics),
        ]
    )
    return app


class _App(FastAPI):
    """FastAPI, with a short way for the one request whose cost counts.

    Its own layers around a route are a tenth of a small completion. Whoever adds a middleware has it around everything.
    """

    def build_middleware_stack(self) -> ASGIApp:
        """What answers requests: the short way, and behind it the layers and all routes."""
        layers = super().build_middleware_stack()
        return layers if self.user_middleware else _ShortWay(layers)


class _ShortWay:
    """Completions go straight to their endpoint, everything else to the app behind; errors are answered alike."""

    def __init__(self, behind: ASGIApp) -> None:
        self._behind = behind

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not _is_completion(scope):
            await self._behind(scope, receive, send)
            return
        request = Request(scope, receive, send)
        try:
            response = await chat(request)
        except ProxyError as error:
            response = await _ours(request, error)
        except Exception as error:
            await (await _defect(request, error))(scope, receive, send)
            raise  # the server logs it
        await response(scope, receive, send)


def _is_completion(scope: Scope) -> bool:
    # Below another app, paths are the router's business.
    is_post = scope["type"] == "http" and scope["method"] == "POST"
    return is_post and scope["path"] in _COMPLETIONS and not scope.get("root_path")


class _AnyMethod:
    """An endpoint as an ASGI app: a route to a function would allow only the methods it lists."""

    def __init__(self, endpoint: Callable[[Request], Awaitable[Response]]) -> None:
        self._endpoint = endpoint

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        response = await self._endpoint(Request(scope, receive, send))
        await response(scope, receive, send)


async def _ours(_request: Request, error: Exception) -> Response:
    assert isinstance(error, ProxyError)
    return refusal(error)


async def _http(_request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return Response(http_error_body(error.status_code), error.status_code, error.headers, media_type=_JSON)


async def _defect(_request: Request, _error: Exception) -> Response:
    return refusal(ProxyError(DEFECT))
