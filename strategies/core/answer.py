"""Answers: decides which answers of a summarizer may stand for history, and reads them.

History must never be replaced by rubbish. An answer is accepted if the model stopped by itself and called no tool, and
if its record

- is neither a refusal nor an echo of the prompt,
- is within its cap and smaller than the history that it stands for,
- says something: it is no report of a failure, no placeholder, no list of empty sections, and not tiny for its span.

Problems with memory cards never cost the record: a broken or truncated list of cards is left out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import NamedTuple

from strategies.core.cards import MemoryCard, read_cards
from strategies.core.effects import Answer, Ask, Failure, Result
from strategies.core.errors import AnswerRefused
from strategies.core.messages import TokenCounter
from strategies.core.parsing import without_thoughts

_TAGS = re.compile(r"</?summary>", re.IGNORECASE)
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
LONG_SPAN = 500
MIN_TOKENS = 12
"""A record with fewer tokens than this says nothing about a history of more than `LONG_SPAN` tokens."""
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


class ParsedAnswer(NamedTuple):
    """The record in an answer, and the cards next to it."""

    record: str
    cards: tuple[MemoryCard, ...] = ()
    well_formed: bool = True
    """Whether the answer has the form that was asked for."""
    is_complete: bool = False
    """Whether the record is known to be complete even if the answer was cut short."""


AnswerReader = Callable[[str], ParsedAnswer]

_FENCED = re.compile(r"(?>```\w*\s*?\n)(.*)```", re.DOTALL)
_BLOCK = re.compile(r"<memory>\s*(?:```\w*\s*)?(?=[\[{])", re.IGNORECASE)
_EMPTY_BLOCK = re.compile(r"<memory>[^<]{0,80}</memory>\s*\Z", re.IGNORECASE)
_CLOSED = re.compile(r"</memory>", re.IGNORECASE)
_SUMMARY = re.compile(r'\s*(?:```\w*\s*)?\{\s*"summary"\s*:\s*(?=")')
_NEXT_MEMBER = re.compile(r'\s*,\s*"')
_DECODER = json.JSONDecoder()


def read_plain_answer(text: str) -> ParsedAnswer:
    """Reads an answer that is the record itself, with cards in a `<memory>` block: a JSON list, maybe in a code fence.

    A block is never part of the record, even if it cannot be parsed.
    """
    opened = _BLOCK.search(text)
    if opened is None:
        return ParsedAnswer(_EMPTY_BLOCK.sub("", text))
    try:
        listed, end = _DECODER.raw_decode(text, opened.end())
    except (ValueError, RecursionError):
        listed, end = None, opened.end()
    after = _CLOSED.split(text[end:], maxsplit=1)[1:]
    return ParsedAnswer("".join((text[: opened.start()], *after)), read_cards(listed), is_complete=True)


def read_json_answer(text: str) -> ParsedAnswer:
    """Reads an answer that is a JSON object with `summary` and `memories`, bare or in a code fence.

    If the JSON breaks off after the summary, the summary is still used. Any other text is the record itself, without
    cards.
    """
    fenced = _FENCED.fullmatch(text.strip())
    try:
        answer = json.loads(fenced.group(1) if fenced else text)
    except (ValueError, RecursionError):
        complete = _summary_of_broken(text)
        return ParsedAnswer(text) if complete is None else ParsedAnswer(complete, is_complete=True)
    if not (isinstance(answer, dict) and isinstance(answer.get("summary", 0), str | None)):
        return ParsedAnswer(text)
    return ParsedAnswer(answer["summary"] or "", read_cards(answer), is_complete=True)


def _summary_of_broken(text: str) -> str | None:
    """The summary in an object that cannot be parsed, if the summary is complete and another member follows it."""
    opened = _SUMMARY.match(text)
    if opened is None:
        return None
    try:
        summary, end = _DECODER.raw_decode(text, opened.end())
    except ValueError:
        return None
    return summary if _NEXT_MEMBER.match(text, end) else None


class AskedRecord(NamedTuple):
    """A question that asks for a record, and the measures for its answer."""

    ask: Ask
    cap: int
    span_tokens: int
    """Tokens of the history that the record stands for."""
    counter: TokenCounter
    read: AnswerReader = read_plain_answer


def accept(result: Result, question: AskedRecord) -> ParsedAnswer:
    """The record and cards of an answer; raises `AnswerRefused` if it may not stand for history."""
    if not isinstance(result, Answer):
        raise AnswerRefused(f"summary-{result.reason if isinstance(result, Failure) else 'unreadable'}")
    parsed = question.read(without_thoughts(result.text))
    parsed = parsed._replace(record=_TAGS.sub("", parsed.record).strip())
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
    if not parsed.well_formed:
        return "summary-untagged"
    is_tiny = tokens < MIN_TOKENS and question.span_tokens > LONG_SPAN
    has_failed = tokens < _REFUSAL_TOKENS and _FAILURES.match(record)
    return "summary-empty" if is_tiny or has_failed or _is_blank_form(record) else ""


def _is_blank_form(record: str) -> bool:
    """Whether a record has nothing but headings, and placeholders instead of text."""
    lines = (line for line in record.splitlines() if not _HEADING.fullmatch(line))
    values = (_LABEL.sub("", line, count=1).strip(" \t*_`\"'.。-") for line in lines)
    return all(
        _PLACEHOLDERS.fullmatch(_NO_LETTERS.sub("", value).lower()) or _BRACKETED.fullmatch(value) for value in values
    )
