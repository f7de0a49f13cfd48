"""Answers: decides which answer of a summarizer may stand for history, and reads it.

History must never be replaced by rubbish. An answer is accepted if the model stopped by itself and called no tool, and
if its record is no refusal and no echo of the prompt, is within its cap, and is smaller than the history it stands for.
Memory cards beside the record never cost the record: a broken or truncated list of cards is left out.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from strategies.core.cards import MemoryCard, read_text
from strategies.core.effects import Answer, Ask, Failure, Result
from strategies.core.errors import AnswerRefused
from strategies.core.transcript import Counter

_TAGS = re.compile(r"</?summary>", re.IGNORECASE)
_REFUSALS = re.compile(
    r"^\W*(i'?m sorry|i am sorry|sorry,|i can'?t|i cannot|i'm unable|i am unable|as an ai|抱歉|对不起|我无法|我不能)",
    re.IGNORECASE,
)
_REFUSAL_TOKENS = 80
# A summary may well begin as the earlier record did, so only echoes of the instructions and of the fence count.
_ECHO = 60
_FENCE = re.compile(r"<message index=|<history>|<earlier_record>")


class ParsedAnswer(NamedTuple):
    """The record in an answer, and the cards beside it.

    `well_formed` says whether the answer has the form that was asked for, `is_complete` whether the record is known to
    be complete even if the answer was cut short.
    """

    record: str
    cards: tuple[MemoryCard, ...] = ()
    well_formed: bool = True
    is_complete: bool = False


AnswerReader = Callable[[str], ParsedAnswer]


def read_plain_answer(text: str) -> ParsedAnswer:
    """Reads an answer that is the record itself, with cards in a block beside it."""
    parts = read_text(text)
    return ParsedAnswer(parts.text, tuple(parts.cards), is_complete=parts.has_card_list)


class Question(NamedTuple):
    """A question for a record, and what its answer is measured by."""

    ask: Ask
    cap: int
    """The most tokens of the record."""
    span_tokens: int
    """Tokens of the history that the record stands for."""
    counter: Counter
    read: AnswerReader = read_plain_answer
    """Reads record and cards out of the answer."""


def accept(result: Result, question: Question) -> ParsedAnswer:
    """The record and cards of an answer; raises `AnswerRefused` if it may not stand for history."""
    if not isinstance(result, Answer):
        raise AnswerRefused(f"summary-{result.reason if isinstance(result, Failure) else 'unreadable'}")
    parsed = question.read(result.text)
    parsed = parsed._replace(record=_TAGS.sub("", parsed.record).strip())
    reason = _refusal_reason(result, parsed, question)
    if reason:
        raise AnswerRefused(reason)
    return parsed


def _refusal_reason(answer: Answer, parsed: ParsedAnswer, question: Question) -> str:
    if answer.called_tools:
        return "summary-called-tools"
    if answer.finish_reason == "length" and not parsed.is_complete:
        return "summary-cut-short"
    if answer.finish_reason not in ("stop", "length"):
        return "summary-not-finished"
    if not parsed.record:
        return "summary-empty"
    return _too_long(parsed.record, question) or _not_a_record(parsed.record, question) or _malformed(parsed)


def _too_long(record: str, question: Question) -> str:
    tokens = question.counter.text(record)
    if tokens > question.cap:
        return "summary-too-long"
    return "summary-not-smaller" if tokens >= question.span_tokens else ""


def _not_a_record(record: str, question: Question) -> str:
    instructions = question.ask.system if question.ask.view is None else question.ask.user
    if _REFUSALS.match(record) and question.counter.text(record) < _REFUSAL_TOKENS:
        return "summary-refused"
    if _FENCE.search(record) or (len(record) > _ECHO and record[:_ECHO] in instructions):
        return "summary-echo"
    return ""


def _malformed(parsed: ParsedAnswer) -> str:
    return "" if parsed.well_formed else "summary-untagged"
