"""Recorded conversations, turn by turn through the real proxy: what a strict upstream would see."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.http.recorded import LONG, SHORT, Conversation, conversations
from tests.http.strict import assert_stands, is_result, newest_round, systems, users
from tests.support.recording import Exchange
from tests.support.replies import Reply
from tests.support.stage import MORE, Message, Stage, body_of, controls, count, proxy_with_upstream, summary
from tests.support.wire import Answer

WITH_TOOLS = ["trap/2025-11-23-e", "openhands/ponylang__ponyc-4595", "tau-bench/airline/gpt-4o/3-0"]
WITHOUT = ["locomo/conv-30", "swe-agent/trajectories/demonstrations/ctf/web/i_got_id_demo"]
MAX_TURNS, FEW_TURNS = 400, 24
WINDOWS = [4_096, 8_192, 32_768]
CASES = [
    *((name, 4_096) for name in (*WITH_TOOLS, *WITHOUT)),
    *((name, 8_192) for name in (WITH_TOOLS[2], WITHOUT[0])),
    *((name, 32_768) for name in WITH_TOOLS[:2]),
]


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
        forwarded = self.stage.forwarded[-1]
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
        action = answer.action or ""
        self.actions.append(action)
        self.reasons.add(answer.reason or "")
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

    def _shortened(self, view: list[dict[str, Any]], newest: list[Message], body: dict[str, Any]) -> None:
        """The newest round may only differ in results, and only where it would not have fitted."""
        tail = view[len(view) - len(newest) :]
        for now, was in zip(tail, newest, strict=True):
            assert now == was or (is_result(was) and now["content"][:40] == was["content"][:40])
        intact = {**body, "messages": [*view[: len(view) - len(newest)], *newest]}
        assert count(intact) > self.window - self.window // 8


def replying(exchange: Exchange) -> Reply:
    """A summarizer that says something of its own of each history, well within its cap."""
    said = exchange.json()["messages"][1]["content"]
    return summary(f"Goal: as the user said.\nDone: a history of {len(said)} characters was gone through. {MORE}")


def play(
    stage: Stage,
    conversation: Conversation,
    window: int,
    *,
    id: str | None = None,
    most: int = MAX_TURNS,
    slowly: bool = False,
) -> Run:
    """A whole conversation through one proxy; of one with more than `most` turns every second, third, … is sent.

    Where it goes `slowly`, each request finds what the one before it had prepared.
    """
    run = Run(stage, conversation, window)
    lengths = conversation.requests()
    for length in lengths[:: -(-len(lengths) // most)]:
        run.step(length, controls(session=id, window=window))
        if slowly:
            stage.proxy.quiet()
    return run


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    with proxy_with_upstream(window=None, answers=replying) as built:
        yield built


@pytest.mark.parametrize(("name", "window"), CASES, ids=lambda each: str(each)[:24])
def test_recorded_views_are_valid_and_grow_only_at_their_end(name: str, window: int, stage: Stage) -> None:
    conversation = conversations(SHORT)[name]
    run = play(stage, conversation, window, id=f"{name[-40:]} {window}", most=FEW_TURNS)
    outgrown = count({"messages": conversation.messages, **run.members()}) > window
    assert ("condensed" in run.actions) >= outgrown
    assert set(run.actions) <= {"passed", "condensed", "replayed", "refused"}


def test_a_conversation_without_an_id_is_condensed_like_one_with_an_id() -> None:
    conversation, runs = conversations(SHORT)[WITH_TOOLS[0]], []
    for id in ("s", None):
        # Each has a proxy of its own: one that has been taught by the first would foresee the second better.
        with proxy_with_upstream(window=None, answers=replying) as stage:
            runs.append(play(stage, conversation, 4_096, id=id, slowly=True, most=FEW_TURNS))
    named, derived = runs
    assert (derived.actions, derived.last) == (named.actions, named.last)


@pytest.mark.parametrize(
    "strategy", ["recent", "mask", "extract", "shorten", "half-window", "observe:mask+half-window"]
)
def test_every_strategy_forwards_valid_lists(strategy: str, stage: Stage) -> None:
    conversation = conversations(SHORT)[WITH_TOOLS[0]]
    run = Run(stage, conversation, 4_096)
    for length in conversation.requests()[::4]:
        run.step(length, controls(session=f"all with {strategy}", window=4_096, strategy=strategy))
    assert ("would-condense" if strategy.startswith("observe") else "condensed") in run.actions


LONG_IDS = [
    *(f"joined/coding-agent/en/{number}" for number in range(12)),
    *(f"joined/customer-service-tools/en/{number}" for number in range(12)),
    *(f"joined/long-dialogue-qa/zh/{number}" for number in range(4)),
]


@pytest.mark.torture
@pytest.mark.timeout(900)
@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("name", LONG_IDS)
def test_a_long_conversation_stays_valid_to_its_end(name: str, window: int, stage: Stage) -> None:
    run = play(stage, conversations(LONG)[name], window, id=f"{name} {window}")
    assert "condensed" in run.actions


@pytest.mark.torture
def test_every_long_conversation_is_gone_through() -> None:
    assert set(conversations(LONG)) == set(LONG_IDS)
