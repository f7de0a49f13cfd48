"""The proxy that one writes in an afternoon, to compare with: starlette and httpx, bytes passed on unread.

`NAIVE_UPSTREAM=URL uvicorn --factory bench.naive:app` serves it.
"""

from __future__ import annotations

import os

import httpx
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.routing import Route

_DROPPED = {"host", "content-length", "connection", "transfer-encoding"}


def app() -> Starlette:
    """The app; its client has as many connections as are wanted."""
    limits = httpx.Limits(max_connections=1_000, max_keepalive_connections=1_000)
    client = httpx.AsyncClient(base_url=os.environ["NAIVE_UPSTREAM"], limits=limits)

    async def pass_on(request: Request) -> StreamingResponse:
        headers = {name: value for name, value in request.headers.items() if name not in _DROPPED}
        asked = client.build_request("POST", request.path_params["path"], content=await request.body(), headers=headers)
        reply = await client.send(asked, stream=True)
        given = {name: value for name, value in reply.headers.items() if name not in _DROPPED - {"content-length"}}
        closing = BackgroundTask(reply.aclose)
        return StreamingResponse(reply.aiter_raw(), status_code=reply.status_code, headers=given, background=closing)

    return Starlette(routes=[Route("/v1/{path:path}", pass_on, methods=["POST"])])
