"""Recorded conversations, turn by turn through the real proxy: what a strict upstream would see."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.http.recorded import LONG, SHORT, Conversation, conversations
from tests.http.strict import assert_stands, is_result, newest_round, systems, users
from tests.http.talking import Stage, asked, body_of, count, staged, summary
from tests.support.recording import Exchange
from tests.support.replies import Reply
from tests.support.wire import Answer

WITH_TOOLS = ["trap/2025-11-23-e", "openhands/ponylang__ponyc-4595", "tau-bench/airline/gpt-4o/3-0"]
WITHOUT = [
    "locomo/conv-30",
    "swe-agent/trajectories/demonstrations/ctf/web/i_got_id_demo",
]
WINDOWS = [4_096, 8_192, 32_768]


def messages_text(body: bytes) -> str:
    """The message list of a forwarded body as it was written."""
    text = body.decode()
    start = text.index('"messages":') + len('"messages":')
    while text[start] != "[":
        start += 1
    _, end = json.JSONDecoder().raw_decode(text, start)
    return text[start:end]


@dataclass
class Run:
    """One conversation on its way through; counts what was done."""

    stage: Stage
    conversation: Conversation
    window: int
    last: str = "["
    actions: list[str] = field(default_factory=list)
    reasons: set[str] = field(default_factory=set)
    turns: int = 0

    def step(self, length: int, headers: list[tuple[str, str]]) -> None:
        """Sends one request and checks what the upstream got."""
        transcript = self.conversation.messages[:length]
        body = body_of(transcript, **self.members())
        answer = self.stage.post(body, headers)
        self.turns += 1
        if answer.status == 400:
            self._refused(answer, transcript)
            return
        assert answer.status == 200, answer.body
        forwarded = self.stage.upstream.journal.to()[-1]
        self._same_or_grown(answer, forwarded.body, body)
        self._view(transcript, forwarded.json())
        self.stage.forget()

    def members(self) -> dict[str, Any]:
        return {"tools": self.conversation.tools} if self.conversation.tools else {}

    def _refused(self, answer: Answer, transcript: list[dict[str, Any]]) -> None:
        """Only what no condensing could help: the parts that must stay do not fit."""
        assert answer.json()["error"]["code"] == "context_length_exceeded", answer.body
        self.actions.append("refused")
        newest = newest_round(transcript)
        must = [*systems(transcript), users(transcript)[0]]
        must += [each for each in users(transcript)[-1:] if each not in (*must, *newest)]
        stays = count({"messages": [*must, *newest], **self.members()})
        assert stays + self.window // 10 > self.window, answer.body

    def _same_or_grown(self, answer: Answer, forwarded: bytes, body: bytes) -> None:
        action = answer.header("x-condenser-action") or ""
        self.actions.append(action)
        self.reasons.add(answer.header("x-condenser-reason") or "")
        now = messages_text(forwarded)
        if action == "passed":
            assert forwarded == body
        if action != "condensed":
            assert now.startswith(self.last.rstrip())
        self.last = now[:-1]

    def _view(self, transcript: list[dict[str, Any]], body: dict[str, Any]) -> None:
        view = body["messages"]
        assert_stands(view, transcript)
        newest = newest_round(transcript)
        if view[len(view) - len(newest) :] != newest:
            self._shortened(view, newest, body)

    def _shortened(self, view: list[dict[str, Any]], newest: list[dict[str, Any]], body: dict[str, Any]) -> None:
        """The newest round may only differ in results, and only where it would not have fitted."""
        tail = view[len(view) - len(newest) :]
        for now, was in zip(tail, newest, strict=True):
            assert now == was or (is_result(was) and now["content"][:40] == was["content"][:40])
        intact = {**body, "messages": [*view[: len(view) - len(newest)], *newest]}
        assert count(intact) > self.window - self.window // 8


def replying(exchange: Exchange) -> Reply:
    """A summarizer that says something of its own of each history, well within its cap."""
    said = exchange.json()["messages"][1]["content"]
    return summary(f"Goal: as the user said.\nDone: a history of {len(said)} characters was gone through.")


def play(stage: Stage, conversation: Conversation, window: int, *, id: str | None = None) -> Run:
    """A whole conversation through one proxy."""
    run = Run(stage, conversation, window)
    for length in conversation.requests():
        run.step(length, asked(session=id, window=window))
    return run


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    with staged(window=None, answers=replying) as built:
        yield built


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("name", [*WITH_TOOLS, *WITHOUT], ids=lambda name: name[:24])
def test_every_forwarded_list_is_valid_keeps_what_it_must_and_only_grows_between_condensations(
    name: str, window: int, stage: Stage
) -> None:
    conversation = conversations(SHORT)[name]
    run = play(stage, conversation, window, id=f"{name[-40:]} {window}")
    outgrown = count({"messages": conversation.messages, **run.members()}) > window
    assert ("condensed" in run.actions) >= outgrown
    assert set(run.actions) <= {"passed", "condensed", "replayed", "refused"}


@pytest.mark.parametrize("name", [WITH_TOOLS[0], WITHOUT[0]], ids=lambda name: name[:24])
def test_a_conversation_without_an_id_is_condensed_like_one_with_an_id(name: str, stage: Stage) -> None:
    conversation = conversations(SHORT)[name]
    named = play(stage, conversation, 4_096, id=f"{name} with an id")
    derived = play(stage, conversation, 4_096)
    assert derived.actions == named.actions
    assert derived.last == named.last


def test_with_strategy_off_the_upstream_gets_the_clients_bytes(stage: Stage) -> None:
    conversation = conversations(SHORT)[WITH_TOOLS[0]]
    for length in conversation.requests():
        stage.ask(conversation.messages[:length], asked(strategy="off", window=4_096))
        assert stage.upstream.journal.to()[-1].body == stage.sent[-1]


@pytest.mark.parametrize(
    "strategy", ["recent", "mask", "extract", "shorten", "half-window", "observe:mask+half-window"]
)
def test_every_strategy_forwards_valid_lists(strategy: str, stage: Stage) -> None:
    conversation = conversations(SHORT)[WITH_TOOLS[0]]
    run = Run(stage, conversation, 4_096)
    for length in conversation.requests():
        run.step(length, asked(session=f"all with {strategy}", window=4_096, strategy=strategy))
    assert ("would-condense" if strategy.startswith("observe") else "condensed") in run.actions


@pytest.mark.torture
@pytest.mark.timeout(900)
@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("kind", ["coding-agent", "customer-service-tools", "long-dialogue-qa"])
def test_long_conversations_stay_valid_to_their_end(kind: str, window: int, stage: Stage) -> None:
    found = [each for each in conversations(LONG).values() if each.kind == kind]
    assert found
    for conversation in found:
        run = play(stage, conversation, window, id=f"{conversation.id} {window}")
        assert "condensed" in run.actions
