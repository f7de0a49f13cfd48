"""Units: the smallest parts of a text that can be quoted without saying something else.

    sentence    of a paragraph, whose wrapped lines are joined first
    item        of a list, with the line that introduces the list
    table       all its rows
    block       code, a log or data; quoted by nobody: its size stands for it

Half a sentence may say the opposite of the whole ("it isn't / clear to me"), so in doubt lines are joined and sentences
are not parted. Only the form of the text counts, in every language. Marks of lists and headings go, all other
characters stay; white space becomes a single space, except between the rows of a table.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import Enum
from typing import NamedTuple

from strategies.core.terms import CJK


class Kind(Enum):
    SENTENCE = "text"
    ITEM = "item"
    TABLE = "table"
    CODE = "code"
    LOG = "log"


class Unit(NamedTuple):
    text: str
    kind: Kind
    paragraph: int  # the number of its paragraph in the text; the sentences of one have the same
    intro: str = ""  # the line that introduces the list that it is an item of
    lines: int = 1

    @property
    def may_be_quoted(self) -> bool:
        return self.kind not in (Kind.CODE, Kind.LOG)


WRAPPED = 48  # characters; a line of at least that many, without an end, goes on in the next one
_WHOLE_ITEM = 400  # characters; a longer item of a list is quoted by sentences
_LEAST_BLOCK = 3  # lines of code or of a log that make a block

_FENCE = re.compile(r"\s{0,3}(```|~~~)")
_BULLET = re.compile(r"\s*(?:(?:[-*+•·–]|\(?\d{1,3}[.)]|[a-z][.)])\s+|\(?\d{1,3}[、）]\s*|\[[ xX]\]\s+)+")
_MARK = re.compile(r"^(?:(?:[-*+•·–]|\[[ xX]\]) |#{1,6} )+")  # numbers stay: they may say how many
_HEADING = re.compile(r"\s{0,3}#{1,6}\s+")
_ROW = re.compile(r"\s*\|.*\||[^|\n]*\|[^|\n]*\|[^\n]*$")
_QUOTED = re.compile(r"\s*>")
_TAG = re.compile(r"\s*</?[a-zA-Z][\w:-]*>\s*$")  # alone on its line; people put such around what they write
_OWN = re.compile(r"^[ \t>#*_-]{0,20}\[(?:ledger|condensed history)\]", re.IGNORECASE | re.MULTILINE)
_INTRODUCES = re.compile(r"[:：]\W*$")
_ENDS = re.compile(r"(?:[.!?…:：;；]|[。！？])[\"'”’」』）)\]*_`]*\s*$")
_WORD = re.compile(r"[^\W_]")
_LETTER, _UNSPACED = re.compile(r"[^\W\d_]"), re.compile(f"[{CJK}]")
_GOES_ON = re.compile(r"\s*[a-zà-öø-ÿα-ωа-я]")
# A sentence ends before a capital, a digit or a script without case, and not behind an abbreviation. The pattern begins
# with a set of characters, because a search for one is ten times as fast.
_END = re.compile(
    r"[.!?…。！？](?:(?<=[。！？])[。！？]*[”’」』）\"')\]]*"
    r"|(?<=[.!?…])(?<![.!?…][.!?…])[.!?…]*+[\"'”’)\]*_]*+\s+(?=[^\sa-z]))"
)
_ABBREVIATED = re.compile(r"\b(?:[A-Za-z]|[A-Za-z]\.[A-Za-z]|mrs?|ms|dr|prof|st|vs|bzw)\.\s*$", re.IGNORECASE)
_LONGEST_ABBREVIATION = len("prof.")
_NUMBERED = re.compile(r"\b[^\W\d_]{1,4}\.\s*$")  # "fig. 3", "No. 5"
_LOG = re.compile(
    r"\s*(?:\[?\d{4}-\d\d-\d\d[T ]\d\d:\d\d|\[?\d\d:\d\d:\d\d|\w{3} +\d+ \d\d:\d\d:\d\d|\d+\s?[|→\t:]\s|\d+:\s*$"
    r"|[\[<(]?(?:DEBUG|INFO|WARN(?:ING)?|ERROR|TRACE)\b|at \S+ ?\(|File \")"
)
_CODE = re.compile(
    r"\s*(?:[}\])]+[;,]?\s*$|//|/\*|\*/|#!|#\w+ [<\"]|<[/!?]?[a-zA-Z][^<>]*>|[$%➜❯] \S|\+\+\+ |--- |@@ |[+-]{1,2}\s{2,}"
    r"|[\w.\[\]\"'-]+\s*(?:[-+*/|&:]?=|=>|->)\s*\S|[\"']?[\w-]+[\"']?\s*:\s*[\"\[{\d]|[\w.]+\(.*\)\s*[:;{]?\s*$"
    r"|@\w+)"
)
_CODE_ENDS = (";", "{", "}", "(", "):", "\\")
_INDENT = 4  # characters
_LOOKED_AT = 200  # characters at the beginning of a line by which code is told from prose
_TAIL = 40  # characters at its end by which its end is told


def units(text: str) -> list[Unit]:
    """All units of a text, in order. Quotations (`> …`), tags and what looks like our own record are left out."""
    own = _OWN.search(text) if "[" in text else None
    lines = (text[: own.start()] if own else text).splitlines()
    ends = _ends_of_blocks(lines)
    found: list[Unit] = []
    at, intro = 0, ""
    while at < len(lines):
        number = len(found)
        if not lines[at].strip():
            at += 1
        elif fence := _FENCE.match(lines[at]):
            closing = (i for i in range(at + 1, len(lines)) if lines[i].lstrip().startswith(fence[1]))
            end = next(closing, len(lines) - 1) + 1
            inside = lines[at + 1 : end - 1]
            found.append(Unit("\n".join(inside), Kind.CODE, number, "", len(inside)))
            at, intro = end, ""
        elif _QUOTED.match(lines[at]):
            at += 1
        elif block := ends[at]:
            dated = sum(_LOG.match(line) is not None for line in lines[at:block])
            kind = Kind.LOG if 2 * dated > block - at else Kind.CODE
            found.append(Unit("\n".join(lines[at:block]), kind, number, "", block - at))
            at, intro = block, ""
        elif _TAG.match(lines[at]):
            at += 1
        elif _ROW.match(lines[at]):
            last = next((i for i in range(at, len(lines)) if not _ROW.match(lines[i])), len(lines))
            rows = [row.strip() for row in lines[at:last] if _WORD.search(row)]
            found.append(Unit("\n".join(rows), Kind.TABLE, number, intro, len(rows)))
            at, intro = last, ""
        else:
            last = _end_of_paragraph(lines, at)
            marked = _BULLET.match(lines[at]) or _HEADING.match(lines[at])
            is_item = marked is not None and not _HEADING.match(lines[at])
            if not is_item and at and not lines[at - 1].strip():
                intro = ""  # a list goes on over empty lines, other text does not
            joined = _MARK.sub("", " ".join(" ".join(lines[at:last]).split()))
            said = list(_said(joined, number, intro, is_item=is_item))
            if said and not is_item and _INTRODUCES.search(said[-1].text[-_TAIL:]):
                intro = said.pop().text  # quoted with what it introduces, or not at all
            found += said
            at = last
    return [unit for unit in found if _says(unit)]


def _says(unit: Unit) -> bool:
    """Whether a unit says something: a single word is a name, unless a line introduces it."""
    text = unit.text
    if unit.intro:
        return _WORD.search(text) is not None
    return _LETTER.search(text) is not None and (len(text.split(None, 1)) > 1 or _UNSPACED.search(text) is not None)


def _said(joined: str, number: int, intro: str, *, is_item: bool) -> Iterator[Unit]:
    if is_item and len(joined) <= _WHOLE_ITEM:
        yield Unit(joined, Kind.ITEM, number, intro)
        return
    for sentence in sentences(joined):
        yield Unit(sentence, Kind.SENTENCE, number, intro)


def sentences(joined: str) -> Iterator[str]:
    """The sentences of a paragraph without line ends. None ends within brackets or behind an abbreviation."""
    start = read = depth = 0
    has_brackets = "(" in joined or "（" in joined
    for match in _END.finditer(joined):
        end = match.end()
        if has_brackets:
            depth += sum(joined.count(mark, read, end) for mark in "(（") - sum(
                joined.count(mark, read, end) for mark in ")）"
            )
        read = end
        tail = joined[max(start, end - _TAIL) : end].rstrip()
        names_number = joined[end : end + 1].isdigit() and _NUMBERED.search(tail)
        if not (depth > 0 or names_number or _ABBREVIATED.search(tail, max(len(tail) - _LONGEST_ABBREVIATION, 0))):
            yield joined[start:end].strip()
            start, depth = end, 0
    if rest := joined[start:].strip():
        yield rest


def _end_of_paragraph(lines: list[str], start: int) -> int:
    """The line behind those that are one paragraph or one item, once wrapped lines are joined."""
    end = start + 1
    while end < len(lines) and lines[end].strip() and not _begins(lines[end]) and not _HEADING.match(lines[start]):
        before = lines[end - 1].rstrip()
        if _ENDS.search(before[-_TAIL:]) and not (len(before) >= WRAPPED and _GOES_ON.match(lines[end])):
            break
        if len(before) < WRAPPED and not _GOES_ON.match(lines[end]):
            break
        end += 1
    return end


def _begins(line: str) -> bool:
    """Whether a line begins something new, whatever stands before it."""
    return any(pattern.match(line) for pattern in (_BULLET, _HEADING, _FENCE, _QUOTED, _ROW, _TAG))


def _ends_of_blocks(lines: list[str]) -> list[int]:
    """For each line, the line behind the block of code, of a log or of data that begins there; 0 if none does."""
    ends = [0] * len(lines)
    end, code, other = len(lines), 0, 0
    for at in range(len(lines) - 1, -1, -1):
        if not lines[at].strip():
            end, code, other = at, 0, 0
        elif not _TAG.match(lines[at]):
            is_code = _is_code(lines[at])
            code, other = code + is_code, other + (not is_code)
        if end - at >= _LEAST_BLOCK and 2 * code >= 3 * other:
            ends[at] = end
    return ends


def _is_code(line: str) -> bool:
    begins = line[:_LOOKED_AT]
    if _BULLET.match(begins):
        return False
    if begins[:_INDENT].isspace() or line.rstrip().endswith(_CODE_ENDS):
        return True
    return (_LOG.match(begins) or _CODE.match(begins)) is not None
