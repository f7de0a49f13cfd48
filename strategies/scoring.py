"""The scorer of `semantic`: how important a message is.

    score = base of its kind × length factor + bonuses, clamped to [0.15, 0.9]

    base    0.4 user message          bonus   +0.4   the user asks for something
            0.3 call that edits               +0.3   an error is mentioned
            0.25 other call, plain text       +0.25  an important operation is mentioned
            0.1 result of a tool              +0.2   a success is mentioned
                                              +0.1   first seen within the hour, +0.05 within the day

The length factor is 0.8 for a long body and for one that looks like a log. A result of one line is the outcome of a
command and has the base of its call. Of a long body only both ends are searched, since a summarizer is shown no more.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache

from strategies.core.messages import Message, Role, ToolCall

LOWEST, HIGHEST = 0.15, 0.9
ERROR, INSTRUCTION, SUCCESS, OPERATION = 0.3, 0.4, 0.2, 0.25
WITHIN_AN_HOUR, WITHIN_A_DAY = 0.1, 0.05
LENGTH_FACTOR = 0.8
LONG_SHARE = 8
_HOUR, _DAY = 3_600.0, 86_400.0
_LONGEST_OUTCOME = 200
_LOG_WORDS = ("DEBUG", "TRACE")
_LOG_LINE = re.compile(r"^.{0,40}?\b(?:DEBUG|TRACE)\b")
_BEFORE_NAME = re.compile(r"^.*(?:__|[./:])")


class EventKind(Enum):
    """The kind of event that a message is."""

    USER = "user"
    EDIT = "edit"
    CALL = "call"
    TEXT = "text"
    RESULT = "result"


BASE: Mapping[EventKind, float] = {
    EventKind.USER: 0.4,
    EventKind.EDIT: 0.3,
    EventKind.CALL: 0.25,
    EventKind.TEXT: 0.25,
    EventKind.RESULT: 0.1,
}


@dataclass(frozen=True, slots=True)
class Wording:
    """The words to look for, in lower case, by what they indicate, and the names of tools that edit files."""

    error: tuple[str, ...]
    instruction: tuple[str, ...]
    success: tuple[str, ...]
    operation: tuple[str, ...]
    editing_tool: tuple[str, ...]


class MessageImportanceScorer:
    """Scores messages. `max_event_length`, in characters, says how much of a body is read and which body is long."""

    def __init__(self, wording: Wording, max_event_length: int) -> None:
        self._wording = wording
        self._most = max_event_length
        self._operation = _whole_words(wording.operation)

    def score(self, message: Message, call: ToolCall | None = None, age: float | None = None) -> float:
        """The importance of a message; `call` is what a result answers, `age` is in seconds (None if unknown)."""
        text = body(message)
        is_log = _is_log(self.shown(text))
        factor = LENGTH_FACTOR if is_log or len(text) > self._most / LONG_SHARE else 1.0
        kind = self.kind(message)
        if kind is EventKind.RESULT and call is not None and not is_log and _is_outcome(text):
            kind = self._kind_of([call])
        total = BASE[kind] * factor + self._said(text, kind) + _freshness(age)
        return round(min(max(total, LOWEST), HIGHEST), 4)

    def kind(self, message: Message) -> EventKind:
        """The kind of a message by its role and its calls."""
        match message.role:
            case Role.TOOL:
                return EventKind.RESULT
            case Role.ASSISTANT:
                return self._kind_of(message.calls)
        return EventKind.USER

    def speaks_of_error(self, text: str) -> bool:
        """Whether a text contains one of the error words."""
        return _has(text.lower(), self._wording.error)

    def speaks_of_success(self, text: str) -> bool:
        """Whether a text contains one of the success words."""
        return _has(text.lower(), self._wording.success)

    def shown(self, text: str) -> str:
        """The text, or if it is too long both its ends: at most `max_event_length` characters."""
        half = self._most // 2
        return text if len(text) <= self._most else f"{text[:half]}\n{text[-half:]}"

    def _kind_of(self, calls: Iterable[ToolCall]) -> EventKind:
        names = [_plain_name(call.name[:_LONGEST_NAME]) for call in calls]
        if not names:
            return EventKind.TEXT
        return EventKind.EDIT if any(name in self._wording.editing_tool for name in names) else EventKind.CALL

    def _said(self, text: str, kind: EventKind) -> float:
        """The bonuses of a body. Text that a tool prints is never an instruction."""
        lowered = self.shown(text).lower()
        wording = self._wording
        bonus = ERROR if _has(lowered, wording.error) else 0.0
        bonus += INSTRUCTION if kind is EventKind.USER and _has(lowered, wording.instruction) else 0.0
        bonus += SUCCESS if _has(lowered, wording.success) else 0.0
        is_operation = _has(lowered, wording.operation) and self._operation.search(lowered)
        return bonus + (OPERATION if is_operation else 0.0)


def body(message: Message) -> str:
    """The text of a message and of its calls."""
    return "\n".join([message.text, *(f"{call.name} {call.arguments}" for call in message.calls)]).strip()


_LONGEST_NAME = 256


@lru_cache(maxsize=1_024)
def _plain_name(name: str) -> str:
    return _BEFORE_NAME.sub("", name).lower()


def _has(lowered: str, words: Iterable[str]) -> bool:
    return any(map(lowered.__contains__, words))


def _whole_words(words: Iterable[str]) -> re.Pattern[str]:
    """Matches English words without adjoining letters or digits, and Chinese words, which have no spaces, anywhere."""
    patterns = (rf"(?<![a-z0-9_]){re.escape(word)}(?![a-z0-9_])" if word.isascii() else word for word in words)
    return re.compile("|".join(patterns) or r"(?!)")


def _is_log(text: str) -> bool:
    """Whether at least half of the lines are DEBUG or TRACE output."""
    if not _has(text, _LOG_WORDS):
        return False
    lines = [line for line in text.splitlines() if line.strip()]
    return 2 * sum(_LOG_LINE.match(line) is not None for line in lines) >= len(lines)


def _is_outcome(text: str) -> bool:
    return 0 < len(text) <= _LONGEST_OUTCOME and "\n" not in text


def _freshness(age: float | None) -> float:
    if age is None or age > _DAY:
        return 0.0
    return WITHIN_AN_HOUR if age <= _HOUR else WITHIN_A_DAY
