"""Plots: every label is inside the picture, and a line that leaves it at the top does so visibly."""

import re

from proxy.operator.plots import HEIGHT, LEFT, TOP, Column, Line, Series, column_plot, line_plot


def labels(plot: str) -> list[str]:
    """The texts beside the level lines."""
    return re.findall(r'<text x="[\d.]+" y="[\d.]+" text-anchor="end">([^<]*)</text>', plot)


def test_levels_are_round_and_their_labels_short_enough_for_the_margin() -> None:
    for most in (3.0, 57.0, 999.0, 9_830.0, 14_400_000.0, 7e9):
        plot = column_plot("Tokens", "", [Series("sent", 0)], [Column("04:00", [most])])
        found = [each for each in labels(plot) if each != "04:00"]
        assert 4 <= len(found) <= 7, (most, found)
        # A character of the charts' font takes about 10 units.
        assert all(10 * len(each) <= LEFT - 6 for each in found), found
        assert all(len(each.strip("0kMG.,")) <= 2 for each in found), found


def test_a_line_that_leaves_the_plot_is_drawn_to_its_edge_and_its_end_is_told() -> None:
    lines = [Line("history", [100.0, 300.0, 500.0, 100.0])]
    plot = line_plot("Size", lines, {"window": 200.0}, "", unit="tokens", top=200.0)
    *_, path = re.findall(r'<path class="line s0"[^>]* d="([^"]*)"', plot)
    points = [tuple(map(float, each.split())) for each in re.split("[ML]", path) if each]
    assert len(points) == 4  # up to the edge, and from it
    assert [y for _, y in points[1:3]] == [TOP, TOP]
    assert all(TOP <= y <= HEIGHT for _, y in points)
    assert "above the plot" not in plot
    ending = line_plot("Size", [Line("history", [100.0, 500.0])], {}, "", unit="tokens", top=200.0)
    assert "history (at last 500, above the plot)" in ending
