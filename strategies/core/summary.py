"""Summaries: how one is asked for, and which answer may stand for history.

History must never be replaced by rubbish. An answer counts when the model stopped by itself, called no tool,
wrote something that is no refusal and no echo of the prompt, kept within its cap and is smaller than what it
stands for.
"""

from __future__ import annotations

import re

from strategies.core.effects import SUMMARIZER, Answer, Ask, Failure, Result
from strategies.core.errors import AnswerRefused
from strategies.core.history import as_text, originals, unfenced
from strategies.core.replacement import previous_text
from strategies.core.transcript import Counter
from strategies.core.view import View
from strategies.prompts import prompt

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


def ask(view: View, end: int, max_tokens: int, room: int, template: str = "summary") -> Ask:
    """Asks for one record of the items before `end`, with the earlier record merged in.

    `room` is what the prompt may have in tokens; the history is made to fit it.
    """
    counter = view.counter
    system = prompt(template).replace("{max_words}", str(int(max_tokens * _WORDS_PER_TOKEN)))
    earlier = previous_text(view)
    before = f"<earlier_record>\n{unfenced(earlier)}\n</earlier_record>\n\n" if earlier else ""
    left = max(room - counter.text(system) - counter.text(before) - 64, 256)
    start = 0 if view.replacement is None else view.replacement + 1
    text = as_text(originals(view, view.items[start:end]), left, counter)
    user = f"{before}<history>\n{text}\n</history>\n\nWrite the record now."
    return Ask(system, user, max_tokens, SUMMARIZER)


def accepted(result: Result, asked: Ask, span_tokens: int, counter: Counter) -> str:
    """The text of an answer that may stand for `span_tokens` of history; raises `AnswerRefused`."""
    if isinstance(result, Failure):
        raise AnswerRefused(f"summary-{result.reason}")
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
    if _REFUSALS.match(text) and counter.text(text) < _REFUSAL_TOKENS:
        return "summary-refused"
    if _FENCE.search(text) or (len(text) > _ECHO and text[:_ECHO] in asked.system):
        return "summary-echo"
    return ""
