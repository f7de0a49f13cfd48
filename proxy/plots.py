"""Draws plots as SVG in HTML: each is a figure with a table of the same data below it. Pure; all text is escaped.

Series differ in colour, dash and name, never in colour alone. The colours are those of Okabe and Ito that have a
contrast of 3:1 both on white and on a dark page; the classes `s0` to `s3` are in the style of the page.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from html import escape
from math import floor, log10
from typing import NamedTuple

WIDTH, HEIGHT, LEFT, TOP, BOTTOM = 760, 320, 66, 12, 40
BAR, LABEL = 30, 190
_At = Callable[[float, float], tuple[float, float]]
COLOURS = 4
DASHES = ("", "7 4", "2 4", "10 4 2 4", "4 2 1 2")


class Line(NamedTuple):
    """A value for each request; None leaves a gap. `marked` are the numbers of requests with a sign, from 1."""

    name: str
    values: Sequence[float | None]
    marked: Sequence[int] = ()


class Bar(NamedTuple):
    """A value with its interval; without an interval, all three numbers are equal."""

    name: str
    value: float
    low: float
    high: float
    shown: str


def line_plot(title: str, lines: Sequence[Line], limits: Mapping[str, float], sign: str, *, unit: str) -> str:
    """A plot of lines over requests, with `limits` as level lines; `sign` says what a mark on a line means."""
    count = max((len(line.values) for line in lines), default=1)
    values = [value for line in lines for value in line.values if value is not None]
    top = _round_up(max([*values, *limits.values()], default=1.0) or 1.0)
    width, height = WIDTH - LEFT - 12, HEIGHT - TOP - BOTTOM

    def at(request: float, value: float) -> tuple[float, float]:
        return LEFT + width * (request - 1) / max(count - 1, 1), TOP + height * (1 - value / top)

    drawn = [*_levels(top, at(1, 0)[0], WIDTH - 12, at), _text(WIDTH - 12, HEIGHT - 6, "request", "end")]
    drawn += [
        _text(at(n, 0)[0], HEIGHT - BOTTOM + 16, f"{n:,}", "middle") for n in sorted({1, (count + 1) // 2, count})
    ]
    for name, value in limits.items():
        x, y = at(1, value)
        drawn.append(f'<line class="limit" x1="{x:.1f}" x2="{WIDTH - 12}" y1="{y:.1f}" y2="{y:.1f}"/>')
        drawn.append(_text(WIDTH - 14, y - 4, f"{name} {value:,.0f}", "end"))
    for place, line in enumerate(lines):
        drawn += _drawn(place, [None if v is None else at(i, v) for i, v in enumerate(line.values, 1)], line.marked)
    head = ["request", *(line.name for line in lines)]
    rows = [[f"{i + 1:,}", *(_cell(line, i) for line in lines)] for i in range(count)]
    caption = f"{title}, in {unit}. {'○ ' + sign if sign else ''}"
    return _figure(title, caption, HEIGHT, drawn, html_table(title, head, rows), [line.name for line in lines])


def bar_plot(title: str, told: str, bars: Sequence[Bar], line_at: float | None = None) -> str:
    """A plot with a bar for each value, and its interval as a thin line; `line_at` is the value of a level line."""
    ends = [end for bar in bars for end in (bar.value, bar.low, bar.high)]
    least, most = min([0.0, *ends]), max([line_at or 0.0, *ends]) or 1.0
    width, height = WIDTH - LABEL - 200, BAR * len(bars) + 12

    def at(value: float) -> float:
        return LABEL + width * (value - least) / ((most - least) or 1.0)

    drawn = [f'<path class="grid" d="M{at(value):.1f} 0V{height}"/>' for value in {0.0, line_at or 0.0}]
    for place, bar in enumerate(bars):
        y, left, right = 6 + BAR * place, *sorted((at(0.0), at(bar.value)))
        drawn.append(_text(LABEL - 8, y + 18, bar.name if len(bar.name) < 30 else bar.name[:28] + "…", "end"))
        size = f'x="{left:.1f}" y="{y + 5}" width="{right - left:.1f}" height="{BAR - 12}"'
        drawn.append(f'<rect class="bar s{place % COLOURS}" {size}/>')
        if bar.low != bar.high:
            drawn.append(f'<path class="interval" d="M{at(bar.low):.1f} {y + 14}H{at(bar.high):.1f}"/>')
        drawn.append(_text(max(right, at(bar.high)) + 8, y + 18, bar.shown, "start"))
    return _figure(
        title, told, height, drawn, html_table(title, ["strategy", title], [[b.name, b.shown] for b in bars])
    )


def html_table(caption: str, head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """An HTML table whose first column holds the headings of its rows."""
    titles = "".join(f'<th scope="col">{escape(each)}</th>' for each in head)
    body = "".join(
        f'<tr><th scope="row">{escape(first)}</th>{"".join(f"<td>{escape(each)}</td>" for each in cells)}</tr>\n'
        for first, *cells in rows
    )
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(caption)}, table"><table class="figures">'
        f"<caption>{escape(caption)}</caption><thead><tr>{titles}</tr></thead>\n<tbody>\n{body}</tbody></table></div>"
    )


def _figure(title: str, told: str, height: int, drawn: Sequence[str], rows: str, names: Sequence[str] = ()) -> str:
    sample = '<svg class="sample" viewBox="0 0 36 10" aria-hidden="true"><path {} d="M0 5H36"/></svg>'
    legend = "".join(f"<li>{sample.format(_stroke(place))}{escape(name)}</li>" for place, name in enumerate(names))
    return (
        f"<figure><figcaption>{escape(told)}</figcaption>{f'<ul class=legend>{legend}</ul>' if legend else ''}"
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(title)}, plot">'
        f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(title)}">{"".join(drawn)}</svg></div>'
        f"<details><summary>Table: {escape(title)}</summary>{rows}</details></figure>"
    )


def _drawn(place: int, points: Sequence[tuple[float, float] | None], marked: Sequence[int]) -> Iterator[str]:
    path, pen = [], "M"
    for point in points:
        if point is not None:
            path.append(f"{pen}{point[0]:.1f} {point[1]:.1f}")
        pen = "M" if point is None else "L"
    yield f'<path {_stroke(place)} d="{"".join(path)}"/>'
    for request in marked:
        if point := points[request - 1]:
            yield f'<circle class="mark s{place % COLOURS}" cx="{point[0]:.1f}" cy="{point[1]:.1f}" r="4"/>'


def _stroke(place: int) -> str:
    return f'class="line s{place % COLOURS}" stroke-dasharray="{DASHES[place % len(DASHES)]}"'


def _levels(top: float, left: float, right: float, at: _At) -> Iterator[str]:
    for part in range(5):
        y = at(1, top * part / 4)[1]
        yield f'<line class="grid" x1="{left:.1f}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}"/>'
        yield _text(left - 6, y + 4, f"{top * part / 4:,.10g}", "end")


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _cell(line: Line, place: int) -> str:
    value = line.values[place] if place < len(line.values) else None
    if value is None:
        return "-"
    sign = " ○" if place + 1 in line.marked else ""
    return (f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:,.4g}") + sign


def _round_up(value: float) -> float:
    """The value rounded up to 1, 2, 4 or 8 times a power of ten."""
    power = 10.0 ** floor(log10(value))
    return next(step * power for step in (1, 2, 4, 8, 10) if step * power >= value * 0.999999)
