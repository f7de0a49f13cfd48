"""`summary`: everything between the first user message and the newest turns becomes one plain summary.

This is the baseline for strategies that ask a model: it keeps the newest turns that fit the goal, weighs nothing by
importance, and lets the model write one record of everything before them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from strategies.core.budget import Budget
from strategies.core.errors import NothingToSummarize
from strategies.core.language import is_chinese
from strategies.core.options import Options, option
from strategies.core.plan import Plan, replace_before, task_piece
from strategies.core.protocol import Past, Steps, Strategy
from strategies.core.replacement import frame_tokens, replacement, stands_for
from strategies.core.split import Split
from strategies.core.summary import PLAIN, Span, record_cap, summarize
from strategies.core.view import View
from strategies.memory.attribution import attribute_cards


@dataclass(frozen=True, slots=True)
class SummaryOptions(Options):
    """The summary's own cap, and whether memory cards are asked for beside it."""

    summary_max_tokens: int = option(2_000, 100)
    memory_cards: bool = option(True)


class Summary(Strategy):
    """Asks one model for one summary."""

    name: ClassVar[str] = "summary"
    asks: ClassVar[bool] = True

    def __init__(self, options: SummaryOptions) -> None:
        self.options = options

    def condense(self, view: View, budget: Budget, past: Past) -> Steps:
        """Plans a summary in the place of the shortest prefix that meets the goal."""
        cap = record_cap(view, budget, self.options.summary_max_tokens)
        split = Split(view, frame_tokens(view.counter) + cap.text, budget.task_cap)
        end = split.first_at_turn(budget.goal)
        if end is None:
            raise NothingToSummarize("no legal cut before the newest round")
        span = Span.before(view, end, view.tokens - split.tokens_after(end) + cap.text)
        form = PLAIN.with_cards() if self.options.memory_cards else PLAIN
        record = yield from summarize(span, span.cap(cap), budget, past, form)
        count = stands_for(view, end)
        piece = replacement(record.text, count, chinese=is_chinese(view.transcript))
        edit = replace_before(view, end, piece, task_piece(view, budget.task_cap))
        metadata = {"summarizedMessageCount": count, "calls": record.calls, "promptDigest": form.digest}
        return Plan((edit,), metadata, cards=attribute_cards(record.cards, view, span.items))
