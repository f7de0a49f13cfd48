from __future__ import annotations

from proxy.replaying.table import grid, markdown


def test_texts_are_aligned_to_the_left_and_figures_to_the_right() -> None:
    assert grid(["name", "note", "n"], [["a", "first", "1"], ["long", "b", "1,000"]], texts=2) == [
        "name  note       n",
        "------------------",
        "a     first      1",
        "long  b      1,000",
    ]


def test_a_markdown_table_aligns_all_columns_but_those_of_text() -> None:
    assert markdown("what | figure | target", [["a", "1", "met"]], texts=(0, -1)).splitlines() == [
        "| what | figure | target |",
        "| --- | ---: | --- |",
        "| a | 1 | met |",
    ]
