"""LangChain's ChatOpenAI and OpenAIEmbeddings."""

from collections.abc import Iterator
from typing import Any

import openai
import pytest
from langchain_core.messages import AIMessageChunk, HumanMessage, ToolMessage
from langchain_openai import ChatOpenAI

from tests.clients.cases import KEY, MODEL, OSLO, OURS, TOOL, ZURICH
from tests.clients.guides import Guides
from tests.support.proxy import Proxy, assert_relayed
from tests.support.replies import completion, stream, text_chunks, usage_chunk
from tests.support.signals import Signal
from tests.support.upstream import ScriptedUpstream


@pytest.fixture
def http_client() -> Iterator[openai.DefaultHttpxClient]:
    with openai.DefaultHttpxClient() as client:
        yield client


@pytest.fixture
def options(proxy: Proxy, http_client: openai.DefaultHttpxClient) -> dict[str, Any]:
    """What a user passes to either class, by the names of LangChain's documentation."""
    return {
        "base_url": proxy.base_url,
        "api_key": KEY,
        "model": MODEL,
        "default_headers": OURS,
        "http_client": http_client,
    }


@pytest.fixture
def model(options: dict[str, Any]) -> ChatOpenAI:
    return ChatOpenAI(**options, max_retries=0, include_response_headers=True, stream_usage=True)


def test_an_answer_has_our_response_headers(model: ChatOpenAI, proxy: Proxy, upstream: ScriptedUpstream) -> None:
    upstream.reply(completion("Hallo, Zürich", tokens=(7, 3)))
    answer = model.invoke("Grüezi 👋")
    assert answer.content == "Hallo, Zürich"
    assert answer.usage_metadata is not None
    assert answer.usage_metadata["input_tokens"] == 7
    assert answer.response_metadata["headers"]["x-condenser-action"] == "passed"
    assert_relayed(proxy, upstream)


def test_a_stream_arrives_while_it_is_written(model: ChatOpenAI, proxy: Proxy, upstream: ScriptedUpstream) -> None:
    gate = Signal()
    role, one, *rest = text_chunks("one two")
    upstream.reply(stream(role, one, gate, *rest, usage_chunk(5, 2)))
    chunks = model.stream("count")
    whole = next(chunks) + next(chunks)
    assert whole.text == "one "
    gate.set()
    for chunk in chunks:
        whole = whole + chunk
    assert whole.text == "one two"
    assert isinstance(whole, AIMessageChunk)
    assert whole.usage_metadata is not None
    assert whole.usage_metadata["input_tokens"] == 5
    assert_relayed(proxy, upstream)


def test_a_parallel_tool_round_goes_there_and_back(model: ChatOpenAI, proxy: Proxy, upstream: ScriptedUpstream) -> None:
    upstream.reply(completion(None, tool_calls=[ZURICH, OSLO]), completion("21 degrees"))
    bound = model.bind_tools([TOOL])
    history: list[Any] = [HumanMessage("How warm is it?")]
    asked = bound.invoke(history)
    results = [ToolMessage("21", tool_call_id=call["id"]) for call in asked.tool_calls]
    assert [call["args"]["city"] for call in asked.tool_calls] == ["Zürich", "Oslo"]
    assert bound.invoke([*history, asked, *results]).content == "21 degrees"
    assert_relayed(proxy, upstream)


def test_its_guide_runs(guide: Guides) -> None:
    guide("langchain")
