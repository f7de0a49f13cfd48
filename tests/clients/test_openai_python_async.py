"""The official openai package for Python, asynchronous."""

import asyncio
from typing import Any

import pytest
from openai import AsyncOpenAI

from tests.clients.cases import CANCELLED_WITHIN, MODEL, user
from tests.support.proxy import Proxy
from tests.support.recording import CHAT
from tests.support.replies import hang, stream, text_chunks
from tests.support.signals import Signal
from tests.support.upstream import ScriptedUpstream

pytestmark = pytest.mark.anyio
HI: list[Any] = [user("Grüezi 👋")]


async def test_concurrent_requests_each_get_their_reply(
    async_client: AsyncOpenAI, proxy: Proxy, upstream: ScriptedUpstream
) -> None:
    async def ask(number: int) -> str | None:
        reply = await async_client.chat.completions.create(model=MODEL, messages=[user(f"number {number}")])
        return reply.choices[0].message.content

    answers = await asyncio.gather(*map(ask, range(16)))
    assert answers == [f"echo: number {number}" for number in range(16)]
    assert sorted(e.body for e in upstream.journal.to(CHAT)) == sorted(e.body for e in proxy.journal.to(CHAT))


async def test_closing_a_stream_stops_the_upstream(async_client: AsyncOpenAI, upstream: ScriptedUpstream) -> None:
    upstream.reply(stream(*text_chunks("one two")[:2], Signal()))
    chunks = await async_client.chat.completions.create(model=MODEL, messages=HI, stream=True)
    await anext(chunks)
    await chunks.close()
    await asyncio.to_thread(upstream.journal.only().disconnected.wait, CANCELLED_WITHIN)


async def test_cancelling_a_waiting_call_stops_upstream(async_client: AsyncOpenAI, upstream: ScriptedUpstream) -> None:
    upstream.reply(hang(Signal()))
    call = asyncio.ensure_future(async_client.chat.completions.create(model=MODEL, messages=HI))
    asked = await asyncio.to_thread(upstream.journal.await_arrival)
    call.cancel()
    await asyncio.wait({call})
    await asyncio.to_thread(asked.disconnected.wait, CANCELLED_WITHIN)
