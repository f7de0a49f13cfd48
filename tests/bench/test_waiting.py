"""The measurement of who waits for a model: what it counts, on a conversation that it can play in moments."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from bench.waiting import ANSWER, Row, chosen, markdown, measure, passing, row, verdict
from proxy.replaying.recorded import Conversation
from tests.support.histories import agent_history, long_history
from tests.support.virtual_time import PassingTime

ROW = Row("half-window", 16_384, 0.0, 1_000, 9, 2, 40, 1, 8.0)


def played(conversation: Conversation, window: int, pause: float) -> Row:
    with asyncio.Runner(loop_factory=PassingTime) as runner:
        return runner.run(row([conversation], "half-window", window, pause))


@pytest.mark.parametrize("pause", [0.0, 5.0])
def test_nobody_waits_where_there_is_time_to_prepare(pause: float) -> None:
    found = played(Conversation("agent/0", agent_history(150)), 16_384, pause)

    assert (found.requests, found.waited, found.longest) == (150, 0, 0.0)
    assert found.condensed > 0


def test_a_message_that_leaves_no_time_to_prepare_is_waited_for_and_told_apart() -> None:
    messages = [*long_history(9), {"role": "user", "content": "word " * 9_000}, {"role": "assistant", "content": "ok"}]

    found = played(Conversation("leap/0", [*messages, *messages]), 8_192, 5.0)

    assert found.waited + found.refused > 0
    assert found.waited == found.leaps
    assert found.longest <= ANSWER + 2


def test_time_passes_for_who_waits_and_not_for_who_works() -> None:
    async def seconds() -> tuple[float, float]:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, PassingTime)
        await asyncio.to_thread(sum, range(1_000))
        worked = loop.passed
        await passing(3.0)
        return worked, loop.passed

    with asyncio.Runner(loop_factory=PassingTime) as runner:
        worked, waited = runner.run(seconds())
    assert worked == 0.0
    assert waited == pytest.approx(3.0, abs=0.5)


def test_some_conversations_of_each_kind_are_played_or_all() -> None:
    found = [Conversation(f"{kind}/{number}", []) for kind in ("a", "b") for number in range(3)]

    assert [each.id for each in chosen(found, 2)] == ["a/0", "a/1", "b/0", "b/1"]
    assert list(chosen(found, 0)) == found


def test_recordings_that_are_missing_are_named(tmp_path: Path) -> None:
    missing = tmp_path / "none.jsonl.gz"
    with pytest.raises(SystemExit, match=f"the recorded conversations are missing: {missing}"):
        measure(missing)


def test_back_to_back_less_than_one_in_a_hundred_may_wait_and_with_pauses_nobody() -> None:
    assert verdict(ROW) == "met"
    assert verdict(replace(ROW, waited=12)) == "missed"
    assert verdict(replace(ROW, pause=5.0)) == "missed"
    assert verdict(replace(ROW, pause=5.0, waited=2)) == "met"
    assert verdict(replace(ROW, pause=1.0)) == "-"


def test_a_row_is_a_line() -> None:
    *_, line = markdown([ROW]).splitlines()
    assert line == "| `half-window` | 16,384 | 0 s | 1,000 | 40 | 9 | 2 | 0.70% | 8.0 s | met |"
