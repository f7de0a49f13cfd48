"""What the page of a session draws, from request records alone."""

import re
from collections.abc import Sequence
from typing import Any

from proxy.bodies.measure import Precision
from proxy.conversations.requests import RequestRecord
from proxy.operator.dashboard.session import branch_of, plot, window_of
from proxy.operator.plots import BOTTOM, HEIGHT, LEFT, TOP, WIDTH
from proxy.reasons import Action, Trigger
from tests.proxy.remembered import record

ESTIMATE: dict[str, Any] = {"precision": Precision.ESTIMATE}
CONDENSED: dict[str, Any] = {"action": Action.CONDENSED, "trigger": Trigger.OVERFLOW, "condensation": "c1"}


def drawn(records: Sequence[RequestRecord], limits: dict[str, float] | None = None) -> str:
    return plot(branch_of("main", [], [], "", records, lambda _body: 0), limits or {})


def values(figure: str, series: int, count: int, top: float) -> dict[int, int]:
    """The values that a line of a plot of `count` requests has, by request; its scale ends at `top`."""
    path = re.findall(rf'<path class="line s{series}"[^>]* d="([^"]*)"', figure)[-1]
    points = [tuple(map(float, point.split())) for point in re.split("[ML]", path) if point]
    height, width = HEIGHT - TOP - BOTTOM, (WIDTH - LEFT - 12) / max(count - 1, 1)
    return {round((x - LEFT) / width + 1): round(top * (1 - (y - TOP) / height)) for x, y in points}


def test_an_estimate_that_becomes_exact_draws_no_fall() -> None:
    records = [
        record(before=90, after=90, **ESTIMATE),
        record(before=150, after=150, **ESTIMATE),
        record(before=120, after=120),
        record(before=400, after=400, **ESTIMATE),
        record(before=300, after=200, **CONDENSED),
    ]
    assert values(drawn(records), 0, 5, 400) == {1: 90, 3: 120, 4: 400, 5: 200}


def test_only_the_requests_of_the_branch_are_drawn_and_nothing_without_them() -> None:
    assert drawn([record(branch="b2", before=7, after=7)]) == ""
    both = drawn([record(before=40, after=40), record(branch="b2", before=7, after=7)])
    assert values(both, 0, 1, 40) == values(both, 1, 1, 40) == {1: 40}


def test_the_scale_fits_the_window_and_the_full_history_leaves_it() -> None:
    figure = drawn([record(before=500, after=500), record(before=90_000, after=900)], {"window": 1_000.0})
    assert "full history (at last 90,000, above the plot)" in figure
    assert values(figure, 0, 2, 1_200) == {1: 500, 2: 900}
    assert max(values(figure, 1, 2, 1_200).values()) == 1_200


def test_a_sign_leads_to_its_condensation() -> None:
    figure = drawn([record(before=10, after=10), record(number=2, before=30, after=20, **CONDENSED)])
    assert '<a href="?tab=condensations&amp;branch=main#c-c1"><title>request 2: 30 to 20 tokens</title>' in figure


def test_the_parts_of_the_window_are_those_of_the_last_answered_request() -> None:
    records = [record(after=300, window=1_000), record(after=900, window=1_000, status=500)]
    branch = branch_of("main", [], [], "", records, lambda _body: 0)
    window = window_of(branch, {})
    assert window is not None
    assert (window.parts, window.filled) == ([("tools", "tools and framing", 300), ("free", "free", 700)], 1_000)
    unknown = branch_of("main", [], [], "", [record(after=300, window=None)], lambda _body: 0)
    assert window_of(unknown, {}) is None
