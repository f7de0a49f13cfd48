"""Reports the results of a replay: as a table for people, as JSON for programs, or as one HTML page. Pure.

`grid` and `markdown` print the tables of all instruments, `html_page` is the page of the demo too. A page needs nothing
else: no script, no other file, no network.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from html import escape
from importlib.resources import files
from itertools import accumulate, takewhile
from statistics import median
from textwrap import fill
from typing import Any, NamedTuple

from proxy.commands.replaying.agreement import LEVELS, Agreement, LiveResults, agreement, groups
from proxy.commands.replaying.measures import ReplayedConversation, Share, Summary, cheaper_from, summarize
from proxy.condensing.policy import RATIOS
from proxy.conversations.totals import money
from proxy.operator.plots import Bar, Line, Mark, bar_plot, html_table, line_plot
from proxy.servers.windows import Window
from proxy.settings.tables import BUNDLED_CURRENCY
from strategies.core.economics import Prices

WIDTH = 120  # of what is printed
_SCRIPTED = "Summaries are copied out of the history without a model, so they show sizes, not how well a model writes."


class ReplayResults(NamedTuple):
    """The file and the window of a replay, and the results of each strategy."""

    file: str
    conversations: int
    model: str
    window: Window
    summaries: Sequence[Summary]
    prices: str = "usual ratios"  # what money was counted at, in words
    played: Mapping[str, Sequence[ReplayedConversation]] = {}
    """The conversations under each strategy, the client's own lists first."""
    costs: Prices = RATIOS  # the same for a million tokens
    asked: Mapping[str, str] = {}  # the roles that real models had, and their addresses
    warnings: Sequence[str] = ()  # what went wrong with them
    currency: str = BUNDLED_CURRENCY
    live: LiveResults | None = None  # what a real model does next

    @property
    def has_prices(self) -> bool:
        return self.costs != RATIOS

    def notes(self, columns: Collection[str]) -> list[str]:
        """What the columns mean, and who summarized and voted."""
        unit = f"{self.currency} at {self.prices}" if self.has_prices else _NO_PRICES
        meant = [f"{name}: {each.meaning.format(unit=unit)}." for name, each in _COLUMNS.items() if name in columns]
        real = [f"The {role} was the model at {address}." for role, address in self.asked.items()]
        return [*meant, *real, *([] if "summarizer" in self.asked else [_SCRIPTED])]

    def all_warnings(self) -> list[str]:
        degraded = [
            f"{each.strategy}: {each.degraded:,} requests were degraded; their figures are not the strategy's."
            for each in self.summaries
            if each.degraded
        ]
        return [*degraded, *(f"{warning}." for warning in self.warnings)]

    def each(self) -> Iterator[tuple[ReplayedConversation, Summary, int | None, int | None]]:
        """Each conversation under each strategy and its figures.

        Then the request from which on it was cheaper than direct, and the one at which direct is refused.
        """
        directs = next(iter(self.played.values()), ())
        for place, direct in enumerate(directs):
            for name, conversations in self.played.items():
                one = conversations[place]
                since = cheaper_from(one.costs(self.costs), direct.costs(self.costs))
                stops = next((i for i, each in enumerate(direct.requests, 1) if not each.answered), None)
                yield one, summarize(name, [one], self.costs, [direct]), since, stops


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


def verdict(replayed: ReplayResults) -> str:
    """One sentence about the best of the strategies: the fewest refusals, then the lowest cost."""
    direct, *ours = replayed.summaries
    if not ours:
        return f"Without condensing, {direct.unanswered:,} of {direct.requests:,} requests are refused as too long."
    best = min(ours, key=lambda of: (of.unanswered, -(of.net_share.share if of.net_share else 0.0), of.paid_cost))
    name = f"{best.strategy}, the cheapest of {len(ours)} ways" if len(ours) > 1 else best.strategy
    said = f"With {name}, {best.rescued:,} of {best.requests:,} requests fit only because they were condensed"
    if best.fitting == best.requests:
        return f"All {best.requests:,} requests fit as they are; with {name}, {_net(replayed, best)}."
    fitting = f"on those that would have fitted anyway {_net(replayed, best)}" if best.fitting else "none fits as it is"
    return f"{said}, {best.unanswered:,} are refused; {fitting}."


def _net(replayed: ReplayResults, best: Summary) -> str:
    """As `12 % of the cost is saved (USD 3.10)`."""
    share = best.net_share.share if best.net_share else 0.0
    net = f" ({money(abs(best.net_cost), replayed.currency)})" if replayed.has_prices else ""
    told = f"{abs(share):.0%}".replace("%", " %") if abs(share) >= 0.005 else "less than 1 %"
    return f"{told} of the cost is {'saved' if share >= 0 else 'added'}{net}" if share else "the cost stays the same"


def table(replayed: ReplayResults) -> str:
    """The verdict, aligned text tables of what there is to show, and what their columns mean."""
    shown = columns_to_show(replayed)
    grids = []
    for group in GROUPS:
        names = [name for name in group if name in shown]
        if len(names) > 1:
            heads = [_head(name, replayed) for name in names]
            grids += ["", *grid(heads, [[_COLUMNS[name].cell(each) for name in names] for each in replayed.summaries])]
    notes = [*replayed.all_warnings(), *replayed.notes(shown)]
    wrapped = [fill(note, WIDTH, subsequent_indent="  ") for note in notes]
    lead = [fill(verdict(replayed), WIDTH), "", title(replayed)]
    wrapped += ["", *live_lines(replayed, replayed.live)] if replayed.live else []
    return "\n".join([*lead, *grids, "", *wrapped])


_LIVE_HEAD = ("next action", "compared by", "requests", "sessions", "as the original", "A/A", "points less", "at most")


def live_lines(replayed: ReplayResults, live: LiveResults) -> list[str]:
    """How often a view's next action is the original's, what that means and cost, and what was not measured."""
    found = [(*of, each) for of, some in groups(live.measured).items() if (each := agreement(some, of[1]))]
    rows = []
    for name, level, of in found:
        less = f"{of.noise:.1%}", f"{100 * of.worse:.1f}", f"{100 * of.most:.0f}"
        rows.append(
            [name, level, f"{of.requests:,}", f"{of.sessions:,}", f"{of.view:.1%} (at least {of.least:.0%})", *less]
        )
    told = [fill(line, WIDTH, subsequent_indent="  ") for line in _live_notes(replayed, live, [of for *_, of in found])]
    return [*(grid(_LIVE_HEAD, rows, texts=2) if rows else []), "", *told]


def _live_notes(replayed: ReplayResults, live: LiveResults, found: Sequence[Agreement]) -> Iterator[str]:
    for of in found[:1]:
        levels = "; ".join(f"{name}: {told}" for name, told in LEVELS.items())
        yield (
            "A/A is the original asked twice: the noise. A session counts by its mean. `At most` holds at 95 % for each"
            f" row; {of.sessions:,} sessions without a difference show {100 * of.shows:.0f} points. {levels}."
        )
        first, view = (median(each.seconds[at] for each in live.measured) for at in (0, 1))
        yield f"First token, median: {first:.2f} s for the original, {view:.2f} s for the view."
    paid = f"{money(live.spent[0], replayed.currency)}, " if live.spent[0] else ""
    known = f"; {live.reused:,} of {len(live.measured):,} requests were in {live.results}" if live.reused else ""
    yield f"Spent at {live.url}: {paid}{live.spent[1]:,} tokens{known}."
    for each in replayed.summaries[1:]:
        tokens, net = (part / max(replayed.conversations, 1) for part in (each.saved_tokens, each.net_cost))
        told = f" and {money(net, replayed.currency)} net" if replayed.has_prices else ""
        yield f"{each.strategy} saves {tokens:,.0f} tokens{told} a conversation."
    if used := sum(each.used for each in live.needs):
        gone = [name for each in live.needs for name in each.gone]
        again, named = sum(each.again for each in live.needs), ", ".join(list(dict.fromkeys(gone))[:5])
        yield (
            f"Needs: the next six messages use {used:,} names of the history. {len(gone):,} were gone from the view;"
            f" the recorded agent read {again:,} of these again by itself. {named}"
        )
    left = f"{', '.join(live.unmeasurable[:5])} ({len(live.unmeasurable):,})"
    last: dict[str, object] = {
        f"Not measurable without --tools: {left}.": live.unmeasurable,
        f"{live.too_long:,} requests do not fit as the client sent them: nothing to compare with.": live.too_long,
        **{f"{number:,} requests failed: {reason}.": number for reason, number in live.failures.items()},
        f"Stopped: {live.stopped}. The same command goes on; {live.results} has what was done.": live.stopped,
    }
    yield from (text for text, holds in last.items() if holds)


def columns_to_show(replayed: ReplayResults) -> list[str]:
    """The names of the columns in which some strategy has anything."""
    rows = [dict(zip(HEAD, row(each), strict=True)) for each in replayed.summaries]
    printed = {name for group in GROUPS for name in group}
    return [name for name in HEAD if name in printed and any(of[name] not in _NOTHING for of in rows)]


def _head(name: str, replayed: ReplayResults) -> str:
    return f"{name} {replayed.currency}" if name in _IN_MONEY and replayed.has_prices else name


def document(replayed: ReplayResults) -> dict[str, Any]:
    return {
        "verdict": verdict(replayed),
        "file": replayed.file,
        "conversations": replayed.conversations,
        "model": replayed.model or None,
        "window": replayed.window.tokens,
        "window_source": replayed.window.source,
        "summarizer": replayed.asked.get("summarizer", "scripted"),
        "judge": replayed.asked.get("judge", "scripted"),
        "warnings": replayed.all_warnings(),
        "prices": replayed.prices,
        "currency": replayed.currency if replayed.has_prices else None,
        "strategies": list(map(asdict, replayed.summaries)),
        **({"live": _live_document(replayed.live)} if replayed.live else {}),
        "each": [
            {"conversation": one.id, "cheaper_from": since, **asdict(summary)}
            for one, summary, since, _ in replayed.each()
        ],
    }


def _live_document(live: LiveResults) -> dict[str, Any]:
    rows = [({"of": of, "by": by}, agreement(some, by)) for (of, by), some in groups(live.measured).items()]
    needed, measured = ([each._asdict() for each in some] for some in (live.needs, live.measured))
    found = [{**named, **each._asdict()} for named, each in rows if each]
    return {**vars(live), "agreement": found, "needs": needed, "measured": measured}


def title(replayed: ReplayResults) -> str:
    count = replayed.conversations
    conversations = f"{count:,} conversation{'s' if count != 1 else ''}"
    model = replayed.model or "no model named"
    tokens, source = replayed.window.tokens, replayed.window.source
    return f"{replayed.file}: {conversations}, {model}, window " + (f"{tokens:,} ({source})" if tokens else source)


def share_text(share: Share | None) -> str:
    """As `0.55 (0.52-0.58)`."""
    return "-" if share is None else f"{share.share:.2f} ({share.low:.2f}-{share.high:.2f})"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.1%}"


class _Column(NamedTuple):
    cell: Callable[[Summary], str]
    meaning: str


_NO_PRICES = "millions of input tokens at usual price ratios (--model names a model with prices)"
_IN_MONEY = ("saved", "paid", "rescuing", "cost")
_NOTHING = ("-", "0")
_COLUMNS: Mapping[str, _Column] = {
    "strategy": _Column(lambda of: of.strategy, "off is what the client sent"),
    "requests": _Column(lambda of: f"{of.requests:,}", "one for each recorded reply"),
    "refused": _Column(lambda of: f"{of.unanswered:,}", "too long for the window"),
    "rescued": _Column(lambda of: f"{of.rescued:,}", "did not fit as the client sent them, and were answered"),
    "saved tokens": _Column(lambda of: f"{of.saved_tokens:,}", "not sent, on requests that would have fitted anyway"),
    "saved": _Column(lambda of: _amount(of.saved_cost), "what those requests cost less for it, in {unit}"),
    "paid": _Column(lambda of: _amount(of.paid_cost), "for own calls and lost cache hits, on the same requests"),
    "net": _Column(
        lambda of: _net_share(of.net_share), "saved less paid, as a share of their cost (95 % over conversations)"
    ),
    "rescuing": _Column(lambda of: _amount(of.rescue_cost), "paid on requests that did not fit, in {unit}"),
    "tokens sent": _Column(lambda of: f"{of.forwarded:,}", "prompts"),
    "own tokens": _Column(lambda of: f"{of.own:,}", "of the proxy's own calls to a model"),
    "condensed": _Column(lambda of: f"{of.condensations:,}", "requests that applied a new condensation"),
    "overflows": _Column(
        lambda of: f"{of.overflows:,}" + (f" ({of.refused:,} refused)" if of.refused else ""),
        "no room for the prompt and its reply",
    ),
    "cached": _Column(lambda of: _percent(of.cached_share), "message tokens with which the request before began"),
    "evidence": _Column(lambda of: _percent(of.evidence_share), "questions whose evidence is in the last view"),
    "names": _Column(lambda of: _percent(of.names_share), "the user's names and numbers that are in the last view"),
    "said": _Column(lambda of: _percent(of.said_share), "what the user said that is in it, word for word"),
    "votes": _Column(lambda of: f"{of.votes:,}", "of judges"),
    "YES": _Column(lambda of: _percent(of.yes_share), "their share of YES"),
    "cost": _Column(lambda of: f"{of.cost:,.3f}", "of all prompts and own calls, in {unit}"),
    "of direct": _Column(lambda of: share_text(of.cost_share), "the cost to that of the client's own lists"),
    "dear writes": _Column(
        lambda of: share_text(of.dear_share),
        "the same where a cached token costs a tenth of a fresh one, and writing it a quarter more",
    ),
    "ms median": _Column(lambda of: f"{of.median_ms:.1f}", "what the proxy took to decide"),
    "ms max": _Column(lambda of: f"{of.max_ms:.1f}", "the longest"),
}
HEAD = tuple(_COLUMNS)
_LAST = ("votes", "YES", "ms median")
GROUPS = (
    ("strategy", "requests", "refused", "rescued", "saved tokens", "saved", "paid", "net", "rescuing"),
    ("strategy", "tokens sent", "own tokens", "condensed", "cached", "evidence", "names", "said", *_LAST),
)
"""The columns of the printed tables. Cost in all is in no table: where direct is refused, nobody would have paid it."""


def _net_share(net: Share | None) -> str:
    if net is None or not net.share:
        return "-" if net is None else "0"
    return f"{net.share:.1%} ({net.low:.1%} to {net.high:.1%})"


def _amount(money: float) -> str:
    return f"{money:,.4f}" if money else "0"


def row(summary: Summary) -> list[str]:
    return [column.cell(summary) for column in _COLUMNS.values()]


MAX_PLOTTED = 6  # the longest conversations have plots of their own
_SHARES = (  # headings, what they mean, and the key in `Summary.intervals`
    ("Tokens saved", "Share of the client's tokens that was not sent, where its own list fits", "saved"),
    ("Cache hits", "Share of message tokens with which the request before began too", "cached"),
    ("Evidence kept", "Questions whose evidence is in the last view word for word", "evidence"),
    ("User's words kept", "What the user said that is in the last view word for word", "said"),
    ("Names kept", "The user's names and numbers that are in the last view", "names"),
    ("YES votes", "Share of the valid votes that said YES", "yes"),
)
_FIGURES = (  # the same for figures, which are fields of `Summary`
    ("Rescued", "Requests that did not fit as the client sent them, and were answered", "rescued"),
    ("Condensations", "How many requests applied a new condensation", "condensations"),
    ("Votes", "Valid votes of judges", "votes"),
    ("Time a request", "Median of the milliseconds that a decision took", "median_ms"),
)
_PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>{name}</title>
<style>{style}</style>
<main>
<h1>{name}</h1>
<p class="verdict"><strong>{verdict}</strong></p>
{title}
{parts}
</main>
</html>
"""


def page(replayed: ReplayResults) -> str:
    live = "\n".join(live_lines(replayed, replayed.live)) if replayed.live else ""
    asked = [f"<h2>The next action</h2><pre>{escape(live)}</pre>"] if live else []
    parts = [*_overview(replayed), *asked, *_compared(replayed), *_plotted(replayed), *_each(replayed)]
    return html_page("Condenser replay", verdict(replayed), title(replayed), parts)


def html_page(name: str, verdict: str, title: str, parts: Iterable[str]) -> str:
    """A page that needs nothing else; `parts` are HTML, the rest is text."""
    style = files("proxy").joinpath("operator/dashboard/static/style.css").read_text("utf-8")
    texts = {"name": escape(name), "verdict": escape(verdict), "title": f"<p>{escape(title)}</p>" if title else ""}
    return _PAGE.format(style=style, parts="\n".join(parts), **texts)


def _overview(replayed: ReplayResults) -> Iterator[str]:
    shown = columns_to_show(replayed)
    yield "<h2>All strategies</h2>"
    for group, caption in zip(GROUPS, ("What it was good for", "What was sent and kept"), strict=True):
        names = [name for name in group if name in shown]
        rows = [[_COLUMNS[name].cell(each) for name in names] for each in replayed.summaries]
        if len(names) > 1:
            yield html_table(f"{caption}, over all conversations", [_head(name, replayed) for name in names], rows)
    yield from (f"<p><strong>{escape(warning)}</strong></p>" for warning in replayed.all_warnings())
    notes = [*replayed.notes(shown), "Intervals are those of 95 % over conversations."]
    items = "".join(f"<li>{escape(note)}</li>" for note in notes)
    yield f'<details><summary>What the columns mean</summary><ul class="note">{items}</ul></details>'


def _compared(replayed: ReplayResults) -> Iterator[str]:
    for heading, told, share in _SHARES:
        yield from _shares(heading, told, [(each.strategy, each.intervals[share]) for each in replayed.summaries])
    money = [(summary.strategy, summary.net_share) for summary in replayed.summaries]
    told = f"Saved less paid, as a share of the cost of requests that would have fitted anyway, at {replayed.prices}"
    yield from _shares("Money", told, money)
    for heading, told, name in _FIGURES:
        values = [(summary.strategy, float(getattr(summary, name))) for summary in replayed.summaries]
        if any(value for _, value in values):
            bars = [Bar(strategy, value, value, value, f"{value:,.4g}") for strategy, value in values]
            yield f"<h2>{heading}</h2>" + bar_plot(heading, told, bars)


def _shares(heading: str, caption: str, shares: Sequence[tuple[str, Share | None]]) -> Iterator[str]:
    """A plot of what was measured; nothing if that is nothing, or 0 everywhere."""
    bars = [
        Bar(name, *share, f"{share.share:.1%} ({share.low:.1%} to {share.high:.1%})") for name, share in shares if share
    ]
    if any(bar.value for bar in bars):
        yield f"<h2>{heading}</h2>" + bar_plot(heading, caption, bars)


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
        window = replayed.window.tokens
        limits = {"window": float(window), "usable": float(usable)} if window else {}
        tokens = [_tokens(name, way) for name, way in ways.items()]
        money = [Line(name, _spent(way, replayed.costs)) for name, way in ways.items()]
        unit = replayed.currency if replayed.has_prices else "millions of input tokens at usual ratios"
        yield (
            f"<details{'' if number else ' open'}><summary>{escape(called)}</summary>"
            + line_plot(f"Tokens sent: {called}", tokens, limits, "○ a new condensation", unit="tokens")
            + line_plot(f"Money spent so far: {called}", money, {}, "", unit=unit)
            + "</details>"
        )


def _spent(way: ReplayedConversation, prices: Prices) -> list[float | None]:
    """What was spent so far, up to the first request that is refused: an agent stops there."""
    answered = takewhile(lambda pair: pair[0].answered, zip(way.requests, way.costs(prices), strict=True))
    spent: list[float | None] = list(accumulate(cost for _, cost in answered))
    return spent + [None] * (len(way.requests) - len(spent))


def _tokens(name: str, way: ReplayedConversation) -> Line:
    sent = [None if one.refused else float(one.forwarded_tokens) for one in way.requests]
    return Line(name, sent, [Mark(i) for i, one in enumerate(way.requests, 1) if one.condensed])


def _each(replayed: ReplayResults) -> Iterator[str]:
    yield "<h2>Each conversation</h2>"
    shown = columns_to_show(replayed)
    rows = []
    for one, summary, since, stops in replayed.each():
        cheaper = f"request {since:,}" if since else "never"
        cells = [_COLUMNS[name].cell(summary) for name in shown]
        rows.append((one.id, *cells, f"direct is refused at {stops:,}" if stops else cheaper))
    heads = [_head(name, replayed) for name in shown]
    yield html_table("Figures of each conversation", ["conversation", *heads, "cheaper than direct from"], rows)
