"""The measurement of who waits for a model: what it counts, on a conversation that it can play in moments."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from bench.waiting import ANSWER, chosen, measure, passing, row, verdict
from proxy.commands.replaying.recorded import Conversation
from tests.support.histories import agent_history, long_history
from tests.support.virtual_time import PassingTime


def played(conversation: Conversation, window: int, pause: float) -> dict[str, Any]:
    with asyncio.Runner(loop_factory=PassingTime) as runner:
        return runner.run(row([conversation], "half-window", window, pause))


@pytest.mark.parametrize("pause", [0.0, 5.0])
def test_nobody_waits_where_there_is_time_to_prepare(pause: float) -> None:
    found = played(Conversation("agent/0", agent_history(90)), 16_384, pause)

    assert (found["requests"], found["waited"], found["longest, s"]) == (90, 0, 0.0)
    assert found["condensed"] > 0


def test_a_message_without_time_to_prepare_is_counted_apart() -> None:
    messages = [*long_history(9), {"role": "user", "content": "word " * 9_000}, {"role": "assistant", "content": "ok"}]

    found = played(Conversation("leap/0", [*messages, *messages]), 8_192, 5.0)

    assert found["waited"] + found["refused"] > 0
    assert found["waited"] == found["of them leaps"]
    assert found["longest, s"] <= ANSWER + 2


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
    with pytest.raises(SystemExit, match=f"{missing}: the recorded conversations are missing"):
        measure(missing)


def test_one_in_a_hundred_may_wait_and_with_pauses_nobody() -> None:
    assert verdict(0.007, 0.0) == "met"
    assert verdict(0.010, 0.0) == "missed"
    assert verdict(0.007, 5.0) == "missed"
    assert verdict(0.0, 5.0) == "met"
    assert verdict(0.007, 1.0) == "-"
