"""`semantic`: the least important messages become one structured record, the others stay as they are.

Source: reference `semantic-condenser.md`. Every message is scored; the first ones and the newest stay, of those between
them the lowest scores are forgotten until as many events are left as wanted and the view meets its goal in tokens. What
is forgotten is condensed by a model into a record of five sections, in the language of the conversation. Where the
model fails or writes what may not stand for history, rules make the record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import ceil
from typing import Any, ClassVar

from strategies.core.budget import Budget
from strategies.core.condensation import Piece
from strategies.core.errors import AnswerRefused
from strategies.core.history import Limits, originals
from strategies.core.language import is_chinese
from strategies.core.ledger import joined
from strategies.core.options import Options, option
from strategies.core.plan import Plan, Replace, task_piece
from strategies.core.protocol import Past, Steps, Triggering
from strategies.core.replacement import frame_tokens, previous_text, replacement
from strategies.core.summary import Cap, Form, Record, Span, record_cap, summarized
from strategies.core.transcript import Call, Role
from strategies.core.view import View
from strategies.keywords import keywords
from strategies.memory.attribution import attributed
from strategies.rule_record import CHINESE, ENGLISH, rule_record
from strategies.scoring import MessageImportanceScorer, Wording
from strategies.selection import Aim, Selection, Unit, forgettable, selected

_DUE_SHARE = 10
_RESULTS, _ARGUMENTS = 2, 4


@dataclass(frozen=True, slots=True)
class SemanticOptions(Options):
    """Events and characters; the words are lists parted by `;`, where "" is the list of `strategies/keywords`."""

    max_size: int = option(100, 4)
    keep_first: int = option(1, 0)
    max_compression_ratio: float = option(0.3, 0.01, 1)
    max_event_length: int = option(8_000, 200)
    enable_semantic_analysis: bool = option(True)
    summary_max_tokens: int = option(2_000, 100)
    error_words: str = option("")
    instruction_words: str = option("")
    success_words: str = option("")
    operation_words: str = option("")
    editing_tools: str = option("")
    memory_cards: bool = option(True)

    def target_size(self, events: int) -> int:
        """Events that a view of so many should have afterwards."""
        return max(int(events * self.max_compression_ratio), self.keep_first + 2)

    @property
    def limits(self) -> Limits:
        """How much of a message a model is shown: words whole, results by half, arguments by a quarter."""
        most = self.max_event_length
        return Limits(most, most // _RESULTS, most // _ARGUMENTS)


class Semantic(Triggering):
    """Asks one model for one record of what is forgotten."""

    name: ClassVar[str] = "semantic"
    asks: ClassVar[bool] = True

    def __init__(self, options: SemanticOptions) -> None:
        self.options = options
        self._scorer = MessageImportanceScorer(_wording(options), options.max_event_length)

    def due(self, view: View, budget: Budget) -> bool:
        """Whether there are more events than `max_size`, and enough of them may be forgotten to be worth it."""
        if view.size <= self.options.max_size:
            return False
        return sum(len(unit.items) for unit in forgettable(view)) * _DUE_SHARE >= self.options.max_size

    def condense(self, view: View, budget: Budget, past: Past) -> Steps:
        """A plan that puts a record in the place of the least important messages."""
        cap = record_cap(view, budget, self.options.summary_max_tokens)
        aim = self._aim(view, budget, cap.text)
        selection = selected(view, aim, self._scoring(view, past))
        span = _span(view, selection)
        cap = span.cap(cap)
        form = self._form(view)
        failure = ""
        try:
            record = yield from summarized(span, cap, budget, past, form)
        except AnswerRefused as refused:
            record, failure = self._by_rules(span, cap, budget, refused), refused.reason
        metadata = {
            "events": view.size,
            "target_size": aim.events,
            "scored": self.options.enable_semantic_analysis,
            "fallback": bool(failure),
            "fallback_reason": failure or None,
            "summary_calls": record.calls,
            "prompt_digest": form.digest,
            "compression_metrics": _metrics(view, selection, record),
        }
        edit = Replace(0, selection.end, tuple(_pieces(view, budget, selection, record.text)))
        return Plan((edit,), metadata, failure, attributed(record.cards, view, span.items))

    def _aim(self, view: View, budget: Budget, cap: int) -> Aim:
        """What should be left. A view of fewer events has its share of newest ones, and where it is within its bounds
        already, the same share is what it is brought to."""
        excess = view.tokens - budget.goal
        events = self.options.target_size(self.options.max_size)
        share = self.options.target_size(min(view.size, self.options.max_size))
        stays = max(share - self.options.keep_first - 1, 1)
        newest = ceil(stays / 2) if self.options.enable_semantic_analysis else stays
        if excess <= 0:
            return Aim(events if view.size > events else share, self.options.keep_first, newest, 0)
        wanted = excess + frame_tokens(view.counter) + cap - _task_saving(view, budget)
        return Aim(events, self.options.keep_first, newest, wanted)

    def _scoring(self, view: View, past: Past) -> Callable[[Unit], float]:
        """How important a unit is: as its most important message; all alike where nothing is analysed."""
        if not self.options.enable_semantic_analysis:
            return lambda _: 0.0
        calls = _answered_calls(view)
        sent = (i for i, item in enumerate(view.items) if item.source is not None)
        messages = dict(zip(sent, originals(view, view.items), strict=True))

        def score(unit: Unit) -> float:
            found = [messages[i] for i in unit.items if i in messages]
            scored = [self._scorer.score(each, calls.get(index), _age(past, index)) for index, each in found]
            return max(scored, default=0.0)

        return score

    def _form(self, view: View) -> Form:
        chinese, limits = is_chinese(view.transcript), self.options.limits
        form = Form("semantic-zh", "现在写记录。", limits) if chinese else Form("semantic", limits=limits)
        return form.with_cards("memory-zh" if chinese else "memory") if self.options.memory_cards else form

    def _by_rules(self, span: Span, cap: Cap, budget: Budget, refused: AnswerRefused) -> Record:
        """The fallback's record, with what the model has cost."""
        ledger, left = span.carried(cap, budget)
        view = span.view
        names = CHINESE if is_chinese(view.transcript) else ENGLISH
        messages = [message for index, message in originals(view, span.items) if index != view.transcript.task]
        text = rule_record(messages, previous_text(view), left, names, self._scorer, view.counter)
        return Record(joined(text, ledger), refused.tokens, refused.calls)


def _wording(options: SemanticOptions) -> Wording:
    return Wording(
        error=_listed(options.error_words, "error"),
        instruction=_listed(options.instruction_words, "instruction"),
        success=_listed(options.success_words, "success"),
        operation=_listed(options.operation_words, "operation"),
        editing_tool=_listed(options.editing_tools, "editing_tool"),
    )


def _listed(text: str, name: str) -> tuple[str, ...]:
    """The words of an option in lower case, else those of the list `name`."""
    words = [word.strip() for word in text.split(";")] if text else keywords(name)
    return tuple(word.lower() for word in words if word)


def _answered_calls(view: View) -> dict[int, Call]:
    """The call that each result answers, by chain index: the n-th result of an id the n-th call of it."""
    waiting: dict[str, list[Call]] = {}
    found: dict[int, Call] = {}
    for index, message in originals(view, view.items):
        if message.role is Role.ASSISTANT:
            waiting |= {call.id: [each for each in message.calls if each.id == call.id] for call in message.calls}
        elif message.role is Role.TOOL and waiting.get(message.answers):
            found[index] = waiting[message.answers].pop(0)
    return found


def _age(past: Past, index: int) -> float | None:
    seen = past.first_seen(index)
    return None if seen is None else past.now - seen


def _span(view: View, selection: Selection) -> Span:
    """What the record stands for; the task is shown with it, so that whoever writes knows what it was about."""
    forgotten = [view.items[i] for i in selection.forgotten if i != view.replacement]
    shown = forgotten if view.task is None or view.task >= selection.end else [view.items[view.task], *forgotten]
    return Span(view, shown, selection.end, selection.tokens - frame_tokens(view.counter))


def _task_saving(view: View, budget: Budget) -> int:
    """Tokens by which the first user message is over its cap, where it will be cut."""
    if view.task is None or task_piece(view, budget.task_cap) == (view.items[view.task].piece,):
        return 0
    return view.items[view.task].message.tokens - budget.task_cap


def _pieces(view: View, budget: Budget, selection: Selection, text: str) -> Iterator[Piece]:
    """What stands for the items before the selection's end: the task, the record, then all that stays."""
    forgotten = set(selection.forgotten)
    stays = [i for i in range(selection.end) if i not in forgotten]
    behind = next((item.source for item in view.items[selection.end :] if item.source is not None), None)
    before = len(view.transcript.chain) if behind is None else behind
    record = replacement(text, before - sum(view.items[i].source is not None for i in stays))
    if view.task not in stays:
        yield record
    for i in stays:
        if i == view.task:
            yield from (*task_piece(view, budget.task_cap), record)
        else:
            yield view.items[i].piece


def _metrics(view: View, selection: Selection, record: Record) -> dict[str, Any]:
    """The document's metrics but for the time, which the driver knows; lengths are in tokens."""
    return {
        "events_compressed": sum(i != view.replacement for i in selection.forgotten),
        "compression_ratio": round(view.counter.text(record.text) / selection.tokens, 4),
        "llm_tokens_used": record.tokens,
    }
