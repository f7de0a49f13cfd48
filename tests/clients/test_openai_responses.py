"""The official openai package for Python at `/v1/responses`: a changed `base_url` is the only change."""

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openai import OpenAI
from pydantic import BaseModel

from tests.clients.cases import KEY
from tests.http.test_responses import MODEL, RULE, TOOLS, WINDOW, reader
from tests.support.proxy import Proxy, assert_relayed, running_proxy
from tests.support.replies import stream as event_stream
from tests.support.responses_upstream import (
    COUNT,
    RESPONSES,
    StrictResponses,
    function_call,
    message,
    reasoning,
    web_search_call,
)

OUTPUT = [
    web_search_call("moss"),
    reasoning("Well."),
    message("Look: 苔 🌱"),
    reasoning("And?"),
    function_call("read", {"path": "a"}),
]
tools: list[Any] = list(TOOLS)


@pytest.fixture
def upstream() -> Iterator[StrictResponses]:
    with StrictResponses(lambda body: OUTPUT) as upstream:
        yield upstream


@pytest.fixture
def proxy(upstream: StrictResponses) -> Iterator[Proxy]:
    with running_proxy(upstream.url, strategy="half-window", window=200_000) as proxy:
        yield proxy


@pytest.fixture
def client(proxy: Proxy) -> Iterator[OpenAI]:
    with OpenAI(base_url=proxy.base_url, api_key=KEY, max_retries=0) as client:
        yield client


def ask(client: OpenAI, **more: Any) -> Any:
    return client.responses.create(**{"model": MODEL, "input": "Grüezi 👋", "tools": tools, "store": False, **more})


def test_a_response_crosses_unchanged(client: OpenAI, proxy: Proxy, upstream: StrictResponses) -> None:
    response = ask(client, instructions="Be.")
    assert [item.type for item in response.output] == [item["type"] for item in OUTPUT]
    assert response.output_text == "Look: 苔 🌱"
    assert_relayed(proxy, upstream, RESPONSES)


def test_a_stream_crosses_unchanged(client: OpenAI, proxy: Proxy, upstream: StrictResponses) -> None:
    events = list(ask(client, stream=True))
    assert events[-1].type == "response.completed"
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert_relayed(proxy, upstream, RESPONSES)


def test_the_streaming_helper_accumulates_a_response(client: OpenAI) -> None:
    with client.responses.stream(model=MODEL, input="hi", tools=tools) as stream:
        text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
        assert text == stream.get_final_response().output_text == "Look: 苔 🌱"


class Weather(BaseModel):
    degrees: int


def test_a_parsed_response_has_the_clients_type(client: OpenAI, upstream: StrictResponses) -> None:
    upstream.script = lambda body: json.dumps({"degrees": 21})
    response = client.responses.parse(model=MODEL, input="hi", text_format=Weather)
    assert response.output_parsed == Weather(degrees=21)


def test_tokens_are_counted_by_the_upstream(client: OpenAI, upstream: StrictResponses) -> None:
    counted = client.responses.input_tokens.count(model=MODEL, input="hi")
    assert counted.input_tokens > 0
    assert len(upstream.journal.to(COUNT)) == 1


def test_the_upstreams_error_raises_the_sdks_own_class(client: OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as raised:
        ask(client, input=[{"type": "function_call_output", "call_id": "nobody", "output": "x"}])
    assert "No tool call found" in raised.value.message


def test_an_error_of_the_proxy_raises_the_sdks_own_class(client: OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as raised:
        ask(client, extra_headers={"x-condenser-window": "wide"})
    assert raised.value.param == "X-Condenser-Window"


def test_a_stream_that_breaks_off_raises(client: OpenAI, upstream: StrictResponses) -> None:
    begun = {"type": "response.created", "sequence_number": 0, "response": {"object": "response", "error": None}}
    upstream.answer(lambda exchange: event_stream(begun, cut=True))
    with pytest.raises(openai.APIError, match="upstream"):
        list(ask(client, stream=True))


def test_an_agent_that_sends_its_output_back_is_condensed_and_never_refused() -> None:
    with (
        StrictResponses(reader, window=WINDOW) as upstream,
        running_proxy(upstream.url, strategy="half-window", window=WINDOW) as proxy,
        OpenAI(base_url=proxy.base_url, api_key=KEY, max_retries=0) as client,
    ):
        items: list[Any] = [{"role": "user", "content": RULE}]
        for _ in range(25):
            response = ask(client, input=items)
            items += response.output
            for item in response.output:
                if item.type in ("function_call", "custom_tool_call"):
                    items.append({"type": f"{item.type}_output", "call_id": item.call_id, "output": "line " * 900})
            proxy.quiet()
        assert upstream.refusals == []
        actions = {exchange.response_header("x-condenser-action") for exchange in proxy.journal.to(RESPONSES)}
        assert "condensed" in actions
