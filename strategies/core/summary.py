"""Summaries: how a record is asked for, and which answer may stand for history.

`summarized` asks for one record of a span, in one of two forms:

    isolated    the span as fenced text, alone with its instructions: any model can write it
    continued   the view itself up to the span's end, with the instructions as one more message: the upstream has read
                that prefix before, so its prompt cache is hit; only where prefix and answer fit the model's window

A span that is too long for one prompt is shown in parts, one after the other, each with the record so far to be merged
in. One answer that may not count fails the whole.

History must never be replaced by rubbish. An answer counts when the model stopped by itself, called no tool,
wrote something that is no refusal and no echo of the prompt, kept within its cap and is smaller than what it
stands for.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from strategies.core.budget import Budget
from strategies.core.carrying import ledger_tokens, next_ledger
from strategies.core.effects import SUMMARIZER, Answer, Ask, Effect, Failure, Result
from strategies.core.errors import AnswerRefused, Declined, NothingToSummarize
from strategies.core.excerpt import cut_text
from strategies.core.history import WIDEST, Limits, in_parts, originals, unfenced
from strategies.core.ledger import Ledger, joined
from strategies.core.protocol import Past
from strategies.core.replacement import previous_text, room
from strategies.core.transcript import Counter, Transcript
from strategies.core.view import Item, View
from strategies.prompts import prompt

MOST_PARTS = 8
LEAST_RECORD = 48
_LEAST_PART = 256
_FRAMES = 64
_CAUTION = 0.9
_TAGS = re.compile(r"</?summary>", re.IGNORECASE)
_REFUSALS = re.compile(
    r"^\W*(i'?m sorry|i am sorry|sorry,|i can'?t|i cannot|i'm unable|i am unable|as an ai|抱歉|对不起|我无法|我不能)",
    re.IGNORECASE,
)
_REFUSAL_TOKENS = 80
_WORDS_PER_TOKEN = 0.6
# A summary may well begin as the earlier record did; only the instructions and the fence are nothing of its own.
_ECHO = 60
_FENCE = re.compile(r"<message index=|<history>|<earlier_record>")


class Form(NamedTuple):
    """How a record is asked for: the template, the line behind the history, and the most that is shown of a message.

    `beside` are tokens that an answer may have for other things than its record, as many as that at most. A template
    NAME.md has a twin NAME-continue.md for a model that goes on from the view.
    """

    template: str = "summary"
    closing: str = "Write the record now."
    limits: Limits = WIDEST
    beside: int = 0

    def answer(self, cap: int) -> int:
        """Tokens of a whole answer with a record of `cap`."""
        return cap + min(self.beside, cap)


PLAIN = Form()


class Cap(NamedTuple):
    """The most tokens of a replacement's `text`, which is record and ledger, and of the `record` alone."""

    text: int
    record: int


@dataclass(frozen=True, slots=True)
class Span:
    """What a record is to stand for: `items`, all before item `end`; fewer than `tokens`, ledger included."""

    view: View
    items: Sequence[Item]
    end: int
    tokens: int

    @classmethod
    def before(cls, view: View, end: int, tokens: int) -> Span:
        """All items before `end` that no earlier record stands for."""
        start = 0 if view.replacement is None else view.replacement + 1
        return cls(view, view.items[start:end], end, tokens)

    def cap(self, most: Cap) -> Cap:
        """Tokens that may stand for it: half of its own, at most `most`; raises where that says nothing."""
        half = self.tokens // 2
        if half < LEAST_RECORD:
            raise NothingToSummarize(f"a record would save less than {LEAST_RECORD} tokens")
        return Cap(min(most.text, half), min(most.record, half))

    def carried(self, cap: Cap, budget: Budget) -> tuple[Ledger, int]:
        """The ledger that stands behind its record, and the tokens that are left for the record.

        The user's rules come first, then the record, then facts. Raises `Declined` where no record has room.
        """
        kept = next_ledger(self.view, self.items, self.end, budget)
        for ledger in (kept, replace(kept, facts=())):
            left = min(cap.text - ledger_tokens(ledger, self.view.counter), cap.record)
            if left >= LEAST_RECORD:
                return ledger, left
        raise Declined("no-room", f"{left} tokens for a summary behind the ledger")


class Record(NamedTuple):
    """A text that may stand for its span; `tokens` of all `calls` that led to it, as the upstream counts them."""

    text: str
    tokens: int
    calls: int


Recording = Generator[tuple[Effect, ...], tuple[Result, ...], Record]


def record_cap(view: View, budget: Budget, most: int) -> Cap:
    """Tokens for a record of at most `most` and its ledger; raises `Declined` where that is too little."""
    text = min(room(budget.replacement_cap, view.counter), most + budget.ledger.rules + budget.ledger.facts)
    record = min(text, most, _prompt_window(budget) // 4)
    if record < LEAST_RECORD:
        raise Declined("no-room", f"{record} tokens for a summary")
    return Cap(text, record)


def summarized(span: Span, cap: Cap, budget: Budget, past: Past, form: Form = PLAIN) -> Recording:
    """One record of a span and its ledger; raises `AnswerRefused` with the first answer that may not count."""
    ledger, left = span.carried(cap, budget)
    smaller = replace(span, tokens=span.tokens - ledger_tokens(ledger, span.view.counter))
    record = yield from _recorded(smaller, left, budget, past, form)
    return record._replace(text=joined(record.text, ledger))


def _recorded(span: Span, cap: int, budget: Budget, past: Past, form: Form) -> Recording:
    """The record alone, in at most `cap` tokens."""
    counter = span.view.counter
    continued = _continued(span, cap, budget, form) if past.continues else None
    if continued is not None:
        return (yield from _answered(continued, span.tokens, counter, Record("", 0, 0)))
    system = _instructions(form.template, cap)
    left = int((_prompt_window(budget) - form.answer(cap)) * _CAUTION) - counter.text(system) - _FRAMES
    earlier = cut_text(previous_text(span.view), max(left // 2, _LEAST_PART), counter)
    record = Record(earlier, 0, 0)
    for part in _parts(span, left, counter.text(earlier), cap, form.limits):
        question = Ask(system, _shown(record.text, part, form.closing), cap, SUMMARIZER)
        record = yield from _answered(question, span.tokens, counter, record)
    return record


def _prompt_window(budget: Budget) -> int:
    return budget.window if budget.prompt_window is None else budget.prompt_window


def _instructions(template: str, cap: int) -> str:
    return prompt(template).replace("{max_words}", str(int(cap * _WORDS_PER_TOKEN)))


def _parts(span: Span, left: int, earlier: int, cap: int, limits: Limits) -> list[str]:
    """The span's text, in parts where the tokens `left` do not take it: then a record of `cap` stands before each."""
    counter = span.view.counter
    messages = originals(span.view, span.items)
    parts = in_parts(messages, max(left - earlier, _LEAST_PART), MOST_PARTS, counter, limits)
    if len(parts) == 1:
        return parts
    return in_parts(messages, max(left - max(earlier, cap), _LEAST_PART), MOST_PARTS, counter, limits)


def _shown(record: str, part: str, closing: str) -> str:
    """The prompt: an earlier record, and history, each in its fence."""
    before = f"<earlier_record>\n{unfenced(record)}\n</earlier_record>\n\n" if record else ""
    return f"{before}<history>\n{part}\n</history>\n\n{closing}"


def _continued(span: Span, cap: int, budget: Budget, form: Form) -> Ask | None:
    """The question to go on from the view up to the span's end; None where that does not fit."""
    view = span.view
    instructions = _instructions(f"{form.template}-continue", cap)
    prefix = view.fixed + sum(item.message.tokens for item in view.items[: span.end])
    if prefix + view.counter.text(instructions) + _FRAMES + form.answer(cap) > _prompt_window(budget):
        return None
    return Ask("", instructions, cap, SUMMARIZER, view=_prefix(view, span.end))


def _prefix(view: View, end: int) -> str:
    """The message list before item `end` as JSON text: what comes later is none of the record's business.

    A client may go back and take another way from there, and the record still applies.
    """
    behind = next((item.source for item in view.items[end:] if item.source is not None), len(view.transcript.chain))
    reach = behind if end >= view.head else 0
    systems = tuple((place, message) for place, message in view.transcript.systems if place <= reach)
    transcript = Transcript(view.transcript.chain, systems, form=view.transcript.form)
    head = min(view.head, end)
    return View(transcript, view.items[:end], head, view.covered, view.fixed, view.counter).to_json()


def _answered(asked: Ask, span_tokens: int, counter: Counter, before: Record) -> Recording:
    """The record of one answer, with what was spent `before`."""
    (result,) = yield (asked,)
    tokens = before.tokens + (result.tokens if isinstance(result, Answer) else 0)
    try:
        text = accepted(result, asked, span_tokens, counter)
    except AnswerRefused as refused:
        raise AnswerRefused(refused.reason, refused.detail, tokens, before.calls + 1) from None
    return Record(text, tokens, before.calls + 1)


def accepted(result: Result, asked: Ask, span_tokens: int, counter: Counter) -> str:
    """The text of an answer that may stand for `span_tokens` of history; raises `AnswerRefused`."""
    if not isinstance(result, Answer):
        raise AnswerRefused(f"summary-{result.reason if isinstance(result, Failure) else 'unreadable'}")
    text = _TAGS.sub("", result.text).strip()
    reason = _refused(result, text, asked, counter)
    if reason:
        raise AnswerRefused(reason)
    if counter.text(text) >= span_tokens:
        raise AnswerRefused("summary-not-smaller")
    return text


def _refused(answer: Answer, text: str, asked: Ask, counter: Counter) -> str:
    if answer.called_tools:
        return "summary-called-tools"
    if answer.finish_reason == "length":
        return "summary-cut-short"
    if answer.finish_reason != "stop":
        return "summary-not-finished"
    if not text:
        return "summary-empty"
    if counter.text(text) > asked.max_tokens:
        return "summary-too-long"
    return _not_a_record(text, asked, counter)


def _not_a_record(text: str, asked: Ask, counter: Counter) -> str:
    instructions = asked.system if asked.view is None else asked.user
    if _REFUSALS.match(text) and counter.text(text) < _REFUSAL_TOKENS:
        return "summary-refused"
    if _FENCE.search(text) or (len(text) > _ECHO and text[:_ECHO] in instructions):
        return "summary-echo"
    return ""
