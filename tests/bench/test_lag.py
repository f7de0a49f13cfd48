"""The measurement of the loop's lag: its table, and that it can be run on the real app."""

from __future__ import annotations

from bench.lag import STATES, Row, markdown, measure

ROW = Row("cold", "memory", 10, 20, 1_000, 30.0, 20.0, 1, 40.0)


def test_a_row_is_a_line_with_a_verdict() -> None:
    table = markdown([ROW]).splitlines()
    assert table[2] == "| cold | memory | 10 | 20 | 1,000 | 30.0 ms | 20.0 ms | 1 | 40 ms | missed |"


def test_the_real_app_is_watched_under_each_kind_of_large_request() -> None:
    rows = measure(seconds=0.3, stores=("memory",))

    assert [row.state for row in rows] == list(STATES)
    assert all(row.callbacks > 0 and row.large >= 4 and row.small > 0 for row in rows)
