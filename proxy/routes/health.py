"""Liveness, readiness and metrics."""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from proxy.package import VERSION
from proxy.quoting import redacted
from proxy.services import Services
from proxy.store.base import StoreError


async def livez(_request: Request) -> Response:
    """Answers as long as the event loop runs; checks nothing else."""
    return JSONResponse({"status": "ok"})


async def readyz(request: Request) -> Response:
    """Whether requests can be served, which does not need the store, and the state of each part.

    The status is 503 while the server stops. Only the admin token opens the addresses of upstream and store.
    """
    if request.app.state.drain.has_begun:
        return JSONResponse({"status": "draining", "version": VERSION}, HTTPStatus.SERVICE_UNAVAILABLE)
    services: Services = request.app.state.services
    found = await readiness(services)
    if not services.admin.allows(request.headers.get("authorization", "").encode()):
        del found["upstream"], found["store"]["url"]
    return JSONResponse(found)


async def root(request: Request) -> Response:
    """Answers `HEAD /`, with which clients probe an address; there is nothing else at the root."""
    if request.method != "HEAD":
        raise HTTPException(HTTPStatus.NOT_FOUND)
    return Response()


async def metrics(request: Request) -> Response:
    services: Services = request.app.state.services
    return Response(services.telemetry.exposition(), media_type="text/plain; version=0.0.4")


async def readiness(services: Services) -> dict[str, Any]:
    """The state of each part; addresses are shown without credentials."""
    try:
        async with asyncio.timeout(services.settings.store.timeout):
            await services.store.ping()
        store = await services.stored.why_unwritable(is_suspected=True) or "ok"
    except StoreError as error:
        store = error.reason
    except TimeoutError:
        store = "store-timeout"
    return {
        "status": "ok" if store == "ok" else "degraded",
        "version": VERSION,
        "upstream": redacted(services.settings.upstream.base_url),
        "strategy": services.settings.strategy,
        "store": {"url": redacted(services.settings.store.url), "state": store},
        "tokenizers": services.tokenizers.states(),
    }
