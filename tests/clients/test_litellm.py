"""LiteLLM as a library: `openai/…` models with an `api_base`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import litellm
import openai
import pytest

from tests.clients.cases import (
    CANCELLED_WITHIN,
    KEY,
    LOOK,
    MODEL,
    OSLO,
    OURS,
    TOOL,
    WEATHER_JSON,
    ZURICH,
    Weather,
    tool_result,
    user,
)
from tests.support.proxy import Proxy, assert_relayed
from tests.support.recording import CHAT
from tests.support.replies import completion, error, stream, text_chunks, tool_call_chunks, usage_chunk
from tests.support.signals import Signal
from tests.support.upstream import ScriptedUpstream

HI = [user("Grüezi 👋")]


pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # litellm's own use of pydantic


@pytest.fixture(autouse=True)
def tidied(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """LiteLLM takes the thread's event loop and keeps a client per address: both are closed here."""
    monkeypatch.setattr(litellm, "suppress_debug_info", True)
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    yield
    kept: Any = litellm.in_memory_llm_clients_cache
    for client in kept.cache_dict.values():
        if isinstance(client, openai.OpenAI):
            client.close()
    kept.flush_cache()
    asyncio.set_event_loop(None)
    loop.close()


@pytest.fixture
def ask(proxy: Proxy) -> Any:
    def ask(messages: Any = HI, **options: Any) -> Any:
        defaults = {"max_retries": 0, "extra_headers": OURS, "api_key": KEY}
        return litellm.completion(
            model=f"openai/{MODEL}", api_base=proxy.base_url, messages=messages, **{**defaults, **options}
        )

    return ask


def test_a_completion_arrives_with_our_response_headers(ask: Any, proxy: Proxy, upstream: ScriptedUpstream) -> None:
    upstream.reply(completion("Hallo", "Salü", tokens=(7, 3)))
    reply = ask(n=2)
    assert [choice.message.content for choice in reply.choices] == ["Hallo", "Salü"]
    assert reply.usage.prompt_tokens == 7
    headers = reply._hidden_params["additional_headers"]
    assert headers["llm_provider-x-condenser-action"] == "passed"
    assert_relayed(proxy, upstream)


def test_a_stream_arrives_while_the_upstream_is_still_writing_and_ends_with_usage(
    ask: Any, proxy: Proxy, upstream: ScriptedUpstream
) -> None:
    gate = Signal()
    role, one, *rest = text_chunks("one two")
    upstream.reply(stream(role, one, gate, *rest, usage_chunk(5, 2)))
    chunks = ask(stream=True, stream_options={"include_usage": True})
    assert next(chunks).choices[0].delta.content == "one "
    gate.set()
    remaining = list(chunks)
    assert "".join(c.choices[0].delta.content or "" for c in remaining if c.choices) == "two"
    assert remaining[-1].usage.prompt_tokens == 5
    assert_relayed(proxy, upstream)


def test_a_parallel_tool_round_goes_there_and_back(ask: Any, proxy: Proxy, upstream: ScriptedUpstream) -> None:
    upstream.reply(completion(None, tool_calls=[ZURICH, OSLO]), completion("21 degrees"))
    message = ask(tools=[TOOL]).choices[0].message
    assert [call.id for call in message.tool_calls] == ["call_1", "call_2"]
    history = [*HI, message, tool_result(ZURICH, "21"), tool_result(OSLO, "9")]
    assert ask(history, tools=[TOOL]).choices[0].message.content == "21 degrees"
    assert_relayed(proxy, upstream)


def test_parallel_tool_calls_assemble_from_a_stream(ask: Any, proxy: Proxy, upstream: ScriptedUpstream) -> None:
    upstream.reply(stream(*tool_call_chunks(ZURICH, OSLO)))
    whole: Any = litellm.stream_chunk_builder(list(ask(tools=[TOOL], stream=True)))
    calls = whole.choices[0].message.tool_calls
    assert [call.function.arguments for call in calls] == [ZURICH.arguments, OSLO.arguments]
    assert_relayed(proxy, upstream)


def test_structured_output_and_logprobs_arrive(ask: Any, proxy: Proxy, upstream: ScriptedUpstream) -> None:
    upstream.reply(completion(WEATHER_JSON, logprobs=True))
    choice = ask(response_format=Weather, logprobs=True).choices[0]
    assert Weather(**json.loads(choice.message.content)) == Weather(city="Zürich", degrees=21)
    assert choice.logprobs.content[0].logprob == -0.125
    assert_relayed(proxy, upstream)


def test_an_image_part_reaches_the_upstream(ask: Any, proxy: Proxy, upstream: ScriptedUpstream) -> None:
    ask([user(LOOK)])
    parts = upstream.journal.only().json()["messages"][0]["content"]
    assert [part["type"] for part in parts] == ["text", "image_url"]
    assert_relayed(proxy, upstream)


def test_an_upstream_error_reaches_the_client_with_status_and_headers(
    ask: Any, proxy: Proxy, upstream: ScriptedUpstream
) -> None:
    upstream.reply(error(429, "slow down", code="rate", headers=[("retry-after", "9")]))
    with pytest.raises(litellm.exceptions.RateLimitError, match="slow down") as caught:
        ask()
    assert caught.value.status_code == 429
    headers: Any = getattr(caught.value, "litellm_response_headers", {})
    assert headers["retry-after"] == "9"
    assert_relayed(proxy, upstream)


def test_an_overflow_of_the_upstream_is_recognised_as_one(ask: Any, upstream: ScriptedUpstream) -> None:
    message = "This model's maximum context length is 8 tokens. Please reduce the length."
    upstream.answer(lambda _: error(400, message, code="context_length_exceeded", param="messages"))
    with pytest.raises(litellm.exceptions.ContextWindowExceededError):
        ask()


def test_its_retries_are_forwarded(ask: Any, proxy: Proxy, upstream: ScriptedUpstream) -> None:
    upstream.reply(error(503, headers=[("retry-after-ms", "1")]), completion("at last"))
    assert ask(max_retries=1).choices[0].message.content == "at last"
    assert len(upstream.journal.to(CHAT)) == 2
    assert_relayed(proxy, upstream)


def test_closing_a_stream_stops_the_upstream(ask: Any, upstream: ScriptedUpstream) -> None:
    upstream.reply(stream(*text_chunks("one two")[:2], Signal()))
    chunks = ask(stream=True)
    next(chunks)
    chunks.completion_stream.close()
    upstream.journal.only().disconnected.wait(CANCELLED_WITHIN)


def test_embeddings_arrive(proxy: Proxy, upstream: ScriptedUpstream) -> None:
    embedded: Any = litellm.embedding(model=f"openai/{MODEL}", input=["a"], api_base=proxy.base_url, api_key=KEY)
    assert embedded.data[0]["embedding"] == [0.5, -0.25, 1.0]
    assert_relayed(proxy, upstream, "/v1/embeddings", action=None)
