"""Recorded conversations, played: what is kept beside what it costs."""

from __future__ import annotations

import pytest

from eval.played import AUTO, WINDOW, costs
from proxy.replaying.recorded import Conversation
from tests.support.transcripts import assistant, call, tool, user


def conversation(name: str, rounds: int) -> Conversation:
    """An agent's work on an order that the user names first."""
    messages = [user("Mend order ORD-4711.")]
    for i in range(rounds):
        messages += [assistant(None, call(f"c{i}", "run", {"step": i})), tool(f"c{i}", f"out{i} " + "word " * 1_500)]
    return Conversation(name, [*messages, assistant("Done."), user("And now?"), assistant("Nothing.")])


@pytest.mark.anyio
async def test_each_way_has_its_cost_beside_what_it_keeps() -> None:
    found = {row.strategy: row for row in await costs([conversation("a", 24), conversation("b", 30)], ("extract",))}
    direct, rule, ours, _auto = found.values()
    assert list(found) == ["direct", "CliffCompaction's rule", "`extract`", f"`{AUTO}`"]
    assert direct.cost_share is not None
    assert direct.cost_share.share == 1.0
    assert direct.largest > WINDOW > max(rule.largest, ours.largest)
    assert ours.names_share == 1.0
    assert ours.cost_share is not None
    assert ours.cost_share.low <= ours.cost_share.share <= ours.cost_share.high < 1.0
