"""Plans: what a strategy wants changed in a view, and how a view becomes the next one.

A plan is a list of `Replace(span, pieces)`. Spans are item ranges between legal cuts, in order, and do not
overlap. `apply` makes the next view; its head reaches to the end of the last span, and never less far than the
head before. `check` compares the result with the transcript: a plan may add no violation that the
transcript did not have.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from strategies.core.cards import MemoryCard
from strategies.core.condensation import Keep, Kind, Literal, Piece
from strategies.core.errors import InvalidPlan
from strategies.core.excerpt import shortened
from strategies.core.rounds import newest_round
from strategies.core.transcript import Message, Role, Transcript
from strategies.core.view import Item, View, item_for


@dataclass(frozen=True, slots=True)
class Replace:
    """The items [start, end) become `pieces`; no pieces drop them. A `Keep` names a chain index."""

    start: int
    end: int
    pieces: tuple[Piece, ...] = ()


@dataclass(frozen=True, slots=True)
class Plan:
    """Replacements in order, and what the strategy says of them; `reason` where it had to make do with less.

    `cards` are what a summarizer thought worth remembering; when, and with which record, is for the driver to add.
    """

    edits: tuple[Replace, ...]
    metadata: Mapping[str, Any] = field(default_factory=dict)
    reason: str = ""
    cards: tuple[MemoryCard, ...] = ()


def apply(view: View, plan: Plan) -> View:
    """The view after a plan; raises `InvalidPlan` where spans overlap or cross a tie."""
    items: list[Item] = []
    done = 0
    end_of_head = view.head
    for edit in plan.edits:
        _check_span(edit, done, view)
        items.extend(view.items[done : edit.start])
        items.extend(item_for(piece, view.transcript, view.counter) for piece in edit.pieces)
        done = edit.end
        end_of_head = max(end_of_head, edit.end)
    tail = len(view.items) - end_of_head
    items.extend(view.items[done:])
    covered = _covered(view, end_of_head)
    return View(view.transcript, tuple(items), len(items) - tail, covered, view.fixed, view.counter)


def _check_span(edit: Replace, done: int, view: View) -> None:
    inside = done <= edit.start < edit.end <= len(view.items)
    if not inside:
        raise InvalidPlan(f"span {edit.start}-{edit.end} overlaps or is outside of the view")
    if len(edit.pieces) == edit.end - edit.start:
        return
    cuts = view.structure.cuts
    if not (cuts[edit.start] and cuts[edit.end]):
        raise InvalidPlan(f"span {edit.start}-{edit.end} parts a call from its result")


def _covered(view: View, end_of_head: int) -> int:
    """The chain messages before the item `end_of_head`."""
    if end_of_head <= view.head:
        return view.covered
    for item in view.items[end_of_head:]:
        if isinstance(item.piece, Keep):
            return item.piece.index
    return len(view.transcript.chain)


def check(view: View, *, newest_results_too: bool = False) -> None:
    """Raises `InvalidPlan` where the view breaks a rule that the transcript kept."""
    added = violations(view.opening)
    if added and (added := added - violations(view.transcript.chain)):
        raise InvalidPlan(f"{len(added)} new violations, one is {min(added)}")
    if sum(item.is_replacement for item in view.lead) > 1:
        raise InvalidPlan("two replacements in one view")
    task = view.transcript.task
    if task is not None and view.transcript.chain[task].known and view.task is None:
        raise InvalidPlan("the first user message is gone")
    for index in _protected(view.transcript):
        if not _stands(view, index, newest_results_too):
            raise InvalidPlan(f"message {index}, of the newest round or the last of the user, was changed")


def _stands(view: View, index: int, newest_results_too: bool) -> bool:
    place = view.item_of(index)
    if place is None:
        return False
    piece = view.item(place).piece
    if isinstance(piece, Keep):
        return True
    is_result = view.transcript.chain[index].role is Role.TOOL
    return newest_results_too and is_result and piece.kind is Kind.SHORTENED


def newest_is_shortened(view: View) -> bool:
    """Whether results of the newest round were cut already, by an earlier stage or for an earlier request."""
    places = (view.item_of(index) for index in _protected(view.transcript))
    return any(place is not None and not view.item(place).intact for place in places)


def _protected(transcript: Transcript) -> Iterator[int]:
    """Chain indices of the last user message and of the newest round, as far as they are known."""
    chain = transcript.chain
    if transcript.last_user is not None and chain[transcript.last_user].known:
        yield transcript.last_user
    newest = newest_round(chain)
    if newest is not None:
        yield from (i for i in range(newest.start, newest.end) if chain[i].role is not Role.USER and chain[i].known)


Violation = tuple[str, str]


def violations(messages: Iterable[Message]) -> set[Violation]:
    """What a strict upstream would refuse: results without a call, calls without a result."""
    found: set[Violation] = set()
    waiting: dict[str, int] = {}
    for message in messages:
        if message.is_result:
            left = waiting.get(message.answers, 0)
            if left <= 0:
                found.add(("orphan", message.answers))
            waiting[message.answers] = left - 1
        elif waiting or message.calls:
            found.update(("unanswered", call) for call, left in waiting.items() if left > 0)
            waiting = {}
            for call in message.calls:
                waiting[call.id] = waiting.get(call.id, 0) + 1
    return found


def head_pieces(view: View) -> tuple[Piece, ...]:
    """The pieces of the view's head: what a condensation records. A memory block lives for one turn and is no part."""
    pieces = (item.piece for item in view.lead[: view.head])
    return tuple(each for each in pieces if not (isinstance(each, Literal) and each.kind is Kind.MEMORY))


def with_task(pieces: Iterable[Piece], transcript: Transcript) -> tuple[Piece, ...]:
    """The pieces with the first user message written out, if it is one that they keep."""
    task = transcript.task
    return tuple(
        Literal(transcript.chain[piece.index].raw, Kind.TASK, piece.index)
        if isinstance(piece, Keep) and piece.index == task
        else piece
        for piece in pieces
    )


def stand_in(view: View, end: int, replacement: Literal, task: Sequence[Piece]) -> Replace:
    """Everything before item `end` becomes the task, the replacement, and a last user message in between.

    A task that stands behind `end`, after an opening of the assistant's, stays where it is.
    """
    kept: list[Piece] = [*task, replacement] if view.task is not None and view.task < end else [replacement]
    last = view.last_user
    if last is not None and last < end and last != view.task:
        kept.append(view.items[last].piece)
    return Replace(0, end, tuple(kept))


def task_piece(view: View, cap: int) -> tuple[Piece, ...]:
    """The first user message for a condensed view: verbatim up to `cap` tokens, else its head and tail."""
    if view.task is None:
        return ()
    item = view.items[view.task]
    is_last = view.transcript.task == view.transcript.last_user
    if is_last or not item.intact or item.message.tokens <= cap:
        return (item.piece,)
    excerpt = shortened(item.message, cap, view.counter)
    return (Literal(excerpt, Kind.TASK, view.transcript.task),)
