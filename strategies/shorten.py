"""`shorten`: cuts oversized tool results in the middle, the largest ones most.

All results older than the newest round are cut to one common length: the longest that meets the goal, but at least
`min_tokens`. Results of the newest round are cut only with the option `newest`, which the last step of the ladder sets,
and only until the view is usable. If even that is not enough, a first user message over its cap is cut to that cap.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from strategies.core.budget import Budget
from strategies.core.errors import NothingToDo
from strategies.core.excerpt import shorten_message
from strategies.core.messages import Role
from strategies.core.pieces import Literal, PieceKind
from strategies.core.plan import Plan, Replace, apply, task_piece
from strategies.core.protocol import Options, SessionFacts, Steps, Strategy, option
from strategies.core.view import View


@dataclass(frozen=True, slots=True)
class ShortenOptions(Options):
    min_tokens: int = option(120, 40)
    newest: bool = option(False)


@dataclass(frozen=True, slots=True)
class Shorten(Strategy):
    options: ShortenOptions
    name: ClassVar[str] = "shorten"
    may_cut_newest_results: ClassVar[bool] = True

    def condense(self, view: View, budget: Budget, session: SessionFacts) -> Steps:
        yield from ()
        newest = view.structure.newest_round
        border = newest.start if newest else 0
        older = tuple(self._cut(view, _results(view, 0, border), view.tokens - budget.goal))
        cut = apply(view, Plan(older))
        newest_results = _results(view, border, len(view.items)) if self.options.newest else []
        last = tuple(self._cut(view, newest_results, cut.tokens - budget.fits))
        results = (*older, *last)
        after = apply(view, Plan(results)) if last else cut
        edits = (*results, *self._task(view, after, budget))
        if not edits:
            raise NothingToDo("nothing-to-shorten")
        metadata = {"shortenedResultCount": len(results), "newestRoundShortened": bool(last)}
        if len(edits) == len(results):
            return Plan(edits, metadata, after=after)
        return Plan(tuple(sorted(edits, key=lambda edit: edit.start)), metadata)

    def _task(self, view: View, after: View, budget: Budget) -> Iterator[Replace]:
        """The edit that cuts the first user message to its cap, if the view after the others is not usable."""
        if not self.options.newest or view.task is None or after.tokens <= budget.fits:
            return
        (piece,) = task_piece(view, budget.task_cap)
        if piece != view.items[view.task].piece:
            yield Replace(view.task, view.task + 1, (piece,))

    def _cut(self, view: View, results: Sequence[int], excess: int) -> Iterator[Replace]:
        """The edits that cut results so that `excess` tokens go."""
        if excess <= 0:
            return
        sizes = [view.items[i].message.tokens for i in results]
        cap = max(level(sizes, sum(sizes) - excess), self.options.min_tokens)
        for i, size in zip(results, sizes, strict=True):
            if size > cap:
                item = view.items[i]
                raw = shorten_message(item.message, cap, view.counter)
                yield Replace(i, i + 1, (Literal(raw, PieceKind.SHORTENED, item.source),))


def level(sizes: Sequence[int], total: int) -> int:
    """The largest cap c with sum(min(size, c)) <= total; 0 if there is none."""
    remaining = total
    ordered = sorted(sizes)
    for done, size in enumerate(ordered):
        share = remaining // (len(ordered) - done)
        if size > share:
            return max(share, 0)
        remaining -= size
    return max(ordered, default=0)


def _results(view: View, start: int, end: int) -> list[int]:
    return [i for i in range(start, end) if view.items[i].role is Role.TOOL and i not in view.stays]
