"""The options of `dynacontext` (docs/strategies.md describes each), and the scope: what a condensation replaces.

The first messages stay, and everything after them is a candidate for the record. After a vote, the tail of the judged
messages is excluded from the record, because it may be unfinished work: up to `exclude_tail_max` messages of the
assistant and its tools, but none before the last user message. Without a vote, at the context limit, there is no tail.

Rounds stay whole, so the tail begins at a legal cut. A tail that is kept grows by the rest of its round; one that is
dropped shrinks, because dropped messages are in no record.

`leave_out` drops messages after the record when it is applied for the first time. With `on_drift=rollback` these are
all messages between the record and those that the model must answer. The source document goes back to the last message
that it wants to keep. Here a client sends the later messages again with every request, so the view leaves them out.
With `tail=drop` only the tail of the judged messages is dropped. This is possible only now: when the record was made,
the tail was the newest round, which no plan may touch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple

from strategies.core.condensation import DRIFT_IDS, JUDGED_IDS
from strategies.core.errors import InvalidPlan
from strategies.core.messages import Role
from strategies.core.options import Options, Value, option
from strategies.core.pieces import Piece
from strategies.core.plan import Plan, Replace, apply, check, task_piece
from strategies.core.protocol import Shortened, Verdict
from strategies.core.view import View, item_for

AUTOMATIC = -1

_SET = ("min_growth", "tail", "on_drift", "empty_assistant", "include_tool_content")
_PRESETS: Mapping[str, Mapping[str, Value]] = {
    "chat": dict(zip(_SET, (AUTOMATIC, "keep", "carry", False, True), strict=True)),
    "openhands": dict(zip(_SET, (AUTOMATIC, "drop", "carry", False, True), strict=True)),
    "refer": dict(zip(_SET, (0, "drop", "rollback", True, False), strict=True)),
}


@dataclass(frozen=True, slots=True)
class DynaContextOptions(Options):
    """`mode` stands for values of other options; an explicit value wins over the mode's. Sizes are in tokens."""

    mode: str = option("chat", one_of="chat openhands refer")
    voting_k: int = option(5, 1, 25)
    early_turns: int = option(1, 0)
    min_growth: int = option(AUTOMATIC, AUTOMATIC)
    max_branches: int = option(5, 0)
    judge: str = option("after", one_of="after inline")
    ballot: str = option("single", one_of="single n")
    judge_max_tokens: int = option(1_000, 50)
    keep_first: int = option(1, 0)
    keep_last: int = option(0, 0)
    exclude_tail_max: int = option(2, 0)
    tail: str = option("keep", one_of="keep drop")
    on_drift: str = option("carry", one_of="carry rollback")
    summary_max_tokens: int = option(2_000, 100)
    summary_format: str = option("plain", one_of="plain sections")
    empty_assistant: bool = option(False)
    include_tool_content: bool = option(True)
    memory_cards: bool = option(True)

    @property
    def conflict(self) -> str:
        """A tail cannot be dropped while the model has yet to answer it."""
        if self.tail == "keep" or self.judge == "after":
            return ""
        return (
            "'tail=drop' (also by 'mode') needs 'judge=after': the tail of a vote that is held before forwarding is"
            " what the model must answer; add 'tail=keep' to use 'judge=inline'"
        )

    def preset(self, mode: str) -> Mapping[str, Value]:
        return _PRESETS.get(mode, {})


class Scope(NamedTuple):
    """The items that a condensation replaces, and the pieces that stay among them."""

    recorded: int
    """The items before this one go into the record."""
    end: int
    """The items before this one are replaced with `first`, the replacement, and `last`."""
    first: tuple[Piece, ...]
    last: tuple[Piece, ...]
    candidates: tuple[int, ...]
    """The chain indices of the messages that the record adds to an earlier one."""
    excluded: int
    dropped: tuple[int, ...]
    """The chain indices of the messages that are in neither the record nor the view."""
    tokens: int
    """Tokens of all items that are replaced and do not stay."""


def judged_end(view: View, verdict: Verdict) -> int:
    """The item after the last one that a verdict judged; the view's end if it judged all of them."""
    later = range(view.head_size, len(view.items))
    return next((i for i in later if (view.items[i].source or 0) >= verdict.message_count), len(view.items))


def after_vote(view: View, options: DynaContextOptions, task_cap: int, judged: int) -> Scope:
    """The scope after a YES on the items before `judged`."""
    most = _cut_before(view, min(judged - options.keep_last, view.last_cut))
    tail = _tail_cut(view, judged, options)
    recorded = min(tail, most)
    end = most if options.tail == "drop" else recorded
    return _scope(view, options, task_cap, (recorded, end), judged - tail)


def at_limit(view: View, options: DynaContextOptions, task_cap: int, least: int) -> Scope:
    """The scope at the context limit: everything except `keep_last`.

    If that has fewer than `least` tokens, the scope ends at the first later cut that brings it to `least`, or at the
    last cut.
    """
    wanted = _cut_before(view, min(len(view.items) - options.keep_last, view.last_cut))
    later = (end for end in range(wanted + 1, view.last_cut + 1) if view.structure.cuts[end])
    for end in (wanted, *later):
        scope = _scope(view, options, task_cap, (end, end), 0)
        if scope.candidates and scope.tokens >= least:
            break
    return scope


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


def _end_of_first(view: View, keep_first: int) -> int:
    """The item after the first messages: the first user message, which always stays, and `keep_first` - 1 more.

    They end at an earlier replacement, because the messages that it stands for are no longer there to be kept.
    """
    if view.task is None:
        return 0
    later = range(view.task + 1, len(view.items))
    end = next((i for i in later if view.items[i].source is None), len(view.items))
    wanted = min(view.task + max(keep_first, 1), end)
    return next((i for i in range(wanted, end) if view.structure.cuts[i]), end)


def _scope(view: View, options: DynaContextOptions, task_cap: int, ends: tuple[int, int], excluded: int) -> Scope:
    recorded, end = ends
    start = min(_end_of_first(view, options.keep_first), end)
    # The chain indices that a record of the items before `recorded` adds to an earlier record.
    opening, earlier = range(min(view.task or 0, recorded)), -1 if view.replacement is None else view.replacement
    added = (i for i in chain(opening, range(start, recorded)) if i > earlier)
    candidates = tuple(_sources(view, added))
    first: tuple[Piece, ...] = ()
    if view.task is not None and view.task < end:
        first = (*task_piece(view, task_cap), *(item.piece for item in view.items[view.task + 1 : start]))
    kept_last = tuple(view.items[i].piece for i in view.stays if start <= i < end)
    stays = (item_for(piece, view.transcript, view.counter) for piece in (*first, *kept_last))
    goes = sum(item.message.tokens for item in view.items[:end]) - sum(item.message.tokens for item in stays)
    dropped = tuple(_sources(view, range(recorded, end)))
    return Scope(recorded, end, first, kept_last, candidates, excluded, dropped, goes)


def _sources(view: View, places: Iterable[int]) -> list[int]:
    """The chain indices of these items, except messages that always stay."""
    found = (view.items[i].source for i in places if i not in view.stays)
    return [source for source in found if source is not None]


JUDGED_COUNT, EXCLUDED = "judged_message_count", "tail_exclusion_count"


def leave_out(view: View, options: DynaContextOptions, telemetry: Mapping[str, Any]) -> Shortened | None:
    """`view` without the messages that the options leave out, and the record's `telemetry`, which then lists them.

    The head of the result also covers the dropped messages. None if there is nothing to drop, or if a round would
    break.
    """
    judged, excluded = int(telemetry.get(JUDGED_COUNT, 0)), int(telemetry.get(EXCLUDED, 0))
    start, end = _span(view, options, judged, excluded)
    if end <= start:
        return None
    try:
        after = apply(view, Plan((Replace(start, end),)))
        check(after)
    except InvalidPlan:
        return None
    before = (*telemetry.get(JUDGED_IDS, ()), *telemetry.get(DRIFT_IDS, ()))
    dropped = dropped_fields(sorted({*before, *_sources(view, range(start, end))}), judged)
    return Shortened(after, {**telemetry, EXCLUDED: max(excluded, dropped["dropped_judged_count"]), **dropped})


def dropped_fields(dropped: Sequence[int], judged: int) -> dict[str, Any]:
    """The telemetry on messages that are in neither record nor view. The first `judged` messages were voted on."""
    voted_on, drift = [i for i in dropped if i < judged], [i for i in dropped if i >= judged]
    return {
        "dropped_judged_count": len(voted_on),
        JUDGED_IDS: voted_on,
        "dropped_drift_count": len(drift),
        DRIFT_IDS: drift,
    }


def _span(view: View, options: DynaContextOptions, judged: int, excluded: int) -> tuple[int, int]:
    """The items to drop, which are never ones that the model must answer."""
    most = min([view.last_cut, *(i for i in view.question if i >= view.head_size)])
    if options.on_drift == "rollback":
        return view.head_size, most
    start, end = view.item_of(judged - excluded), view.item_of(judged - options.keep_last)
    if options.tail != "drop" or start is None or end is None:
        return 0, 0
    return max(start, view.head_size), min(end, most)
