"""The scope: what a condensation of `dynacontext` replaces.

The first messages stay, and everything behind them is a candidate for the record. After a vote, the tail of the judged
messages is excluded from the record: up to `exclude_tail_max` messages of the assistant and its tools, back to a user
message at most, because they may be half of something. Without a vote, at the context limit, there is no such tail.

Messages that every strategy must leave alone are never candidates: the view's `limit` ends every scope. Rounds stay
whole, so an end moves to a legal cut. A tail that is kept grows by the rest of its round; one that is dropped shrinks,
because dropped messages are in no record.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import NamedTuple

from strategies.core.errors import NothingToSummarize
from strategies.core.messages import Role
from strategies.core.pieces import Piece
from strategies.core.plan import task_piece
from strategies.core.protocol import Verdict
from strategies.core.view import View, item_for
from strategies.dynacontext.options import DynaContextOptions


class Scope(NamedTuple):
    """The items that a condensation replaces, and the pieces that stay among them."""

    recorded: int
    """The items before this one go into the record."""
    end: int
    """The items before this one are replaced by `first`, the replacement, and `last`."""
    first: tuple[Piece, ...]
    """The first messages, which stay."""
    last: tuple[Piece, ...]
    """The last user message, if it lies before `end`."""
    candidates: tuple[int, ...]
    """The chain indices of the messages that the record adds to an earlier one."""
    excluded: int
    """How many messages of the tail were excluded."""
    dropped: tuple[int, ...]
    """The chain indices of the messages that are in neither the record nor the view."""
    tokens: int
    """Tokens of all items that are replaced and do not stay."""


def judged_end(view: View, verdict: Verdict) -> int:
    """The item behind the last one that a verdict judged; the view's end if it judged all of them."""
    later = range(view.head, len(view.items))
    return next((i for i in later if (view.items[i].source or 0) >= verdict.count), len(view.items))


def after_vote(view: View, options: DynaContextOptions, task_cap: int, judged: int) -> Scope:
    """The scope after a YES on the items before `judged`; raises `NothingToSummarize`."""
    most = _cut_before(view, min(judged - options.keep_last, view.limit))
    tail = _tail_cut(view, judged, options)
    recorded = min(tail, most)
    end = most if options.tail == "drop" else recorded
    return _with_candidates(_scope(view, options, task_cap, (recorded, end), judged - tail))


def at_limit(view: View, options: DynaContextOptions, task_cap: int, least: int) -> Scope:
    """The scope at the context limit: everything but `keep_last`.

    Where that has fewer than `least` tokens, it ends at the first later cut before which there are as many, or at the
    last cut.
    """
    wanted = _cut_before(view, min(len(view.items) - options.keep_last, view.limit))
    later = (end for end in range(wanted + 1, view.limit + 1) if view.structure.cuts[end])
    for end in (wanted, *later):
        scope = _scope(view, options, task_cap, (end, end), 0)
        if scope.candidates and scope.tokens >= least:
            break
    return _with_candidates(scope)


def _tail_cut(view: View, judged: int, options: DynaContextOptions) -> int:
    """Where the tail of the items before `judged` begins: a legal cut, or `judged` if there is none."""
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

    An earlier replacement ends them, because the messages that it stands for are no longer there to be kept.
    """
    if view.task is None:
        return 0
    behind = range(view.task + 1, len(view.items))
    end = next((i for i in behind if view.items[i].source is None), len(view.items))
    wanted = min(view.task + max(keep_first, 1), end)
    return next((i for i in range(wanted, end) if view.structure.cuts[i]), end)


def _candidates(view: View, lead: int, end: int) -> Iterator[int]:
    """Yields the chain indices that a record of the items before `end` adds to an earlier record."""
    opening = range(min(view.task or 0, end))
    recorded = -1 if view.replacement is None else view.replacement
    for i in chain(opening, range(lead, end)):
        source = view.items[i].source
        if i > recorded and i not in view.question and source is not None:
            yield source


def _scope(view: View, options: DynaContextOptions, task_cap: int, ends: tuple[int, int], excluded: int) -> Scope:
    recorded, end = ends
    lead = min(_lead(view, options.keep_first), end)
    candidates = tuple(_candidates(view, lead, recorded))
    first = _first(view, lead, end, task_cap)
    kept_last = tuple(view.items[i].piece for i in view.question if lead <= i < end)
    stays = (item_for(piece, view.transcript, view.counter) for piece in (*first, *kept_last))
    goes = sum(item.message.tokens for item in view.items[:end]) - sum(item.message.tokens for item in stays)
    return Scope(recorded, end, first, kept_last, candidates, excluded, tuple(sources(view, recorded, end)), goes)


def _with_candidates(scope: Scope) -> Scope:
    if not scope.candidates:
        raise NothingToSummarize("nothing between the first messages and those that must stay")
    return scope


def sources(view: View, start: int, end: int) -> Iterator[int]:
    """The chain indices of the items [start, end), but not that of the last user message, which always stays."""
    found = (item.source for item in view.items[start:end])
    return (source for source in found if source is not None and source != view.transcript.last_user)


def _first(view: View, lead: int, end: int, task_cap: int) -> tuple[Piece, ...]:
    if view.task is None or view.task >= end:
        return ()
    return (*task_piece(view, task_cap), *(item.piece for item in view.items[view.task + 1 : lead]))
