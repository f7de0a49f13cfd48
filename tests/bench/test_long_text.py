"""The measurement of a long text sends what it says, and its table has a row for each text at each place."""

from __future__ import annotations

import pytest

from bench.long_text import TEXTS, Row, document, markdown, measure


@pytest.mark.torture
def test_each_text_is_measured_in_a_message_and_in_a_tool() -> None:
    rows = measure(repeats=1, size=3_000)
    assert [(row.place, row.text) for row in rows] == [(place, name) for place in ("message", "tool") for name in TEXTS]
    assert all(row.tokens > 10 for row in rows)
    assert all(min(row.turn, row.took, *row.alone, *row.beside) > 0 for row in rows)


def test_the_table_has_a_line_for_each_row() -> None:
    row = Row("spaces", "tool", 7_846, 232.4, 3.61, 2.84, (25.2, 41.0), (22.4, 28.0))
    assert markdown([row]).splitlines()[-1] == (
        "| spaces | tool | 7,846 | 232 ms | 3.6 ms | 2.8 ms | 25, at most 41 ms | 22, at most 28 ms |"
    )
    assert document([row])[0]["tokens"] == 7_846
