"""Summaries: how a record is asked for, and which answer may stand for history.

`summarized` asks for one record of a span, in one of two forms:

    isolated    the span as fenced text, alone with its instructions: any model can write it
    continued   the view itself up to the span's end, with the instructions as one more message: the upstream has read
                that prefix before, so its prompt cache is hit; only where prefix and answer fit the model's window

A span that is too long for one prompt is shown in parts, one after the other, each with the record so far to be merged
in. One answer that may not count fails the whole; `answer` says which may.

Memory cards are asked for in the same call, behind the record, where the form has a template for them. They never cost
a call of their own: where a history fits one prompt without them and not with them, none are asked for.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from strategies.core.answer import Question, Reading, accepted, as_text
from strategies.core.budget import Budget
from strategies.core.cards import MemoryCard
from strategies.core.carrying import ledger_tokens, next_ledger
from strategies.core.effects import SUMMARIZER, Answer, Ask, Effect, Result
from strategies.core.errors import AnswerRefused, Declined, NothingToSummarize
from strategies.core.excerpt import cut_text
from strategies.core.history import WIDEST, Limits, in_one, in_parts, originals, unfenced
from strategies.core.ledger import Ledger, joined
from strategies.core.protocol import Past
from strategies.core.replacement import previous_text, room
from strategies.core.transcript import Transcript
from strategies.core.view import Item, View
from strategies.prompts import prompt, prompt_digest

MOST_PARTS = 8
LEAST_RECORD = 48
_LEAST_PART = 256
_FRAMES = 64
_CAUTION = 0.9
_WORDS_PER_TOKEN = 0.6
CARD_TOKENS = 500
"""What the cards of one answer may have."""
LEAST_WINDOW_FOR_CARDS = 2_000
"""In a smaller one, to ask for cards would take what the history needs."""


class Form(NamedTuple):
    """How a record is asked for: the template, the line behind the history, and the most that is shown of a message.

    `read` says what an answer tells; one that is refused is asked for again, up to `tries` times. `beside` are tokens
    for what makes an answer of its record. `cards` is the template that asks for memory cards, "" where none are
    wanted. A template NAME.md has a twin NAME-continue.md for a model that goes on from the view; that of cards stands
    behind either.
    """

    template: str = "summary"
    closing: str = "Write the record now."
    limits: Limits = WIDEST
    read: Reading = as_text
    tries: int = 1
    beside: int = 0
    cards: str = ""

    def with_cards(self, template: str = "memory") -> Form:
        """The form with cards asked for by a template."""
        return self._replace(cards=template)

    def within(self, window: int) -> Form:
        """The form for a summarizer's window: without cards where it is too small for them."""
        return self if window >= LEAST_WINDOW_FOR_CARDS else self.without_cards()

    def without_cards(self) -> Form:
        """The form for a record alone."""
        return self._replace(cards="")

    @property
    def digest(self) -> str:
        """The digest of its templates."""
        return prompt_digest(self.template, *filter(None, (self.cards,)))

    def instructions(self, cap: int, *, continued: bool = False) -> str:
        """What asks for a record of `cap` tokens, and for cards."""
        asked = prompt(f"{self.template}-continue" if continued else self.template)
        text = f"{asked}\n\n{prompt(self.cards)}" if self.cards else asked
        return text.replace("{max_words}", str(int(cap * _WORDS_PER_TOKEN)))

    def answer(self, cap: int) -> int:
        """Tokens of a whole answer with a record of `cap`: what stands beside it has as many at most."""
        return cap + min(self.beside + (CARD_TOKENS if self.cards else 0), cap)


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
    """A text that may stand for its span; `tokens` of all `calls` that led to it, as the upstream counts them.

    `cards` are those that came with it, without what the shell knows of them: when, and with which condensation.
    """

    text: str
    tokens: int
    calls: int
    cards: tuple[MemoryCard, ...] = ()


NONE = Record("", 0, 0)
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
    record = yield from _recorded(smaller, left, budget, past, form.within(_prompt_window(budget)))
    return record._replace(text=joined(record.text, ledger))


def _recorded(span: Span, cap: int, budget: Budget, past: Past, form: Form) -> Recording:
    """The record alone, in at most `cap` tokens."""
    counter = span.view.counter
    forms = dict.fromkeys((form, form.without_cards()))
    continued = _continued(span, cap, budget, forms) if past.continues else None
    if continued is not None:
        ask, form = continued
        return (yield from _answered(Question(ask, cap, span.tokens, counter, form.read), form, NONE))
    layout = _layout(span, cap, budget, forms)
    form, record = layout.form, Record(layout.earlier, 0, 0)
    for part in layout.parts:
        shown = _shown(record.text, part, form.closing)
        ask = Ask(layout.system, shown, form.answer(cap), SUMMARIZER, record=cap)
        record = yield from _answered(Question(ask, cap, span.tokens, counter, form.read), form, record)
    return record


class _Layout(NamedTuple):
    """How a span is shown: in what form, with what instructions, behind what earlier record, in what parts."""

    form: Form
    system: str
    earlier: str
    parts: list[str]


class _Prompt(NamedTuple):
    """What a form's instructions leave of the summarizer's window: `left` tokens for record and history."""

    form: Form
    system: str
    earlier: str
    left: int
    history: int

    @classmethod
    def of(cls, span: Span, cap: int, budget: Budget, form: Form) -> _Prompt:
        """The room for a span and the earlier record, of which half may be the record's."""
        counter, system = span.view.counter, form.instructions(cap)
        left = int((_prompt_window(budget) - form.answer(cap)) * _CAUTION) - counter.text(system) - _FRAMES
        earlier = cut_text(previous_text(span.view), max(left // 2, _LEAST_PART), counter)
        return cls(form, system, earlier, left, max(left - counter.text(earlier), _LEAST_PART))


def _layout(span: Span, cap: int, budget: Budget, forms: Iterable[Form]) -> _Layout:
    """The first form in which the span is one part, so that cards never cost another call; else the first in several.

    Of several parts each stands behind a record of `cap`.
    """
    counter, messages = span.view.counter, originals(span.view, span.items)
    prompts = [_Prompt.of(span, cap, budget, form) for form in forms]
    for prompted in prompts:
        whole = in_one(messages, prompted.history, counter, prompted.form.limits)
        if whole is not None:
            return _Layout(prompted.form, prompted.system, prompted.earlier, [whole])
    first = prompts[0]
    each = max(min(first.history, first.left - cap), _LEAST_PART)
    parts = in_parts(messages, each, MOST_PARTS, counter, first.form.limits)
    return _Layout(first.form, first.system, first.earlier, parts)


def _prompt_window(budget: Budget) -> int:
    return budget.window if budget.prompt_window is None else budget.prompt_window


def _shown(record: str, part: str, closing: str) -> str:
    """The prompt: an earlier record, and history, each in its fence."""
    before = f"<earlier_record>\n{unfenced(record)}\n</earlier_record>\n\n" if record else ""
    return f"{before}<history>\n{part}\n</history>\n\n{closing}"


def _continued(span: Span, cap: int, budget: Budget, forms: Iterable[Form]) -> tuple[Ask, Form] | None:
    """The question to go on from the view up to the span's end, in the first form in which that fits; None for none."""
    view = span.view
    prefix = view.fixed + sum(item.message.tokens for item in view.items[: span.end])
    for form in forms:
        instructions = form.instructions(cap, continued=True)
        if prefix + view.counter.text(instructions) + _FRAMES + form.answer(cap) <= _prompt_window(budget):
            prefixed = _prefix(view, span.end)
            return Ask("", instructions, form.answer(cap), SUMMARIZER, view=prefixed, record=cap), form
    return None


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


def _answered(question: Question, form: Form, before: Record) -> Recording:
    """The record of the first answer that may count, with what came and was spent `before`.

    A model that fails is not asked again: it would fail again, and whoever waits has no time for it.
    """
    tokens, calls = before.tokens, before.calls
    while True:
        (result,) = yield (question.ask,)
        tokens, calls = tokens + (result.tokens if isinstance(result, Answer) else 0), calls + 1
        try:
            told = accepted(result, question)
        except AnswerRefused as refused:
            if isinstance(result, Answer) and calls - before.calls < form.tries:
                continue
            raise AnswerRefused(refused.reason, refused.detail, tokens, calls) from None
        cards = dict.fromkeys((*before.cards, *(told.cards if form.cards else ())))
        return Record(told.record, tokens, calls, tuple(cards))
