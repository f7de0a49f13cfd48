"""The official openai package for Python, asynchronous."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI

from tests.clients.cases import CANCELLED_WITHIN, KEY, MODEL, OSLO, OURS, TOOL, WEATHER_JSON, ZURICH, Weather, user
from tests.support.proxy import Proxy, assert_relayed
from tests.support.recording import CHAT
from tests.support.replies import completion, error, hang, stream, text_chunks, tool_call_chunks, usage_chunk
from tests.support.signals import Signal
from tests.support.upstream import BINARY, ScriptedUpstream

pytestmark = pytest.mark.anyio
HI: list[Any] = [user("Grüezi 👋")]


@pytest.fixture
async def client(proxy: Proxy) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(base_url=proxy.base_url, api_key=KEY, max_retries=0, default_headers=OURS) as client:
        yield client


async def test_a_completion_arrives_as_the_upstream_wrote_it(
    client: AsyncOpenAI, proxy: Proxy, upstream: ScriptedUpstream
) -> None:
    upstream.reply(completion("Hallo", "Salü"))
    reply = await client.chat.completions.create(model=MODEL, messages=HI, n=2)
    assert [choice.message.content for choice in reply.choices] == ["Hallo", "Salü"]
    assert_relayed(proxy, upstream)


async def test_a_stream_arrives_chunk_by_chunk_while_the_upstream_is_still_writing(
    client: AsyncOpenAI, proxy: Proxy, upstream: ScriptedUpstream
) -> None:
    gate = Signal()
    role, one, *rest = text_chunks("one two")
    upstream.reply(stream(role, one, gate, *rest, usage_chunk(5, 2)))
    chunks = await client.chat.completions.create(
        model=MODEL, messages=HI, stream=True, stream_options={"include_usage": True}
    )
    await anext(chunks)
    assert (await anext(chunks)).choices[0].delta.content == "one "
    gate.set()
    remaining = [chunk async for chunk in chunks]
    assert remaining[0].choices[0].delta.content == "two"
    assert remaining[-1].usage is not None
    assert_relayed(proxy, upstream)


async def test_parallel_tool_calls_assemble_from_a_stream(
    client: AsyncOpenAI, proxy: Proxy, upstream: ScriptedUpstream
) -> None:
    upstream.reply(stream(*tool_call_chunks(ZURICH, OSLO)))
    tools: Any = [TOOL]
    async with client.chat.completions.stream(model=MODEL, messages=HI, tools=tools) as events:
        final = await events.get_final_completion()
    calls = final.choices[0].message.tool_calls or []
    assert [call.function.arguments for call in calls] == [ZURICH.arguments, OSLO.arguments]
    assert_relayed(proxy, upstream)


async def test_structured_output_is_parsed_from_a_stream(
    client: AsyncOpenAI, proxy: Proxy, upstream: ScriptedUpstream
) -> None:
    upstream.reply(stream(*text_chunks(WEATHER_JSON)))
    async with client.chat.completions.stream(model=MODEL, messages=HI, response_format=Weather) as events:
        final = await events.get_final_completion()
    assert final.choices[0].message.parsed == Weather(city="Zürich", degrees=21)
    assert_relayed(proxy, upstream)


async def test_concurrent_requests_each_get_their_own_reply(
    client: AsyncOpenAI, proxy: Proxy, upstream: ScriptedUpstream
) -> None:
    async def ask(number: int) -> str | None:
        reply = await client.chat.completions.create(model=MODEL, messages=[user(f"number {number}")])
        return reply.choices[0].message.content

    answers = await asyncio.gather(*map(ask, range(16)))
    assert answers == [f"echo: number {number}" for number in range(16)]
    assert sorted(e.body for e in upstream.journal.to(CHAT)) == sorted(e.body for e in proxy.journal.to(CHAT))


async def test_an_error_reaches_the_client_with_status_body_and_headers(
    client: AsyncOpenAI, proxy: Proxy, upstream: ScriptedUpstream
) -> None:
    upstream.reply(error(429, "slow down", code="rate_limit", headers=[("retry-after", "9")]))
    with pytest.raises(openai.RateLimitError) as caught:
        await client.chat.completions.create(model=MODEL, messages=HI)
    assert caught.value.code == "rate_limit"
    assert caught.value.response.headers["retry-after"] == "9"
    assert_relayed(proxy, upstream)


async def test_the_sdk_retries_as_the_upstream_asks(
    client: AsyncOpenAI, proxy: Proxy, upstream: ScriptedUpstream
) -> None:
    upstream.reply(error(503, headers=[("retry-after-ms", "1")]), completion("at last"))
    retrying = client.with_options(max_retries=1)
    reply = await retrying.chat.completions.create(model=MODEL, messages=HI)
    assert reply.choices[0].message.content == "at last"
    assert len(upstream.journal.to(CHAT)) == 2
    assert_relayed(proxy, upstream)


async def test_closing_a_stream_stops_the_upstream(client: AsyncOpenAI, upstream: ScriptedUpstream) -> None:
    upstream.reply(stream(*text_chunks("one two")[:2], Signal()))
    chunks = await client.chat.completions.create(model=MODEL, messages=HI, stream=True)
    await anext(chunks)
    await chunks.close()
    await asyncio.to_thread(upstream.journal.only().disconnected.wait, CANCELLED_WITHIN)


async def test_cancelling_a_call_that_waits_for_its_first_byte_stops_the_upstream(
    client: AsyncOpenAI, upstream: ScriptedUpstream
) -> None:
    upstream.reply(hang(Signal()))
    call = asyncio.ensure_future(client.chat.completions.create(model=MODEL, messages=HI))
    asked = await asyncio.to_thread(upstream.journal.await_arrival)
    call.cancel()
    await asyncio.wait({call})
    await asyncio.to_thread(asked.disconnected.wait, CANCELLED_WITHIN)


async def test_models_embeddings_and_files_arrive(
    client: AsyncOpenAI, proxy: Proxy, upstream: ScriptedUpstream
) -> None:
    assert [model.id async for model in client.models.list()] == [MODEL]
    embedded = await client.embeddings.create(model=MODEL, input="a")
    assert embedded.data[0].embedding == [0.5, -0.25, 1.0]
    assert (await client.files.content("file-1")).content == BINARY
    assert_relayed(proxy, upstream, "/v1/embeddings", action=None)
    assert_relayed(proxy, upstream, "/v1/files/file-1/content", action=None)
