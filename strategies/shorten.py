"""`shorten`: oversized tool results are cut in the middle, the largest most, the newest round's last.

All results older than the newest round are cut to one common length, the longest that meets the goal but never
under `min_tokens`. The newest round is touched by the last step of the ladder only (`newest`), and only as far as it
takes to be usable; where even that is not enough, a first user message over its cap is brought down to it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from strategies.core.budget import Budget
from strategies.core.condensation import Kind, Literal
from strategies.core.errors import Declined
from strategies.core.excerpt import shortened
from strategies.core.options import Options, option
from strategies.core.plan import Plan, Replace, apply, task_piece
from strategies.core.protocol import Past, Steps
from strategies.core.transcript import Role
from strategies.core.view import View


@dataclass(frozen=True, slots=True)
class ShortenOptions(Options):
    """The least that is left of a result, in tokens; whether the newest round's results may be cut too."""

    min_tokens: int = option(120, 40)
    newest: bool = option(False)


class Shorten:
    """Cuts; asks no model. The only strategy that may touch the newest round."""

    name: ClassVar[str] = "shorten"
    asks: ClassVar[bool] = False

    def __init__(self, options: ShortenOptions) -> None:
        self.options = options

    def condense(self, view: View, budget: Budget, past: Past) -> Steps:
        """A plan that cuts older results to the goal, and the newest ones only to be usable."""
        yield from ()
        newest = view.structure.newest_round
        border = newest.start if newest else 0
        older = Plan(tuple(self._cut(view, _results(view, 0, border), view.tokens - budget.goal)))
        rest = apply(view, older).tokens - budget.usable
        newest_results = _results(view, border, len(view.items)) if self.options.newest else []
        last = tuple(self._cut(view, newest_results, rest))
        results = (*older.edits, *last)
        edits = (*results, *self._task(view, results, budget))
        if not edits:
            raise Declined("nothing-to-shorten")
        ordered = tuple(sorted(edits, key=lambda edit: edit.start))
        return Plan(ordered, {"shortenedResultCount": len(results), "newestRoundShortened": bool(last)})

    def _task(self, view: View, results: tuple[Replace, ...], budget: Budget) -> Iterator[Replace]:
        """The first user message, brought to its cap where all else has not made the view usable."""
        if not self.options.newest or view.task is None or apply(view, Plan(results)).tokens <= budget.usable:
            return
        (piece,) = task_piece(view, budget.task_cap)
        if piece != view.items[view.task].piece:
            yield Replace(view.task, view.task + 1, (piece,))

    def _cut(self, view: View, results: Sequence[int], excess: int) -> Iterator[Replace]:
        """The edits of results that are cut so that `excess` tokens go."""
        if excess <= 0:
            return
        sizes = [view.items[i].message.tokens for i in results]
        cap = max(level(sizes, sum(sizes) - excess), self.options.min_tokens)
        for i, size in zip(results, sizes, strict=True):
            if size > cap:
                yield _edit(view, i, cap)


def level(sizes: Sequence[int], total: int) -> int:
    """The largest cap c with sum(min(size, c)) <= total; 0 where there is none."""
    left = total
    ordered = sorted(sizes)
    for done, size in enumerate(ordered):
        share = left // (len(ordered) - done)
        if size > share:
            return max(share, 0)
        left -= size
    return max(ordered, default=0)


def _results(view: View, start: int, end: int) -> list[int]:
    last = view.last_user
    return [i for i in range(start, end) if view.items[i].role is Role.TOOL and i != last]


def _edit(view: View, i: int, cap: int) -> Replace:
    item = view.items[i]
    raw = shortened(item.message, cap, view.counter)
    return Replace(i, i + 1, (Literal(raw, Kind.SHORTENED, item.source),))
