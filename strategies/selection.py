"""The scorer and the selection of `semantic`: how important a message is, and which messages are forgotten.

A score is the base of the message's kind × length factor + bonuses; docs/internals/strategies.md has a
table. The length factor is 0.8 for a long body and for one that looks like a log. A result of one line is the outcome
of a command and has the base of its call. Only the two ends of a long body are searched, because a summarizer is shown
no more.

The selection works on units. A *unit* is forgotten or kept as a whole: the items between two cuts (a round with all its
results). A user message forms a unit with the last round of its turn, so that no question is left without its answer.
Each unit is in a zone. Zones are forgotten in this order, until the wanted numbers of events and tokens are left:

    opening    messages before the first user message; they go whenever anything goes
    middle     lowest score first; if scores are equal, oldest first
    tail       the newest events, oldest first; only to save tokens
    head       the first events, from the first user message on; only to save tokens, last of all

The first and the last user message, and everything after the view's limit, always stay.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum, IntEnum
from itertools import pairwise
from typing import NamedTuple

from strategies.core.messages import Message, Role, ToolCall
from strategies.core.view import View

LOWEST, HIGHEST = 0.15, 0.9
ERROR, INSTRUCTION, SUCCESS, OPERATION = 0.3, 0.4, 0.2, 0.25
WITHIN_AN_HOUR, WITHIN_A_DAY = 0.1, 0.05
LENGTH_FACTOR = 0.8
LONG_SHARE = 8
_HOUR, _DAY = 3_600.0, 86_400.0
_LONGEST_OUTCOME, _LONGEST_NAME = 200, 256
_LOG_WORDS = ("DEBUG", "TRACE")
_LOG_LINE = re.compile(r"^.{0,40}?\b(?:DEBUG|TRACE)\b")
_BEFORE_NAME = re.compile(r"^.*(?:__|[./:])")


class EventKind(Enum):
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
    """The words to look for, by what they indicate, and the names of tools that edit files; all in lower case."""

    error: tuple[str, ...]
    instruction: tuple[str, ...]
    success: tuple[str, ...]
    operation: tuple[str, ...]
    editing_tool: tuple[str, ...]


class MessageImportanceScorer:
    """Scores messages. `max_event_length`, in characters, decides how much of a body is read and when it is long."""

    def __init__(self, wording: Wording, max_event_length: int) -> None:
        self._wording = wording
        self._most = max_event_length
        # English words must not touch other letters or digits; Chinese has no spaces, so its words may be anywhere.
        alone = r"(?<![a-z0-9_]){}(?![a-z0-9_])"
        patterns = (alone.format(re.escape(word)) if word.isascii() else word for word in wording.operation)
        self._operation = re.compile("|".join(patterns) or r"(?!)")

    def score(self, message: Message, call: ToolCall | None = None, age: float | None = None) -> float:
        """The importance of a message; `call` is the call that it answers, `age` is in seconds (None if unknown)."""
        text = body(message)
        is_log = _is_log(self.shown(text))
        factor = LENGTH_FACTOR if is_log or len(text) > self._most / LONG_SHARE else 1.0
        kind = self.kind(message)
        is_outcome = not is_log and 0 < len(text) <= _LONGEST_OUTCOME and "\n" not in text
        if kind is EventKind.RESULT and call is not None and is_outcome:
            kind = self._kind_of([call])
        freshness = 0.0 if age is None or age > _DAY else WITHIN_AN_HOUR if age <= _HOUR else WITHIN_A_DAY
        total = BASE[kind] * factor + self._said(text, kind) + freshness
        return round(min(max(total, LOWEST), HIGHEST), 4)

    def kind(self, message: Message) -> EventKind:
        if message.role is Role.ASSISTANT:
            return self._kind_of(message.calls)
        return EventKind.RESULT if message.role is Role.TOOL else EventKind.USER

    def shown(self, text: str) -> str:
        """The text, or only its two ends if it is too long: at most `max_event_length` characters."""
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
    return "\n".join([message.text, *(f"{call.name} {call.arguments}" for call in message.calls)]).strip()


def _plain_name(name: str) -> str:
    return _BEFORE_NAME.sub("", name).lower()


def _has(lowered: str, words: Iterable[str]) -> bool:
    return any(map(lowered.__contains__, words))


def _is_log(text: str) -> bool:
    """Whether at least half of the lines are DEBUG or TRACE output."""
    if not _has(text, _LOG_WORDS):
        return False
    lines = [line for line in text.splitlines() if line.strip()]
    return 2 * sum(_LOG_LINE.match(line) is not None for line in lines) >= len(lines)


# -- the selection -------------------------------------------------------------------------------------------------


class Zone(IntEnum):
    OPENING = 0
    MIDDLE = 1
    TAIL = 2
    HEAD = 3


class Unit(NamedTuple):
    items: tuple[int, ...]
    tokens: int


class Aim(NamedTuple):
    """The goal: leave at most `events`, including the `first` and `last` ones, and remove at least `tokens`."""

    events: int
    first: int
    last: int
    tokens: int


class Selection(NamedTuple):
    """The items that are forgotten, in order and including an earlier replacement, and their tokens."""

    forgotten: tuple[int, ...]
    tokens: int

    @property
    def end(self) -> int:
        """The item after the last one that is forgotten."""
        return self.forgotten[-1] + 1 if self.forgotten else 0


def select(view: View, aim: Aim, score: Callable[[Unit], float]) -> Selection:
    """Selects which items to forget; none, not even an earlier replacement, if no unit may be forgotten."""
    earlier = () if view.replacement is None else (view.replacement,)
    zoned = ((_zone(view, unit, aim), unit) for unit in forgettable(view))
    ranked = sorted((zone, score(unit) if zone is Zone.MIDDLE else 0.0, unit.items[0], unit) for zone, unit in zoned)
    forgotten = list(earlier)
    tokens = sum(view.items[i].message.tokens for i in earlier)
    for zone, _, _, unit in ranked:
        # The new record will be one event too.
        events = view.size - len(forgotten) + 1
        is_enough = events <= aim.events and tokens >= aim.tokens and len(forgotten) > len(earlier)
        if is_enough and zone is not Zone.OPENING:
            break
        if zone > Zone.MIDDLE and tokens >= aim.tokens:
            break
        forgotten.extend(unit.items)
        tokens += unit.tokens
    return Selection(tuple(sorted(forgotten)), tokens) if len(forgotten) > len(earlier) else Selection((), 0)


def _zone(view: View, unit: Unit, aim: Aim) -> Zone:
    task = view.transcript.task
    sources = [source for i in unit.items if (source := view.items[i].source) is not None]
    if task is not None and any(source < task for source in sources):
        return Zone.OPENING
    if any(source < (task or 0) + aim.first for source in sources):
        return Zone.HEAD
    return Zone.TAIL if unit.items[-1] >= view.size - aim.last else Zone.MIDDLE


def forgettable(view: View) -> list[Unit]:
    """All units that may be forgotten, oldest first."""
    stays = {view.task, view.replacement, *view.stays}
    free = (unit for unit in _units(view) if unit[-1] < view.last_cut and stays.isdisjoint(unit))
    return [Unit(items, sum(view.items[i].message.tokens for i in items)) for items in free]


def _units(view: View) -> Iterator[tuple[int, ...]]:
    """Yields the items between cuts; those of a user message together with those of the last round of its turn."""
    spans = list(pairwise(i for i, is_cut in enumerate(view.structure.cuts) if is_cut))
    span_of = {i: span for span in spans for i in range(*span)}
    turns = [(turn.user, turn.rounds) for turn in view.structure.turns if turn.user is not None]
    asking = {span_of[user] for user, _ in turns}
    # The task belongs to all that follows it.
    pairs = ((span_of[user], span_of[rounds[-1].start]) for user, rounds in turns if user != view.task and rounds)
    answers = {question: answer for question, answer in pairs if answer not in asking}
    joined = set(answers.values())
    for span in spans:
        if span in answers:
            yield (*range(*span), *range(*answers[span]))
        elif span not in joined:
            yield tuple(range(*span))
