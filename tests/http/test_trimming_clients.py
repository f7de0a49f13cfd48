"""Clients that send a window of their history, through the real proxy."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.support.proxy import Proxy, running_proxy
from tests.support.recording import CHAT
from tests.support.upstream import ScriptedUpstream

Message = dict[str, Any]


@pytest.fixture
def client(proxy: Proxy) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=proxy.url, headers={"x-condenser-session": "s"}, timeout=10) as made:
        yield made


def dialogue(turns: int) -> list[Message]:
    return [
        message
        for i in range(turns)
        for message in ({"role": "user", "content": f"ask {i}"}, {"role": "assistant", "content": f"answer {i}"})
    ]


def send(client: httpx.Client, messages: list[Message], **headers: str) -> httpx.Response:
    return client.post(CHAT, json={"model": "gpt-4o", "messages": messages}, headers=headers)


def forwarded(upstream: ScriptedUpstream) -> list[Message]:
    messages: list[Message] = upstream.journal.to(CHAT)[-1].json()["messages"]
    return messages


HISTORY = dialogue(6)
SENT = HISTORY[:11]  # the last one that was sent ends with "ask 5"
NEXT = {"role": "user", "content": "ask 6"}


def test_system_messages_stay_in_front_of_what_is_put_back(client: httpx.Client, upstream: ScriptedUpstream) -> None:
    rules = {"role": "system", "content": "rules"}
    send(client, [rules, *SENT])
    send(client, [rules, *HISTORY[4:], NEXT])
    assert forwarded(upstream) == [rules, *HISTORY, NEXT]


def test_a_question_asked_another_way_keeps_the_alignment(client: httpx.Client, upstream: ScriptedUpstream) -> None:
    send(client, SENT)
    send(client, [*HISTORY[4:], NEXT])
    send(client, [*HISTORY[4:], {"role": "user", "content": "ask 6 in other words"}])
    later = [{"role": "assistant", "content": "answer 6"}, {"role": "user", "content": "ask 7"}]
    answer = send(client, [*HISTORY[4:], NEXT, *later])
    assert forwarded(upstream) == [*HISTORY, NEXT, *later]
    assert answer.headers["x-condenser-branch"] == "main"


def test_what_was_covered_keeps_standing_when_the_client_drops_it(upstream: ScriptedUpstream) -> None:
    long = [{**each, "content": each["content"] + " word" * 150} for each in dialogue(8)]
    with (
        running_proxy(upstream.url, window=4096, strategy="extract") as running,
        httpx.Client(base_url=running.url, headers={"x-condenser-session": "s"}) as client,
    ):
        send(client, long[:15], **{"x-condenser-force": "true"})
        condensed = forwarded(upstream)
        answer = send(client, [*long[8:], NEXT])
        assert answer.headers["x-condenser-action"] == "replayed"
        assert forwarded(upstream)[: len(condensed)] == condensed
