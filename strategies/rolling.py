"""`rolling`: one summary of seven sections that is written anew each time, with cards of what is worth remembering.

Source: reference `rolling-summary-memory.md`. The newest rounds that fit the target stay, with room for the summary;
all that came before them becomes one `context_summary` message, the earlier one merged into it. The model answers in
JSON: the summary, and memory cards. What is no such JSON is the summary as it is.

It condenses where its document says: past a share of what is usable, or where too little headroom is left for the next
turn. These are marks of its own, in place of the settings' `trigger` and `target`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from strategies.core.answer import Told
from strategies.core.budget import LEAST_TRIGGER, Budget, Marks
from strategies.core.cards import read_answer
from strategies.core.errors import NothingToSummarize
from strategies.core.language import is_chinese
from strategies.core.options import Options, option
from strategies.core.plan import Plan, stand_in, task_piece
from strategies.core.protocol import Injecting, Injection, Marking, Past, Steps
from strategies.core.replacement import context_summary, frame_tokens, stands_for
from strategies.core.split import Split
from strategies.core.summary import Form, Span, record_cap, summarized
from strategies.core.view import View
from strategies.memory.attribution import attributed

# Beside its summary an answer has what makes it JSON.
_QUOTING = 100
_HEADROOM, _HEADROOM_SHARE, _HEADROOM_SHARE_AT_MOST = 2_000, 0.1, 0.2


@dataclass(frozen=True, slots=True)
class RollingOptions(Options):
    """The document's parameters: shares of usable, messages that stay, the summary's own cap, what memory puts back."""

    compression_threshold: float = option(0.8, LEAST_TRIGGER, 1)
    retained_ratio: float = option(0.6, 0.05, 1)
    min_messages_to_keep: int = option(4, 1)
    summary_max_tokens: int = option(1_200, 100)
    memory_cards: bool = option(True)
    enable_memory_injection: bool = option(True)
    memory_top_k: int = option(5, 1)
    memory_max_tokens: int = option(800, 64)


class Rolling(Marking, Injecting):
    """Asks one model for one summary and its cards; several times where the history is larger than its window."""

    name: ClassVar[str] = "rolling"
    asks: ClassVar[bool] = True

    def __init__(self, options: RollingOptions) -> None:
        self.options = options

    def marks(self, budget: Budget) -> Marks:
        """The document's two triggers, whichever is reached first, and what it condenses to."""
        left = min(max(int(budget.window * _HEADROOM_SHARE), _HEADROOM), int(budget.window * _HEADROOM_SHARE_AT_MOST))
        with_headroom = 1 - left / budget.usable if budget.usable else 1.0
        trigger = max(min(self.options.compression_threshold, with_headroom), LEAST_TRIGGER)
        return replace(budget.marks, trigger=trigger, target=self.options.retained_ratio)

    @property
    def injection(self) -> Injection:
        """What the options say of memory."""
        chosen = self.options
        return Injection(chosen.enable_memory_injection, chosen.memory_top_k, chosen.memory_max_tokens)

    def condense(self, view: View, budget: Budget, past: Past) -> Steps:
        """A plan that puts a summary in the place of all but the newest rounds."""
        cap = record_cap(view, budget, self.options.summary_max_tokens)
        split = Split(view, frame_tokens(view.counter) + cap.text, budget.task_cap)
        end = self._end(split, view, budget.goal)
        span = Span.before(view, end, view.tokens - split.after(end) + cap.text)
        form = self._form(view)
        record = yield from summarized(span, span.cap(cap), budget, past, form)
        cards = attributed(record.cards, view, span.items)
        count = stands_for(view, end)
        edit = stand_in(view, end, context_summary(record.text, count), task_piece(view, budget.task_cap))
        said = {
            "summarizedMessageCount": count,
            "keptMessageCount": view.size - end,
            "calls": record.calls,
            "cardCount": len(cards),
            "promptDigest": form.digest,
        }
        return Plan((edit,), said, cards=cards)

    def _form(self, view: View) -> Form:
        form = _CHINESE if is_chinese(view.transcript) else _ENGLISH
        return form.with_cards(f"{form.template}-memory") if self.options.memory_cards else form

    def _end(self, split: Split, view: View, goal: int) -> int:
        """The first cut that meets the goal, or the last one that leaves as many messages as must stay."""
        cuts = [cut for cut in split.round_cuts() if cut <= view.size - self.options.min_messages_to_keep]
        if not cuts:
            raise NothingToSummarize("nothing before the newest messages")
        return next((cut for cut in cuts if split.after(cut) <= goal), cuts[-1])


def _told(answer: str) -> Told:
    """What an answer in JSON says; the text as it is where it is no such JSON."""
    found = read_answer(answer)
    return Told(found.text, tuple(found.cards), is_whole=found.is_parted)


_ENGLISH = Form("rolling", "Write the JSON object now.", read=_told, beside=_QUOTING)
_CHINESE = Form("rolling-zh", "现在写 JSON 对象。", read=_told, beside=_QUOTING)
