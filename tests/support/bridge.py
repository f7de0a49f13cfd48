"""In-process ASGI for `httpx.AsyncClient`: chunks arrive as they are sent, and closing means disconnecting.

httpx.ASGITransport buffers a response until the app returns, so neither a first byte nor a disconnect can be
tested through it. Here the app runs in a task of its own, its messages cross a queue, and a response that is
closed early delivers `http.disconnect` and waits, with a bound, until the app has returned.

    async with bridged(app) as client:
        async with client.stream("POST", "/v1/chat/completions", json=...) as response: ...
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
from starlette.types import ASGIApp, Message, Scope

from tests.support.signals import BOUND


class AsgiBridge(httpx.AsyncBaseTransport):
    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        assert isinstance(request.stream, httpx.AsyncByteStream)
        body = b"".join([chunk async for chunk in request.stream])
        call = _Call(self._app, _scope(request), body)
        try:
            start = await call.start()
        except BaseException:
            await call.aclose()
            raise
        return httpx.Response(start["status"], headers=start.get("headers", []), stream=call)


def _scope(request: httpx.Request) -> Scope:
    raw_path, _, query = request.url.raw_path.partition(b"?")
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.4"},
        "http_version": "1.1",
        "method": request.method,
        "scheme": request.url.scheme,
        "path": request.url.path,
        "raw_path": raw_path,
        "query_string": query,
        "root_path": "",
        "headers": [(name.lower(), value) for name, value in request.headers.raw],
        "server": (request.url.host, request.url.port),
        "client": ("127.0.0.1", 50000),
        "state": {},
    }


class _Call(httpx.AsyncByteStream):
    """One request in flight: the app's task, what it sent, and whether the client is still there."""

    def __init__(self, app: ASGIApp, scope: Scope, body: bytes) -> None:
        self._request: Message | None = {"type": "http.request", "body": body, "more_body": False}
        self._sent: asyncio.Queue[Message | None] = asyncio.Queue()  # None: the app has returned
        self._over = asyncio.Event()  # the client left, or the response is complete
        self._task = asyncio.create_task(self._run(app, scope))

    async def _run(self, app: ASGIApp, scope: Scope) -> None:
        try:
            await app(scope, self._receive, self._send)
        finally:
            self._sent.put_nowait(None)

    async def _receive(self) -> Message:
        if self._request is not None:
            message, self._request = self._request, None
            return message
        await self._over.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        if self._over.is_set():
            return
        self._sent.put_nowait(message)
        if message["type"] == "http.response.body" and not message.get("more_body", False):
            self._over.set()

    async def start(self) -> Message:
        message = await self._sent.get()
        if message is None:
            await self._task  # raises what the app raised
            raise httpx.RemoteProtocolError("the app returned without a response")
        return message

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while (message := await self._sent.get()) is not None:
            yield message.get("body", b"")
            if not message.get("more_body", False):
                return
        raise httpx.RemoteProtocolError("the app closed without completing its response")

    async def aclose(self) -> None:
        self._over.set()
        _, pending = await asyncio.wait({self._task}, timeout=BOUND)
        if pending:
            self._task.cancel()
            raise AssertionError(f"the app was still running {BOUND} s after the client had left")
        self._task.exception()  # retrieved: an app may well raise after the client has gone


@asynccontextmanager
async def bridged(app: ASGIApp, **options: Any) -> AsyncIterator[httpx.AsyncClient]:
    """A client of the app, between the app's lifespan startup and shutdown."""
    settings = {"base_url": "http://proxy.test", "timeout": BOUND, **options}
    async with lifespan(app), httpx.AsyncClient(transport=AsgiBridge(app), **settings) as client:
        yield client


@asynccontextmanager
async def lifespan(app: ASGIApp) -> AsyncIterator[None]:
    """Run the app's lifespan around the block; a failed startup fails the test."""
    to_app: asyncio.Queue[Message] = asyncio.Queue()
    from_app: asyncio.Queue[Message] = asyncio.Queue()
    scope: Scope = {"type": "lifespan", "asgi": {"version": "3.0", "spec_version": "2.0"}, "state": {}}
    task = asyncio.ensure_future(app(scope, to_app.get, from_app.put))
    try:
        await _exchange(to_app, from_app, task, "lifespan.startup")
        yield
        await _exchange(to_app, from_app, task, "lifespan.shutdown")
    finally:
        task.cancel()
        await asyncio.wait({task})


async def _exchange(
    to_app: asyncio.Queue[Message], from_app: asyncio.Queue[Message], task: asyncio.Future[None], event: str
) -> None:
    to_app.put_nowait({"type": event})
    answer = asyncio.create_task(from_app.get())
    either: set[asyncio.Future[Any]] = {answer, task}
    await asyncio.wait(either, timeout=BOUND, return_when="FIRST_COMPLETED")
    if not answer.done():
        answer.cancel()
        if task.done():
            task.result()
        raise AssertionError(f"no answer to {event} within {BOUND} s")
    assert answer.result()["type"] == f"{event}.complete", answer.result()
