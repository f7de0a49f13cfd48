"""The measurement of start-up and memory: its verdicts, and that it can be run."""

from __future__ import annotations

import pytest

from bench.footprint import Row, markdown, measure, verdict


def test_a_figure_is_judged_where_there_is_a_limit() -> None:
    assert verdict(Row("ready", 100.0, "MB")) == "-"
    assert verdict(Row("after", 150.0, "MB", 150.0)) == "met"
    assert verdict(Row("after", 150.1, "MB", 150.0)) == "missed"


def test_a_figure_is_a_line_with_its_unit() -> None:
    assert markdown([Row("start", 1.234, "s", 1.5)]).splitlines()[-1] == "| start | 1.23 s | 1.5 s | met |"


@pytest.mark.torture
@pytest.mark.parametrize(("minutes", "units"), [(0.0, ["s", "MB", "MB", "MB"]), (0.01, ["MB", "MB", "", "x"])])
def test_start_and_memory_are_measured_or_a_soak_where_one_is_wanted(minutes: float, units: list[str]) -> None:
    rows = measure(sessions=16, forks=16, minutes=minutes, starts=1)

    assert [row.unit for row in rows] == units
    assert all(row.figure > 0 for row in rows)
