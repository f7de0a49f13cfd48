"""`summary`: everything between the first user message and the newest turns becomes one plain summary.

The baseline for strategies that ask a model: it weighs nothing, keeps the newest turns that fit the goal, and lets the
model write one record of all that came before them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from strategies.core.budget import Budget
from strategies.core.errors import NothingToSummarize
from strategies.core.options import Options, option
from strategies.core.plan import Plan, stand_in, task_piece
from strategies.core.protocol import Past, Steps
from strategies.core.replacement import frame_tokens, replacement, stands_for
from strategies.core.split import Split
from strategies.core.summary import PLAIN, Span, record_cap, summarized
from strategies.core.view import View
from strategies.memory.attribution import attributed


@dataclass(frozen=True, slots=True)
class SummaryOptions(Options):
    """The summary's own cap, and whether memory cards are asked for beside it."""

    summary_max_tokens: int = option(2_000, 100)
    memory_cards: bool = option(True)


class Summary:
    """Asks one model for one summary."""

    name: ClassVar[str] = "summary"
    asks: ClassVar[bool] = True

    def __init__(self, options: SummaryOptions) -> None:
        self.options = options

    def condense(self, view: View, budget: Budget, past: Past) -> Steps:
        """A plan that puts a summary in the place of the shortest prefix that meets the goal."""
        cap = record_cap(view, budget, self.options.summary_max_tokens)
        split = Split(view, frame_tokens(view.counter) + cap.text, budget.task_cap)
        end = split.first_at_turn(budget.goal)
        if end is None:
            raise NothingToSummarize("no legal cut before the newest round")
        span = Span.before(view, end, view.tokens - split.after(end) + cap.text)
        form = PLAIN.with_cards() if self.options.memory_cards else PLAIN
        record = yield from summarized(span, span.cap(cap), budget, past, form)
        count = stands_for(view, end)
        edit = stand_in(view, end, replacement(record.text, count), task_piece(view, budget.task_cap))
        said = {"summarizedMessageCount": count, "calls": record.calls, "promptDigest": form.digest}
        return Plan((edit,), said, cards=attributed(record.cards, view, span.items))
