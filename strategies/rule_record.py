"""A record made by rules: the fallback of `semantic` if the model fails.

It counts the kinds of events. From each event it takes a hundred characters of the first line that mentions an error,
or else of the first one that mentions a success. The user's words come first, because standing rules are lost most
easily. The sections are those that the model would have written; one without content is left out. The open items are
the user's wishes and tasks, as the ledger finds them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from strategies.core.excerpt import cut_text
from strategies.core.messages import Message, Role, TokenCounter
from strategies.core.paths import target
from strategies.core.rules import find_rules, is_weak
from strategies.scoring import EventKind, MessageImportanceScorer, body

_EXCERPT = 100
_SAID = 300
_FILES = 20
_EARLIER_SHARE = 0.5


class Names(NamedTuple):
    """The words of a record in one language: the titles of the sections, in order, and the labels in them."""

    context: str
    progress: str
    state: str
    open: str
    findings: str
    said: str
    success: str
    error: str
    files: str
    kinds: tuple[str, ...]
    """The names of the kinds of events, in the order of `EventKind`."""


ENGLISH = Names(
    *("Task context", "Key progress", "Technical state", "Open items", "Important findings"),
    *("User", "Success", "Error", "Files"),
    kinds=("user messages", "edits", "tool calls", "assistant messages", "tool results"),
)
CHINESE = Names(
    *("任务上下文", "关键进展", "技术状态", "待处理项", "重要发现"),
    *("用户", "成功", "错误", "文件"),
    kinds=("用户消息", "编辑操作", "工具调用", "助手消息", "工具结果"),
)


def rule_record(
    messages: Sequence[Message],
    earlier: str,
    cap: int,
    names: Names,
    scorer: MessageImportanceScorer,
    counter: TokenCounter,
) -> str:
    """The record of messages in at most `cap` tokens. The earlier record comes first, in at most half of them."""
    carried = cut_text(earlier, int(cap * _EARLIER_SHARE), counter) if earlier else ""
    remaining = cap - counter.text(carried) - 2
    sections = _sections(messages, names, scorer)
    fitted: dict[str, str] = {}
    # The most important sections get their room first; in the record they have the usual order.
    for title in (names.context, names.findings, names.open, names.progress, names.state):
        text = section_within(f"{title}:", dict.fromkeys(sections[title]), remaining, counter)
        remaining -= counter.text(text) + 2
        fitted[title] = text
    order = (names.context, names.progress, names.state, names.open, names.findings)
    return "\n\n".join(part for part in (carried, *(fitted[title] for title in order)) if part)


def _sections(messages: Sequence[Message], names: Names, scorer: MessageImportanceScorer) -> dict[str, list[str]]:
    errors, successes = [], []
    for message in (message for message in messages if message.role is not Role.USER):
        lines = [line.strip() for line in scorer.shown(body(message)).splitlines()]
        if error := _first(lines, scorer.speaks_of_error):
            errors.append(f"- {names.error}: {error}")
        elif success := _first(lines, scorer.speaks_of_success):
            successes.append(f"- {names.success}: {success}")
    return {
        names.context: [f"- {names.said}: {line[:_SAID]}" for line in user_lines(messages)],
        names.progress: successes[::-1],
        names.state: list(_state(messages, names, scorer)),
        # The newest first: rules cannot tell which of them are done.
        names.open: [
            f"- {unit[:_SAID]}" for message in reversed(messages) for unit in find_rules(message.words) if is_weak(unit)
        ],
        names.findings: errors[::-1],
    }


def user_lines(messages: Iterable[Message]) -> Iterator[str]:
    """Yields what the user said line by line, without blank lines."""
    for message in messages:
        yield from (line.strip() for line in message.words.splitlines() if line.strip())


def _first(lines: Sequence[str], matches: Callable[[str], bool]) -> str:
    found = next((line for line in lines if matches(line)), "")
    return found if len(found) <= _EXCERPT else f"{found[:_EXCERPT]}..."


def _state(messages: Sequence[Message], names: Names, scorer: MessageImportanceScorer) -> Iterator[str]:
    kinds = Counter(scorer.kind(message) for message in messages)
    named = zip(names.kinds, EventKind, strict=True)
    yield "- " + ", ".join(f"{name} {kinds[kind]}" for name, kind in named if kinds[kind])
    files = (target(call) for message in messages for call in message.calls)
    paths = list(dict.fromkeys(file.path for file in files if file))[-_FILES:]
    if paths:
        yield f"- {names.files}: " + ", ".join(paths)


def section_within(title: str, lines: Iterable[str], room: int, counter: TokenCounter, *, newest: bool = False) -> str:
    """A section with its title and as many of its first lines as fit into `room` tokens; "" if not even one fits.

    With `newest`, the last lines are taken instead.
    """
    kept: list[str] = []
    room -= counter.text(title) + 1
    for line in reversed(list(lines)) if newest else lines:
        room -= counter.text(line) + 1
        if room < 0:
            break
        kept.append(line)
    return "\n".join((title, *(reversed(kept) if newest else kept))) if kept else ""
