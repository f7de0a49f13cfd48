"""The measurement of the loop's lag: it sees what holds a loop, names it, and can be run on the real app."""

from __future__ import annotations

import gc

from bench.lag import GARBAGE, STATES, Row, Slow, culprits, markdown, measure

SLOW = Slow(30.0, 20.0, ["proxy/request/wire.py:1 read"])
ROW = Row("cold", "memory", 10, 20, 1_000, 30.0, 20.0, 40.0, [SLOW])


def test_what_held_the_loop_is_listed_the_worst_first() -> None:
    worse = Slow(50.0, 40.0, [GARBAGE])
    row = Row("warm", "memory", 1, 1, 1, 50.0, 40.0, 1.0, [SLOW, worse, SLOW])

    assert culprits([row]) == [
        f"- 1 x, at most 40.0 ms: `{GARBAGE}`",
        "- 2 x, at most 20.0 ms: `proxy/request/wire.py:1 read`",
    ]


def test_a_row_is_a_line_with_a_verdict() -> None:
    table = markdown([ROW]).splitlines()
    assert table[2] == "| cold | memory | 10 | 20 | 1,000 | 30.0 ms | 20.0 ms | 1 | 40 ms | missed |"


def test_the_real_app_is_watched_under_each_kind_of_large_request() -> None:
    rows = measure(seconds=0.3, stores=("memory",))

    assert [row.state for row in rows] == list(STATES)
    assert all(row.callbacks > 0 and row.large >= 4 and row.small > 0 for row in rows)
    assert gc.isenabled()
