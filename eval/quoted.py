"""What a record quotes, held against the messages: word for word, whole, and under the heading of its speaker.

A record has headings, and units under them: list items, quotations, paragraphs. `HEADINGS` says whose words stand under
which heading; what is *told* (calls, names, stand-ins) is not read. A quoted unit must stand in one message of that
role, white space aside, and each of its lines must begin and end where that message's own sentences, list items, rows
or lines do: not where a long line was only wrapped. Words that stand in tools' messages alone must be quoted as such.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import NamedTuple

from eval.views import flat, grown, in_processes, proxy_for, record_in, sparse_ends, values_of, window_of
from proxy.commands.replaying import recorded
from proxy.commands.replaying.recorded import Conversation, Message
from proxy.commands.replaying.report import markdown
from strategies.dialects.chat import content_text
from tests.support.data import SHORT

USER, ASSISTANT, TOOL = "user", "assistant", "tool"
TOLD: frozenset[str] = frozenset()
HEADINGS: Mapping[str, frozenset[str]] = {
    **dict.fromkeys(("what the user said", "用户说过的话"), frozenset({USER})),
    **dict.fromkeys(("what the assistant said", "助手说过的话"), frozenset({ASSISTANT})),
    **dict.fromkeys(("errors", "错误"), frozenset({TOOL})),
    **dict.fromkeys(("what was done", "looked at", "not quoted", "names and numbers"), TOLD),
    **dict.fromkeys(("做过的事", "查看过", "因过长而未引用", "名称和数字"), TOLD),
}
"""How a heading begins, without marks and in small letters, and the roles whose words are quoted under it."""
KINDS = {
    "trap/": 5, "openhands/": 1, "swe-agent/trajectories/demonstrations/ctf/web": 1, "tau-bench/": 4, "locomo/": 2,
    "crosswoz/": 2, "intercode/": 1, "moss/": 1, "memorybank/en": 1, "memorybank/cn": 1,
}  # fmt: skip
"""How many conversations are read of each kind, the longest ones, by what their ids begin with: 19."""
APART = 1_200  # characters
_MARK = re.compile(r"^(?:[-*•] |>{1,2} ?)")
_HEADING_MARKS = re.compile(r"^[\s#*]*(?:\[ledger\])?[\s*]*", re.IGNORECASE)
_TOLD_UNIT = re.compile(r"\[cut\]|^\[[^\]]*\]$")
_NUMBER = r"[\[(#]*\d{1,5}(?:[\])]+[.:]?|[.:])\s+"
"""The number of a message before its words."""
_NUMBER_AFTER = r"\s+[\[(]#?(?:message )?\d{1,5}[\])]$"
_TOOLS_NAME = r"[^:：]{1,64}?[:：]\s+"


class Fault(Enum):
    TORN = "torn"
    ABSENT = "in no message of that role"
    UNMARKED = "tools' words without >>"


class Unit(NamedTuple):
    """A unit of a record: the roles of its heading, its lines without marks, and whether it is quoted with `>>`."""

    roles: frozenset[str]
    lines: tuple[str, ...]
    is_marked: bool


# -- records -----------------------------------------------------------------------------------------------


def units(record: str) -> Iterator[Unit]:
    """The units of a record under headings that are known; what stands before the first one is the frame."""
    roles: frozenset[str] | None = None
    lines: list[str] = []
    marked = False

    def ended() -> Iterator[Unit]:
        if roles is not None and lines:
            yield Unit(roles, tuple(lines), marked)
        lines.clear()

    for line in map(str.rstrip, record.splitlines()):
        mark = _MARK.match(line)
        found = None if mark else _roles_under(line)
        if found is not None or mark or not line:
            yield from ended()
            marked = bool(mark) and line.startswith(">")
        if found is not None:
            roles = found
        elif line:
            lines.append(line[mark.end() :] if mark else line)
    yield from ended()


def _roles_under(line: str) -> frozenset[str] | None:
    """The roles whose words follow a heading; None for a line that is none."""
    plain = _HEADING_MARKS.sub("", line).casefold()
    known = (name for name in sorted(HEADINGS, key=len, reverse=True) if plain.startswith(name))
    name = next(known, None)
    is_heading = name is not None and (line[-1] in ":：.。*" or len(plain) == len(name))
    return HEADINGS[name] if name is not None and is_heading else None


# -- messages ----------------------------------------------------------------------------------------------

_BULLET = re.compile(r"^(?:[-*+•·–#>|]+|\(?\d{1,3}[.)、）]|[a-z][.)]|\[[ xX]\])\s*")
_SENTENCE_END = re.compile(r"[。！？]+[”’」』）\"')]*|[.!?…]+[\"'”’)\]*_`]*(?=\s|$|[A-Z][a-z])")
_OPEN_END = re.compile(r"[^.!?。！？…:：;；|>\s][\"'”’)\]*_`]*$")
_CODE = re.compile(r"[{};=\\|]|\w\(|->|::|^\s{4,}|^\s*(?:def|class|import|from|return|if|for|else|\$|>>>)\b")
_FENCE = re.compile(r"^\s*(?:```|~~~)")
_LONG = 50  # characters of a line that may have been wrapped


@dataclass(frozen=True)
class Said:
    """The text of one message with single spaces, and the offsets where its own units begin and end."""

    text: str
    starts: frozenset[int]
    ends: frozenset[int]

    @classmethod
    def of(cls, text: str, role: str) -> Said:
        """What tools print has lines; what people and models write may be wrapped."""
        parts: list[str] = []
        starts, ends, at = set[int](), set[int](), 0
        before, fenced = "", False
        for raw in text.splitlines():
            fenced = fenced != bool(_FENCE.match(raw))
            line = flat(raw)
            if line:
                if role == TOOL or fenced or not (before and is_wrapped(before, raw)):
                    ends.add(at - 1)
                    starts |= {at + start for start in _beginnings(line)}
                for match in _SENTENCE_END.finditer(line):
                    ends.add(at + match.end())
                    starts.add(at + match.end() + len(line[match.end() :]) - len(line[match.end() :].lstrip()))
                parts.append(line)
                at += len(line) + 1
            before = raw if line else ""
            if not line:
                ends.add(at - 1)
        ends.add(at - 1)
        return cls(" ".join(parts), frozenset(starts), frozenset(ends))

    def has(self, lines: Sequence[str]) -> bool:
        """Whether the lines stand here, one after the other."""
        at = 0
        for line in lines:
            found = self.text.find(line, at)
            if found < 0:
                return False
            at = found + len(line)
        return True

    def has_whole(self, lines: Sequence[str]) -> bool:
        return all(self._begins_and_ends(line) for line in lines)

    def _begins_and_ends(self, line: str) -> bool:
        at = self.text.find(line)
        while at >= 0:
            if at in self.starts and at + len(line) in self.ends:
                return True
            at = self.text.find(line, at + 1)
        return False


def is_wrapped(line: str, following: str) -> bool:
    """Whether a sentence goes on over the end of a line: it is long and open, and no list, table or code follows."""
    bare = following.strip()
    if _CODE.search(line) or _CODE.search(following) or _BULLET.match(bare):
        return False
    return len(line.strip()) > _LONG and _OPEN_END.search(line.rstrip()) is not None


def _beginnings(line: str) -> Iterator[int]:
    """Where a line may be said to begin: with each of its list marks, or behind them."""
    at = 0
    yield at
    while match := _BULLET.match(line[at:]):
        at += match.end()
        yield at


# -- the audit ---------------------------------------------------------------------------------------------


def faults(unit: Unit, said: Mapping[str, Sequence[Said]]) -> set[Fault]:
    """What is wrong with a unit, given what each role has said."""
    forms = list(_forms(unit))

    def told(roles: Iterable[str]) -> list[tuple[Said, Sequence[str]]]:
        return [(each, form) for form in forms for role in roles for each in said.get(role, ()) if each.has(form)]

    found, own = set[Fault](), told(unit.roles)
    if not own:
        found.add(Fault.ABSENT)
    elif not any(each.has_whole(form) for each, form in own):
        found.add(Fault.TORN)
    if not unit.is_marked and told((TOOL,)) and not told((USER, ASSISTANT)):
        found.add(Fault.UNMARKED)
    return found


def _forms(unit: Unit) -> Iterator[Sequence[str]]:
    """The lines as they stand, and without the number of a message or the name of a tool, which are ours."""
    lines = [flat(line) for line in unit.lines]
    bare = [line[match.end() :] if (match := _BULLET.match(line)) else line for line in lines]
    whole = " ".join(lines)
    for form in (lines, bare, [whole]):
        yield [line for line in form if line]
        for pattern in (rf"^{_NUMBER}", _NUMBER_AFTER, *((rf"^{_TOOLS_NAME}",) if unit.is_marked else ())):
            first = re.sub(pattern, "", form[0], count=1)
            if first and first != form[0]:
                yield [first, *form[1:]]
    if unit.is_marked and len(lines) > 1:  # the first line is the name of the tool alone
        yield lines[1:]


def is_told(unit: Unit) -> bool:
    """Whether a unit says itself that it is no quotation: it is cut, or stands for something."""
    return unit.roles == TOLD or _TOLD_UNIT.search(" ".join(unit.lines)) is not None


async def audit(conversation: Conversation, settings: Mapping[str, object] | None = None) -> Counter[str]:
    """Counts of the quoted units in all records of a conversation, each unit once, and of their faults."""
    quoted: dict[Unit, int] = {}
    async with proxy_for("off", **(settings or {})) as proxy:
        ends = sparse_ends(conversation.messages, APART)
        async for playing in grown(proxy, conversation, window_of(proxy, conversation), ends=ends):
            record = record_in(values_of(playing.view))
            quoted |= {unit: playing.end for unit in units(record) if not is_told(unit)}
    said = spoken(conversation.messages)
    found: Counter[str] = Counter({"units": len(quoted)})
    for unit in quoted:
        found.update(fault.value for fault in faults(unit, said))
    return found


def spoken(messages: Iterable[Message]) -> dict[str, list[Said]]:
    """What each role has said, each text once."""
    by_role: dict[str, dict[str, Said]] = {}
    for message in messages:
        role, text = str(message["role"]), content_text(message.get("content"))
        by_role.setdefault(role, {})[text] = Said.of(text, role)
    return {role: list(of.values()) for role, of in by_role.items()}


def chosen(path: Path) -> list[Conversation]:
    """The longest conversations of each kind."""
    known = recorded.load(path)
    long = sorted(known, key=lambda one: -sum(len(content_text(each.get("content"))) for each in one.messages))
    return [one for kind, number in KINDS.items() for one in [one for one in long if one.id.startswith(kind)][:number]]


def table(path: Path = SHORT) -> str:
    conversations = chosen(path)
    counts = in_processes(audit, conversations)
    return rows(conversations, counts)


def rows(conversations: Sequence[Conversation], counts: Sequence[Counter[str]]) -> str:
    """A row for each kind, and one for all."""
    titles = ["units", *(fault.value for fault in Fault)]
    by_kind: dict[str, Counter[str]] = {}
    for conversation, of in zip(conversations, counts, strict=True):
        by_kind.setdefault(conversation.id.partition("/")[0], Counter()).update(of)
    total = sum(counts, Counter[str]())
    found = {**by_kind, f"all {len(conversations)}": total}
    cells = [[name, *(f"{of[title]:,}" for title in titles)] for name, of in found.items()]
    return markdown(" | ".join(["conversations", *titles]), cells)
