"""Lines that tell what came of the work: what was decided and why, what was found, changed, and left open, and errors.

They are found by general words of English and Chinese, in what the assistant says and in what tools print. Of a long
line only the sentence with the word is taken. Tools print pages of code and data, so of theirs a line counts only as an
error, as a note that a file was changed, or as a sentence about what must or must not be done.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from enum import IntEnum

from strategies.core.excerpt import ERROR
from strategies.core.messages import Message, Role

LONGEST = 240  # characters of a line
_SHORTEST = 12
_MAX_LINES, _MAX_LENGTH = 2_000, 2_000
"""Of one message, and of one of its lines: pages of data are not read to their end."""


class Outcome(IntEnum):
    DECIDED = 0
    OPEN = 1
    FAILED = 2
    PRINTED = 3


_OPEN = re.compile(
    r"\b(?:todo|to-do|fixme|next steps?|next up|remaining|remains|still (?:need|to|fail|open|miss)\w*|not (?:yet|done)|"
    r"pending|left to do|follow-?ups?|open questions?|unresolved|blocked|waiting (?:for|on))\b"
    r"|待办|下一步|剩余|尚未|还需|还没|未完成|未解决|等待",
    re.IGNORECASE,
)
_DECIDED = re.compile(
    r"\b(?:decid\w+|decisions?|chose|chosen|choos\w+|agreed|instead of|rather than|going with|we(?:'ll| will) use|"
    r"switch(?:ed|ing)? to|because|the reason|therefore|trade-?off|conclu\w+|turns out|root cause|the issue|"
    r"the problem|found|discovered|confirmed|verified|fixed|resolved|corrected|added|removed|renamed|created|wrote|"
    r"rewrote|updated|changed|modified|moved|deleted|replaced|edited|implemented|committed|completed?|passe[sd])\b"
    r"|决定|选择|改用|采用|因为|原因|结论|同意|发现|确认|已修复|修复了|解决|添加|删除|更新|创建|修改|完成|通过",
    re.IGNORECASE,
)
_LIMIT = re.compile(
    r"\b(?:must(?: not)?|never|do not|don't|cannot|can't|required|requires|only|always|not allowed|forbidden)\b"
    r"|必须|不要|不能|不得|只能|禁止|要求",
    re.IGNORECASE,
)
_CHANGED = re.compile(
    r"\b(?:edited|changed|created|deleted|modified|wrote|rewrote|updated|renamed|moved|removed)\b.*[\w-]\.\w{1,8}\b"
    r"|\b\d+ (?:tests? )?(?:passed|failed)\b|(?:已|被)(?:修改|创建|删除|更新).*\.\w{1,8}\b",
    re.IGNORECASE,
)
_NUMBERED = re.compile(r"^\s*(?:\d+\s*[:|→]?\s*)?(?:[-+>|#*]+\s+)*")
_SENTENCE = re.compile(r"(?<=[.!?。！？;；])\s*(?=\S)")
_PROSE = re.compile(r"[^\W\d_]{2,}\s+[^\W\d_]{2,}\s+[^\W\d_]{2,}|[一-鿿]{6,}")
_CODE = re.compile(r"[{}<>=;\\]|\w\(|\)\s*:|^\s*(?:def|class|import|from|return|if|for|else)\b")
_KEY = re.compile(r"[\W\d_]+")


def outcomes(messages: Iterable[Message]) -> dict[Outcome, list[str]]:
    """The lines of each kind, each once and in order; of lines that differ in numbers only, the newest."""
    found: dict[Outcome, dict[str, str]] = {kind: {} for kind in Outcome}
    for message in messages:
        if message.role is Role.USER:
            continue
        for kind, line in _told(message):
            key = key_of(line)
            found[kind].pop(key, None)
            found[kind][key] = line
    return {kind: list(lines.values()) for kind, lines in found.items()}


def key_of(line: str) -> str:
    """What two lines have in common that say the same: their words without numbers and marks."""
    return _KEY.sub(" ", line.lower()).strip() or line


def _told(message: Message) -> Iterator[tuple[Outcome, str]]:
    kind_of = _printed_kind if message.role is Role.TOOL else _said_kind
    for written in message.printed.splitlines()[:_MAX_LINES]:
        if len(written.strip()) < _SHORTEST:
            continue
        line = _NUMBERED.sub("", written[:_MAX_LENGTH], count=1).strip()
        kind = kind_of(line)
        if kind is None:
            continue
        if len(line) > LONGEST:
            line = next((each for each in _SENTENCE.split(line) if kind_of(each) is kind), line)
        yield kind, line if len(line) <= LONGEST else line[: LONGEST - 1] + "…"


def _said_kind(line: str) -> Outcome | None:
    if not _PROSE.search(line):
        return None
    if _OPEN.search(line):
        return Outcome.OPEN
    if _DECIDED.search(line) or _LIMIT.search(line):
        return Outcome.DECIDED
    return Outcome.FAILED if ERROR.search(line) else None


def _printed_kind(line: str) -> Outcome | None:
    if ERROR.search(line[:LONGEST]):
        return Outcome.FAILED
    if _CHANGED.search(line[:LONGEST]):
        return Outcome.PRINTED
    is_prose = _PROSE.search(line[:LONGEST]) and not _CODE.search(line[:LONGEST])
    return Outcome.PRINTED if is_prose and (_LIMIT.search(line) or _OPEN.search(line)) else None
