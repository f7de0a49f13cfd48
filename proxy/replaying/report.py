"""Reports the results of a replay: as a table for people, or as JSON for programs. Pure.

`grid` and `markdown` print the tables of all instruments.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from math import inf
from typing import Any, NamedTuple

from proxy.condensing.policy import RATIOS, Window
from proxy.replaying.measures import Economy, ReplayedConversation, Share, Summary, cheaper_from, summarize
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
    prices: str = "usual ratios"
    """What the cost was counted at, in words."""
    economies: Sequence[Economy] = ()
    played: Mapping[str, Sequence[ReplayedConversation]] = {}
    """The conversations under each strategy, the client's own lists first."""
    costs: Prices = RATIOS
    """What the cost was counted at."""
    asked: Mapping[str, str] = {}
    """The roles that real models had, and their addresses."""
    warnings: Sequence[str] = ()
    """What went wrong with them."""

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
    """The same as JSON."""
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
        "conversations_economy": [economy._asdict() for economy in replayed.economies],
    }


def each_conversation(replayed: ReplayResults) -> str:
    """A line for each conversation: its growth, its cheapest trigger, and when a condensation at the mark pays back."""
    head = ("conversation", "requests", "constant", "a request", "cheapest at", "cut to", "saves", "pays back after")
    rows = []
    for id, *sizes, saves, break_even in replayed.economies:
        paid = "never" if break_even == inf else f"{break_even:.0f} requests"
        rows.append((id, *(f"{size:,.0f}" for size in sizes), f"{saves:.1%}", paid))
    return "\n".join(grid(head, rows))


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
    """The cells of `HEAD`."""
    return [cell(summary) for cell in _CELLS.values()]
