"""Draws plots as SVG in HTML: each is a figure with a table of the same data below it. Pure; all text is escaped.

Series differ in colour, dash and name, never in colour alone. The colours are those of Okabe and Ito that have a
contrast of 3:1 both on white and on a dark page; the classes `s0` to `s3` are in the style of the page.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from html import escape
from math import floor, log10
from typing import NamedTuple

WIDTH, HEIGHT, LEFT, TOP, BOTTOM = 760, 300, 62, 14, 26
BAR, LABEL, COLUMNS = 30, 190, 210
_At = Callable[[float, float], tuple[float, float]]
COLOURS = 4
_LINE_HEIGHT = 18
DASHES = ("", "7 4", "2 4", "10 4 2 4", "4 2 1 2")


class Mark(NamedTuple):
    """A sign on a line at one request; with a `link` it leads somewhere, and `told` is shown on it."""

    request: int  # from 1
    shape: str = "○"  # one of `SHAPES`
    told: str = ""
    link: str = ""


SHAPES = {
    "○": '<circle class="mark s{0}" cx="{1:.1f}" cy="{2:.1f}" r="4.5"/>',
    "□": '<path class="mark s{0}" d="M{1:.1f} {2:.1f}m-4.5 -4.5h9v9h-9z"/>',
    "△": '<path class="mark s{0}" d="M{1:.1f} {2:.1f}m0 -6l6 10h-12z"/>',
    "◇": '<path class="mark s{0}" d="M{1:.1f} {2:.1f}m0 -6l6 6l-6 6l-6 -6z"/>',
}


class Line(NamedTuple):
    """A value for each request; None leaves a gap."""

    name: str
    values: Sequence[float | None]
    marks: Sequence[Mark] = ()


class Bar(NamedTuple):
    """A value with its interval; without an interval, all three numbers are equal."""

    name: str
    value: float
    low: float
    high: float
    shown: str


def line_plot(
    title: str,
    lines: Sequence[Line],
    limits: Mapping[str, float],
    sign: str,
    *,
    unit: str,
    top: float | None = None,
    has_table: bool = True,
) -> str:
    """A plot of lines over requests, with `limits` as level lines; `sign` says what a mark on a line means.

    The scale ends at `top`, by default above all values; a line leaves the plot there, and its last value is named.
    """
    count = max((len(line.values) for line in lines), default=1)
    values = [value for line in lines for value in line.values if value is not None]
    top = top or _round_up(max([*values, *limits.values()], default=1.0) or 1.0)
    width, height = WIDTH - LEFT - 12, HEIGHT - TOP - BOTTOM

    def at(request: float, value: float) -> tuple[float, float]:
        return LEFT + width * (request - 1) / max(count - 1, 1), TOP + height * (1 - value / top)

    drawn = list(_levels(top, at(1, 0)[0], WIDTH - 12, at))
    for n in sorted({1, (count + 1) // 2, count}):
        name, anchor = ("request 1", "start") if n == 1 else (f"{n:,}", "end" if n == count else "middle")
        drawn.append(_text(at(n, 0)[0], HEIGHT - 6, name, anchor))
    for place, line in enumerate(lines):
        drawn += _drawn(place, [None if v is None else at(i, v) for i, v in enumerate(line.values, 1)], line.marks)
    drawn += _limits([(f"{name} {value:,.0f}", *at(1, value)) for name, value in limits.items() if value <= top])
    head = ["request", *(line.name for line in lines)]
    rows = [[f"{i + 1:,}", *(_cell(line, i) for line in lines)] for i in range(count)]
    caption = f"{title}, in {unit}. {sign}"
    table = html_table(title, head, rows) if has_table else ""
    return _figure(title, caption, HEIGHT, drawn, table, [_named(line, top) for line in lines])


def _named(line: Line, top: float) -> str:
    """The name of a line, and where it ends if that is above the plot."""
    last = next((value for value in reversed(line.values) if value is not None), 0.0)
    return f"{line.name} (at last {last:,.0f}, above the plot)" if last > top else line.name


class Series(NamedTuple):
    name: str
    colour: int


class Column(NamedTuple):
    """What happened in one span of time: a number for each series."""

    name: str
    values: Sequence[float]


def column_plot(title: str, told: str, series: Sequence[Series], columns: Sequence[Column]) -> str:
    """A plot with a column for each span of time, in which the series stand on each other."""
    top = _round_up(max([4.0, *(sum(column.values) for column in columns)]))
    width, height, least = WIDTH - LEFT - 12, COLUMNS - TOP - BOTTOM, 1.5

    def at(place: float, value: float) -> tuple[float, float]:
        return LEFT + width * (place - 1) / max(len(columns), 1), TOP + height * (1 - value / top)

    drawn = list(_levels(top, LEFT, WIDTH - 12, at))
    step = width / max(len(columns), 1)
    for place, column in enumerate(columns, 1):
        below, parts = 0.0, []
        for one, value in zip(series, column.values, strict=True):
            if value:
                (x, y), (_, foot) = at(place, below + value), at(place, below)
                wide, high = max(step - 2, least), max(foot - y, least)
                size = f'x="{x + 1:.1f}" y="{y:.1f}" width="{wide:.1f}" height="{high:.1f}"'
                parts.append(f'<rect class="bar s{one.colour}" {size}/>')
                below += value
        pairs = zip(series, column.values, strict=True)
        said = escape(", ".join((column.name, *(f"{one.name} {value:,.0f}" for one, value in pairs))))
        drawn += [f"<g><title>{said}</title>{''.join(parts)}</g>"] if parts else []
    for place in sorted({1, (len(columns) + 1) // 2, len(columns)}) if columns else ():
        x = at(place, 0)[0] + step / 2
        drawn.append(_text(x, COLUMNS - 6, columns[place - 1].name, "start" if place == 1 else "end"))
    rows = [[column.name, *(f"{value:,.0f}" for value in column.values)] for column in columns if any(column.values)]
    table = html_table(title, ["time (UTC)", *(one.name for one in series)], rows)
    return _figure(title, told, COLUMNS, drawn, table, series)


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


def _figure(
    title: str, told: str, height: int, drawn: Sequence[str], rows: str, names: Sequence[str | Series] = ()
) -> str:
    """A figure with its table; a name stands for a line of its own colour, a `Series` for columns."""
    sample = '<svg class="sample" viewBox="0 0 36 10" aria-hidden="true">{}</svg>'
    line, column = '<path {} d="M0 5H36"/>', '<rect class="bar s{}" width="36" height="10"/>'
    signs = [
        (line.format(_stroke(place)), name) if isinstance(name, str) else (column.format(name.colour), name.name)
        for place, name in enumerate(names)
    ]
    legend = "".join(f"<li>{sample.format(sign)}{escape(name)}</li>" for sign, name in signs)
    table = f"<details><summary>Table: {escape(title)}</summary>{rows}</details>" if rows else ""
    role = "group" if any(part.startswith("<a ") for part in drawn) else "img"  # an image may hold no links
    return (
        f"<figure><figcaption>{escape(told)}</figcaption>{f'<ul class=legend>{legend}</ul>' if legend else ''}"
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(title)}, plot">'
        f'<svg viewBox="0 0 {WIDTH} {height}" role="{role}" aria-label="{escape(title)}">{"".join(drawn)}</svg></div>'
        f"{table}</figure>"
    )


def _drawn(place: int, points: Sequence[tuple[float, float] | None], marks: Sequence[Mark]) -> Iterator[str]:
    path, before = [], None
    for point in points:
        if point is not None and point[1] >= TOP:
            start = "" if before is None else f"M{_crossing(before, point)}L" if before[1] < TOP else "L"
            path.append(f"{start or 'M'}{point[0]:.1f} {point[1]:.1f}")
        elif point is not None and before is not None and before[1] >= TOP:
            path.append(f"L{_crossing(before, point)}")
        before = point
    yield f'<path {_stroke(place)} d="{"".join(path)}"/>'
    for mark in marks:
        point = points[mark.request - 1]
        if point and point[1] >= TOP:
            sign = SHAPES[mark.shape].format(place % COLOURS, *point)
            told = f"<title>{escape(mark.told)}</title>" if mark.told else ""
            yield f'<a href="{escape(mark.link)}">{told}{sign}</a>' if mark.link else f"<g>{told}{sign}</g>"


def _crossing(one: tuple[float, float], other: tuple[float, float]) -> str:
    """Where the line between two points crosses the upper edge."""
    share = (TOP - one[1]) / (other[1] - one[1])
    return f"{one[0] + share * (other[0] - one[0]):.1f} {TOP}"


def _limits(levels: Sequence[tuple[str, float, float]]) -> Iterator[str]:
    """Level lines with their names, which never lie on each other."""
    below = float(HEIGHT)
    for name, x, y in sorted(levels, key=lambda level: -level[2]):
        yield f'<line class="limit" x1="{x:.1f}" x2="{WIDTH - 12}" y1="{y:.1f}" y2="{y:.1f}"/>'
        below = min(y - 4, below - _LINE_HEIGHT)
        yield _text(WIDTH - 14, max(below, TOP + 2), name, "end")


def _stroke(place: int) -> str:
    return f'class="line s{place % COLOURS}" stroke-dasharray="{DASHES[place % len(DASHES)]}"'


def _levels(top: float, left: float, right: float, at: _At) -> Iterator[str]:
    """Level lines at round values, about four of them."""
    power = 10.0 ** floor(log10(top / 4))
    step = next(each * power for each in (1, 2, 2.5, 5, 10) if each * power >= top / 4 * 0.8)
    for part in range(int(top / step * 1.000001) + 1):
        y = at(1, step * part)[1]
        yield f'<line class="grid" x1="{left:.1f}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}"/>'
        yield _text(left - 6, y + 4, _short(step * part, top), "end")


def _short(value: float, top: float) -> str:
    """A value of a scale that ends at `top`, in few characters: `2.5M`, `40k`, `750`."""
    for least, size, sign in ((1e9, 1e9, "G"), (1e6, 1e6, "M"), (1e4, 1e3, "k")):
        if value and top >= least:
            return f"{value / size:,.6g}{sign}"
    return f"{value:,.10g}"


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _cell(line: Line, place: int) -> str:
    value = line.values[place] if place < len(line.values) else None
    if value is None:
        return "-"
    signs = "".join(f" {mark.shape}" for mark in line.marks if mark.request == place + 1)
    return (f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:,.4g}") + signs


def _round_up(value: float) -> float:
    """The value rounded up to 1, 2, 4 or 8 times a power of ten."""
    power = 10.0 ** floor(log10(value))
    return next(step * power for step in (1, 2, 4, 8, 10) if step * power >= value * 0.999999)
