"""Keep-alive before the official clients: its signs are no part of what they read, an error behind them is raised."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import openai
import pytest
from openai import OpenAI

from tests.clients import test_openai_node as node
from tests.clients.cases import KEY, MODEL, OSLO, TOOL, ZURICH
from tests.support import replies, wire
from tests.support.proxy import Proxy, proxying
from tests.support.recording import CHAT
from tests.support.replies import Reply
from tests.support.signals import Signal
from tests.support.stage import WINDOW, body_of, chat, is_own, summary
from tests.support.upstream import ScriptedUpstream

SOON = 0.01
CALLS = replies.stream(*replies.tool_call_chunks(ZURICH, OSLO))
REFUSED = replies.error(429, "slow down", code="rate")
LONG: list[Any] = chat(12)
FORCE = {"X-Condenser-Force": "true"}
TOOLS: list[Any] = [TOOL]
both = pytest.mark.parametrize("form", ["comment", "chunk"])


@contextmanager
def silent(upstream: ScriptedUpstream, reply: Reply, form: str) -> Iterator[tuple[Proxy, Signal]]:
    """A proxy before a summarizer that answers when the signal is set; behind it, clients get this reply."""
    gate = Signal("the summarizer may answer")
    upstream.answer(lambda exchange: summary().after(gate) if is_own(exchange) else reply)
    with proxying(upstream.url, window=WINDOW, keepalive=form, keepalive_interval=SOON) as proxy:
        try:
            yield proxy, gate
        finally:
            gate.set()


@both
def test_the_python_client_assembles_what_comes_behind_signs_of_life(form: str, upstream: ScriptedUpstream) -> None:
    with silent(upstream, CALLS, form) as (proxy, gate), OpenAI(base_url=proxy.base_url, api_key=KEY) as client:
        manager = client.chat.completions.stream(model=MODEL, messages=LONG, extra_headers=FORCE, tools=TOOLS)
        with manager as events:
            assert events._raw_stream.response.headers["x-condenser-action"] == "pending"
            gate.set()
            message = events.get_final_completion().choices[0].message
    called = [each.function for each in message.tool_calls or ()]
    assert [each.arguments for each in called] == [ZURICH.arguments, OSLO.arguments]
    assert (message.role, message.content) == ("assistant", None)


@both
def test_the_python_client_raises_an_error_behind_signs_of_life(form: str, upstream: ScriptedUpstream) -> None:
    with silent(upstream, REFUSED, form) as (proxy, gate), OpenAI(base_url=proxy.base_url, api_key=KEY) as client:
        chunks = client.chat.completions.create(model=MODEL, messages=LONG, extra_headers=FORCE, stream=True)
        gate.set()
        with pytest.raises(openai.APIError, match="slow down") as caught:
            list(chunks)
    assert caught.value.code == "rate"
    assert len([each for each in upstream.journal.to(CHAT) if not is_own(each)]) == 1


def node_behind_signs_of_life(upstream: ScriptedUpstream, reply: Reply, form: str, scenario: str) -> Any:
    """What a scenario comes to whose client has heard signs of life: one who came later has."""
    body, headers = body_of(LONG, stream=True), [*wire.JSON, *FORCE.items()]
    with silent(upstream, reply, form) as (proxy, gate), node.driving(proxy, scenario) as driver:
        upstream.journal.await_arrival()
        with wire.opened(proxy.url, "POST", CHAT, body, headers) as later:
            assert later.readline()
        gate.set()
        return driver.line()


@node.pytestmark
def test_the_node_client_assembles_what_comes_behind_signs_of_life(upstream: ScriptedUpstream) -> None:
    calls = node_behind_signs_of_life(upstream, CALLS, "chunk", "condensed_tools")["ok"]
    assert [each["function"]["arguments"] for each in calls] == [ZURICH.arguments, OSLO.arguments]


@node.pytestmark
def test_the_node_client_raises_an_error_behind_signs_of_life(upstream: ScriptedUpstream) -> None:
    caught = node_behind_signs_of_life(upstream, REFUSED, "comment", "condensed_stream")["error"]
    assert (caught["kind"], caught["code"]) == ("APIError", "rate")
    assert caught["body"]["message"] == "slow down"
