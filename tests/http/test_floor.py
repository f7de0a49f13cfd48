"""A prompt of which most can never go: the client is told before it fails, and no model is asked in vain."""

from functools import cache
from typing import Any

import pytest

from proxy.tokens.counter import MOST_CHARS
from tests.support.stage import Message, body_of, chat, controls, count, counter, proxy_with_upstream


@cache
def tools_of(tokens: int) -> list[dict[str, Any]]:
    """Tools of about so many tokens."""
    path = {"type": "string", "description": "The path of the file. " * 20}
    tools: list[dict[str, Any]] = []
    while counter().overhead({"messages": [], "tools": tools}) < tokens:
        parameters = {"type": "object", "properties": {"path": path}, "required": ["path"]}
        function = {"name": f"tool_{len(tools)}", "description": "Looks at a file.", "parameters": parameters}
        tools.append({"type": "function", "function": function})
    return tools


def in_systems(tokens: int) -> list[Message]:
    """A system message of about so many tokens."""
    return [{"role": "system", "content": "Never water. " * (tokens // 3)}]


PAIRS = [("tools", 4_096), ("systems", 8_192), ("tools", 16_384)]


def body(carrier: str, tokens: int, messages: list[Message]) -> bytes:
    if carrier == "tools":
        return body_of(messages, tools=tools_of(tokens))
    return body_of([*in_systems(tokens), *messages])


@pytest.mark.parametrize(("carrier", "window"), PAIRS)
def test_a_long_conversation_beside_60_percent_that_stay_is_served(carrier: str, window: int) -> None:
    with proxy_with_upstream(window=window) as stage:
        for rounds in range(0, 24, 4):
            messages = chat(rounds, words=window // 140)
            answer = stage.post(body(carrier, window * 6 // 10, messages), controls(session="s"))

            assert answer.status == 200, answer.body
            sent, usable = count(stage.forwarded[-1].json()), window - min(window // 8, 4_096)
            assert sent <= usable
            is_close = sent >= 0.7 * usable
            assert (answer.reason == "floor") == is_close
            floor = int(answer.header("x-condenser-floor") or 0)
            assert (window * 6 // 10 <= floor <= sent) == is_close
        assert answer.action in ("condensed", "replayed")


@pytest.mark.parametrize(("carrier", "window"), PAIRS)
def test_the_floor_is_named_and_no_model_is_asked(carrier: str, window: int) -> None:
    with proxy_with_upstream(window=window) as stage:
        share, reasons = 60, []
        while share < 140:
            answer = stage.post(
                body(carrier, window * share // 100, chat(8, words=window // 200)), controls(session="s")
            )
            if answer.status != 200:
                break
            reasons.append(answer.reason)
            asked_for = len(stage.summaries)
            share += 8
        said = answer.json()["error"]

        assert reasons[-1] == "irreducible"
        assert set(reasons) == {"floor", "irreducible"}
        assert (answer.status, said["code"]) == (400, "context_length_exceeded")
        name = "tools and framing" if carrier == "tools" else "system messages"
        assert f"{name} {window * share // 100:,}"[:-4] in said["message"]
        assert f"context length is {window:,} tokens" in said["message"]
        assert len(stage.summaries) == asked_for


@pytest.mark.parametrize("share", [86, 92, 140])
def test_no_model_is_asked_without_room_for_a_record(share: int) -> None:
    window = 8_192
    with proxy_with_upstream(window=window) as stage:
        for rounds in range(4, 12, 2):
            stage.post(body("tools", window * share // 100, chat(rounds, words=60)), controls(session="s"))
        stage.proxy.quiet()
        assert stage.summaries == []


def test_what_was_left_uncounted_is_left_to_the_upstream_to_judge() -> None:
    """A run of one sign has far fewer tokens than any other text of its length."""
    with proxy_with_upstream(window=200_000) as stage:
        rules = {"role": "system", "content": "=" * 2 * MOST_CHARS}
        answer = stage.post(body_of([rules, {"role": "user", "content": "=" * MOST_CHARS}]))
        assert (answer.status, answer.header("x-condenser-count")) == (200, "inexact")
        assert stage.forwarded[-1].json()["messages"][0] == rules
