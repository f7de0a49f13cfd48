"""What the overview, the list of sessions and the list of requests show, from sums and request records. Pure.

The three figures of `proxy/conversations/requests.py` stand apart everywhere: requests that were answered only because
they were sent shorter (rescued), what was saved on requests that would have fitted anyway, and what that cost.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

from proxy.conversations.requests import RequestRecord
from proxy.conversations.totals import money, net_and_rescuing
from proxy.operator.plots import Column, Series, column_plot

NEWEST = 15  # sessions on the overview
PAGE = 50  # sessions on a page of the list
LISTED = 100  # requests on a page of their list
RANGES: Mapping[str, tuple[int, int]] = {"1h": (3_600, 300), "24h": (86_400, 1_800), "7d": (7 * 86_400, 3 * 3_600)}
"""The ranges of the overview: their seconds, and the seconds of one column in its charts."""
Totals = Mapping[str, int]
TOKENS = (Series("sent to the model", 0), Series("left out, gross", 2))
KINDS = (Series("unchanged", 0), Series("condensed history", 2), Series("failed", 1))


class Range(NamedTuple):
    """The sums of a range, and the two charts made of them as HTML."""

    name: str
    total: Counter[str]
    tokens: str
    requests: str


def begin(name: str, now: float) -> int:
    """Where a range begins, in seconds; 0 without a range."""
    if not name:
        return 0
    seconds, step = RANGES[name]
    return (int(now - seconds) // step + 1) * step


def fitting(slots: Iterable[tuple[int, Totals]], now: float) -> str:
    """The range that has data: an hour if all came in it, a day, and a week if nothing came in the last day."""
    times = [at for at, found in slots if found.get("requests")]
    if times and max(times) < begin("24h", now):
        return "7d"
    return "1h" if times and min(times) >= begin("1h", now) else "24h"


def in_range(name: str, slots: Iterable[tuple[int, Totals]], now: float) -> Range:
    """What a range shows; `slots` are the sums of spans of time, each with its beginning in seconds."""
    seconds, step = RANGES[name]
    first = begin(name, now) // step
    columns: dict[int, Counter[str]] = {place: Counter() for place in range(first, int(now) // step + 1)}
    total: Counter[str] = Counter()
    for at, found in slots:
        column = columns.get(at // step)
        if column is not None:
            column.update(found)
            total.update(found)
    form = "%H:%M" if seconds <= 86_400 else "%a %H:%M"
    named = [(datetime.fromtimestamp(place * step, UTC).strftime(form), found) for place, found in columns.items()]
    tokens = [
        Column(at, (one["forwarded_tokens"], max(one["client_tokens"] - one["forwarded_tokens"], 0)))
        for at, one in named
    ]
    requests = [Column(at, kinds(one)) for at, one in named]
    each = f"A column is {step // 60} minutes (UTC)." if step < 3_600 else f"A column is {step // 3_600} hours (UTC)."
    return Range(
        name,
        total,
        column_plot(
            "Prompt tokens",
            f"Prompt tokens, by our own count; gross counts rescued requests too. {each}",
            TOKENS,
            tokens,
        ),
        column_plot("Requests", f"Requests by what was done with them. {each}", KINDS, requests),
    )


def kinds(total: Counter[str]) -> tuple[int, int, int]:
    """How many requests went unchanged, went with a condensed history, and failed."""
    condensed = total["action_condensed"] + total["action_replayed"]
    failed = min(total["failed"], total["requests"])
    answered = max(total["requests"] - failed, 0)
    return max(answered - condensed, 0), min(condensed, answered), failed


def tiles(total: Mapping[str, int], currency: str) -> list[tuple[str, str, int | str, str]]:
    """The figures of the overview: the name of each, where it leads, its amount, and what it counts."""
    get, rescued, saved = Counter(total), "requests?show=rescued", "requests?show=saved"
    net = money(net_and_rescuing(total)[0], currency) if get["cost"] else "no prices"
    own = f"tokens, in {get['own_calls']:,} calls of Condenser"
    return [
        ("Requests rescued", rescued, get["rescued"], f"of {get['requests']:,}: did not fit uncondensed"),
        ("Tokens saved, gross", saved, get["saved_tokens"], "on requests that would have fitted anyway"),
        ("Saved, net", saved, net, "less own calls and lost cache hits of the same requests"),
        ("Own model calls", "sessions?sort=own", get["own_tokens"], own),
        ("Lost cache hits", "requests?show=reread", get["reread_tokens"], "tokens read anew after a condensation"),
        ("Failed", "requests?show=failed", get["failed"], "requests without an answer"),
    ]


# -- sessions and requests -----------------------------------------------------------------------------------------


def saved(row: Mapping[str, Any]) -> int:
    """The tokens that were saved on a session's requests, where they could have been spent."""
    return int(row["totals"].get("saved_tokens", 0))


SORTS: Mapping[str, Callable[[Mapping[str, Any]], int]] = {
    "size": lambda row: row["totals"].get("client_tokens", 0),
    "saved": saved,
    "rescued": lambda row: row["totals"].get("rescued", 0),
    "own": lambda row: row["totals"].get("own_tokens", 0),
    "condensed": lambda row: row["condensations"],
    "requests": lambda row: row["totals"].get("requests", 0),
}
"""How the list can be sorted, largest first; the default is by last use."""


def sessions(rows: Sequence[Mapping[str, Any]], query: str, sort: str) -> list[dict[str, Any]]:
    words = query.lower().split()
    names = ("id", "title", "session", "tenant", "tenant_name", "strategy", "source", "model")
    matches = [row for row in rows if all(any(word in str(row[name]).lower() for name in names) for word in words)]
    key = SORTS.get(sort, lambda row: row["last_used"])
    return [{**row, "saved": saved(row)} for row in sorted(matches, key=key, reverse=True)]


class ListedRequest(NamedTuple):
    session: Mapping[str, Any]
    record: RequestRecord


FILTERS: Mapping[str, Callable[[ListedRequest], str]] = {
    "action": lambda one: one.record.action,
    "cause": lambda one: one.record.trigger,
    "status": lambda one: str(one.record.status),
    "model": lambda one: one.record.model,
    "tenant": lambda one: one.session["tenant"],
}


def requests(
    listed: Sequence[ListedRequest], query: Mapping[str, str], names_of: Callable[[str], Collection[str]]
) -> list[ListedRequest]:
    """The requests that the filters and the words of a query leave."""
    words = [(word.lower(), names_of(word)) for word in query.get("q", "").split()]

    def is_meant(one: ListedRequest) -> bool:
        row, model = one.session, one.record.model
        told = f"{row['id']} {row['title']} {model}".lower()
        is_named = all(word in told or row["session"] in names for word, names in words)
        return is_named and all(query.get(name) in (None, "", of(one)) for name, of in FILTERS.items())

    return [one for one in listed if is_meant(one)]
