"""pydantic-ai agents over an OpenAI chat model: the loop of an agent, not only single calls."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from openai import AsyncOpenAI
from pydantic_ai import Agent, BinaryContent, ModelHTTPError
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from tests.clients.cases import CANCELLED_WITHIN, KEY, MODEL, OSLO, OURS, WEATHER_JSON, ZURICH, Weather
from tests.support.proxy import Proxy, assert_relayed
from tests.support.recording import CHAT
from tests.support.replies import ToolCall, completion, error, error_body, stream, text_chunks, tool_call_chunks
from tests.support.signals import Signal
from tests.support.upstream import ScriptedUpstream

pytestmark = pytest.mark.anyio


@pytest.fixture
async def model(proxy: Proxy) -> AsyncIterator[OpenAIChatModel]:
    async with AsyncOpenAI(base_url=proxy.base_url, api_key=KEY, max_retries=0, default_headers=OURS) as client:
        yield OpenAIChatModel(MODEL, provider=OpenAIProvider(openai_client=client))


def weather(city: str) -> str:
    """The weather in a city."""
    return f"21 in {city}"


async def test_an_agent_gets_its_answer(model: OpenAIChatModel, proxy: Proxy, upstream: ScriptedUpstream) -> None:
    upstream.reply(completion("Hallo, Zürich", tokens=(7, 3)))
    result = await Agent(model, instructions="Be brief.").run("Grüezi 👋")
    assert result.output == "Hallo, Zürich"
    assert result.usage.input_tokens == 7
    assert_relayed(proxy, upstream)


async def test_an_agent_calls_parallel_tools_and_goes_on(
    model: OpenAIChatModel, proxy: Proxy, upstream: ScriptedUpstream
) -> None:
    upstream.reply(completion(None, tool_calls=[ZURICH, OSLO]), completion("Both 21."))
    result = await Agent(model, tools=[weather]).run("How warm is it?")
    assert result.output == "Both 21."
    told = upstream.journal.to(CHAT)[1].json()["messages"]
    answers = [message["content"] for message in told if message["role"] == "tool"]
    assert answers == ["21 in Zürich", "21 in Oslo"]
    assert_relayed(proxy, upstream)


async def test_a_streaming_agent_calls_a_tool_and_streams_its_answer(
    model: OpenAIChatModel, proxy: Proxy, upstream: ScriptedUpstream
) -> None:
    gate = Signal()
    role, one, *rest = text_chunks("one two")
    upstream.reply(stream(*tool_call_chunks(ZURICH)), stream(role, one, gate, *rest))
    texts = []
    async with Agent(model, tools=[weather]).run_stream("How warm is it?") as answer:
        async for text in answer.stream_text(delta=True, debounce_by=None):
            texts.append(text)
            gate.set()
    assert texts == ["one ", "two"]
    assert_relayed(proxy, upstream)


async def test_structured_output_arrives_by_a_tool_call(
    model: OpenAIChatModel, proxy: Proxy, upstream: ScriptedUpstream
) -> None:
    upstream.reply(completion(None, tool_calls=[ToolCall("final_result", WEATHER_JSON)]))
    result = await Agent(model, output_type=Weather).run("Weather?")
    assert result.output == Weather(city="Zürich", degrees=21)
    assert_relayed(proxy, upstream)


async def test_an_image_part_reaches_the_upstream(
    model: OpenAIChatModel, proxy: Proxy, upstream: ScriptedUpstream
) -> None:
    image = BinaryContent(b"\x89PNG\r\n", media_type="image/png")
    await Agent(model).run(["What is this?", image])
    parts = upstream.journal.only().json()["messages"][0]["content"]
    assert parts[1]["image_url"]["url"].startswith("data:image/png;base64,")
    assert_relayed(proxy, upstream)


async def test_a_conversation_goes_on_with_its_history(
    model: OpenAIChatModel, proxy: Proxy, upstream: ScriptedUpstream
) -> None:
    agent = Agent(model)
    first = await agent.run("turn 1")
    second = await agent.run("turn 2", message_history=first.all_messages())
    assert second.output == "echo: turn 2"
    assert len(upstream.journal.to(CHAT)[1].json()["messages"]) == 3
    assert_relayed(proxy, upstream)


async def test_an_upstream_error_reaches_the_client_with_status_and_body(
    model: OpenAIChatModel, proxy: Proxy, upstream: ScriptedUpstream
) -> None:
    upstream.reply(error(429, "slow down", code="rate", headers=[("retry-after", "9")]))
    with pytest.raises(ModelHTTPError) as caught:
        await Agent(model).run("hi")
    assert caught.value.status_code == 429
    assert caught.value.body == error_body("slow down", code="rate")["error"]
    assert_relayed(proxy, upstream)


async def test_cancelling_a_run_stops_the_upstream(model: OpenAIChatModel, upstream: ScriptedUpstream) -> None:
    upstream.reply(stream(*text_chunks("one two")[:2], Signal()))

    async def read() -> None:
        async with Agent(model).run_stream("count") as answer:
            async for _ in answer.stream_text(delta=True, debounce_by=None):
                started.set()

    started = asyncio.Event()
    run = asyncio.create_task(read())
    await started.wait()
    run.cancel()
    await asyncio.wait({run})
    await asyncio.to_thread(upstream.journal.only().disconnected.wait, CANCELLED_WITHIN)
