"""`summary`: everything between the first user message and the newest turns becomes one plain summary.

It is the baseline for strategies that ask a model, because it does not weigh messages by importance.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from strategies.core.budget import Budget
from strategies.core.errors import NothingToSummarize
from strategies.core.plan import Split
from strategies.core.protocol import Options, SessionFacts, Steps, Strategy, option
from strategies.core.replacement import frame_tokens, replaced_count
from strategies.core.summary import PLAIN, record_cap, summarize
from strategies.core.view import View
from strategies.summarizing import plan_record, span_before


@dataclass(frozen=True, slots=True)
class SummaryOptions(Options):
    summary_max_tokens: int = option(2_000, 100)
    memory_cards: bool = option(True)


@dataclass(frozen=True, slots=True)
class Summary(Strategy):
    options: SummaryOptions
    name: ClassVar[str] = "summary"
    asks: ClassVar[bool] = True

    def condense(self, view: View, budget: Budget, session: SessionFacts) -> Steps:
        """Plans a summary of the shortest prefix that meets the goal."""
        cap = record_cap(view, budget, self.options.summary_max_tokens)
        split = Split(view, frame_tokens(view.counter) + cap.text, budget.task_cap)
        end = split.first_at_turn(budget.goal)
        if end is None:
            raise NothingToSummarize("no legal cut before the newest round")
        span = span_before(end, view, split, cap)
        form = PLAIN.with_cards() if self.options.memory_cards else PLAIN
        record = yield from summarize(span, span.cap(cap), budget, session, form)
        metadata = {
            "summarizedMessageCount": replaced_count(view, end),
            "calls": record.calls,
            "promptDigest": form.digest,
        }
        return plan_record(record, span, budget, metadata)
