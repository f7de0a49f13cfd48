"""The tables are plain text that fits a terminal of 100 columns."""

from __future__ import annotations

from proxy.demo.table import WIDTH, Cell, grid, live_head, live_row

FULL = Cell(1_234_567, -123_456, "condensed", 9_999.0)


def test_the_live_table_is_no_wider_than_the_terminal() -> None:
    lines = [
        *live_head("trimmed: recent", "condensed: mask+half-window"),
        live_row(99, 999, 123_456, "400", [FULL] * 2),
    ]
    assert max(map(len, lines)) == WIDTH


def test_the_columns_of_the_live_table_stand_under_each_other() -> None:
    head = live_head("trimmed", "condensed")
    bars = [[i for i, mark in enumerate(line) if mark in "|+" and line[i - 1] in " -"] for line in head]
    row = live_row(1, 2, 3, "ok", [Cell(1, 2, "passed", 0.5), Cell()])
    assert [i for i, mark in enumerate(row) if mark == "|"] == bars[0]
    assert bars[0][0] == head[2].index("+")


def test_a_way_with_nothing_to_say_has_dashes() -> None:
    row = live_row(1, 2, 3, "-", [Cell(), Cell(action="refused")])
    assert row.count("-") == 8
    assert "refused" in row


def test_small_times_have_a_decimal_and_large_ones_none() -> None:
    row = live_row(1, 2, 3, "ok", [Cell(1, 2, "passed", 0.04), Cell(1, 2, "passed", 41.6)])
    assert " 0.0 |" in row
    assert row.endswith("  42")


def test_an_action_that_is_too_long_is_cut() -> None:
    row = live_row(1, 2, 3, "ok", [Cell(1, 2, "would-condense", 1.0)] * 2)
    assert len(row) == WIDTH


def test_a_grid_aligns_texts_left_and_figures_right() -> None:
    assert grid(["what", "a", "bb"], [["tokens", "1,000", "2"]]) == [
        "what        a  bb",
        "-----------------",
        "tokens  1,000   2",
    ]


def test_a_grid_may_have_several_columns_of_text() -> None:
    assert grid(["in", "text", "n"], [["a", "b", "10"]], texts=2)[2] == "a   b     10"
