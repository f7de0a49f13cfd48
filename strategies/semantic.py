"""`semantic`: the least important messages become one structured record, the others stay unchanged.

Every message is scored. The first and the newest ones stay. Of the others, those with the lowest scores are forgotten
until the wanted number of events is left and the view meets its goal in tokens. A model condenses the forgotten
messages into a record of five sections, in the language of the conversation. If the model fails, or its answer is
refused, rules make the record. docs/internals/faithful.md lists where this departs from the source document of the
algorithm.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import ceil
from typing import ClassVar

from strategies.core.budget import Budget
from strategies.core.covered import covered
from strategies.core.errors import AnswerRefused
from strategies.core.history import Limits, originals
from strategies.core.ledger import append_ledger
from strategies.core.pieces import Piece
from strategies.core.plan import Plan, Replace, task_piece
from strategies.core.protocol import Options, SessionFacts, Steps, Strategy, Triggering, option
from strategies.core.record import record, whole_paragraphs, written_by_model
from strategies.core.replacement import frame_tokens, previous_text, replacement
from strategies.core.rounds import answered_calls
from strategies.core.summary import Cap, Record, RecordForm, Span, record_cap, summarize
from strategies.core.transcript import is_chinese
from strategies.core.view import View
from strategies.keywords import keywords
from strategies.memory.attribution import attribute_cards
from strategies.selection import (
    Aim,
    EventKind,
    MessageImportanceScorer,
    Selection,
    Unit,
    Wording,
    forgettable,
    select,
)

_DUE_SHARE = 10
_KINDS = (
    ("user messages", "edits", "tool calls", "assistant messages", "tool results"),
    ("用户消息", "编辑操作", "工具调用", "助手消息", "工具结果"),
)
"""What the kinds of events are called in a record, in the order of `EventKind`; English and Chinese."""


@dataclass(frozen=True, slots=True)
class SemanticOptions(Options):
    """Words in a list are separated by `;`. An empty list means the one in `strategies/keywords`."""

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
        """How many events a view of `events` should have afterwards."""
        return max(int(events * self.max_compression_ratio), self.keep_first + 2)


class Semantic(Strategy, Triggering):
    name: ClassVar[str] = "semantic"
    asks: ClassVar[bool] = True

    def __init__(self, options: SemanticOptions) -> None:
        self.options = options
        wording = Wording(
            error=_listed(options.error_words, "error"),
            instruction=_listed(options.instruction_words, "instruction"),
            success=_listed(options.success_words, "success"),
            operation=_listed(options.operation_words, "operation"),
            editing_tool=_listed(options.editing_tools, "editing_tool"),
        )
        self._scorer = MessageImportanceScorer(wording, options.max_event_length)

    def is_due(self, view: View, budget: Budget) -> bool:
        """Whether there are more events than `max_size`, and enough of them may be forgotten to be worth it."""
        if view.size <= self.options.max_size:
            return False
        return sum(len(unit.items) for unit in forgettable(view)) * _DUE_SHARE >= self.options.max_size

    def condense(self, view: View, budget: Budget, session: SessionFacts) -> Steps:
        cap = record_cap(view, budget, self.options.summary_max_tokens)
        aim = self._aim(view, budget, cap.text)
        selection = select(view, aim, self._scoring(view, session))
        span = _span(view, selection)
        cap = span.cap(cap)
        form = self._form(view)
        failure = ""
        try:
            made = yield from summarize(span, cap, budget, session, form)
        except AnswerRefused as refused:
            made, failure = self._by_rules(span, cap, budget, refused), refused.reason
        metadata = {
            "events": view.size,
            "target_size": aim.events,
            "scored": self.options.enable_semantic_analysis,
            "fallback": bool(failure),
            "fallback_reason": failure or None,
            "summary_calls": made.calls,
            "prompt_digest": form.digest,
            "compression_metrics": {
                "events_compressed": sum(i != view.replacement for i in selection.forgotten),
                "compression_ratio": round(view.counter.text(made.text) / selection.tokens, 4),
                "llm_tokens_used": made.tokens,
            },
        }
        edit = Replace(0, selection.end, tuple(_pieces(view, budget, selection, made.text)))
        return Plan((edit,), metadata, failure, attribute_cards(made.cards, view, span.items))

    def _aim(self, view: View, budget: Budget, cap: int) -> Aim:
        """What the selection should achieve.

        A view of fewer than `max_size` events keeps newest events in proportion to its size. Even if it already meets
        its goal and has few events, it is brought down to that proportion.
        """
        excess = view.tokens - budget.goal
        events = self.options.target_size(self.options.max_size)
        share = self.options.target_size(min(view.size, self.options.max_size))
        stays = max(share - self.options.keep_first - 1, 1)
        newest = ceil(stays / 2) if self.options.enable_semantic_analysis else stays
        if excess <= 0:
            return Aim(events if view.size > events else share, self.options.keep_first, newest, 0)
        wanted = excess + frame_tokens(view.counter) + cap
        if view.task is not None and task_piece(view, budget.task_cap) != (view.items[view.task].piece,):
            # The first user message will be cut too.
            wanted -= view.items[view.task].message.tokens - budget.task_cap
        return Aim(events, self.options.keep_first, newest, wanted)

    def _scoring(self, view: View, session: SessionFacts) -> Callable[[Unit], float]:
        """The score of a unit is that of its most important message. Without analysis, all units score the same."""
        if not self.options.enable_semantic_analysis:
            return lambda _: 0.0
        importance = self._importance(view, session)
        return lambda unit: max(filter(None, map(importance, unit.items)), default=0.0)

    def _importance(self, view: View, session: SessionFacts) -> Callable[[int], float | None]:
        """The score of an item, by its place in the view; None for an item that is not one of the client's messages."""
        sent = [i for i, item in enumerate(view.items) if item.source is not None]
        pairs = originals(view, view.items)
        answered = answered_calls(message for _, message in pairs)
        messages = dict(zip(sent, zip(pairs, answered, strict=True), strict=True))

        def score(place: int) -> float | None:
            if place not in messages:
                return None
            (index, message), calls = messages[place]
            first_seen = session.first_seen(index)
            age = None if first_seen is None else session.now - first_seen
            return self._scorer.score(message, next(filter(None, calls), None), age)

        return score

    def _form(self, view: View) -> RecordForm:
        chinese, most = is_chinese(view.transcript), self.options.max_event_length
        limits = Limits(most, results=most // 2, arguments=most // 4)
        form = RecordForm("semantic-zh", "现在写记录。", limits) if chinese else RecordForm("semantic", limits=limits)
        return form.with_cards("memory-zh" if chinese else "memory") if self.options.memory_cards else form

    def _by_rules(self, span: Span, cap: Cap, budget: Budget, refused: AnswerRefused) -> Record:
        """The record made by rules, with the cost of the failed calls."""
        ledger, room = span.ledger_and_room(cap, budget)
        view, counter, chinese = span.view, span.view.counter, is_chinese(span.view.transcript)
        source = covered(view, span.items, span.end, budget.task_cap)
        kinds = Counter(self._scorer.kind(message) for _, message in source.messages)
        named = zip(_KINDS[chinese], EventKind, strict=True)
        counts = ", ".join(f"{name} {kinds[kind]}" for name, kind in named if kinds[kind])
        earlier = whole_paragraphs(written_by_model(previous_text(view)), room // 2, counter)
        left = room - counter.text(f"{earlier}\n\n{counts}\n\n")
        parts = (
            earlier,
            counts if left > 0 else "",
            record(source, left, counter, chinese=chinese) if left > 0 else "",
        )
        return Record(append_ledger("\n\n".join(filter(None, parts)), ledger), refused.tokens, refused.calls)


def _listed(text: str, name: str) -> tuple[str, ...]:
    """The words of an option in lower case, or those of the list `name` if the option is empty."""
    words = [word.strip() for word in text.split(";")] if text else keywords(name)
    return tuple(word.lower() for word in words if word)


def _span(view: View, selection: Selection) -> Span:
    """The span that the record stands for. The task is shown too, so that the model knows what the work is about."""
    forgotten = [view.items[i] for i in selection.forgotten if i != view.replacement]
    items = forgotten if view.task is None or view.task >= selection.end else [view.items[view.task], *forgotten]
    return Span(view, items, selection.end, selection.tokens - frame_tokens(view.counter))


def _pieces(view: View, budget: Budget, selection: Selection, text: str) -> Iterator[Piece]:
    """The pieces for the items before the selection's end: the task, the record, then all items that stay."""
    forgotten = set(selection.forgotten)
    stays = [i for i in range(selection.end) if i not in forgotten]
    count = view.messages_before(selection.end) - sum(view.items[i].source is not None for i in stays)
    record = replacement(text, count, view.counter.dialect, chinese=is_chinese(view.transcript))
    if view.task not in stays:
        yield record
    for i in stays:
        if i == view.task:
            yield from (*task_piece(view, budget.task_cap), record)
        else:
            yield view.items[i].piece
