"""Reports the results of a replay: as a table for people, as JSON for programs, or as one HTML page. Pure.

`grid` and `markdown` print the tables of all instruments. The page needs nothing else: no script, no other file, no
network.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from html import escape
from importlib.resources import files
from itertools import accumulate
from typing import Any, NamedTuple

from proxy.condensing.policy import RATIOS, Window
from proxy.plots import Bar, Line, bar_plot, html_table, line_plot
from proxy.replaying.measures import ReplayedConversation, Share, Summary, cheaper_from, summarize
from strategies.core.economics import Prices

NOTE = (
    "saved: against the tokens that the client sent, our own calls paid for. cached: message tokens that the request\n"
    "before began with. evidence: questions whose evidence stands word for word in the last view. names: names and\n"
    "numbers of the user that are in the last view. rules: rules and open tasks of the user that are in it word for\n"
    "word. votes: of judges; YES: their share. cost: of all prompts and our own calls, at {prices};\n"
    "of direct: to what the client's own lists would cost, with the interval of 95 % over conversations;\n"
    "dear writes: the same where a cached token costs a tenth of a fresh one, and writing it a quarter more."
)

_SCRIPTED = "Summaries are copied out of the history without a model, so they show sizes, not how well a model writes."


class ReplayResults(NamedTuple):
    """The file and the window of a replay, and the results of each strategy."""

    file: str
    conversations: int
    model: str
    window: Window
    summaries: Sequence[Summary]
    prices: str = "usual ratios"  # what the cost was counted at, in words
    played: Mapping[str, Sequence[ReplayedConversation]] = {}
    """The conversations under each strategy, the client's own lists first."""
    costs: Prices = RATIOS  # what the cost was counted at
    asked: Mapping[str, str] = {}  # the roles that real models had, and their addresses
    warnings: Sequence[str] = ()  # what went wrong with them

    def notes(self) -> str:
        """What the columns mean, and who summarized and voted."""
        real = [f"The {role} was the model at {address}." for role, address in self.asked.items()]
        return "\n".join([NOTE.format(prices=self.prices), *real, *([] if "summarizer" in self.asked else [_SCRIPTED])])

    def all_warnings(self) -> list[str]:
        degraded = [
            f"{each.strategy}: {each.degraded:,} requests were degraded; their figures are not the strategy's."
            for each in self.summaries
            if each.degraded
        ]
        return [*degraded, *(f"{warning}." for warning in self.warnings)]

    def each(self) -> Iterator[tuple[ReplayedConversation, Summary, int | None]]:
        """Each conversation under each strategy, its figures, and from which request on it was cheaper than direct."""
        directs = next(iter(self.played.values()), ())
        for place, direct in enumerate(directs):
            for name, conversations in self.played.items():
                one = conversations[place]
                since = cheaper_from(one.costs(self.costs), direct.costs(self.costs))
                yield one, summarize(name, [one], self.costs, [direct]), since


def grid(head: Sequence[str], rows: Sequence[Sequence[str]], *, texts: int = 1) -> list[str]:
    """The lines of an aligned table: the first `texts` columns are texts, the others are figures."""
    marks = ["<" if i < texts else ">" for i in range(len(head))]
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    lines = [
        "  ".join(f"{cell:{mark}{width}}" for cell, mark, width in zip(row, marks, widths, strict=True))
        for row in (head, *rows)
    ]
    return [lines[0], "-" * len(lines[0]), *lines[1:]]


def markdown(head: str, rows: Sequence[Sequence[str]], *, texts: Sequence[int] = (0,)) -> str:
    """A Markdown table; `head` has its titles with ` | ` between them.

    The columns numbered in `texts` (negative from the end) are texts, the others are figures.
    """
    titles = head.split(" | ")
    columns = {number % len(titles) for number in texts}
    marks = ["---" if i in columns else "---:" for i in range(len(titles))]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (titles, marks, *rows))


def table(replayed: ReplayResults) -> str:
    """An aligned text table, with a title above it and an explanation of the columns below it."""
    lines = grid(HEAD, list(map(row, replayed.summaries)))
    warnings = [f"{warning}\n" for warning in replayed.all_warnings()]
    return "\n".join([title(replayed), "", *lines, "", *warnings, replayed.notes()])


def document(replayed: ReplayResults) -> dict[str, Any]:
    return {
        "file": replayed.file,
        "conversations": replayed.conversations,
        "model": replayed.model or None,
        "window": replayed.window.tokens,
        "window_source": replayed.window.source,
        "summarizer": replayed.asked.get("summarizer", "scripted"),
        "judge": replayed.asked.get("judge", "scripted"),
        "warnings": replayed.all_warnings(),
        "prices": replayed.prices,
        "strategies": list(map(asdict, replayed.summaries)),
        "each": [
            {"conversation": one.id, "cheaper_from": since, **asdict(summary)}
            for one, summary, since in replayed.each()
        ],
    }


def title(replayed: ReplayResults) -> str:
    count = replayed.conversations
    conversations = f"{count:,} conversation{'s' if count != 1 else ''}"
    model = replayed.model or "no model named"
    return f"{replayed.file}: {conversations}, {model}, window {replayed.window.tokens:,} ({replayed.window.source})"


def share_text(share: Share | None) -> str:
    """As `0.55 (0.52-0.58)`."""
    return "-" if share is None else f"{share.share:.2f} ({share.low:.2f}-{share.high:.2f})"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.1%}"


_CELLS: Mapping[str, Callable[[Summary], str]] = {
    "strategy": lambda of: of.strategy,
    "requests": lambda of: f"{of.requests:,}",
    "tokens sent": lambda of: f"{of.forwarded:,}",
    "own tokens": lambda of: f"{of.own:,}",
    "saved": lambda of: _percent(of.saved_share),
    "condensed": lambda of: f"{of.condensations:,}",
    "overflows": lambda of: f"{of.overflows:,}" + (f" ({of.refused:,} refused)" if of.refused else ""),
    "cached": lambda of: _percent(of.cached_share),
    "evidence": lambda of: _percent(of.evidence_share),
    "names": lambda of: _percent(of.names_share),
    "rules": lambda of: _percent(of.rules_share),
    "votes": lambda of: f"{of.votes:,}",
    "YES": lambda of: _percent(of.yes_share),
    "cost": lambda of: f"{of.cost:,.3f}",
    "of direct": lambda of: share_text(of.cost_share),
    "dear writes": lambda of: share_text(of.dear_share),
    "ms median": lambda of: f"{of.median_ms:.1f}",
    "ms max": lambda of: f"{of.max_ms:.1f}",
}
HEAD = tuple(_CELLS)


def row(summary: Summary) -> list[str]:
    return [cell(summary) for cell in _CELLS.values()]


MAX_PLOTTED = 6  # the longest conversations have plots of their own
_SHARES = (  # headings, what they mean, and the key in `Summary.intervals`
    ("Savings net of own calls", "Share of the client's tokens that was not sent, own calls paid for", "saved"),
    ("Cache hits", "Share of message tokens with which the request before began too", "cached"),
    ("Evidence kept", "Questions whose evidence is in the last view word for word", "evidence"),
    ("Rules kept", "The user's rules and open tasks that are in the last view word for word", "rules"),
    ("Names kept", "The user's names and numbers that are in the last view", "names"),
    ("YES votes", "Share of the valid votes that said YES", "yes"),
)
_FIGURES = (  # the same for figures, which are fields of `Summary`
    ("Condensations", "How many requests applied a new condensation", "condensations"),
    ("Votes", "Valid votes of judges", "votes"),
    ("Time a request", "Median of the milliseconds that a decision took", "median_ms"),
    ("Time at most", "Milliseconds of the longest decision", "max_ms"),
)
_PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>Condenser replay</title>
<style>{style}</style>
<main>
<h1>Condenser replay</h1>
<p>{title}</p>
{parts}
</main>
</html>
"""


def page(replayed: ReplayResults) -> str:
    parts = [*_overview(replayed), *_compared(replayed), *_plotted(replayed), *_each(replayed)]
    style = files("proxy").joinpath("dashboard/static/style.css").read_text("utf-8")
    return _PAGE.format(style=style, title=escape(title(replayed)), parts="\n".join(parts))


def _overview(replayed: ReplayResults) -> Iterator[str]:
    yield "<h2>All strategies</h2>" + html_table("Sums over all conversations", HEAD, map(row, replayed.summaries))
    yield from (f"<p><strong>{escape(warning)}</strong></p>" for warning in replayed.all_warnings())
    caption = f"{replayed.notes()} Intervals are those of 95 % over conversations."
    yield f'<p class="note">{escape(caption)}</p>'


def _compared(replayed: ReplayResults) -> Iterator[str]:
    for heading, told, share in _SHARES:
        yield _shares(heading, told, [(summary.strategy, summary.intervals[share]) for summary in replayed.summaries])
    money = [(summary.strategy, summary.cost_share) for summary in replayed.summaries]
    yield _shares("Money", f"Cost as a share of direct, at {replayed.prices}; the line is direct", money, 1.0)
    for heading, told, name in _FIGURES:
        values = [(summary.strategy, float(getattr(summary, name))) for summary in replayed.summaries]
        bars = [Bar(strategy, value, value, value, f"{value:,.4g}") for strategy, value in values]
        yield f"<h2>{heading}</h2>" + bar_plot(heading, told, bars)


def _shares(
    heading: str, caption: str, shares: Sequence[tuple[str, Share | None]], line_at: float | None = None
) -> str:
    bars = [
        Bar(name, *share, f"{share.share:.1%} ({share.low:.1%} to {share.high:.1%})") for name, share in shares if share
    ]
    shown = bar_plot(heading, caption, bars, line_at) if bars else '<p class="note">Nothing to measure.</p>'
    return f"<h2>{heading}</h2>{shown}"


def _plotted(replayed: ReplayResults) -> Iterator[str]:
    """Tokens and money over the requests of the longest conversations."""
    played = replayed.played
    directs = next(iter(played.values()), [])
    places = sorted(range(len(directs)), key=lambda place: -len(directs[place].requests))[:MAX_PLOTTED]
    if places:
        of = f", the {len(places)} longest of {len(directs):,}" if len(places) < len(directs) else ""
        yield f"<h2>Request by request{of}</h2>"
    for number, place in enumerate(places):
        ways = {name: conversations[place] for name, conversations in played.items()}
        called = directs[place].id
        usable = max((one.usable_tokens for one in directs[place].requests), default=0)
        limits = {"window": float(replayed.window.tokens or 0), "usable": float(usable)}
        tokens = [_tokens(name, way) for name, way in ways.items()]
        money = [Line(name, list(accumulate(way.costs(replayed.costs)))) for name, way in ways.items()]
        yield (
            f"<details{'' if number else ' open'}><summary>{escape(called)}</summary>"
            + line_plot(f"Tokens sent: {called}", tokens, limits, "a new condensation", unit="tokens")
            + line_plot(f"Money spent so far: {called}", money, {}, "", unit=replayed.prices)
            + "</details>"
        )


def _tokens(name: str, way: ReplayedConversation) -> Line:
    sent = [None if one.refused else float(one.forwarded_tokens) for one in way.requests]
    return Line(name, sent, [i for i, one in enumerate(way.requests, 1) if one.condensed])


def _each(replayed: ReplayResults) -> Iterator[str]:
    yield "<h2>Each conversation</h2>"
    rows = [
        (one.id, *row(summary), f"request {since:,}" if since else "never") for one, summary, since in replayed.each()
    ]
    yield html_table("Figures of each conversation", ["conversation", *HEAD, "cheaper than direct from"], rows)
