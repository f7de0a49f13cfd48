"""`rolling`: one summary of seven sections that is rewritten each time, with memory cards.

The newest rounds stay, as many as fit the target together with the summary. Everything before them becomes one
`context_summary` message, into which the earlier summary is merged. The model answers in JSON: the summary, and memory
cards. An answer that is not such JSON is taken as the summary itself. docs/internals/faithful.md lists where this
departs from the source document of the algorithm.

It has its own marks in place of the settings' `trigger` and `target`: it condenses at a certain share of usable, or if
too little headroom is left for the next turn.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from strategies.core.budget import MIN_TRIGGER, Budget, Marks
from strategies.core.errors import NothingToSummarize
from strategies.core.plan import Split
from strategies.core.protocol import Injecting, Injection, Marking, Options, SessionFacts, Steps, Strategy, option
from strategies.core.replacement import context_summary, frame_tokens, replaced_count
from strategies.core.summary import RecordForm, read_json_answer, record_cap, summarize
from strategies.core.transcript import is_chinese
from strategies.core.view import View
from strategies.summarizing import plan_record, span_before

# The tokens of JSON syntax in an answer, besides summary and cards.
_QUOTING = 100
_HEADROOM, _HEADROOM_SHARE, _MAX_HEADROOM_SHARE = 2_000, 0.1, 0.2


@dataclass(frozen=True, slots=True)
class RollingOptions(Options):
    """The parameters of the source document; docs/strategies.md describes each."""

    compression_threshold: float = option(0.8, MIN_TRIGGER, 1)
    retained_ratio: float = option(0.6, 0.05, 1)
    min_messages_to_keep: int = option(4, 1)
    summary_max_tokens: int = option(1_200, 100)
    memory_cards: bool = option(True)
    enable_memory_injection: bool = option(True)
    memory_top_k: int = option(5, 1)
    memory_max_tokens: int = option(800, 64)
    block: str = option("stays", one_of="stays turn")


@dataclass(frozen=True, slots=True)
class Rolling(Strategy, Marking, Injecting):
    options: RollingOptions
    name: ClassVar[str] = "rolling"
    asks: ClassVar[bool] = True
    continues: ClassVar[bool] = False

    def marks(self, budget: Budget) -> Marks:
        """The marks with the document's target, and the lower of its two triggers."""
        least_headroom = min(
            max(int(budget.window * _HEADROOM_SHARE), _HEADROOM), int(budget.window * _MAX_HEADROOM_SHARE)
        )
        with_headroom = 1 - least_headroom / budget.usable if budget.usable else 1.0
        trigger = max(min(self.options.compression_threshold, with_headroom), MIN_TRIGGER)
        return replace(budget.marks, trigger=trigger, target=self.options.retained_ratio)

    @property
    def injection(self) -> Injection:
        options = self.options
        asked, for_turn = options.enable_memory_injection, options.block == "turn"
        return Injection(asked, options.memory_top_k, options.memory_max_tokens, for_turn)

    def condense(self, view: View, budget: Budget, session: SessionFacts) -> Steps:
        cap = record_cap(view, budget, self.options.summary_max_tokens)
        split = Split(view, frame_tokens(view.counter) + cap.text, budget.task_cap)
        cuts = [cut for cut in split.round_cuts() if cut <= view.size - self.options.min_messages_to_keep]
        if not cuts:
            raise NothingToSummarize("nothing before the newest messages")
        end = next((cut for cut in cuts if split.tokens_after(cut) <= budget.goal), cuts[-1])
        span = span_before(end, view, split, cap)
        form = _CHINESE if is_chinese(view.transcript) else _ENGLISH
        form = form.with_cards(f"{form.template}-memory") if self.options.memory_cards else form
        record = yield from summarize(span, span.cap(cap), budget, session, form)
        metadata = {
            "summarizedMessageCount": replaced_count(view, end),
            "keptMessageCount": view.size - end,
            "calls": record.calls,
            "cardCount": len(record.cards),
            "promptDigest": form.digest,
        }
        return plan_record(record, span, budget, metadata, context_summary)


_ENGLISH = RecordForm("rolling", "Write the JSON object now.", read=read_json_answer, extra_tokens=_QUOTING)
_CHINESE = RecordForm("rolling-zh", "现在写 JSON 对象。", read=read_json_answer, extra_tokens=_QUOTING)
