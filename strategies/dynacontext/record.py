"""The record of `dynacontext`: each question is asked up to three times, and the answer must be in a `<summary>` tag.

An answer without the one tag, or one that may not stand for history, is asked for again. A model that fails is not: it
would fail again, and whoever waits has no time for it.
"""

from __future__ import annotations

import re
from collections.abc import Generator
from dataclasses import replace

from strategies.core.effects import Answer, Ask, Effect, Failure, Result
from strategies.core.errors import AnswerRefused
from strategies.core.summary import Form, Record, Recording, Span, accepted

TRIES = 3
FORMS = {"plain": Form("dynacontext"), "sections": Form("dynacontext-sections")}

_UNTAGGED = Failure("untagged")
_SUMMARY = re.compile(r"<summary>(.*?)</summary>", re.DOTALL)
_SECTION = re.compile(r"<(history_detail|history_summary|future_direction)>\s*(.*?)\s*</\1>", re.DOTALL)


def insisting(recording: Recording, span: Span) -> Recording:
    """Runs `recording`, but sends each question up to `TRIES` times, and hands in what stands inside of the tag."""
    (question,) = next(recording)
    while True:
        assert isinstance(question, Ask)
        result = yield from _answered(question, span)
        try:
            (question,) = recording.send((result,))
        except StopIteration as stop:
            record: Record = stop.value
            return record


def _answered(question: Ask, span: Span) -> Generator[tuple[Effect, ...], tuple[Result, ...], Result]:
    """The first answer that is tagged and may stand for the span, else the last one or why it is none."""
    last: Result = _UNTAGGED
    for _ in range(TRIES):
        (result,) = yield (question,)
        if not isinstance(result, Answer):
            return result
        inside = _inside(result)
        last = inside or result
        try:
            accepted(last, question, span.tokens, span.view.counter)
        except AnswerRefused:
            continue
        if inside is not None:
            return inside
        last = _UNTAGGED
    return last


def _inside(answer: Answer) -> Answer | None:
    """The answer with what stands in its one `<summary>` alone, sections under headings; None without the one tag."""
    found = _SUMMARY.findall(answer.text)
    return replace(answer, text=_SECTION.sub(_headed, found[0])) if len(found) == 1 else None


def _headed(section: re.Match[str]) -> str:
    """A section under its heading, without its tags."""
    title, text = section.groups()
    return f"{title.replace('_', ' ').capitalize()}:\n{text}"
