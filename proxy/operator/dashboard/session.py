"""What the page of a session shows: its requests against the window, what the model reads now, and what was replaced.

The plot is drawn from request records, and nothing is drawn where one is missing. The view is folded from the stored
messages and the condensation that the branch applied last. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple

from proxy.conversations.requests import RequestRecord
from proxy.operator.plots import Line, Mark, line_plot
from proxy.reasons import Action, Trigger
from strategies.core.budget import Budget, Cause
from strategies.core.condensation import Condensation
from strategies.core.findings import other_names_in, users_names_in
from strategies.core.ledger import said_in_line, split_ledger
from strategies.core.messages import Dialect, Message, Role, Value
from strategies.core.names import ranked_names
from strategies.core.parsing import loads
from strategies.core.pieces import Keep, Literal, Overlay, is_record
from strategies.core.transcript import Transcript

PAGE = 200  # messages on a page
SHOWN = 600  # characters that are shown of a message before it is unfolded
_DRAWN = 1_000  # requests in the plot
_TRIGGERS = {Cause.SHARE: "trigger", Cause.MOST: "trigger (marks.most)", Cause.STEP: "trigger (price step)"}
_FAR = 4
_READ = 500  # newest replaced messages in which names are looked for that a record lacks
_ABOVE = 1.2  # how far above the window the scale of the plot ends

CAUSES: Mapping[str, str] = {
    Trigger.THRESHOLD: "the prompt had reached the trigger",
    Trigger.CONTEXT_LIMIT: "the prompt left less room than the reply needs",
    Trigger.OVERFLOW: "the upstream had refused the prompt as too long",
    Trigger.JUDGE: "the judges voted that earlier messages are no longer needed",
    Trigger.FORCED: "the client asked for it",
    Trigger.NONE: "it was prepared in the background",
}
"""Why a view was condensed, by the value of `X-Condenser-Trigger`."""
_SHAPES = {Trigger.JUDGE: "□", Trigger.OVERFLOW: "△", Trigger.CONTEXT_LIMIT: "△", Trigger.FORCED: "◇"}
_SIGNS = {"○": "at the trigger", "△": "to fit", "□": "by votes", "◇": "on request"}


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
    """The messages of a branch with their tokens, its condensations in order of time, and its requests."""

    name: str
    messages: Sequence[Message]
    tokens: Sequence[int]
    condensations: Sequence[Condensation]
    applied: Condensation | None
    written: int  # tokens of what that condensation put into the view
    requests: Sequence[RequestRecord]


def branch_of(
    name: str,
    messages: Sequence[Message],
    condensations: Sequence[Condensation],
    applied: str | None,
    requests: Sequence[RequestRecord],
    count: Callable[[Value], int],
) -> Branch:
    """A branch of a session; `applied` is the id of the condensation that its view applies.

    `count` gives the tokens of a message's body.
    """
    digests = Transcript.of(messages).digests
    own = [made for made in condensations if made.covered <= len(digests) and digests[made.covered - 1] == made.digest]
    own.sort(key=lambda made: (made.created_at, made.depth))
    tokens = [count(message.body) for message in messages]
    sent = [record for record in requests if record.branch == name]
    now = next((made for made in own if made.id == applied), None)
    written = sum(count(loads(piece.raw)) for piece in now.pieces if isinstance(piece, Literal)) if now else 0
    return Branch(name, messages, tokens, own, now, written, sent)


# -- requests ------------------------------------------------------------------------------------------------------


def limits(branch: Branch, window: int | None, budget: Budget | None) -> dict[str, float]:
    """The lines across the plot of a branch, by what they say, in tokens.

    Where the trigger is far below the window, the window would press all else to the ground; and where it is far above
    all requests, in a window that is not known, it would.
    """
    largest = max((record.before for record in branch.requests), default=0)
    if budget is None or (window is None and largest * _FAR < budget.trigger):
        return {} if window is None else {"window": window}
    own = {_TRIGGERS[budget.cause]: float(budget.trigger), "target": float(budget.target)}
    return own if window is None or budget.cause is not Cause.SHARE else {"window": window, **own}


def plot(branch: Branch, limits: Mapping[str, float]) -> str:
    """An HTML figure with the tokens of each request; "" if none is recorded."""
    records = branch.requests[-_DRAWN:]
    if not records:
        return ""
    places = {made.id: place for place, made in enumerate(branch.condensations, 1)}
    marks = [
        Mark(
            i,
            _SHAPES.get(record.trigger, "○"),
            _told(record, places.get(record.condensation)),
            _link(record, branch.name),
        )
        for i, record in enumerate(records, 1)
        if record.action is Action.CONDENSED
    ]
    sent = _without_false_falls(records)
    full = [float(record.before) for record in records]
    top = max(*limits.values(), *(value or 0.0 for value in sent)) * _ABOVE if limits else None
    shown = {mark.shape for mark in marks}
    signs = ", ".join(f"{shape} {name}" for shape, name in _SIGNS.items() if shape in shown)
    told = f"Newly condensed: {signs}; a sign leads to its condensation." if signs else ""
    lines = [Line("sent to the model", sent, marks), Line("full history", full)]
    unit = "tokens by our own count" + (", some estimated by length" if any(r.is_estimate for r in records) else "")
    return line_plot("Prompt size of each request", lines, limits, told, unit=unit, top=top, has_table=False)


def _without_false_falls(records: Sequence[RequestRecord]) -> list[float | None]:
    """The tokens that were sent; none where an estimate would draw a fall that no condensation caused."""
    sent: list[float | None] = [float(record.forwarded) for record in records]
    least: int | None = None
    for place in range(len(records) - 1, -1, -1):
        record = records[place]
        if not record.is_estimate:
            least = record.forwarded
        elif least is not None and record.forwarded > least:
            sent[place] = None
        if record.action is Action.CONDENSED:
            least = None  # before it, the view was longer
    return sent


def _told(record: RequestRecord, place: int | None) -> str:
    named = f"Condensation {place}, " if place else ""
    return f"{named}request {record.number}: {record.before:,} to {record.forwarded:,} tokens"


def _link(record: RequestRecord, branch: str) -> str:
    place = f"?tab=condensations&branch={branch}#c-{record.condensation}"
    return place if record.condensation else ""


_PARTS: Mapping[str, str] = {
    "tools": "tools and framing",
    "system": "system",
    "pinned": "pinned",
    "record": "record",
    "kept": "kept",
    "free": "free",
}
"""The parts of a window by their class, in order."""


class Window(NamedTuple):
    """What fills the window now: the class, name and tokens of each part, in order, and the window's tokens."""

    parts: Sequence[tuple[str, str, int]]
    tokens: int

    @property
    def filled(self) -> int:
        """The tokens of all parts, which may be more than the window has."""
        return sum(tokens for *_, tokens in self.parts)


def window_of(branch: Branch, pins: Mapping[int, str]) -> Window | None:
    """What the last answered request of a branch filled its window with; None if the window was unknown.

    Messages of a request that failed are not stored.
    """
    last = next((record for record in reversed(branch.requests) if record.is_answered), None)
    if last is None or not last.window:
        return None
    condensed = _condensed(branch)
    system = sum(n for n, message in zip(branch.tokens, branch.messages, strict=True) if message.role is Role.SYSTEM)
    kept = {i for i, message in enumerate(branch.messages) if message.role is not Role.SYSTEM and i not in condensed}
    pinned = sum(branch.tokens[i] for i in kept if i in pins)
    rest = sum(branch.tokens[i] for i in kept) - pinned
    counts = [system, pinned, branch.written, rest]
    filled = [max(last.forwarded - sum(counts), 0), *counts]
    parts = zip(_PARTS.items(), [*filled, max(last.window - sum(filled), 0)], strict=True)
    return Window([(kind, name, tokens) for (kind, name), tokens in parts if tokens], last.window)


# -- transcript and view -------------------------------------------------------------------------------------------


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
    return set() if branch.applied is None else set(_covered_by(branch.applied, branch))


def _covered_by(made: Condensation, branch: Branch) -> list[int]:
    """The numbers of the messages that a condensation replaced."""
    numbers = [i for i, message in enumerate(branch.messages) if message.role is not Role.SYSTEM]
    kept = {piece.source for piece in made.pieces if isinstance(piece, Keep)}
    return [numbers[i] for i in range(min(made.covered, len(numbers))) if i not in kept]


def _texts(made: Condensation, branch: Branch) -> list[str]:
    dialect = branch.messages[0].dialect
    return [text_of(piece, dialect) for piece in made.pieces if isinstance(piece, Literal)]


def text_of(piece: Literal, dialect: Dialect) -> str:
    body = loads(piece.raw)
    return visible(dialect.text(body) or json.dumps(body, ensure_ascii=False))


def visible(text: str) -> str:
    """A text with invisible characters, and those that change the direction of text, written as `\\u202e`."""
    text = text.replace("\r\n", "\n")
    return "".join(char if char.isprintable() or char in "\n\t" else f"\\u{ord(char):04x}" for char in text)


def whole_text(message: Message) -> str:
    """All that a message says, its calls included."""
    calls = (f"{call.name} {call.arguments}" for call in message.calls)
    return "\n".join(filter(None, (message.text, *calls))) or json.dumps(message.body, ensure_ascii=False)


def _row(branch: Branch, number: int, is_condensed: bool, pin: str) -> MessageRow:
    message = branch.messages[number]
    text = whole_text(message)
    can_pin = message.role is not Role.SYSTEM and not pin
    shown, cut = visible(text[:SHOWN]), max(len(text) - SHOWN, 0)
    return MessageRow(number, message.role.value, shown, cut, branch.tokens[number], is_condensed, pin, can_pin)


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


# -- condensations -------------------------------------------------------------------------------------------------


def condensations_of(document: Mapping[str, Any], branch: Branch) -> list[dict[str, Any]]:
    """The condensations of a branch, newest first: when and why each was made, and what it is now."""
    records = {record["id"]: record for record in document["condensations"]}
    first = {r.condensation: r.number for r in reversed(branch.requests) if r.action is Action.CONDENSED}
    return [
        {
            **records[made.id],
            "place": place,
            "request": first.get(made.id),
            "cause": CAUSES.get(made.trigger, made.trigger),
            "state": _state(made, branch),
        }
        for place, made in enumerate(branch.condensations, 1)
    ][::-1]


def details_of(wanted: str, branch: Branch) -> dict[str, Any] | None:
    """What one condensation wrote, replaced (beyond the ones before it) and kept; None if the branch has none such."""
    earlier: set[int] = set()
    made = next((one for one in branch.condensations if one.id == wanted), None)
    if made is None:
        return None
    place = branch.condensations.index(made)
    for one in branch.condensations[:place]:
        earlier |= set() if one.reverted else set(_covered_by(one, branch))
    stages = [stage for stage in made.metadata.values() if isinstance(stage, Mapping)]
    kinds = [is_record(piece) for piece in made.pieces if isinstance(piece, Literal)]
    texts = list(zip(_texts(made, branch), kinds, strict=True))
    covered, told = [branch.messages[i] for i in _covered_by(made, branch)], "\n".join(text for text, _ in texts)
    named = ranked_names([[*users_names_in(message), *other_names_in(message)] for message in covered[-_READ:]])
    parted = [split_ledger(text) for text, is_record in texts if is_record]
    return {
        "place": place + 1,
        "written": [text for text, _ in parted if text],
        "stand_ins": [text for text, is_record in texts if not is_record],
        "replaced": [_row(branch, i, is_condensed=True, pin="") for i in _covered_by(made, branch) if i not in earlier],
        "stands_for": made.stands_for,
        "kept": sum(isinstance(piece, Keep) for piece in made.pieces),
        "missing": [name for name in named if name not in told],
        "said": [said_in_line(line) for _, ledger in parted for line in ledger.said],
        "names": [name for _, ledger in parted for name in ledger.names],
        "votes": [vote for stage in stages for vote in stage.get("judge_votes", ())],
    }


def _state(made: Condensation, branch: Branch) -> str:
    """What a condensation is now, in words for its card."""
    if made.reverted:
        return "reverted"
    if branch.applied is not None and made.id == branch.applied.id:
        return "in the prompt now"
    if not made.standing:
        return "prepared, not yet used"
    later = (one for one in branch.condensations if one.standing and not one.reverted)
    return "part of a later one" if any(one.covered > made.covered for one in later) else "used before"


def votes_of(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The verdicts of a session's judges with their votes, newest first."""
    return [
        {"yes": verdict["yes"], "at": verdict["at"], "tokens": verdict["tokens"], "votes": votes}
        for verdict in reversed(document["verdicts"])
        for votes in [(verdict.get("metadata") or {}).get("judge_votes", [])]
    ]
