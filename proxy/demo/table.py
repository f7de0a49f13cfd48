"""The demo's tables, as plain text of at most 100 columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

WIDTH = 100
ABSENT = "-"


class Cell(NamedTuple):
    """What one way did with one request; None where there is nothing to show."""

    forwarded: int | None = None
    headroom: int | None = None
    action: str = ABSENT
    ms: float | None = None


def live_head(first: str, second: str) -> list[str]:
    """The head of the live table; `first` and `second` are the titles of the two ways through the proxy."""
    return [
        f"{'':<29}| {first:^33} | {second:^33}".rstrip(),
        f"turn request    sent  direct | {_cell_head()} | {_cell_head()}",
        "-" * 29 + "+" + "-" * 35 + "+" + "-" * 34,
    ]


def live_row(turn: int, request: int, sent: int, direct: str, cells: Sequence[Cell]) -> str:
    """The row of one request: its tokens when it left the client, and what each way did with it."""
    return f"{turn:>4} {request:>7} {sent:>7,} {direct:>7} | " + " | ".join(map(_cell, cells))


def _cell_head() -> str:
    return f"{'forwarded':>9} {'headroom':>8} {'action':<9} {'+ms':>4}"


def _cell(cell: Cell) -> str:
    return f"{_number(cell.forwarded):>9} {_number(cell.headroom):>8} {cell.action[:9]:<9} {_ms(cell.ms):>4}"


def _number(value: int | None) -> str:
    return ABSENT if value is None else f"{value:,}"


def _ms(value: float | None) -> str:
    return ABSENT if value is None else f"{value:.0f}" if value >= 9.95 else f"{value:.1f}"


def grid(head: Sequence[str], rows: Sequence[Sequence[str]], *, texts: int = 1) -> list[str]:
    """An aligned table: the first `texts` columns are texts, the others are figures."""
    table = [head, *rows]
    widths = [max(len(row[i]) for row in table) for i in range(len(head))]
    lines = [_line(row, widths, texts) for row in table]
    return [lines[0], "-" * len(lines[0]), *lines[1:]]


def _line(row: Sequence[str], widths: Sequence[int], texts: int) -> str:
    cells = zip(row, widths, strict=True)
    return "  ".join(f"{cell:<{width}}" if i < texts else f"{cell:>{width}}" for i, (cell, width) in enumerate(cells))
