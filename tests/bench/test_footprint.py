"""The measurement of start-up and memory: its verdicts, and that it can be run."""

import pytest

from bench.footprint import measure, row


def test_a_figure_is_judged_where_there_is_a_limit() -> None:
    assert row("ready", 100.0)["target"] == "-"
    assert row("after", 150.0, 150.0)["target"] == "met"
    assert row("after", 150.1, 150.0)["target"] == "missed"


@pytest.mark.torture
def test_start_and_memory_are_measured() -> None:
    rows = measure(sessions=16, forks=16, starts=1)

    assert len(rows) == 4
    assert all(each["figure"] > 0 for each in rows)
