"""`recent`: the oldest rounds are dropped until the view is at its goal.

The cheapest baseline. The first user message, the question, pins, the newest round and an earlier replacement stay. A
user message is dropped with the last round of its turn, so that no round is left without its question.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from strategies.core.budget import Budget
from strategies.core.errors import NothingToDo
from strategies.core.plan import Plan, Replace
from strategies.core.protocol import Options, SessionFacts, Steps, Strategy
from strategies.core.rounds import Turn
from strategies.core.view import View


@dataclass(frozen=True, slots=True)
class Recent(Strategy):
    options: Options
    name: ClassVar[str] = "recent"

    def condense(self, view: View, budget: Budget, session: SessionFacts) -> Steps:
        yield from ()
        dropped = set(_to_drop(view, view.tokens - budget.goal))
        if not dropped:
            raise NothingToDo("nothing-to-drop")
        starts = sorted(i for i in dropped if i - 1 not in dropped)
        ends = sorted(i + 1 for i in dropped if i + 1 not in dropped)
        edits = tuple(Replace(start, end) for start, end in zip(starts, ends, strict=True))
        return Plan(edits, {"droppedMessageCount": len(dropped)})


def _to_drop(view: View, excess: int) -> Iterator[int]:
    """Yields the items to drop, oldest round first, until `excess` tokens are gone."""
    for turn in view.structure.turns:
        for unit in _units(view, turn):
            if excess <= 0:
                return
            for i in unit:
                excess -= view.items[i].message.tokens
                yield i


def _units(view: View, turn: Turn) -> Iterator[list[int]]:
    """Yields the items of a turn that may be dropped together: each round, and the user message with the last one."""
    keep = {view.task, view.replacement, *view.stays}
    cuts = view.structure.cuts
    users = [i for i in range(turn.start, turn.rounds[0].start if turn.rounds else turn.end) if i not in keep]
    if not cuts[turn.start]:
        return  # of a list whose result stands before its call
    if not turn.rounds and turn.end <= view.last_cut and cuts[turn.end]:
        yield users
    for span in turn.rounds:
        if span.end > view.last_cut or not (cuts[span.start] and cuts[span.end]):
            return
        rest = [i for i in range(span.start, span.end) if i not in keep]
        yield users + rest if span is turn.rounds[-1] else rest
