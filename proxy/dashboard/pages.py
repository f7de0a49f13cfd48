"""What the pages show. Of a session: its requests against the window, and its transcript beside the view. Pure.

A session stores its messages and its condensations, not the size of each request. So the lines are computed: a request
has the messages before a reply of the assistant, and its view is what the condensations up to then leave of them. A
condensation is assumed to belong to the first request whose view is as large as the view that was condensed.

The first page and the list of sessions show figures of this process, kept as sums, and the newest sessions.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from math import inf
from typing import Any, NamedTuple

from prometheus_client import Metric

from proxy.plots import Line, line_plot
from strategies.core.condensation import Condensation
from strategies.core.messages import Dialect, Message, Role
from strategies.core.parsing import loads
from strategies.core.pieces import Keep, Literal, Overlay
from strategies.core.transcript import Transcript

NEWEST = 15
LISTED = 100  # sessions that are read for a page that nobody has asked to search or sort


def saved(row: Mapping[str, Any]) -> int:
    """The tokens that were left out of a session's requests."""
    totals = row["totals"]
    return int(totals.get("client_tokens", 0) - totals.get("forwarded_tokens", 0))


SORTS: Mapping[str, Callable[[Mapping[str, Any]], int]] = {
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
        counts = [(sample.labels[label], int(sample.value)) for sample in samples if sample.name == f"condenser_{name}"]
        return dict(sorted(((key, value) for key, value in counts if value), key=lambda pair: -pair[1]))

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


def of_live(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
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


def newest(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    condensed = [row for row in rows if row["latest"]]
    return sorted(condensed, key=lambda row: -row["latest"]["created_at"])[:NEWEST]


def sessions(rows: Sequence[Mapping[str, Any]], query: str, sort: str) -> list[dict[str, Any]]:
    words = query.lower().split()
    names = ("id", "session", "tenant", "strategy", "source")
    matches = [row for row in rows if all(any(word in str(row[name]).lower() for name in names) for word in words)]
    key = SORTS.get(sort, lambda row: row["last_used"])
    return [{**row, "saved": saved(row)} for row in sorted(matches, key=key, reverse=True)]


PAGE = 200
SHOWN = 600  # characters that are shown of a message; the export has all
_SLACK = 0.02
_MAX_REQUESTS = 1_000


class MessageRow(NamedTuple):
    number: int
    role: str
    text: str
    cut: int
    tokens: int
    is_condensed: bool
    pin: str  # the id of its pin; "" if it has none
    can_pin: bool


class Group(NamedTuple):
    """Messages that the view keeps, or a span that was condensed."""

    is_condensed: bool
    rows: list[MessageRow]
    tokens: int
    replacements: list[str]  # the texts that replace this span and the spans before it in the view


class Branch(NamedTuple):
    """The messages of a branch with their tokens, and its condensations in order of time."""

    messages: Sequence[Message]
    tokens: Sequence[int]
    condensations: Sequence[Condensation]
    applied: Condensation | None


def plot(branch: Branch, limits: Mapping[str, float]) -> str:
    """An HTML figure with the tokens of the history and of its view for each request; "" if there are no requests."""
    requests = list(_requests(branch))[-_MAX_REQUESTS:]
    if not requests:
        return ""
    lines = [
        Line("history", [float(history) for history, _, _ in requests]),
        Line("view", [float(view) for _, view, _ in requests], [i for i, (*_, cut) in enumerate(requests, 1) if cut]),
    ]
    return line_plot("Tokens of each request", lines, limits, "condensed", unit="tokens, counted from what is stored")


def _requests(branch: Branch) -> Iterator[tuple[int, int, bool]]:
    """For each request, the tokens of its history and of its view, and whether it was condensed."""
    waiting = [made for made in branch.condensations if made.standing]
    history = left_out = 0
    for i, message in enumerate(branch.messages):
        is_reply = message.role is Role.ASSISTANT and (i == 0 or branch.messages[i - 1].role is not Role.ASSISTANT)
        if is_reply:
            # The sizes in a condensation include tools and framing: at most an eighth of the window.
            least = waiting[0].tokens_before * (1 - _SLACK) - waiting[0].window / 8 if waiting else inf
            is_due = history - left_out >= least
            if is_due:
                made = waiting.pop(0)
                left_out = history - max(history - left_out - made.tokens_before + made.tokens_after, 0)
            yield history, history - left_out, is_due
        history += branch.tokens[i]


def groups(branch: Branch, pins: Mapping[int, str], start: int) -> list[Group]:
    """One page of the transcript, beginning with message `start`; each span that the view leaves out is a group."""
    end = min(start + PAGE, len(branch.messages))
    condensed = _condensed(branch)
    rows = [_row(branch, number, number in condensed, pins.get(number, "")) for number in range(start, end)]
    found = []
    told = _texts(branch.applied, branch) if branch.applied else []
    for is_condensed, members in groupby(rows, lambda row: row.is_condensed):
        span = list(members)
        found.append(Group(is_condensed, span, sum(row.tokens for row in span), told if is_condensed else []))
        told = [] if is_condensed else told
    return found


def _condensed(branch: Branch) -> set[int]:
    """The numbers of the messages that the view does not show unchanged."""
    applied = branch.applied
    if applied is None:
        return set()
    numbers = [i for i, message in enumerate(branch.messages) if message.role is not Role.SYSTEM]
    kept = {piece.index for piece in applied.pieces if isinstance(piece, Keep)}
    return {numbers[i] for i in range(min(applied.covered, len(numbers))) if i not in kept}


def _texts(made: Condensation, branch: Branch) -> list[str]:
    dialect = branch.messages[0].dialect
    return [text_of(piece, dialect) for piece in made.pieces if isinstance(piece, Literal)]


def text_of(piece: Literal, dialect: Dialect) -> str:
    body = loads(piece.raw)
    return visible(dialect.text(body) or json.dumps(body, ensure_ascii=False))


def visible(text: str) -> str:
    """A text with invisible characters, and those that change the direction of text, written as `\\u202e`."""
    return "".join(char if char.isprintable() or char in "\n\t" else f"\\u{ord(char):04x}" for char in text)


def _row(branch: Branch, number: int, is_condensed: bool, pin: str) -> MessageRow:
    message = branch.messages[number]
    calls = (f"{call.name} {call.arguments}" for call in message.calls)
    text = "\n".join(filter(None, (message.text, *calls))) or json.dumps(message.body, ensure_ascii=False)
    can_pin = message.role is not Role.SYSTEM and not pin
    shown, cut = visible(text[:SHOWN]), max(len(text) - SHOWN, 0)
    return MessageRow(number, message.role.value, shown, cut, branch.tokens[number], is_condensed, pin, can_pin)


def branch_of(
    messages: Sequence[Message],
    condensations: Sequence[Condensation],
    applied: str | None,
    count: Callable[[Message], int],
) -> Branch:
    """A branch of a session; `applied` is the id of the condensation that its view applies."""
    digests = Transcript.of(messages).digests
    own = [made for made in condensations if made.covered <= len(digests) and digests[made.covered - 1] == made.digest]
    own.sort(key=lambda made: (made.created_at, made.depth))
    tokens = [count(message) for message in messages]
    return Branch(messages, tokens, own, next((made for made in own if made.id == applied), None))


def injected(branch: Branch, patches: Sequence[Overlay]) -> list[tuple[int, str, str]]:
    """The pieces that memory has put into views: the number of the message after each, its kind, and its text."""
    digests = [digest.hex() for digest in Transcript.of(branch.messages).digests]
    numbers = [i for i, message in enumerate(branch.messages) if message.role is not Role.SYSTEM]
    found = [
        (patch.at, piece)
        for patch in patches
        if patch.at < len(numbers) and (patch.at == 0 or digests[patch.at - 1] == patch.anchor.hex())
        for piece in patch.pieces
        if isinstance(piece, Literal)
    ]
    return [(numbers[at], piece.kind.value, text_of(piece, branch.messages[0].dialect)) for at, piece in found]


def condensations_of(document: Mapping[str, Any], branch: Branch) -> list[dict[str, Any]]:
    """The condensations of a session with the texts that they wrote, newest first."""
    own = {made.id: made for made in branch.condensations}
    found = []
    for record in reversed(document["condensations"]):
        made = own.get(record["id"])
        stages = [stage for stage in record["metadata"].values() if isinstance(stage, Mapping)]
        votes = [vote for stage in stages for vote in stage.get("judge_votes", ())]
        found.append({**record, "texts": _texts(made, branch) if made else [], "votes": votes})
    return found


def votes_of(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The verdicts of a session's judges with their votes, newest first."""
    return [
        {"yes": verdict["yes"], "at": verdict["at"], "tokens": verdict["tokens"], "votes": votes}
        for verdict in reversed(document["verdicts"])
        for votes in [(verdict.get("metadata") or {}).get("judge_votes", [])]
    ]
