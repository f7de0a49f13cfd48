"""The proxy with the settings that it ships with: what a user gets who changes nothing but a `base_url`."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support import replies, wire
from tests.support.proxy import running_proxy
from tests.support.recording import CHAT, Exchange
from tests.support.replies import Reply
from tests.support.stage import Stage, chat, controls, is_own
from tests.support.upstream import ScriptedUpstream

KNOWN = "gpt-3.5-turbo"  # 16,385 tokens in the bundled table
LONG = 120
"""Turns of a conversation of about 17,000 tokens."""
RULE = "Never water the tomatoes at noon, they burn."


@pytest.fixture
def shipped() -> Iterator[Stage]:
    with ScriptedUpstream() as upstream, running_proxy(upstream.url, as_shipped=True) as proxy:
        yield Stage(proxy, upstream, model=KNOWN)


def long_chat() -> list[dict[str, Any]]:
    words = " ".join(f"word{i}" for i in range(40))
    turns = [{**each, "content": f"{each['content']} {words}"} for each in chat(LONG)]
    return [{"role": "user", "content": RULE}, {"role": "assistant", "content": "Understood."}, *turns]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, {"messages": [{"role": "user", "content": "hi"}]}),
        ("/v1/messages", {"max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}),
        ("/v1/responses", {"input": [{"role": "user", "content": "hi"}]}),
    ],
)
def test_a_short_request_passes_as_the_bytes_that_came_in(path: str, body: dict[str, Any], shipped: Stage) -> None:
    data = json.dumps({"model": KNOWN, **body}, indent=1).encode()
    wire.request(shipped.proxy.url, "POST", path, data, [*wire.JSON, ("Authorization", "Bearer k")])
    assert [each.body for each in shipped.upstream.journal.to(path)] == [data]


def test_a_long_conversation_is_condensed_without_a_call_of_ours(shipped: Stage) -> None:
    answer = shipped.ask(long_chat(), controls(session="s"))
    assert (answer.action, answer.strategy, answer.window) == ("condensed", "mask+extract", "16385")
    assert answer.tokens_after < 16_385 < answer.tokens_before
    assert not any(map(is_own, shipped.upstream.journal.to(CHAT)))
    assert RULE in shipped.upstream.journal.to(CHAT)[-1].body.decode()


def test_the_next_turn_begins_with_the_same_bytes_memory_included(shipped: Stage) -> None:
    asked = [*long_chat()[:-1], {"role": "user", "content": "What did I say about word7 before?"}]
    later = [{"role": "assistant", "content": "ok"}, {"role": "user", "content": "More?"}]
    for history in (asked, [*asked, *later]):
        shipped.ask(history, controls(session="s"))
    first, second = (each.json()["messages"] for each in shipped.upstream.journal.to(CHAT))
    assert any(each.get("name") == "memory_context" for each in first)
    assert second[: len(first)] == first


def test_a_window_that_nobody_has_stated_cuts_nothing(shipped: Stage) -> None:
    shipped.model = "somebodys-finetune"
    answer = shipped.ask(long_chat(), controls(session="s"))
    assert (answer.window, answer.action) == ("unknown", "passed")
    assert shipped.last_view == long_chat()


def test_an_overflow_that_states_the_window_is_mended_and_learned(shipped: Stage) -> None:
    def refuse(exchange: Exchange) -> Reply | None:
        if exchange.path != CHAT or len(exchange.body) < 40_000:
            return None
        return replies.overflow(8_000, 17_000)

    shipped.model = "somebodys-finetune"
    shipped.upstream.answer(refuse)
    first, second = (shipped.ask(long_chat(), controls(session="s")) for _ in range(2))
    assert first.trigger == "overflow"
    assert (second.window, second.action) == ("8000", "replayed")
