"""The in-process bridge: what httpx.ASGITransport cannot do."""

from __future__ import annotations

import asyncio

import httpx
import pytest
from starlette.types import Receive, Scope, Send

from tests.support.bridge import AsgiBridge, bridged
from tests.support.recording import CHAT
from tests.support.replies import sse, stream, text_chunks
from tests.support.signals import Signal
from tests.support.upstream import ScriptedUpstream

pytestmark = pytest.mark.anyio
HI = {"messages": [{"role": "user", "content": "hi"}]}


def client_of(app: ScriptedUpstream) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=AsgiBridge(app), base_url="http://upstream.test")


async def test_a_chunk_arrives_before_the_app_has_sent_the_next() -> None:
    upstream, gate = ScriptedUpstream(), Signal()
    first, *rest = map(sse, text_chunks("x"))
    upstream.reply(stream(first, gate, *rest, done=False))
    async with client_of(upstream) as client, client.stream("POST", CHAT, json=HI) as response:
        pieces = response.aiter_raw()
        assert await anext(pieces) == first
        gate.set()
        assert b"".join([piece async for piece in pieces]) == b"".join(rest)


async def test_closing_a_response_disconnects_the_app() -> None:
    upstream = ScriptedUpstream()
    upstream.reply(stream(text_chunks("x")[0], Signal()))
    async with client_of(upstream) as client, client.stream("POST", CHAT, json=HI) as response:
        await anext(response.aiter_raw())
    assert upstream.journal.only().disconnected.is_set()


async def test_cancelling_a_request_that_has_no_answer_yet_disconnects_the_app() -> None:
    upstream = ScriptedUpstream()
    upstream.reply(stream(before=Signal()))
    async with client_of(upstream) as client:
        call = asyncio.create_task(client.post(CHAT, json=HI))
        asked = await asyncio.to_thread(upstream.journal.await_arrival)
        call.cancel()
        await asyncio.wait({call})
    assert asked.disconnected.is_set()


async def test_a_response_that_is_not_completed_is_a_protocol_error() -> None:
    upstream = ScriptedUpstream()
    upstream.reply(stream(text_chunks("x")[0], cut=True))
    async with client_of(upstream) as client:
        with pytest.raises(httpx.RemoteProtocolError):
            await client.post(CHAT, json=HI)


async def test_what_the_app_raises_before_its_response_is_raised_in_the_test() -> None:
    async def failing(scope: Scope, receive: Receive, send: Send) -> None:
        raise LookupError("a bug")

    async with httpx.AsyncClient(transport=AsgiBridge(failing), base_url="http://x.test") as client:
        with pytest.raises(LookupError, match="a bug"):
            await client.get("/")


async def test_the_lifespan_runs_around_the_block() -> None:
    seen: list[str] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        for event in ("startup", "shutdown"):
            seen.append((await receive())["type"])
            await send({"type": f"lifespan.{event}.complete"})

    async with bridged(app):
        assert seen == ["lifespan.startup"]
    assert seen == ["lifespan.startup", "lifespan.shutdown"]


async def test_a_lifespan_that_fails_to_start_fails_the_test() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        await send({"type": "lifespan.startup.failed", "message": "no store"})

    with pytest.raises(AssertionError, match="no store"):
        async with bridged(app):
            raise AssertionError("not reached")
