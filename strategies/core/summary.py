"""Summaries: asks a model for a record that stands for a span of history.

`summarize` asks for one record, in one of two ways:

    isolated    the span is shown as fenced text, alone with the instructions: any model can do this
    continued   the view up to the end of the span is sent, with the instructions as its last message. The upstream has
                read that prefix before, so its prompt cache is hit. Used only if prefix and answer fit the model's
                window

A span that is too long for one prompt is shown in parts, one after the other, each together with the record so far,
which the model merges in. If one answer is refused, the whole summary fails.

Memory cards are asked for in the same call, after the record, if the form has a template for them. They never cost an
extra call: if the history fits into one prompt only without them, they are not asked for.

History must never be replaced by rubbish, so `accept` decides which answers may stand for it. An answer is accepted if
the model stopped by itself and called no tool, and if its record

- has the form that was asked for: what stands in the last pair of `<summary>` tags, or in a JSON object. An answer that
  should be JSON and cannot be read as such is the record itself, if it is prose,
- is neither a refusal nor an echo of the prompt, nor nothing but code or JSON,
- is within its cap and smaller than the history that it stands for,
- says something: it is no report of a failure, no placeholder, no list of empty sections, and no crumb of its span. A
  section that is missing is no failure.

Problems with memory cards never cost the record: a broken or truncated list of cards is left out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import NamedTuple

from strategies.core.budget import Budget
from strategies.core.cards import MemoryCard, read_cards
from strategies.core.effects import Answer, Ask, Effect, Failure, Result
from strategies.core.errors import AnswerRefused, Declined, NothingToSummarize
from strategies.core.excerpt import cut_text
from strategies.core.history import WIDEST, Limits, break_fences, in_one, in_parts, originals
from strategies.core.ledger import Ledger, append_ledger
from strategies.core.messages import TokenCounter
from strategies.core.parsing import last_tag_content, without_thoughts
from strategies.core.protocol import SessionFacts
from strategies.core.replacement import ledger_caps, ledger_tokens, next_ledger, previous_text, text_room
from strategies.core.transcript import Transcript
from strategies.core.view import Item, View
from strategies.prompts import prompt, prompt_digest

_WORK = (
    r"(?:summari[sz]|generat|creat|produc|provid|writ|process|complet|comply|assist|help|continu|condens|do\s(?:so|th))"
)
_REFUSALS = re.compile(
    rf"""\W*(?:
        (?:(?:i|we)['’](?:m|re)|i\sam|we\sare|i\swas|we\swere)\s(?:sorry|unable|not\sable)
      | (?:i|we)\s(?:can['’]?t|cannot|(?:could\snot|couldn['’]t)\s{_WORK})
      | sorry, | as\san\sai
      | unable\sto\s(?:{_WORK}|[^.;\n]*[.\s]*\Z)
      | (?:很|非常)?抱歉 | 对不起 | 我们?(?:无法|不能) | 无法(?:生成|总结|概括|提供|完成|处理|创建|[^。；;\n]*[。\s]*\Z)
    )""",
    re.IGNORECASE | re.VERBOSE,
)
_FAILURES = re.compile(
    r"""\W*(?:
        (?:the\s)?summary(?:\s(?:generation|creation))?\s(?:has\s)?(?:failed|(?:is\s)?(?:unavailable|not\savailable))
      | failed\sto\s(?:summari[sz]e|(?:generate|create|produce|write)\s(?:an?\s|the\s)?(?:summary|record))
      | no\ssummary | nothing\sto\ssummari[sz]e
      | (?:生成)?(?:摘要|总结)(?:生成)?(?:失败|出错|不可用) | 暂?无(?:可用的?)?(?:摘要|总结)
    )(?=\W*(?:\Z|[.。!！:：,，(（]|\s(?:after|because|due|with|for|was|could)\b))""",
    re.IGNORECASE | re.VERBOSE,
)
_REFUSAL_TOKENS = 80
LEAST_SHARE, LEAST_TOKENS = 1 / 50, 40
"""A record with fewer tokens than this share of its span, or than this many, says next to nothing about it."""
_HEADING = re.compile(r"\s*(?:#{1,6}\s.{1,40}|\*\*[^*]{1,40}\*\*)\s*")
_LABEL = re.compile(r"[^:：]{1,40}[:：](?!/)")
_NO_LETTERS = re.compile(r"[\W\d_]+")
_PLACEHOLDERS = re.compile(
    "(?:na|none|noneyet|null|nil|nothing|nothingyet|empty|unknown|tbd|todo|record|summary|contextsummary|placeholder"
    "|无|没有|暂无|不适用|空|未知|摘要|总结|上下文摘要)?"
)
_BRACKETED = re.compile(r"[\[<({【「].{0,60}[\]>)}】」]")
# A summary may well begin like the earlier record, so only echoes of the instructions and of the fence count.
_ECHO = 60
_FENCE = re.compile(r"<message index=|<history>|<earlier_record>")
_NOT_PROSE = re.compile(r"(?s)```.*```|[\[{]\s*[\"{\[].*[\]}]")  # a record that is nothing but code, or JSON


class ParsedAnswer(NamedTuple):
    """The record in an answer, and the cards next to it."""

    record: str
    cards: tuple[MemoryCard, ...] = ()
    well_formed: bool = True  # whether the answer has the form that was asked for
    is_complete: bool = False  # whether the record is known to be complete even if the answer was cut short


AnswerReader = Callable[[str], ParsedAnswer]

_BLOCK = re.compile(r"<memory>\s*(?:```\w*\s*)?(?=[\[{])", re.IGNORECASE)
_EMPTY_BLOCK = re.compile(r"<memory>[^<]{0,80}</memory>\s*\Z", re.IGNORECASE)
_CLOSED = re.compile(r"</memory>", re.IGNORECASE)
_OBJECT = re.compile(r'(?<![^\s`:：])\{(?=\s*")')
_MOST_OBJECTS = 16  # the maximum number of places at which an object is looked for, since each may be read to its end
_SUMMARY = re.compile(r'(?<![^\s`:：])\{\s*"summary"\s*:\s*(?=")')
_NEXT_MEMBER = re.compile(r'\s*,\s*(?:"|\})')
_PIECE_OF_JSON = re.compile(r"""["']summary["']\s*:|^\s*(?:```\w*\s*)?[\[{]\s*(?:["'\[{\]}]|\Z)""", re.MULTILINE)
_DECODER = json.JSONDecoder(strict=False)  # models write line breaks into strings


def read_plain_answer(text: str) -> ParsedAnswer:
    """Reads the record in an answer's last pair of `<summary>` tags, and its cards: a JSON list in a `<memory>` block.

    A block is never part of the record, even if it cannot be parsed. An answer without tags is malformed.
    """
    opened, is_complete = _BLOCK.search(text), False
    cards: tuple[MemoryCard, ...] = ()
    if opened is None:
        text = _EMPTY_BLOCK.sub("", text)
    else:
        try:
            listed, end = _DECODER.raw_decode(text, opened.end())
        except (ValueError, RecursionError):
            listed, end = None, opened.end()
        after = _CLOSED.split(text[end:], maxsplit=1)[1:]
        text, cards, is_complete = "".join((text[: opened.start()], *after)), read_cards(listed), True
    record = last_tag_content(text, "summary")
    if record is None:
        return ParsedAnswer(text, cards, well_formed=False)
    return ParsedAnswer(record, cards, is_complete=is_complete)


def read_json_answer(text: str) -> ParsedAnswer:
    """Reads the first JSON object with a `summary` in an answer, whatever stands around it, and its `memories`.

    If the JSON breaks off after the summary, the summary is still used. Any other text is read as a plain answer, and
    is the summary itself if it is prose.
    """
    for opened in islice(_OBJECT.finditer(text), _MOST_OBJECTS):
        try:
            found, _ = _DECODER.raw_decode(text, opened.start())
            if "summary" in found:
                return ParsedAnswer(_text_of(found["summary"]), read_cards(found), is_complete=True)
        except (ValueError, RecursionError):
            continue
    complete = _summary_of_broken(text)
    if complete is not None:
        return ParsedAnswer(complete, is_complete=True)
    answer = read_plain_answer(text)
    return answer._replace(well_formed=answer.well_formed or not _PIECE_OF_JSON.search(answer.record))


def _text_of(value: object) -> str:
    """A JSON value as text: an object's members under their names, a list's entries as a list."""
    if isinstance(value, dict):
        sections = {str(name).replace("_", " ").strip(): _text_of(each) for name, each in value.items()}
        return "\n".join(_section(name, text) for name, text in sections.items() if text)
    if isinstance(value, list):
        return "\n".join(f"- {text}" for text in map(_text_of, value) if text)
    return "" if value is None else str(value)


def _section(name: str, text: str) -> str:
    gap = "\n" if "\n" in text or text.startswith("- ") else " "
    return f"{name[:1].upper()}{name[1:]}:{gap}{text}"


def _summary_of_broken(text: str) -> str | None:
    """The summary in an object that cannot be parsed, if the summary is complete and another member follows it."""
    opened = _SUMMARY.search(text)
    if opened is None:
        return None
    try:
        summary, end = _DECODER.raw_decode(text, opened.end())
    except ValueError:
        return None
    return str(summary) if _NEXT_MEMBER.match(text, end) else None


class AskedRecord(NamedTuple):
    """A question that asks for a record, and the measures for its answer."""

    ask: Ask
    cap: int
    span_tokens: int  # tokens of the history that the record stands for
    counter: TokenCounter
    read: AnswerReader = read_plain_answer


def accept(result: Result, question: AskedRecord) -> ParsedAnswer:
    """The record and cards of an answer; raises `AnswerRefused` if it may not stand for history."""
    if not isinstance(result, Answer):
        raise AnswerRefused(f"summary-{result.reason if isinstance(result, Failure) else 'unreadable'}")
    parsed = question.read(without_thoughts(result.text))
    parsed = parsed._replace(record=parsed.record.strip())
    reason = _refusal_reason(result, parsed, question)
    if reason:
        raise AnswerRefused(reason)
    return parsed


def _refusal_reason(answer: Answer, parsed: ParsedAnswer, question: AskedRecord) -> str:
    if answer.called_tools:
        return "summary-called-tools"
    if answer.finish_reason == "length" and not parsed.is_complete:
        return "summary-cut-short"
    if answer.finish_reason not in ("stop", "length"):
        return "summary-not-finished"
    if not parsed.record:
        return "summary-empty"
    return _refusal_of_record(parsed, question)


def _refusal_of_record(parsed: ParsedAnswer, question: AskedRecord) -> str:
    record, tokens = parsed.record, question.counter.text(parsed.record)
    instructions = question.ask.system if question.ask.view is None else question.ask.user
    if tokens > question.cap:
        return "summary-too-long"
    if tokens >= question.span_tokens:
        return "summary-not-smaller"
    if tokens < _REFUSAL_TOKENS and _REFUSALS.match(record):
        return "summary-refused"
    if _FENCE.search(record) or (len(record) > _ECHO and record[:_ECHO] in instructions):
        return "summary-echo"
    is_crumb = tokens < min(question.span_tokens * LEAST_SHARE, LEAST_TOKENS)
    if is_crumb or (tokens < _REFUSAL_TOKENS and _FAILURES.match(record)) or _is_blank_form(record):
        return "summary-empty"
    if not parsed.well_formed:
        return "summary-untagged"
    return "summary-not-prose" if _NOT_PROSE.fullmatch(record) else ""


def _is_blank_form(record: str) -> bool:
    """Whether a record has nothing but headings, and placeholders instead of text."""
    lines = (line for line in record.splitlines() if not _HEADING.fullmatch(line))
    values = (_LABEL.sub("", line, count=1).strip(" \t*_`\"'.。-") for line in lines)
    return all(
        _PLACEHOLDERS.fullmatch(_NO_LETTERS.sub("", value).lower()) or _BRACKETED.fullmatch(value) for value in values
    )


MAX_PARTS = 8  # the maximum number of calls for one record; a history that needs more parts is abridged
MIN_RECORD = 48  # the minimum number of tokens of a record; a shorter one says too little to stand for history
_MIN_PART = 256
"""The minimum number of tokens for an earlier record, and for a part of the history, however small the window is."""
_FRAMES = 64  # tokens of the chat format, and of the tags around earlier record and history
_CAUTION = 0.9  # the share of the summarizer's window that is used, because its tokenizer may count more than ours
_WORDS_PER_TOKEN, _CHARACTERS_PER_TOKEN = 0.5, 0.7
"""How many words, or Chinese characters, a prompt asks for, for each token of a record's cap.

In recorded conversations coding agents write 0.54 to 0.60 words per token, others up to 0.79, and Chinese has one
character per token. A record has more names and numbers, and a model that does what it is asked must not be refused.
"""
TAG_TOKENS = 16  # tokens of the tags around a record; small models need more of them than we count
CARD_TOKENS = 500  # the maximum number of tokens for the cards of one answer
MIN_WINDOW_FOR_CARDS = 2_000
"""If the summarizer's window is smaller, cards are not asked for: they would take room that the history needs."""


# -- what is asked -------------------------------------------------------------------------------------------------


class RecordForm(NamedTuple):
    template: str = "summary"
    """The prompt template. NAME.md has a twin NAME-continue.md if a model may continue the view."""
    closing: str = "Write the record now."
    limits: Limits = WIDEST
    read: AnswerReader = read_plain_answer
    tries: int = 1  # how often the model may be asked, if its answers are refused
    extra_tokens: int = TAG_TOKENS  # tokens of an answer besides record and cards: its tags, or its JSON quoting
    cards: str = ""  # the template that asks for memory cards, put after the record's; "" to ask for none

    def with_cards(self, template: str = "memory") -> RecordForm:
        return self._replace(cards=template)

    @property
    def digest(self) -> str:
        return prompt_digest(self.template, *filter(None, (self.cards,)))

    def instructions(self, cap: int, template: str = "") -> str:
        """The prompt that asks for a record of `cap` tokens, and for cards; `template` is by default the form's."""
        instructions = prompt(template or self.template)
        text = f"{instructions}\n\n{prompt(self.cards)}" if self.cards else instructions
        words, characters = str(int(cap * _WORDS_PER_TOKEN)), str(int(cap * _CHARACTERS_PER_TOKEN))
        return text.replace("{max_words}", words).replace("{max_characters}", characters)

    def answer_tokens(self, cap: int) -> int:
        """The maximum number of tokens of an answer whose record has at most `cap`; the rest may take as many again."""
        return cap + min(self.extra_tokens + (CARD_TOKENS if self.cards else 0), cap)


PLAIN = RecordForm()


class Cap(NamedTuple):
    """The maximum tokens of a replacement's `text`, which is record and ledger, and of the `record` alone."""

    text: int
    record: int


@dataclass(frozen=True, slots=True)
class Span:
    """The `items` that a record stands for, all before item `end`.

    Record and ledger together must have fewer than `tokens` tokens.
    """

    view: View
    items: Sequence[Item]
    end: int
    tokens: int

    @classmethod
    def before(cls, view: View, end: int, tokens: int) -> Span:
        """The span of all items before `end`, except pinned ones and those that an earlier record stands for."""
        start, pinned = 0 if view.replacement is None else view.replacement + 1, view.transcript.pinned
        return cls(view, [item for item in view.items[start:end] if item.source not in pinned], end, tokens)

    def cap(self, most: Cap) -> Cap:
        """The cap of the span's record: half of the span's tokens, at most `most`.

        Raises `NothingToSummarize` if a record would save too little.
        """
        half = self.tokens // 2
        if half < MIN_RECORD:
            raise NothingToSummarize(f"a record would save less than {MIN_RECORD} tokens")
        return Cap(min(most.text, half), min(most.record, half))

    def ledger_and_room(self, cap: Cap, budget: Budget) -> tuple[Ledger, int]:
        """The ledger after the span's record, and the tokens that it leaves for the record.

        The user's words take their room first. Names are left out if the record would get less than a third of the
        text. Raises `Declined` if there is no room for a record.
        """
        caps = ledger_caps(budget, cap.text)
        caps = replace(caps, together=min(caps.together, max(cap.text - MIN_RECORD - 1, 0)))
        whole = next_ledger(self.view, self.items, self.end, budget, caps)
        ledger, room = whole, 0
        for ledger in (whole, replace(whole, names=())):
            room = min(cap.text - ledger_tokens(ledger, self.view.counter), cap.record)
            if room >= max(MIN_RECORD, min(cap.text // 3, cap.record)):
                break
        if room < MIN_RECORD:
            raise Declined("no-room", f"{room} tokens for a summary after the ledger")
        return ledger, room


class Record(NamedTuple):
    text: str
    tokens: int = 0  # tokens of all calls that led to it, as the upstream counts them
    calls: int = 0
    cards: tuple[MemoryCard, ...] = ()


Recording = Generator[tuple[Effect, ...], tuple[Result, ...], Record]


def record_cap(view: View, budget: Budget, most: int) -> Cap:
    """The cap of a record of at most `most` tokens and its ledger; raises `Declined` if that is too little."""
    cap = _possible_cap(view.counter, budget, most)
    if cap.record < MIN_RECORD:
        raise Declined("no-room", f"{cap.record} tokens for a summary")
    return cap


def _possible_cap(counter: TokenCounter, budget: Budget, most: int) -> Cap:
    text = min(text_room(budget.summary_cap, counter), most + budget.ledger.all)
    return Cap(text, min(text, most, _prompt_window(budget) // 4))


def usual_words(counter: TokenCounter, budget: Budget, most: int) -> int:
    """The words that are asked for when the ledger takes half of what it shares with a record."""
    text, record = _possible_cap(counter, budget, most)
    return int(min(text - min(budget.ledger.all, text // 2), record) * _WORDS_PER_TOKEN)


def summarize(span: Span, cap: Cap, budget: Budget, session: SessionFacts, form: RecordForm = PLAIN) -> Recording:
    """Asks for the record of a span, and appends the ledger to it; raises `AnswerRefused` if an answer is refused."""
    ledger, room = span.ledger_and_room(cap, budget)
    smaller = replace(span, tokens=span.tokens - ledger_tokens(ledger, span.view.counter))
    fits_cards = _prompt_window(budget) >= MIN_WINDOW_FOR_CARDS
    # The second form is for a history that fits only without cards. If both forms are equal, one is enough.
    forms = list(dict.fromkeys((form if fits_cards else form.with_cards(""), form.with_cards(""))))
    record = yield from _ask_record(smaller, room, budget, session, forms)
    return record._replace(text=append_ledger(record.text, ledger))


def _ask_record(span: Span, cap: int, budget: Budget, session: SessionFacts, forms: Sequence[RecordForm]) -> Recording:
    """The record without its ledger, in at most `cap` tokens."""
    # The view itself has the bodies of tool results, so a form that leaves them out cannot continue it.
    continues = session.continue_view and forms[0].limits.results > 0
    continued = _continuation(span, cap, budget, forms) if continues else None
    if continued is not None:
        ask, form = continued
        return (yield from _ask_until_accepted(ask, cap, span, form, Record("")))
    chosen, parts = _divided(span, cap, budget, forms)
    form, record = chosen.form, Record(chosen.earlier)
    for part in parts:
        before = f"<earlier_record>\n{break_fences(record.text)}\n</earlier_record>\n\n" if record.text else ""
        text = f"{before}<history>\n{part}\n</history>\n\n{form.closing}"
        ask = Ask(chosen.system, text, form.answer_tokens(cap), record=cap)
        record = yield from _ask_until_accepted(ask, cap, span, form, record)
    return record


class _Prompt(NamedTuple):
    """A form's prompt. It leaves `room` tokens for the earlier record and the history together."""

    form: RecordForm
    system: str
    earlier: str
    room: int
    history: int  # the tokens left for the history alone

    @classmethod
    def of(cls, span: Span, cap: int, budget: Budget, form: RecordForm) -> _Prompt:
        """The prompt of a form for a span; the earlier record may take at most half of the room."""
        counter, system = span.view.counter, form.instructions(cap)
        room = int((_prompt_window(budget) - form.answer_tokens(cap)) * _CAUTION) - counter.text(system) - _FRAMES
        earlier = cut_text(previous_text(span.view), max(room // 2, _MIN_PART), counter)
        return cls(form, system, earlier, room, max(room - counter.text(earlier), _MIN_PART))


def _divided(span: Span, cap: int, budget: Budget, forms: Iterable[RecordForm]) -> tuple[_Prompt, list[str]]:
    """The prompt of the first form with which the span fits into one part, so that cards never cost a call.

    If it fits with none, the first form is used and the span is divided into parts. Each part leaves room for the
    record so far, of at most `cap` tokens.
    """
    counter, messages = span.view.counter, originals(span.view, span.items)
    prompts = [_Prompt.of(span, cap, budget, form) for form in forms]
    for candidate in prompts:
        text = in_one(messages, candidate.history, counter, candidate.form.limits)
        if text is not None:
            return candidate, [text]
    first = prompts[0]
    room = max(min(first.history, first.room - cap), _MIN_PART)
    return first, in_parts(messages, room, MAX_PARTS, counter, first.form.limits)


def _prompt_window(budget: Budget) -> int:
    return budget.window if budget.prompt_window is None else budget.prompt_window


def _continuation(span: Span, cap: int, budget: Budget, forms: Iterable[RecordForm]) -> tuple[Ask, RecordForm] | None:
    """The question that continues the view up to the span's end, in the first form that fits; None if none fits."""
    view = span.view
    prefix = view.fixed_tokens + sum(item.message.tokens for item in view.items[: span.end])
    for form in forms:
        instructions, answer = form.instructions(cap, f"{form.template}-continue"), form.answer_tokens(cap)
        if prefix + view.counter.text(instructions) + _FRAMES + answer <= _prompt_window(budget):
            return Ask("", instructions, answer, view=_prefix(view, span.end), record=cap), form
    return None


def _prefix(view: View, end: int) -> str:
    """The message list before item `end` as JSON text.

    Later messages are left out, so that the record still applies if the client goes back and branches off there.
    """
    reach = view.messages_before(end) if end >= view.head_size else 0
    systems = tuple((place, message) for place, message in view.transcript.systems if place <= reach)
    transcript = Transcript(view.transcript.chain, systems, form=view.transcript.form)
    return replace(
        view,
        transcript=transcript,
        front=view.items[:end],
        head_size=min(view.head_size, end),
        own_from=len(transcript.chain),
    ).to_json()


def _ask_until_accepted(ask: Ask, cap: int, span: Span, form: RecordForm, before: Record) -> Recording:
    """The record of the first accepted answer; its cards, tokens and calls are added to those of `before`.

    A failed call is not repeated: it would probably fail again, and a waiting client has no time for it.
    """
    question = AskedRecord(ask, cap, span.tokens, span.view.counter, form.read)
    tokens, calls = before.tokens, before.calls
    while True:
        (result,) = yield (ask,)
        tokens, calls = tokens + (result.tokens if isinstance(result, Answer) else 0), calls + 1
        try:
            parsed = accept(result, question)
        except AnswerRefused as refused:
            if isinstance(result, Answer) and calls - before.calls < form.tries:
                continue
            raise AnswerRefused(refused.reason, refused.detail, tokens, calls) from None
        cards = dict.fromkeys((*before.cards, *(parsed.cards if form.cards else ())))
        return Record(parsed.record, tokens, calls, tuple(cards))
