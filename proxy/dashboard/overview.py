"""The first page and the list of sessions: figures of this process, kept as sums, and the newest sessions. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from prometheus_client import Metric

Row = Mapping[str, Any]
NEWEST = 15
LISTED = 100
"""Sessions that are read for a page that nobody has asked to search or sort."""


def saved(row: Row) -> int:
    """The tokens that were left out of a session's requests."""
    totals = row["totals"]
    return int(totals.get("client_tokens", 0) - totals.get("forwarded_tokens", 0))


SORTS: Mapping[str, Callable[[Row], int]] = {
    "size": lambda row: row["totals"].get("client_tokens", 0),
    "saved": saved,
    "condensed": lambda row: row["condensations"],
    "requests": lambda row: row["totals"].get("requests", 0),
}
"""How the list can be sorted, largest first; the default is by last use."""


def figures(metrics: Iterable[Metric]) -> dict[str, Any]:
    """The savings, costs and counts of this process."""
    samples = [sample for metric in metrics for sample in metric.samples]

    def by(name: str, label: str) -> dict[str, int]:
        found = [(sample.labels[label], int(sample.value)) for sample in samples if sample.name == f"condenser_{name}"]
        return dict(sorted(((key, value) for key, value in found if value), key=lambda pair: -pair[1]))

    def value(name: str) -> float:
        return sum(sample.value for sample in samples if sample.name == f"condenser_{name}")

    count = value("overhead_seconds_count")
    tokens = Counter(by("tokens_total", "stage"))
    sent, forwarded = tokens["before"], tokens["after"]
    own = tokens.total() - sent - forwarded
    return {
        "sent": sent,
        "saved": sent - forwarded,
        "saved_share": (sent - forwarded) / sent if sent else 0.0,
        "own": own,
        "net": sent - forwarded - own,
        "condensations": int(value("condensations_total")),
        "requests": int(value("requests_total")),
        "actions": by("requests_total", "action"),
        "triggers": by("condensations_total", "trigger"),
        "reasons": by("reasons_total", "reason"),
        "added_ms": value("overhead_seconds_sum") / count * 1000 if count else None,
        "in_flight": int(value("in_flight")),
        "waiting": int(value("queue")),
        "failed_writes": int(value("store_failed_writes_total")),
    }


def of_live(rows: Sequence[Row]) -> dict[str, Any]:
    """The costs and savings of the conversations that this process serves, and their requests by strategy.

    `cost` is None if none of their models has prices.
    """
    strategies = Counter[str]()
    for row in rows:
        strategies[row["strategy"]] += row["requests"]
    priced = [row for row in rows if row["cost"] is not None]
    return {
        "live": rows[:NEWEST],
        "strategies": strategies,
        "cost": sum(row["cost"] for row in priced) if priced else None,
        "saved_cost": sum(row["saved_cost"] for row in priced),
    }


def newest(rows: Sequence[Row]) -> list[Row]:
    condensed = [row for row in rows if row["latest"]]
    return sorted(condensed, key=lambda row: -row["latest"]["created_at"])[:NEWEST]


def sessions(rows: Sequence[Row], query: str, sort: str) -> list[dict[str, Any]]:
    """The sessions that match all words of a query, sorted."""
    words = query.lower().split()
    names = ("id", "session", "tenant", "strategy", "source")
    found = [row for row in rows if all(any(word in str(row[name]).lower() for name in names) for word in words)]
    key = SORTS.get(sort, lambda row: row["last_used"])
    return [{**row, "saved": saved(row)} for row in sorted(found, key=key, reverse=True)]
