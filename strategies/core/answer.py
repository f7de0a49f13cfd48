"""Answers: which of a summarizer's may stand for history, and what it says.

History must never be replaced by rubbish. An answer counts when the model stopped by itself, called no tool,
wrote something that is no refusal and no echo of the prompt, kept within its cap and is smaller than what it
stands for. Memory cards beside the record never cost it: a list of them that is broken, or that the end of the answer
cuts short, is left out.
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
# A summary may well begin as the earlier record did; only the instructions and the fence are nothing of its own.
_ECHO = 60
_FENCE = re.compile(r"<message index=|<history>|<earlier_record>")


class Told(NamedTuple):
    """What an answer says: the record, and cards beside it.

    `well_formed`: whether it has the form that was asked for. `is_whole`: whether the record is known to be complete,
    wherever the answer ends.
    """

    record: str
    cards: tuple[MemoryCard, ...] = ()
    well_formed: bool = True
    is_whole: bool = False


Reading = Callable[[str], Told]


def as_text(text: str) -> Told:
    """An answer that is the record, with cards in a block beside it."""
    found = read_text(text)
    return Told(found.text, tuple(found.cards), is_whole=found.is_parted)


class Question(NamedTuple):
    """A question for a record of at most `cap` tokens that stands for `span` tokens of history."""

    ask: Ask
    cap: int
    span: int
    counter: Counter
    read: Reading = as_text


def accepted(result: Result, question: Question) -> Told:
    """What an answer says that may stand for history; raises `AnswerRefused`."""
    if not isinstance(result, Answer):
        raise AnswerRefused(f"summary-{result.reason if isinstance(result, Failure) else 'unreadable'}")
    told = question.read(result.text)
    told = told._replace(record=_TAGS.sub("", told.record).strip())
    reason = _refused(result, told, question)
    if reason:
        raise AnswerRefused(reason)
    return told


def _refused(answer: Answer, told: Told, question: Question) -> str:
    if answer.called_tools:
        return "summary-called-tools"
    if answer.finish_reason == "length" and not told.is_whole:
        return "summary-cut-short"
    if answer.finish_reason not in ("stop", "length"):
        return "summary-not-finished"
    if not told.record:
        return "summary-empty"
    return _too_long(told.record, question) or _not_a_record(told.record, question) or _malformed(told)


def _too_long(record: str, question: Question) -> str:
    tokens = question.counter.text(record)
    if tokens > question.cap:
        return "summary-too-long"
    return "summary-not-smaller" if tokens >= question.span else ""


def _not_a_record(record: str, question: Question) -> str:
    instructions = question.ask.system if question.ask.view is None else question.ask.user
    if _REFUSALS.match(record) and question.counter.text(record) < _REFUSAL_TOKENS:
        return "summary-refused"
    if _FENCE.search(record) or (len(record) > _ECHO and record[:_ECHO] in instructions):
        return "summary-echo"
    return ""


def _malformed(told: Told) -> str:
    return "" if told.well_formed else "summary-untagged"
