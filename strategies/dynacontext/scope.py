"""What a condensation of `dynacontext` replaces.

Behind the first messages, which stay, everything is a candidate for the record. After a vote the tail of what was
judged is left out: up to `exclude_tail_max` messages of the assistant and its tools, for they are half of something;
a user message ends it. Without a vote, at the context limit, there is no such tail.

Nothing that every strategy must leave alone is ever a candidate: the view's `limit` is the end of it all. Rounds stay
whole, so an end moves to a legal cut: a tail that is kept grows by the rest of its round, one that is dropped shrinks,
since what is dropped is in no record.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import NamedTuple

from strategies.core.condensation import Piece
from strategies.core.errors import NothingToSummarize
from strategies.core.plan import task_piece
from strategies.core.protocol import Verdict
from strategies.core.transcript import Role
from strategies.core.view import View, item_for
from strategies.dynacontext.options import DynaContextOptions


class Scope(NamedTuple):
    """The items before `end` become `first`, a replacement and `last`; those before `recorded` go into its record.

    `candidates` are the chain indices that it adds to the record; `excluded` counts the tail that was left out,
    `tokens` what all that goes has.
    """

    recorded: int
    end: int
    first: tuple[Piece, ...]
    last: tuple[Piece, ...]
    candidates: tuple[int, ...]
    excluded: int
    tokens: int


def judged_end(view: View, verdict: Verdict) -> int:
    """The item behind the last one that a verdict knew; the view's end where it knew all of them."""
    later = range(view.head, len(view.items))
    return next((i for i in later if (view.items[i].source or 0) >= verdict.count), len(view.items))


def after_vote(view: View, options: DynaContextOptions, task_cap: int, judged: int) -> Scope:
    """What a YES on the items before `judged` replaces; raises `NothingToSummarize`."""
    most = _cut_before(view, min(judged - options.keep_last, view.limit))
    tail = _tail_cut(view, judged, options)
    if options.tail == "drop":
        return _scope(view, options, task_cap, (min(tail, most), most), judged - tail)
    end = min(tail, most)
    return _scope(view, options, task_cap, (end, end), judged - tail)


def at_limit(view: View, options: DynaContextOptions, task_cap: int) -> Scope:
    """What the context limit replaces: all, and where `keep_last` would leave nothing, one round or message."""
    wanted = _cut_before(view, min(len(view.items) - options.keep_last, view.limit))
    try:
        return _scope(view, options, task_cap, (wanted, wanted), 0)
    except NothingToSummarize:
        forced = _forced(view, options)
        return _scope(view, options, task_cap, (forced, forced), 0)


def _forced(view: View, options: DynaContextOptions) -> int:
    """The first legal cut before which there is anything to record; 0 for none."""
    cuts = view.structure.cuts
    lead = _lead(view, options.keep_first)
    ends = (end for end in range(1, view.limit + 1) if cuts[end])
    return next((end for end in ends if next(_candidates(view, min(lead, end), end), None) is not None), 0)


def _tail_cut(view: View, judged: int, options: DynaContextOptions) -> int:
    """Where the tail of the items before `judged` begins: a legal cut, or `judged` where there is none."""
    start = judged
    while judged - start < min(judged, options.exclude_tail_max):
        if view.items[start - 1].role not in (Role.ASSISTANT, Role.TOOL):
            break
        start -= 1
    if start == judged or options.tail == "keep":
        return _cut_before(view, start)
    return next((i for i in range(start, judged) if view.structure.cuts[i]), judged)


def _cut_before(view: View, place: int) -> int:
    """The last legal cut at `place` or before it."""
    return next((i for i in range(place, 0, -1) if view.structure.cuts[i]), 0)


def _lead(view: View, keep_first: int) -> int:
    """The item behind the first messages: the first user message, which always stays, and `keep_first` - 1 more.

    An earlier replacement ends them, for what it stands for is no longer there to be kept.
    """
    if view.task is None:
        return 0
    behind = range(view.task + 1, len(view.items))
    end = next((i for i in behind if view.items[i].source is None), len(view.items))
    wanted = min(view.task + max(keep_first, 1), end)
    return next((i for i in range(wanted, end) if view.structure.cuts[i]), end)


def _candidates(view: View, lead: int, end: int) -> Iterator[int]:
    """Chain indices that a record of the items before `end` adds to what is recorded."""
    opening = range(min(view.task or 0, end))
    recorded = -1 if view.replacement is None else view.replacement
    for i in chain(opening, range(lead, end)):
        source = view.items[i].source
        if i > recorded and i != view.last_user and source is not None:
            yield source


def _scope(view: View, options: DynaContextOptions, task_cap: int, ends: tuple[int, int], excluded: int) -> Scope:
    recorded, end = ends
    lead = min(_lead(view, options.keep_first), end)
    candidates = tuple(_candidates(view, lead, recorded))
    if not candidates:
        raise NothingToSummarize("nothing between the first messages and those that must stay")
    first = _first(view, lead, end, task_cap)
    last = view.last_user
    kept_last = (view.items[last].piece,) if last is not None and lead <= last < end else ()
    stays = (item_for(piece, view.transcript, view.counter) for piece in (*first, *kept_last))
    goes = sum(item.message.tokens for item in view.items[:end]) - sum(item.message.tokens for item in stays)
    return Scope(recorded, end, first, kept_last, candidates, excluded, goes)


def _first(view: View, lead: int, end: int, task_cap: int) -> tuple[Piece, ...]:
    if view.task is None or view.task >= end:
        return ()
    return (*task_piece(view, task_cap), *(item.piece for item in view.items[view.task + 1 : lead]))
