"""pydantic-ai agents over an OpenAI chat model: the loop of an agent, not only single calls."""

import asyncio

import pytest
from openai import AsyncOpenAI
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from tests.clients.cases import CANCELLED_WITHIN, MODEL, OSLO, ZURICH
from tests.clients.guides import Guides
from tests.support.proxy import Proxy, assert_relayed
from tests.support.recording import CHAT
from tests.support.replies import completion, stream, text_chunks, tool_call_chunks
from tests.support.signals import Signal
from tests.support.upstream import ScriptedUpstream

pytestmark = pytest.mark.anyio


@pytest.fixture
def model(async_client: AsyncOpenAI) -> OpenAIChatModel:
    return OpenAIChatModel(MODEL, provider=OpenAIProvider(openai_client=async_client))


def weather(city: str) -> str:
    """The weather in a city."""
    return f"21 in {city}"


async def test_an_agent_gets_its_answer(model: OpenAIChatModel, proxy: Proxy, upstream: ScriptedUpstream) -> None:
    upstream.reply(completion("Hallo, Zürich", tokens=(7, 3)))
    result = await Agent(model, instructions="Be brief.").run("Grüezi 👋")
    assert (result.output, result.usage.input_tokens) == ("Hallo, Zürich", 7)
    assert_relayed(proxy, upstream)


async def test_an_agent_calls_parallel_tools(model: OpenAIChatModel, proxy: Proxy, upstream: ScriptedUpstream) -> None:
    upstream.reply(completion(None, tool_calls=[ZURICH, OSLO]), completion("Both 21."))
    result = await Agent(model, tools=[weather]).run("How warm is it?")
    assert result.output == "Both 21."
    told = upstream.journal.to(CHAT)[1].json()["messages"]
    answers = [message["content"] for message in told if message["role"] == "tool"]
    assert answers == ["21 in Zürich", "21 in Oslo"]
    assert_relayed(proxy, upstream)


async def test_a_streaming_agent_calls_a_tool(model: OpenAIChatModel, proxy: Proxy, upstream: ScriptedUpstream) -> None:
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


def test_its_guide_runs(guide: Guides) -> None:
    guide("pydantic-ai")
