"""`extract`: old history becomes a record made by rules, without a model.

The record keeps what even the last resort must not lose: the user's words, verbatim and in order, or only the newest if
not all fit (rules stay in the ledger); which tools worked on which files; errors; the assistant's last words. An
earlier record comes first, and the ledger last.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import ClassVar

from strategies.core.budget import Budget
from strategies.core.errors import NothingToDo
from strategies.core.excerpt import ERROR, cut_text
from strategies.core.history import originals
from strategies.core.ledger import append_ledger
from strategies.core.messages import Message, Role, TokenCounter
from strategies.core.paths import target
from strategies.core.plan import Plan, Split, replace_before
from strategies.core.protocol import Options, SessionFacts, Steps, Strategy, option
from strategies.core.replacement import (
    frame_tokens,
    ledger_tokens,
    next_ledger,
    previous_text,
    replaced_count,
    replacement,
    text_room,
)
from strategies.core.transcript import is_chinese
from strategies.core.view import View
from strategies.rule_record import section_within, user_lines

_LINE = 300
_SAID = 1_200
"""Characters of a line of the user."""
_ERRORS = 6
_ACTIONS = 30
_EARLIER_SHARE = 0.7
_ACTION = "- called "
_ENGLISH = ("What the user said:", "What was done:", "Errors seen:", "The assistant's last words:")
_CHINESE = ("用户说过的话：", "已做的事：", "出现过的错误：", "助手最后的话：")


@dataclass(frozen=True, slots=True)
class ExtractOptions(Options):
    """`max_tokens` bounds the record without its ledger."""

    max_tokens: int = option(1_200, 100)
    depth: float = option(0.3, 0.1, 1)
    """The share of usable to which a view is cut even if the goal is higher.

    A deeper cut costs no call, and the next one comes later.
    """


@dataclass(frozen=True, slots=True)
class Extract(Strategy):
    options: ExtractOptions
    name: ClassVar[str] = "extract"

    def condense(self, view: View, budget: Budget, session: SessionFacts) -> Steps:
        yield from ()
        most = min(text_room(budget.replacement_cap, view.counter), self.options.max_tokens + budget.ledger.all)
        split = Split(view, frame_tokens(view.counter) + most, budget.task_cap)
        goal = min(budget.goal, int(budget.usable * self.options.depth))
        end = split.first_at_round(goal)
        start = 0 if view.replacement is None else view.replacement + 1
        if end is None and start and view.items[start - 1].message.tokens > budget.replacement_cap:
            end = start  # Nothing else can go, but the earlier record is too large for this window.
        if end is None:
            raise NothingToDo("nothing-to-extract")
        kept = next_ledger(view, view.items[start:end], end, budget)
        record_room = min(most - ledger_tokens(kept, view.counter), self.options.max_tokens)
        text = append_ledger(record(view, end, record_room), kept)
        if not text:
            raise NothingToDo("nothing-to-extract")
        piece = replacement(text, replaced_count(view, end), view.counter.dialect, chinese=is_chinese(view.transcript))
        edit = replace_before(view, end, piece, budget.task_cap)
        return Plan((edit,), {"extractedMessageCount": replaced_count(view, end)})


def record(view: View, end: int, cap: int) -> str:
    """The record of the items before `end`, in at most `cap` tokens."""
    counter = view.counter
    earlier = _shorten_record(previous_text(view), int(cap * _EARLIER_SHARE), counter)
    start = 0 if view.replacement is None else view.replacement + 1
    skip = {view.transcript.task, *view.transcript.stays}
    messages = [pair for pair in originals(view, view.items[start:end]) if pair[0] not in skip]
    parts = [earlier] if earlier else []
    remaining = cap - counter.text(earlier)
    titles = _CHINESE if is_chinese(view.transcript) else _ENGLISH
    for number, (title, lines) in enumerate(_sections([message for _, message in messages], titles)):
        section = section_within(title, lines, remaining, counter, newest=number == 0)
        if section:
            parts.append(section)
            remaining -= counter.text(section) + 2
    return "\n\n".join(parts)


def _shorten_record(record: str, cap: int, counter: TokenCounter) -> str:
    """An earlier record in whole lines. If it is too long, lines of actions are dropped first.

    Next to go are the oldest lines of a record of this kind, or the last ones of a record that a model wrote. If no
    line fits, as in a record of one long paragraph, the record is cut in the middle instead.
    """
    lines = [line for line in record.splitlines() if line.strip()]
    sizes = [counter.text(line) + 1 for line in lines]
    excess = sum(sizes) - cap
    dropped: set[int] = set()
    first = 1 if any(line in (_ENGLISH[0], _CHINESE[0]) for line in lines) else -1
    for i in sorted(range(len(lines)), key=lambda i: (0, i) if lines[i].startswith(_ACTION) else (1, first * i)):
        if excess <= 0:
            break
        dropped.add(i)
        excess -= sizes[i]
    kept = "\n".join(line for i, line in enumerate(lines) if i not in dropped)
    return kept or cut_text(record, cap, counter)


def _sections(messages: Sequence[Message], titles: Sequence[str]) -> Iterator[tuple[str, Iterable[str]]]:
    """Yields the title and lines of each section, most important section first."""
    said = [f"- {_cut_line(line, _SAID)}" for line in user_lines(messages)]
    printed = (line for message in messages if message.role is Role.TOOL for line in message.printed.splitlines())
    errors = list(dict.fromkeys(f"- {_cut_line(line)}" for line in printed if ERROR.search(line[:_LINE])))[-_ERRORS:]
    spoken = (message.text.strip() for message in reversed(messages) if message.role is Role.ASSISTANT)
    last_words = [_cut_line(text, 2 * _LINE) for text in islice(filter(None, spoken), 1)]
    yield from zip(titles, (said, _actions(messages), errors, last_words), strict=True)


def _actions(messages: Iterable[Message]) -> Iterator[str]:
    actions: Counter[str] = Counter()
    for message in messages:
        for call in message.calls:
            file = target(call)
            actions[f"{call.name} {file.path}" if file else f"{call.name} {_cut_line(call.arguments, 80)}"] += 1
    for action, times in list(actions.items())[-_ACTIONS:]:
        yield f"{_ACTION}{action}" + (f" ({times} times)" if times > 1 else "")


def _cut_line(line: str, length: int = _LINE) -> str:
    line = line.strip()
    return line if len(line) <= length else line[: length - 1] + "…"
