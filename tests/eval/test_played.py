"""Recorded conversations, played: what is kept beside what it costs, and what a record still holds of what is gone."""

import pytest

from eval.played import AUTO, PARTS, WINDOW, carried, costs, part_of
from proxy.commands.replaying.play import said_in
from proxy.commands.replaying.recorded import Conversation
from tests.proxy.commands.replaying.test_play import questions_and_answers
from tests.support.recording import Exchange
from tests.support.replies import Reply, completion
from tests.support.stage import MORE
from tests.support.transcripts import assistant, call, tool, user
from tests.support.upstream import ScriptedUpstream

RULE = "Never push to main without a review."
TALK = Conversation(
    "a", [*questions_and_answers(3), user(f"{RULE} The order is ORD-4711."), *questions_and_answers(40)[2:]]
)


def conversation(name: str, rounds: int) -> Conversation:
    """An agent's work on an order that the user names first."""
    messages = [user("Mend order ORD-4711.")]
    for i in range(rounds):
        messages += [assistant(None, call(f"c{i}", "run", {"step": i})), tool(f"c{i}", f"out{i} " + "word " * 1_500)]
    return Conversation(name, [*messages, assistant("Done."), user("And now?"), assistant("Nothing.")])


@pytest.mark.anyio
async def test_each_way_has_its_cost_beside_what_it_keeps() -> None:
    found = {row.strategy: row for row in await costs([conversation("a", 24), conversation("b", 30)], ("extract",))}
    direct, newest, rule, ours, _auto = found.values()
    assert list(found) == ["direct", "newest only (LangChain)", "CliffCompaction's rule", "`extract`", f"`{AUTO}`"]
    assert direct.cost_share is not None
    assert direct.cost_share.share == 1.0
    assert direct.largest > WINDOW > max(row.largest for row in (newest, rule, ours))
    assert newest.names_share == 0.0
    assert ours.names_share == 1.0
    assert ours.cost_share is not None
    assert ours.cost_share.low <= ours.cost_share.share <= ours.cost_share.high < 1.0


def test_what_was_said_is_divided_into_sentences_names_and_numbers() -> None:
    text = f"{RULE} The order is ORD-4711, the price is 48613."
    messages = [user(text), user("预算是 48613 元。"), assistant("Always ask ACME-9.")]

    said = said_in(Conversation("a", messages), messages)
    parts = {one: part_of(kind, one) for kind, of in said.items() for one in of}

    assert set(parts.values()) == set(PARTS)
    assert parts[RULE] == "said"
    assert parts["ORD-4711"] == "names"
    assert parts["the price is 48613"] == "numbers"
    assert not any("ACME" in one for one in parts)


@pytest.mark.anyio
async def test_a_record_that_copies_holds_what_a_strategy_that_drops_has_lost() -> None:
    figures = await carried([TALK], ("extract", "recent"), {}, window=2_048)

    assert figures["extract", "said"].percent > figures["recent", "said"].percent == 0
    assert figures["extract", "names"].percent > figures["recent", "names"].percent == 0


@pytest.mark.anyio
async def test_a_real_summarizer_writes_the_records_that_are_scored(upstream: ScriptedUpstream) -> None:
    def answer(_: Exchange) -> Reply:
        return completion(f"<summary>The user talked about the order ORD-4711, and all was answered. {MORE}</summary>")

    upstream.answer(answer)
    summarizer = {"base_url": upstream.base_url, "model": "small"}

    figures = await carried([TALK], ("half-window",), summarizer, window=2_048)

    assert {exchange.json()["model"] for exchange in upstream.journal.to()} == {"small"}
    assert figures["half-window", "names"].reached > 0
