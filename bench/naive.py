"""The proxy that one writes in an afternoon, to compare with: starlette and httpx, bytes passed on unread.

`NAIVE_UPSTREAM=URL uvicorn --factory bench.naive:app` serves it.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.routing import Route

_DROPPED = {"host", "content-length", "connection", "transfer-encoding"}


def app() -> Starlette:
    """The app; its client has as many connections as are wanted."""

    @asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[dict[str, httpx.AsyncClient]]:
        limits = httpx.Limits(max_connections=1_000, max_keepalive_connections=1_000)
        async with httpx.AsyncClient(base_url=os.environ["NAIVE_UPSTREAM"], limits=limits) as client:
            yield {"client": client}

    return Starlette(routes=[Route("/v1/{path:path}", _pass_on, methods=["POST"])], lifespan=lifespan)


async def _pass_on(request: Request) -> StreamingResponse:
    client: httpx.AsyncClient = request.state.client
    headers = [(name, value) for name, value in request.headers.items() if name not in _DROPPED]
    asked = client.build_request("POST", request.path_params["path"], content=await request.body(), headers=headers)
    reply = await client.send(asked, stream=True)
    given = {name: value for name, value in reply.headers.items() if name not in ("connection", "transfer-encoding")}
    return StreamingResponse(
        reply.aiter_raw(), status_code=reply.status_code, headers=given, background=BackgroundTask(reply.aclose)
    )
