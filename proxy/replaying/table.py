"""Tables: aligned ones for a terminal, and Markdown for the documentation."""

from __future__ import annotations

from collections.abc import Sequence

Row = Sequence[str]


def grid(head: Row, rows: Sequence[Row], *, texts: int = 1) -> list[str]:
    """The lines of an aligned table: the first `texts` columns are texts, the others are figures."""
    table = [head, *rows]
    widths = [max(len(row[i]) for row in table) for i in range(len(head))]
    lines = [_line(row, widths, texts) for row in table]
    return [lines[0], "-" * len(lines[0]), *lines[1:]]


def _line(row: Row, widths: Sequence[int], texts: int) -> str:
    cells = zip(row, widths, strict=True)
    return "  ".join(f"{cell:<{width}}" if i < texts else f"{cell:>{width}}" for i, (cell, width) in enumerate(cells))


def markdown(head: str, rows: Sequence[Row], *, texts: Sequence[int] = (0,)) -> str:
    """A Markdown table; `head` has its titles with ` | ` between them.

    The columns numbered in `texts` (negative from the end) are texts, the others are figures.
    """
    titles = head.split(" | ")
    columns = {number % len(titles) for number in texts}
    marks = ["---" if i in columns else "---:" for i in range(len(titles))]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (titles, marks, *rows))
