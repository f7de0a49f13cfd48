"""`extract`: old history becomes a record made by rules, without a model.

The record (`core.record`) and the ledger behind it are made anew at each condensation, of all messages that they stand
for. A summary that a model wrote earlier stands before them, in at most half of the room.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from strategies.core.budget import Budget
from strategies.core.covered import Covered, covered, ledger_of
from strategies.core.errors import NothingToDo
from strategies.core.ledger import LedgerCaps, append_ledger
from strategies.core.plan import Plan, Split, replace_before
from strategies.core.protocol import Options, SessionFacts, Steps, Strategy, option
from strategies.core.record import record, whole_paragraphs, written_by_model
from strategies.core.replacement import (
    frame_tokens,
    previous_text,
    replaced_count,
    replacement,
    text_room,
)
from strategies.core.transcript import is_chinese
from strategies.core.view import View

_EARLIER_SHARE = 0.5
_FULL = 0.8  # of its room: a record that takes so much is not made again to save the rest
_TOLD_SHARE, _NAMES_SHARE = 0.3, 0.3  # of a replacement's text; the rest is for the user's words


@dataclass(frozen=True, slots=True)
class ExtractOptions(Options):
    """`max_tokens` bounds the record without its ledger."""

    max_tokens: int = option(1_200, 100)
    depth: float = option(0.3, 0.1, 1)
    """The share of usable to which a view is cut even if the goal is higher.

    A deeper cut costs no call, and the next one comes later.
    """


@dataclass(frozen=True, slots=True)
class Extract(Strategy):
    options: ExtractOptions
    name: ClassVar[str] = "extract"

    def condense(self, view: View, budget: Budget, session: SessionFacts) -> Steps:
        yield from ()
        goal = min(budget.goal, int(budget.usable * self.options.depth))
        small, counter = budget.window // 10, view.counter
        # More than half of so low a goal would leave few turns, and the next condensation would come too soon.
        large = max(small, min(budget.replacement_cap, goal // 2))
        end, text = self._recorded(view, budget, goal, large, large)
        used = max(frame_tokens(counter) + counter.text(text), small)
        if used < large * _FULL:  # What the record does not need is for turns.
            end, text = self._recorded(view, budget, goal, large, used)
        if not text:
            raise NothingToDo("nothing-to-extract")
        piece = replacement(text, replaced_count(view, end), counter.dialect, chinese=is_chinese(view.transcript))
        edit = replace_before(view, end, piece, budget.task_cap)
        return Plan((edit,), {"extractedMessageCount": replaced_count(view, end)})

    def _recorded(self, view: View, budget: Budget, goal: int, large: int, cap: int) -> tuple[int, str]:
        """The end of the shortest prefix that brings the view to `goal`, and the text that stands for it.

        Text and frame have at most `cap` tokens; their parts have the shares of `large`.
        """
        counter = view.counter
        bound = self.options.max_tokens + budget.ledger.all
        whole, most = min(text_room(large, counter), bound), min(text_room(cap, counter), bound)
        end = Split(view, frame_tokens(counter) + most, budget.task_cap).first_at_round(goal)
        start = 0 if view.replacement is None else view.replacement + 1
        if end is None and start and view.items[start - 1].message.tokens > budget.replacement_cap:
            end = start  # Nothing else can go, but the earlier record is too large for this window.
        if end is None:
            raise NothingToDo("nothing-to-extract")
        source = covered(view, view.items[start:end], end, budget.task_cap)
        # It covers less than the first one, so it is hardly ever longer. Under a bound of its own the parts that are
        # fitted first would take the room that the others had.
        text = self._text(source, budget.ledger, whole, whole)
        return end, text if counter.text(text) <= most else self._text(source, budget.ledger, whole, most)

    def _text(self, source: Covered, caps: LedgerCaps, whole: int, most: int) -> str:
        """The record in its share of `whole` tokens, and the ledger in what is left of `most`."""
        view, counter = source.view, source.view.counter
        carried = whole_paragraphs(written_by_model(previous_text(view)), int(most * _EARLIER_SHARE), counter)
        taken = counter.text(carried) + 2 if carried else 0
        room = whole - taken
        told = min(int(room * _TOLD_SHARE), most - taken, self.options.max_tokens)
        made = "\n\n".join(filter(None, (carried, record(source, told, counter, chinese=is_chinese(view.transcript)))))
        left = most - (counter.text(made) + 2 if made else 0)
        names = min(caps.names, int(room * _NAMES_SHARE))
        return append_ledger(made, ledger_of(source, replace(caps, names=names, together=left), counter))
