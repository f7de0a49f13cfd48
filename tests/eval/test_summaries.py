"""What a record still holds of what the user said in messages that are gone."""

from __future__ import annotations

import pytest

from eval.summaries import PARTS, Summarizer, measured, said_in
from proxy.replaying.recorded import Conversation
from tests.proxy.replaying.test_play import talk
from tests.support.recording import Exchange
from tests.support.replies import Reply, completion
from tests.support.transcripts import user
from tests.support.upstream import ScriptedUpstream

RULE = "Never push to main without a review."
TALK = Conversation("a", [*talk(3), user(f"{RULE} The order is ORD-4711."), *talk(40)[2:]])


def test_what_was_said_is_divided_into_rules_steps_names_and_numbers() -> None:
    said = said_in([f"{RULE} The order is ORD-4711, the price is 48613.", "- [ ] add a test for the parser"])

    assert list(said) == list(PARTS)
    assert said["rules"] == {RULE}
    assert any("add a test" in step for step in said["next steps"])
    assert "ORD-4711" in said["names"]
    assert "48613" in said["numbers"]


@pytest.mark.anyio
async def test_a_record_that_copies_holds_what_a_strategy_that_drops_has_lost() -> None:
    figures = await measured([TALK], ("extract", "recent"), window=2_048)

    assert figures["extract"]["rules"].percent == 100
    assert figures["extract"]["names"].percent > figures["recent"]["names"].percent == 0


@pytest.mark.anyio
async def test_a_real_summarizer_writes_the_records_that_are_scored(upstream: ScriptedUpstream) -> None:
    def answer(_: Exchange) -> Reply:
        return completion("<summary>The user talked about the order ORD-4711, and all was answered.</summary>")

    upstream.answer(answer)
    asked = Summarizer(upstream.base_url, "small")

    figures = await measured([TALK], ("half-window",), asked, window=2_048)

    assert {exchange.json()["model"] for exchange in upstream.journal.to()} == {"small"}
    assert figures["half-window"]["names"].reached > 0
