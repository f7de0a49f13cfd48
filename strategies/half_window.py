"""`half-window`: the older half of the rounds becomes one summary.

The split moves to the start of its turn, or to the end of that turn if nothing would be left to summarize. If the view
is then still above its goal, the split moves on to later legal cuts, turn boundaries first, until the goal is met or
`min_overlap` + 1 rounds are left. With `exact` the split is the document's, whatever the goal.
docs/internals/faithful.md lists where this departs from the source document of the algorithm.

Fallback levels: 0 half window; 1 too few rounds, so all but the last are summarized; 2 too few rounds after an
earlier summary, so nothing is done; 3 nothing to summarize.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from math import ceil
from typing import Any, ClassVar, NamedTuple

from strategies.core.budget import Budget
from strategies.core.errors import Declined, NothingToSummarize
from strategies.core.plan import Split
from strategies.core.protocol import Options, SessionFacts, Steps, Strategy, option
from strategies.core.replacement import frame_tokens
from strategies.core.rounds import Round
from strategies.core.summary import PLAIN, record_cap, summarize
from strategies.core.view import View
from strategies.summarizing import plan_record, span_before

_INSIDE = "inside-turn"  # the `splitStrategy` and `boundaryAdjustmentType` if a finished turn is split


@dataclass(frozen=True, slots=True)
class HalfWindowOptions(Options):
    """docs/strategies.md describes each option, as it does for all strategies."""

    min_rounds: int = option(4, 2)
    min_overlap: int = option(1, 0)
    summary_max_tokens: int = option(2_000, 100)
    exact: bool = option(False)
    memory_cards: bool = option(True)


class RoundCursor(NamedTuple):
    turn: int  # the index of the turn; -1 for the last turn, which may be unfinished
    round: int
    span: Round
    start_of_turn: int | None  # for the first round of a turn, the item with which the turn starts

    @property
    def is_active(self) -> bool:
        return self.turn < 0

    @property
    def cut(self) -> int:
        """The item before which the list is split to keep this round; a user message stays with its first round."""
        return self.span.start if self.start_of_turn is None else self.start_of_turn


class SplitDecision(NamedTuple):
    """Where the list is split, and how that came about."""

    level: int
    first_kept: int  # the index of the first cursor that is kept
    cut: int  # the item before which everything is summarized
    strategy: str  # the document's `splitStrategy`, or `inside-turn`
    boundary: str = "exact"  # the document's `boundaryAdjustmentType`, or `inside-turn`
    delta: int = 0
    reason: str = ""


@dataclass(frozen=True, slots=True)
class HalfWindow(Strategy):
    options: HalfWindowOptions
    name: ClassVar[str] = "half-window"
    asks: ClassVar[bool] = True

    def condense(self, view: View, budget: Budget, session: SessionFacts) -> Steps:
        cap = record_cap(view, budget, self.options.summary_max_tokens)
        cursors = collect_rounds(view)
        split = Split(view, frame_tokens(view.counter) + cap.text, budget.task_cap)
        decision = _reach_goal(split, cursors, decide(view, cursors, self.options), budget.goal, self.options)
        span = span_before(decision.cut, view, split, cap)
        form = PLAIN.with_cards() if self.options.memory_cards else PLAIN
        record = yield from summarize(span, cap, budget, session, form)
        metadata = {**_telemetry(cursors, decision), "promptDigest": form.digest}
        return plan_record(record, span, budget, metadata)


def collect_rounds(view: View) -> list[RoundCursor]:
    """Cursors for all rounds after the newest replacement, oldest first."""
    turns = view.structure.turns
    after = -1 if view.replacement is None else view.replacement
    return [
        RoundCursor(t if t < len(turns) - 1 else -1, r, span, turn.start if r == 0 else None)
        for t, turn in enumerate(turns)
        for r, span in enumerate(turn.rounds)
        if span.start > after
    ]


def decide(view: View, cursors: list[RoundCursor], options: HalfWindowOptions) -> SplitDecision:
    """The split that the document describes: half of the rounds, at a turn boundary; or one of its fallbacks."""
    index = len(cursors) - max(options.min_overlap + 1, ceil(len(cursors) / 2))
    if index > 0 and len(cursors) >= options.min_rounds:
        return _to_turn_boundary(view, cursors, index, options.min_overlap)
    if view.replacement is not None:
        raise Declined("summary-boundary", "too few rounds after the earlier summary")
    if len(cursors) < 2:
        raise NothingToSummarize("no round before the newest one")
    index = len(cursors) - 1
    cut = min(cursors[index].cut, view.last_cut)
    return _labelled(cursors, SplitDecision(1, index, cut, "none", reason="not-enough-rounds"))


def _to_turn_boundary(view: View, cursors: list[RoundCursor], index: int, overlap: int) -> SplitDecision:
    """The split nearest to cursor `index`, the first one to keep, that leaves finished turns whole.

    At least `overlap` + 1 rounds are kept, even if that splits the first turn.
    """
    end, boundary = index, "exact"
    while end > 0 and _place(cursors, end) == _INSIDE:
        end, boundary = end - 1, "adjusted-to-turn-start"
    if end == 0:
        end, boundary = index, "adjusted-to-turn-end"
        while end < len(cursors) - overlap - 1 and _place(cursors, end) == _INSIDE:
            end += 1
    return _labelled(cursors, SplitDecision(0, end, min(cursors[end].cut, view.last_cut), "", boundary, end - index))


def _place(cursors: list[RoundCursor], index: int) -> str:
    """The `splitStrategy` of a split before cursor `index`."""
    if cursors[index - 1].turn != cursors[index].turn:
        return "turn-boundary"
    return "active-only" if cursors[index].is_active else _INSIDE


def _labelled(cursors: list[RoundCursor], decision: SplitDecision) -> SplitDecision:
    """The decision with the labels of its split; level 1 has no `splitStrategy`."""
    place = _place(cursors, decision.first_kept)
    boundary = "adjusted-to-turn-end" if decision.boundary == _INSIDE else decision.boundary
    return decision._replace(
        strategy=decision.strategy if decision.level else place, boundary=_INSIDE if place == _INSIDE else boundary
    )


def _reach_goal(
    split: Split, cursors: list[RoundCursor], first: SplitDecision, goal: int, options: HalfWindowOptions
) -> SplitDecision:
    """`first` if it is legal and meets the goal; else the nearest later cut that does; else the last cut.

    The overlap is kept. With `exact`, any goal is met.
    """
    if split.is_legal(first.cut) and (options.exact or split.tokens_after(first.cut) <= goal):
        return first
    last = max(len(cursors) - options.min_overlap - 1, first.first_kept)
    cut = split.first_at_turn(split.tokens_after(first.cut) if options.exact else goal, first.cut, cursors[last].cut)
    if cut is None:
        raise NothingToSummarize("no legal cut before the rounds that must stay")
    index = min(bisect_left(cursors, cut, key=lambda cursor: cursor.span.start), len(cursors) - 1)
    delta = first.delta + index - first.first_kept
    return _labelled(cursors, first._replace(first_kept=index, cut=cut, delta=delta))


def _telemetry(cursors: list[RoundCursor], decision: SplitDecision) -> dict[str, Any]:
    """The document's telemetry fields, except `compressionDuration`, which the driver adds because it has a clock."""
    pivot = cursors[decision.first_kept] if decision.first_kept < len(cursors) else None
    rest = cursors[decision.first_kept :]
    return {
        "compressionMode": "half-window" if decision.level == 0 else "fallback",
        "fallbackLevel": decision.level,
        "usedFallback": decision.level > 0,
        "compressionFallbackReason": decision.reason or None,
        "totalRoundCount": len(cursors),
        "cursorCount": len(cursors),
        "summarizedRoundCount": decision.first_kept,
        "keptRoundCount": len(rest),
        "splitStrategy": decision.strategy,
        "splitPivotTurnIndex": pivot.turn if pivot else None,
        "splitPivotRoundIndex": pivot.round if pivot else None,
        "boundaryAdjustmentType": decision.boundary,
        "boundaryAdjustmentDelta": decision.delta,
        "isContinuation": not any(cursor.is_active for cursor in rest),
    }
