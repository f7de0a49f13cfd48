"""The measurement of what a history's length costs: its table, its drawing, and that it can be run."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from bench.growth import Row, document, drawn, markdown, measure

ROWS = [Row(10, 2_500, 2.0, 1.0), Row(100, 25_000, 20.0, 1.1), Row(1_000, 250_000, 200.0, 1.5)]


def test_a_row_is_a_line_with_a_bar_as_long_as_its_time() -> None:
    *_, middle, last = markdown(ROWS).splitlines()
    assert middle == "| 100 | 25,000 | 20.0 ms | 0.200 ms | 1.1 ms | ████ |"
    assert last.count("█") == 40


def test_the_drawing_is_an_image_with_a_line_for_each_time() -> None:
    image = ElementTree.fromstring(drawn(ROWS))
    lines = image.findall("{http://www.w3.org/2000/svg}polyline")
    assert [len(line.attrib["points"].split()) for line in lines] == [3, 3]


@pytest.mark.torture
def test_lengths_are_measured_in_order() -> None:
    rows = measure(lengths=(4, 12), repeats=1)
    assert [row.messages for row in rows] == [4, 12]
    assert all(row.first > 0 and row.turn > 0 and row.tokens > 0 for row in rows)
    assert [each["messages"] for each in document(rows)] == [4, 12]
