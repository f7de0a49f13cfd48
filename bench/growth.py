"""What a history's length costs: its first request, which must grow with it, and a turn after that, which must not.

Milliseconds that the proxy adds and stores for, by the stages of `bench.session`, over a store in memory, in a window
that each history fills to a half; no request names its session, which is found by its chain. The least of some repeats
is taken: what is more than that was the machine's.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import log10
from pathlib import Path
from statistics import median
from typing import Any

from bench.history import long_history
from bench.session import LongSession

LENGTHS = (10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000)
REPEATS = 3
TURNS = 9
TOKENS_PER_MESSAGE = 250
_WIDTH, _HEIGHT, _MARGIN = 640, 360, 60
_COLORS = {"first": "#b5442c", "turn": "#2c6fb5"}
_TITLES = {"first": "first request", "turn": "a turn after it"}
_BAR = 40


@dataclass(frozen=True, slots=True)
class Row:
    """A history of so many messages; milliseconds for its first request, and for a turn at the median."""

    messages: int
    tokens: int
    first: float
    turn: float


def add_options(parser: argparse.ArgumentParser) -> None:
    """What of it can be chosen on the command line."""
    parser.add_argument("--svg", type=Path, help="draw the rows there too")


def measure(lengths: Sequence[int] = LENGTHS, repeats: int = REPEATS, svg: Path | None = None) -> list[Row]:
    """All rows; about a minute."""
    history = long_history(max(lengths) + 2 * TURNS)
    rows = [_row(history[: length + 2 * TURNS], length, repeats) for length in lengths]
    if svg is not None:
        svg.write_text(drawn(rows), "utf-8")
    return rows


def _row(history: Sequence[Any], length: int, repeats: int) -> Row:
    window = 2 * TOKENS_PER_MESSAGE * length + 10_000
    found = [
        asyncio.run(LongSession(history, "memory://", window, explicit=False).row("memory", length, TURNS))
        for _ in range(repeats)
    ]
    return Row(length, found[0].tokens, min(each.first for each in found), median(each.median for each in found))


def markdown(rows: Sequence[Row]) -> str:
    """One line a row, with bars as long as the times."""
    most = max(row.first for row in rows)
    lines = ["| messages | tokens | first request | a message | a turn after it | |", "| ---: " * 5 + "| --- |"]
    for row in rows:
        bar = "█" * max(round(_BAR * row.first / most), 1)
        cells = (f"{row.messages:,}", f"{row.tokens:,}", f"{row.first:.1f} ms", f"{row.first / row.messages:.3f} ms")
        lines.append(f"| {' | '.join(cells)} | {row.turn:.1f} ms | {bar} |")
    return "\n".join(lines)


def document(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """The rows as JSON."""
    return [asdict(row) for row in rows]


def drawn(rows: Sequence[Row]) -> str:
    """Both times over the number of messages, both axes logarithmic, as SVG."""
    times = [time for row in rows for time in (row.first, row.turn)]
    across = _Scale(rows[0].messages, rows[-1].messages, _MARGIN, _WIDTH - _MARGIN)
    up = _Scale(min(times), max(times), _HEIGHT - _MARGIN, _MARGIN)
    parts = [_text(across.at(row.messages), _HEIGHT - _MARGIN + 20, f"{row.messages:,}") for row in rows]
    parts += [_text(_MARGIN - 25, up.at(time), f"{time:.1f}") for time in (min(times), max(times))]
    parts.append(_text(_WIDTH / 2, _HEIGHT - 15, "messages in the history"))
    for place, (name, title) in enumerate(_TITLES.items()):
        points = " ".join(f"{across.at(row.messages):.1f},{up.at(getattr(row, name)):.1f}" for row in rows)
        parts.append(f'<polyline points="{points}" fill="none" stroke="{_COLORS[name]}" stroke-width="2"/>')
        parts.append(_text(_WIDTH / 2, 20 + 16 * place, f"{title}, ms", _COLORS[name]))
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" font-family="sans-serif">'
    return "\n".join([head, *parts, "</svg>", ""])


class _Scale:
    """Places on a logarithmic axis from `low` at `start` to `high` at `end`."""

    def __init__(self, low: float, high: float, start: float, end: float) -> None:
        self._low, self._start = log10(low), start
        self._step = (end - start) / ((log10(high) - self._low) or 1.0)

    def at(self, value: float) -> float:
        return self._start + (log10(value) - self._low) * self._step


def _text(x: float, y: float, text: str, color: str = "#444") -> str:
    return f'<text x="{x:.0f}" y="{y:.0f}" font-size="12" text-anchor="middle" fill="{color}">{text}</text>'
