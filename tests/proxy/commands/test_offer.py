"""The offer of `economy = "auto"` on a receipt: it is made where `auto` would act."""

from itertools import accumulate, repeat

import pytest

from proxy.commands.offer import offer

MOST, TARGET = 200_000, 50_000
ONE = {"at": 1.0, "status": 200, "branch": "main", "action": "condensed", "cached": 1}


@pytest.mark.parametrize(("by", "is_offered"), [("share", True), ("most", False)])
def test_auto_is_offered_where_it_would_act_and_most_itself_condenses_deep(by: str, is_offered: bool) -> None:
    befores = [*accumulate(repeat(8_000, 60), initial=30_000)]
    afters = [before if before < MOST else TARGET + (before - MOST) % (MOST - TARGET) for before in befores]
    records = [
        {**ONE, "before": before, "after": after, "prompt": after}
        for before, after in zip(befores, afters, strict=True)
    ]
    row = {"model": "m", "economy": "advise", "prices": None, "trigger": MOST, "trigger_by": by}
    found = offer([{"model": "m", "totals": {}, "requests": records}], [row], 0.0)
    assert (found is not None) == is_offered
