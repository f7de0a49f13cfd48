"""Plans: what a strategy wants to change in a view, and how the change is applied and checked.

A plan is a list of `Replace` edits. Their spans are item ranges between legal cuts, in order, and do not overlap.
`apply` makes the next view. Its head ends at the first legal cut after the last span, but never before the end of the
earlier head. `check` compares the result with the transcript: a plan must not add a violation.

`Split` finds the place where a condensed prefix ends. For every item index it knows how many tokens the view would have
if everything before that item became the task and a replacement of a given size. Suffix sums answer in constant time,
so a search over all cuts is linear. Turn boundaries are preferred. If none meets the goal, round boundaries are used:
an agent's conversation with one user message has no others. No cut is after the view's limit.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

from strategies.core.cards import MemoryCard
from strategies.core.errors import InvalidPlan
from strategies.core.excerpt import shorten_message
from strategies.core.messages import Message, Role
from strategies.core.pieces import Keep, Literal, Piece, PieceKind, is_carried, is_memory, with_kept
from strategies.core.rounds import Turn, newest_round
from strategies.core.transcript import Transcript
from strategies.core.view import Item, View, item_for


@dataclass(frozen=True, slots=True)
class Replace:
    """An edit: `pieces` take the place of the items [start, end). Without pieces the items are dropped."""

    start: int
    end: int
    pieces: tuple[Piece, ...] = ()


@dataclass(frozen=True, slots=True)
class Plan:
    edits: tuple[Replace, ...]
    metadata: Mapping[str, Any] = field(default_factory=dict)
    reason: str = ""  # why the strategy achieved less than it wanted, as a kebab-case word; "" if it did not
    cards: tuple[MemoryCard, ...] = ()
    """What a summarizer thought worth remembering. The driver adds the time and the id of the record."""
    after: View | None = field(default=None, compare=False, repr=False)
    """The view after the edits, if the strategy has already made it to see its size."""


def apply(view: View, plan: Plan) -> View:
    """The view after a plan; raises `InvalidPlan` if spans overlap or separate a call from its result.

    Pinned messages stay unchanged, whatever the plan says.
    """
    items: list[Item] = []
    done = 0
    end_of_head = view.head_size
    for edit in plan.edits:
        _check_span(edit, done, view)
        items.extend(view.items[done : edit.start])
        pinned = view.transcript.pinned & {item.source for item in view.items[edit.start : edit.end]}
        pieces = with_kept(edit.pieces, pinned, view.transcript.leading) if pinned else edit.pieces
        items.extend(item_for(piece, view.transcript, view.counter) for piece in pieces)
        done = edit.end
        end_of_head = max(end_of_head, edit.end)
    if end_of_head > view.head_size:
        end_of_head = _next_cut(view, end_of_head)
    tail = len(view.items) - end_of_head
    items.extend(view.items[done:])
    covered, none = _covered(view, end_of_head), len(view.transcript.chain)
    return View(view.transcript, tuple(items), len(items) - tail, covered, view.fixed_tokens, view.counter, none)


def _check_span(edit: Replace, done: int, view: View) -> None:
    inside = done <= edit.start < edit.end <= len(view.items)
    if not inside:
        raise InvalidPlan(f"span {edit.start}-{edit.end} overlaps or is outside of the view")
    if len(edit.pieces) == edit.end - edit.start:
        return
    cuts = view.structure.cuts
    if not (cuts[edit.start] and cuts[edit.end]):
        raise InvalidPlan(f"span {edit.start}-{edit.end} parts a call from its result")


def _next_cut(view: View, place: int) -> int:
    """The first legal cut at or after an item, up to the view's limit; the item itself if there is none.

    A head must end at a cut: system messages of the span that it covers are sent right after it, and must not separate
    a call from its results. An edit that replaces single messages may itself end between two results.
    """
    cuts = view.structure.cuts
    most = view.last_cut if place <= view.last_cut else view.size
    return next((i for i in range(place, most + 1) if cuts[i]), place)


def _covered(view: View, end_of_head: int) -> int:
    """How many chain messages come before the item `end_of_head`."""
    if end_of_head <= view.head_size:
        return view.covered_count
    later = (item.piece.source for item in view.items[end_of_head:] if isinstance(item.piece, Keep))
    return next(later, len(view.transcript.chain))


def check(view: View, *, may_cut_newest_results: bool = False) -> None:
    """Raises `InvalidPlan` if the view breaks a rule that the transcript keeps.

    With `may_cut_newest_results`, the tool results of the newest round may be shortened, but not removed.
    """
    chain = view.transcript.chain
    for broken, shown in ((violations, view.opening), (parted, view.item_messages)):
        added = broken(shown)
        if added and (added := added - broken(chain)):
            raise InvalidPlan(f"{len(added)} new violations, one is {min(added)}")
    if 0 < view.head_size < view.size and view.item(view.head_size).message.is_result:
        follows = any(0 < place <= view.covered_count for place, _ in view.transcript.systems)
        if follows and not view.structure.cuts[view.head_size]:
            raise InvalidPlan("system messages that follow the head would separate a call from its results")
    if sum(item.is_replacement for item in view.front) > 1:
        raise InvalidPlan("two replacements in one view")
    if view.unplaced and is_running(view.transcript):
        raise InvalidPlan("a vendor's tool waits for results, and nothing else may follow these")
    task = view.transcript.task
    if task is not None and view.task is None:
        raise InvalidPlan("the first user message is gone")
    for index in _protected(view.transcript):
        if not _stands(view, index, may_be_cut=may_cut_newest_results):
            raise InvalidPlan(f"message {index}, of the newest round or the last of the user, was changed")


def _stands(view: View, index: int, *, may_be_cut: bool) -> bool:
    place = view.item_of(index)
    piece = None if place is None else view.item(place).piece
    if not isinstance(piece, Literal) or piece.kind in (PieceKind.CARRIED, PieceKind.OPAQUE):
        return piece is not None
    return may_be_cut and piece.kind is PieceKind.SHORTENED and view.transcript.chain[index].role is Role.TOOL


def newest_is_shortened(view: View) -> bool:
    """Whether results of the newest round have already been cut, by an earlier stage or for an earlier request."""
    shown = (index for index in _protected(view.transcript) if view.item_of(index) is not None)
    return any(not _stands(view, index, may_be_cut=False) for index in shown)


def _protected(transcript: Transcript) -> Iterator[int]:
    """Yields the chain indices of the last user message and the newest round."""
    chain = transcript.chain
    if transcript.last_user is not None:
        yield transcript.last_user
    newest = newest_round(chain)
    if newest is not None:
        yield from (i for i in range(newest.start, newest.end) if chain[i].role is not Role.USER)


def violations(messages: Iterable[Message]) -> set[tuple[str, str]]:
    """What a strict upstream would refuse: results without a call, and calls without a result, as (kind, call id)."""
    problems: set[tuple[str, str]] = set()
    waiting: dict[str, int] = {}
    for message in messages:
        if message.is_result:
            for answered in message.answers or ("",):
                waiting[answered] = waiting.get(answered, 0) - 1
                if waiting[answered] < 0:
                    problems.add(("orphan", answered))
        elif waiting or message.calls:
            problems.update(("unanswered", call) for call, open_calls in waiting.items() if open_calls > 0)
            waiting = {}
            for call in message.calls:
                waiting[call.id] = waiting.get(call.id, 0) + 1
    return problems


def parted(messages: Iterable[Message]) -> set[tuple[str, str]]:
    """The ids that messages close without any that opens them, or open and never close, as (kind, id)."""
    problems, waiting = set[tuple[str, str]](), set[str]()
    for message in messages:
        if message.opens or message.closes:  # few do, and every replayed view is checked
            problems |= {("orphan", one) for one in message.closes if one not in waiting}
            waiting.difference_update(message.closes)
            waiting.update(message.opens)
    return problems | {("unanswered", one) for one in waiting}


def is_running(transcript: Transcript) -> bool:
    """Whether a vendor's tool, called in the newest round, waits for the results that end the transcript."""
    newest = newest_round(transcript.chain)
    return newest is not None and any(kind == "unanswered" for kind, _ in parted(transcript.chain[newest.start :]))


def head_pieces(view: View) -> tuple[Piece, ...]:
    """The pieces that a condensation records: those of the view's head, without memory blocks, which last one turn.

    An opaque head has what it carries too: its own ledger, and all messages, though an earlier head may carry them.
    """
    head = tuple(item.piece for item in view.front[: view.head_size] if not is_memory(item.piece))
    if not view.is_opaque:
        return head
    own = view.unplaced.pieces if view.unplaced else ()
    carried = (item.piece for item in view.front[view.head_size :] if is_carried(item.piece))
    return (*head, *(piece for piece in carried if piece in own or piece.source is not None))


def replace_before(view: View, end: int, replacement: Literal, task_cap: int) -> Replace:
    """The edit that replaces everything before item `end` with the task and the replacement.

    Messages of the question that come before `end` are kept after the replacement. A task at or after `end` stays where
    it is; this happens if the assistant opened the conversation.
    """
    task = task_piece(view, task_cap) if view.task is not None and view.task < end else ()
    question = (view.items[i].piece for i in view.question if i < end and i != view.task)
    return Replace(0, end, (*task, replacement, *question))


def with_wider_task(view: View, most: int, most_of_part: int) -> View:
    """The view with more of a first user message that was cut.

    The message is whole if the view then has at most `most` tokens. If not, it is as long as possible in a view of
    `most_of_part` tokens.
    """
    place, task = view.task, view.transcript.task
    if place is None or task is None or view.item(place).intact or view.is_opaque:
        return view
    message, rest = view.transcript.chain[task], view.tokens - view.item(place).message.tokens
    is_whole = rest + message.tokens <= most
    if not is_whole and view.tokens >= most_of_part:
        return view
    cap = message.tokens if is_whole else most_of_part - rest
    excerpt = Literal(shorten_message(message, cap, view.counter), PieceKind.TASK, task)
    return apply(view, Plan((Replace(place, place + 1, (Keep(task) if is_whole else excerpt,)),)))


def task_piece(view: View, cap: int) -> tuple[Piece, ...]:
    """The first user message for a condensed view: verbatim up to `cap` tokens, else its beginning and end."""
    if view.task is None:
        return ()
    item = view.items[view.task]
    if view.transcript.keeps_task_whole or not item.intact or item.message.tokens <= cap:
        return (item.piece,)
    excerpt = shorten_message(item.message, cap, view.counter)
    return (Literal(excerpt, PieceKind.TASK, view.transcript.task),)


# -- where to cut ------------------------------------------------------------------------------------------------


class Split:
    """The places to cut a view, and the size of the view after each, for a replacement of `size` tokens.

    The first user message counts as cut to `task_cap`, unless it must stay whole.
    """

    def __init__(self, view: View, size: int, task_cap: int) -> None:
        self._view = view
        self._size = size
        tokens = [item.message.tokens for item in view.items]
        self._behind = list(accumulate(reversed(tokens), initial=0))[::-1]
        self._task = 0
        if view.task is not None:
            self._task = tokens[view.task] if view.transcript.keeps_task_whole else min(tokens[view.task], task_cap)
        self._stays = [(i, tokens[i]) for i in view.stays if i != view.task]

    def tokens_after(self, end: int) -> int:
        view = self._view
        task = 0 if view.task is None or view.task >= end else self._task
        stays = sum(tokens for i, tokens in self._stays if i < end)
        return view.fixed_tokens + task + self._size + stays + self._behind[end]

    def is_legal(self, place: int) -> bool:
        """Whether a condensation may end at `place`: not past the view's limit, nor between a call and its result."""
        return place <= self._view.last_cut and self._view.structure.cuts[place]

    def turn_cuts(self) -> list[int]:
        """The legal cuts at the starts of all turns, and of the rounds of the last turn, which may be unfinished."""
        return self._legal_starts(self._view.structure.turns[-1:])

    def round_cuts(self) -> list[int]:
        """The legal cuts at the starts of all turns and rounds."""
        return self._legal_starts(self._view.structure.turns)

    def _legal_starts(self, divided: Sequence[Turn]) -> list[int]:
        """The legal cuts at the starts of all turns, and of all rounds in the `divided` turns.

        Cuts that condense nothing beyond an earlier replacement are left out.
        """
        starts = {turn.start for turn in self._view.structure.turns}
        starts.update(span.start for turn in divided for span in turn.rounds)
        least = 1 if self._view.replacement is None else self._view.replacement + 2
        return [place for place in sorted(starts) if least <= place and self.is_legal(place)]

    def first_at_turn(self, goal: int, start: int = 0, end: int | None = None) -> int | None:
        """The first cut of [start, end] that meets the goal, preferably at a turn; else the last cut there, if any."""
        at_turns = (place for place in self.turn_cuts() if start <= place and (end is None or place <= end))
        cut = next((place for place in at_turns if self.tokens_after(place) <= goal), None)
        return self.first_at_round(goal, start, end) if cut is None else cut

    def first_at_round(self, goal: int, start: int = 0, end: int | None = None) -> int | None:
        """The first cut of [start, end] that meets the goal; else the last cut there, if any."""
        places = [place for place in self.round_cuts() if start <= place and (end is None or place <= end)]
        last = places[-1] if places else None
        return next((place for place in places if self.tokens_after(place) <= goal), last)
