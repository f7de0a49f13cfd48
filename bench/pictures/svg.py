"""SVG for a page of text: each picture has a background of its own, and follows the reader's light or dark theme.

Series differ in colour and in dash or name. Text is the browser's own font, so boxes leave room for a wider one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import NamedTuple

Point = tuple[float, float]
_STYLE = """\
svg{--page:#fff;--ink:#1f2328;--faint:#59636e;--edge:#d1d9e0;--fill:#f6f8fa;\
--c0:#b1470b;--c1:#6e7781;--c2:#0a6ab8;--c3:#1a7f37;--c4:#8250df;--red:#cf222e}\
@media(prefers-color-scheme:dark){svg{--page:#0d1117;--ink:#e6edf3;--faint:#9198a1;--edge:#3d444d;--fill:#161b22;\
--c0:#f0883e;--c1:#9198a1;--c2:#58a6ff;--c3:#3fb950;--c4:#bc8cff;--red:#ff7b72}}\
text{font:14px system-ui,-apple-system,"Segoe UI",Roboto,"DejaVu Sans",sans-serif;fill:var(--ink)}\
.small{font-size:12px;fill:var(--faint)}.bold{font-weight:600}\
.line{fill:none;stroke-width:2;stroke-linejoin:round}.rule{stroke:var(--edge);stroke-width:1}\
.box{fill:var(--fill);stroke:var(--edge);stroke-width:1.5}.arrow{fill:none;stroke:var(--faint);stroke-width:1.5}"""
_TIP = (
    '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8"'
    ' orient="auto-start-reverse"><path d="M0 0L8 4L0 8z" style="fill:var(--faint)"/></marker></defs>\n'
)


def picture(width: int, height: int, told: str, parts: Iterable[str], style: str = "") -> str:
    """A whole file; `told` says what the picture shows to who cannot see it."""
    drawn = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
        f' role="img" aria-label="{escape(told)}"><title>{escape(told)}</title><style>{_STYLE}{style}</style>\n'
        f"{_TIP if 'url(#tip)' in drawn else ''}"
        f'<rect width="{width}" height="{height}" rx="8" style="fill:var(--page)"/>\n{drawn}\n</svg>\n'
    )


def text(x: float, y: float, said: str, *, anchor: str = "start", kind: str = "", colour: str = "") -> str:
    style = f' style="fill:var(--{colour})"' if colour else ""
    place = f' text-anchor="{anchor}"' if anchor != "start" else ""
    of = f' class="{kind}"' if kind else ""
    return f'<text x="{x:.1f}" y="{y:.1f}"{place}{of}{style}>{escape(said, quote=False)}</text>'


def lines_of_text(x: float, y: float, said: Sequence[str], *, anchor: str = "start", kind: str = "small") -> list[str]:
    return [text(x, y + 16 * number, each, anchor=anchor, kind=kind) for number, each in enumerate(said)]


def rule(x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<path class="rule" d="M{x1:.1f} {y1:.1f}L{x2:.1f} {y2:.1f}"/>'


def line(points: Sequence[Point], colour: str, dash: str = "") -> str:
    path = "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
    dashes = f";stroke-dasharray:{dash}" if dash else ""
    return f'<path class="line" style="stroke:var(--{colour}){dashes}" d="M{path}"/>'


def arrow(*points: Point, both: bool = False, dash: str = "") -> str:
    path = "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
    tips = ' marker-start="url(#tip)"' if both else ""
    dashes = f' style="stroke-dasharray:{dash}"' if dash else ""
    return f'<path class="arrow" d="M{path}" marker-end="url(#tip)"{tips}{dashes}/>'


def ring(x: float, y: float, colour: str) -> str:
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4.5" style="fill:var(--page);stroke:var(--{colour});stroke-width:2"/>'


def cross(x: float, y: float, colour: str) -> str:
    arms = f"M{x - 7:.1f} {y - 7:.1f}l14 14m0 -14l-14 14"
    return f'<path d="{arms}" style="stroke:var(--{colour});stroke-width:3.5;stroke-linecap:round"/>'


def block(x: float, y: float, width: float, height: float, style: str) -> str:
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" style="{style}"/>'


def box(x: float, y: float, width: float, height: float, title: str, said: Sequence[str] = (), colour: str = "") -> str:
    """A box with a title and lines of text below it, all centred; a colour marks what is ours."""
    edge = f' style="stroke:var(--{colour});stroke-width:2"' if colour else ""
    rect = f'<rect class="box" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="6"{edge}/>'
    middle, first = x + width / 2, y + height / 2 + 5 - 8 * len(said)
    words = [text(middle, first, title, anchor="middle", kind="bold")]
    return "\n".join([rect, *words, *lines_of_text(middle, first + 17, said, anchor="middle")])


class Axes(NamedTuple):
    """A plot over requests: where it lies in the picture, and what its scales end at."""

    left: float
    top: float
    width: float
    height: float
    requests: int
    ceiling: int

    @property
    def right(self) -> float:
        return self.left + self.width

    def at(self, request: float, tokens: float) -> Point:
        x = self.left + self.width * (request - 1) / (self.requests - 1)
        return x, self.top + self.height * (1 - tokens / self.ceiling)

    def points(self, tokens: Iterable[float]) -> list[Point]:
        return [self.at(number, each) for number, each in enumerate(tokens, 1)]

    def scales(self, step: int, requests: Iterable[int]) -> list[str]:
        drawn, foot = [], self.top + self.height
        for tokens in range(0, self.ceiling + 1, step):
            y = self.at(1, tokens)[1]
            drawn += [rule(self.left, y, self.right, y)]
            drawn += [text(self.left - 8, y + 4, f"{tokens:,}", anchor="end", kind="small")]
        for request in requests:
            drawn.append(text(self.at(request, 0)[0], foot + 20, str(request), anchor="middle", kind="small"))
        return [*drawn, text(self.left + self.width / 2, foot + 38, "request", anchor="middle", kind="small")]
