"""What economy costs and keeps: the rows of its tables, and how a session is played to a share of the mark."""

import asyncio

import pytest

from eval import economy, needs
from eval.needs import Arm, Cut
from proxy.commands.replaying.recorded import Conversation
from tests.support.transcripts import assistant, call, tool, user


def test_a_row_has_the_view_the_bills_beside_the_first_of_its_place_and_what_is_kept() -> None:
    def found(bill: float, uncached: int, kept: int) -> list[Arm]:
        return [Arm("", [Cut(1_000, kept, 9), Cut(2_000, 0, 1)], bill, uncached)]

    table = economy.rows("window", "`economy`", {("small", "a"): found(100, 500, 4), ("small", "b"): found(80, 600, 3)})
    assert table.splitlines()[2:] == [
        "| small | a | 1,500 | 1.00 | 1.00 | 4 of 10 |",
        "| small | b | 1,500 | 0.80 | 1.20 | 3 of 10 |",
    ]


def test_under_most_the_cheapest_target_leaves_smaller_views_than_a_share(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(needs, "needed", lambda *_: ["ORD-4711"])
    messages = [user("Mend order ORD-4711 in src/orders.py.")]
    for i in range(60):
        messages += [assistant(None, call(f"c{i}", "run", {"step": i})), tool(f"c{i}", f"out{i} " + "word " * 150)]
    conversation = Conversation("a", [*messages, assistant("Done.")])
    least, share = (
        asyncio.run(economy.under_most("half of the session", each, conversation))
        for each in ("the cheapest", "a share")
    )
    assert least.uncached < share.uncached
    assert all(cut.kept for cut in (*least.cuts, *share.cuts))
