"""Depth against the bill: the rows of its table."""

import asyncio
from collections import Counter

import pytest

from eval import depth, needs
from eval.needs import Arm, Cut
from proxy.commands.replaying.recorded import Conversation
from tests.support.transcripts import assistant, call, tool, user


def test_a_row_has_the_view_the_bill_beside_the_default_and_what_is_kept() -> None:
    def found(bill: float, kept: int) -> tuple[list[Arm], list[Arm], list[Counter[str]]]:
        arms = [Arm("", [Cut(1_000, kept, 9), Cut(2_000, 0, 1)], bill)]
        return arms, [Arm("", [Cut(1_000, 1, 2)], 0)], [Counter({"units": 40, "torn": 1})]

    table = depth.rows({0.3: found(100, 4), 0.5: found(110, 6)})
    assert table.splitlines()[2:] == [
        "| 0.3 | 1,500 | 1.00 | 4 of 10 | 1 of 2 | 1 of 40 |",
        "| 0.5 | 1,500 | 1.10 | 6 of 10 | 1 of 2 | 1 of 40 |",
    ]


def test_a_session_is_played_at_the_depth_that_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(needs, "commonness", lambda _: Counter[str]())
    messages = [user("Mend order ORD-4711 in src/orders.py.")]
    for i in range(40):
        messages += [assistant(None, call(f"c{i}", "run", {"step": i})), tool(f"c{i}", f"out{i} " + "word " * 100)]
    messages += [assistant("Now src/orders.py and ORD-4711.")] * 2
    conversation = Conversation("a", messages)
    deep, flat = (asyncio.run(depth.used(each, conversation)) for each in (0.2, 0.5))
    assert [cut.tokens for cut in deep.cuts] != [cut.tokens for cut in flat.cuts]
