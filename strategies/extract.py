"""`extract`: old history becomes a record made by rules, without a model.

The record keeps what even the last resort must not lose: the user's words, verbatim and in order, or only the newest if
not all fit (rules stay in the ledger); what was decided, found and changed, with the reason where the line has it; what
is still open; errors; which tools worked on which files; the assistant's last words. The ledger comes last.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import ClassVar

from strategies.core.budget import Budget
from strategies.core.errors import NothingToDo
from strategies.core.excerpt import cut_text
from strategies.core.history import originals
from strategies.core.ledger import Ledger, LedgerCaps, append_ledger
from strategies.core.messages import Message, Role, TokenCounter
from strategies.core.outcomes import Outcome, key_of, outcomes
from strategies.core.paths import target
from strategies.core.plan import Plan, Split, replace_before
from strategies.core.protocol import Options, SessionFacts, Steps, Strategy, option
from strategies.core.replacement import (
    frame_tokens,
    ledger_caps,
    ledger_tokens,
    next_ledger,
    previous_text,
    replaced_count,
    replacement,
    text_room,
)
from strategies.core.rules import Latest, latest
from strategies.core.transcript import is_chinese
from strategies.core.view import View
from strategies.rule_record import user_lines

_LINE = 300
_LONGEST_SAID = 1_200  # characters of a line of the user
_ARGUMENTS = 80
_TARGETS = 12  # of one tool, in one condensation
_EARLIER_SHARE = 0.5
_ENGLISH = (
    *("What the user said:", "What was decided, found and changed:", "Still open:", "Errors seen:"),
    *("What tools reported:", "Tools used on:", "The assistant's last words:"),
)
_CHINESE = (
    *("用户说过的话：", "已决定、发现和更改的事：", "尚未完成：", "出现过的错误："),
    *("工具的报告：", "使用过的工具：", "助手最后的话："),
)
_SHARES = (0.25, 0.25, 0.1, 0.2, 0.1, 0.1, 0.06)  # of the record's tokens, for each section
_SAID, _LAST_WORDS = 0, -1
_FULL = 0.8  # of its room: a record that takes so much is not made again to save the rest
_LEDGER_SHARE, _NAMES_SHARE, _FACTS_SHARE = 0.6, 0.2, 0.1
"""Of a replacement's text, for all of a ledger and for its lists."""


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
        goal = min(budget.goal, int(budget.usable * self.options.depth))
        small, counter = budget.window // 10, view.counter
        # More than half of so low a goal would leave few turns, and the next condensation would come too soon.
        large = max(small, min(budget.replacement_cap, goal // 2))
        end, text = self._recorded(view, budget, goal, large, large)
        used = max(frame_tokens(counter) + counter.text(text), small)
        if used < large * _FULL:  # What the record does not need is for turns.
            end, text = self._recorded(view, budget, goal, used, large)
        if not text:
            raise NothingToDo("nothing-to-extract")
        piece = replacement(text, replaced_count(view, end), counter.dialect, chinese=is_chinese(view.transcript))
        edit = replace_before(view, end, piece, budget.task_cap)
        return Plan((edit,), {"extractedMessageCount": replaced_count(view, end)})

    def _recorded(self, view: View, budget: Budget, goal: int, cap: int, large: int) -> tuple[int, str]:
        """The end of the shortest prefix that brings the view to `goal`, and the record with ledger that stands for it.

        They have at most `cap` tokens; the ledger has its shares of `large`.
        """
        counter, whole = view.counter, self.options.max_tokens + budget.ledger.all
        most, caps = min(text_room(cap, counter), whole), _caps(budget, min(text_room(large, counter), whole))
        caps = replace(caps, rules=min(caps.rules, most), together=min(caps.together, most))
        end = Split(view, frame_tokens(counter) + most, budget.task_cap).first_at_round(goal)
        start = 0 if view.replacement is None else view.replacement + 1
        if end is None and start and view.items[start - 1].message.tokens > budget.replacement_cap:
            end = start  # Nothing else can go, but the earlier record is too large for this window.
        if end is None:
            raise NothingToDo("nothing-to-extract")
        kept = next_ledger(view, view.items[start:end], end, budget, caps)
        said, gone = _said(view, end, kept)
        kept = replace(kept, names=tuple(name for name in kept.names if name.text not in gone))
        room = min(most - ledger_tokens(kept, counter), self.options.max_tokens)
        return end, append_ledger(record(view, end, room, said), kept)


def _caps(budget: Budget, most: int) -> LedgerCaps:
    """The caps of a ledger that leaves a part of `most` tokens to the record.

    A name or a number says more in a line that tells what came of it than in a list.
    """
    whole = ledger_caps(budget, most)
    names, facts = min(whole.names, int(most * _NAMES_SHARE)), min(whole.facts, int(most * _FACTS_SHARE))
    return replace(whole, names=names, facts=facts, together=min(whole.together, int(most * _LEDGER_SHARE)))


def _said(view: View, end: int, kept: Ledger) -> Latest:
    """What the user said before item `end`, line by line, without the sentences that the ledger has or has replaced."""
    listed = {*kept.rules, *kept.replaced}
    recorded = (line.removeprefix("- ") for line in _parted(previous_text(view))[1][_SAID])
    lines = (_cut_line(line, _LONGEST_SAID) for line in user_lines(_condensed(view, end), listed))
    return latest(_merged([line for line in recorded if line not in listed], lines, by=str))


def _condensed(view: View, end: int) -> list[Message]:
    """The messages that a record of the items before `end` takes in, besides an earlier record."""
    start = 0 if view.replacement is None else view.replacement + 1
    skip = {view.transcript.task, *view.transcript.stays}
    return [message for index, message in originals(view, view.items[start:end]) if index not in skip]


def record(view: View, end: int, cap: int, said: Sequence[str]) -> str:
    """The record of the items before `end`, in at most `cap` tokens, with the lines that the user `said`.

    What was recorded earlier and what is condensed now have one section for each kind of line, in which no line stands
    twice. The newest lines of each section have a share of the room; what a section leaves goes to the others, in
    order. A record that a model wrote stands before the sections, in at most half of the room.
    """
    counter = view.counter
    messages = _condensed(view, end)
    written, earlier = _parted(previous_text(view))
    carried = cut_text(written, int(cap * _EARLIER_SHARE), counter) if written else ""
    others = zip(earlier[1:], _sections(messages), strict=True)
    sections = [[f"- {line}" for line in said], *(_merged(old, new, by=key_of) for old, new in others)]
    sections[_LAST_WORDS] = sections[_LAST_WORDS][-1:]
    titles = _CHINESE if is_chinese(view.transcript) else _ENGLISH
    fitted = _fitted(titles, sections, cap - (counter.text(carried) + 1 if carried else 0), counter)
    parts = list(filter(None, (carried, *fitted)))
    if not parts:  # a room in which not even the shortest line fits
        newest = next((lines[-1] for lines in sections if lines), "")
        parts = [cut_text(newest, cap, counter)] if cap > 0 else []
    return "\n\n".join(parts)


def _parted(text: str) -> tuple[str, list[list[str]]]:
    """An earlier record: what stands before its first section, and the lines of each section."""
    before: list[str] = []
    sections: list[list[str]] = [[] for _ in _ENGLISH]
    at = before
    for line in filter(None, map(str.rstrip, text.splitlines())):
        number = next((i for i, titles in enumerate(zip(_ENGLISH, _CHINESE, strict=True)) if line in titles), None)
        if number is None:
            at.append(line)
        else:
            at = sections[number]
    return "\n".join(before), sections


def _merged(earlier: Sequence[str], new: Iterable[str], by: Callable[[str], str]) -> list[str]:
    """Lines in order; of those that say the same, the newest."""
    lines: dict[str, str] = {}
    for line in (*earlier, *new):
        lines.pop(by(line), None)
        lines[by(line)] = line
    return list(lines.values())


def _sections(messages: Sequence[Message]) -> Sequence[Iterable[str]]:
    """The lines of each section but the user's, in the order of the titles."""
    told = outcomes(messages)
    spoken = (message.text.strip() for message in reversed(messages) if message.role is Role.ASSISTANT)
    last_words = [" ".join(_cut_line(text, 2 * _LINE).split()) for text in islice(filter(None, spoken), 1)]
    by_kind = ([f"- {line}" for line in told[kind]] for kind in Outcome)
    return [*by_kind, _actions(messages), last_words]


def _fitted(titles: Sequence[str], sections: Sequence[Sequence[str]], cap: int, counter: TokenCounter) -> Iterator[str]:
    """Yields each section with its title and the newest of its lines that fit, or "" where none does."""
    sizes = [[counter.text(line) + 1 for line in lines] for lines in sections]
    frames = [counter.text(title) + 2 for title in titles]
    taken, used = [set[int]() for _ in titles], [0] * len(titles)
    for shares in (_SHARES, (1.0,) * len(titles)):
        for i, share in enumerate(shares):
            for place in reversed(range(len(sections[i]))):
                more = sizes[i][place] + (0 if taken[i] else frames[i])
                if place not in taken[i] and used[i] + more <= cap * share and sum(used) + more <= cap:
                    used[i] += more
                    taken[i].add(place)
    for title, lines, places in zip(titles, sections, taken, strict=True):
        yield "\n".join((title, *(lines[place] for place in sorted(places)))) if places else ""


def _actions(messages: Iterable[Message]) -> Iterator[str]:
    """Yields a line for each tool, with what it was used on; a file that was read twice stands there once."""
    used: dict[str, dict[str, None]] = {}
    for message in messages:
        for call in message.calls:
            file = target(call)
            on = file.path if file else _cut_line(" ".join(call.arguments.split()), _ARGUMENTS)
            used.setdefault(call.name, {})[on] = None
    for name, targets in used.items():
        yield f"- {name}: " + ", ".join(list(targets)[-_TARGETS:])


def _cut_line(line: str, length: int = _LINE) -> str:
    line = line.strip()
    return line if len(line) <= length else line[: length - 1] + "…"
