"""Notes by change: an earlier record, and what a model says is new or has changed since, become the next record.

Both have their lines under known headings. A change goes behind the earlier lines of its heading. Under one heading the
model copies the lines of the earlier record that no longer hold: these go. A copied line that the record does not have
takes nothing away: both lines stay then, the newer one last.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from typing import NamedTuple

MIN_COPY = 4  # a line with fewer characters, such as `}`, may stand in several places, so it is no copy of any of them
_MARKS = " \t-*•>\"'“”「」"
_Sections = dict[str, list[str]]


class Changes(NamedTuple):
    """How a model is asked for changes."""

    template: str  # the prompt template; `summary-changes` is read from summary-changes.md
    headings: tuple[str, ...]  # those of a record, in order
    obsolete: str  # the heading of the lines that no longer hold

    def fit(self, record: str) -> bool:
        """Whether a record has headings to which changes can be added."""
        return len(_sections(record, self.headings)) > 1

    def applied(self, earlier: str, changes: str) -> str:
        """The record after the changes."""
        told = _sections(changes, (*self.headings, self.obsolete))
        gone = {bare for line in told.pop(self.obsolete, ()) if len(bare := self._bare(line)) >= MIN_COPY}
        known = {
            heading: [line for line in lines if self._bare(line) not in gone]
            for heading, lines in _sections(earlier, self.headings).items()
        }
        for heading, lines in told.items():
            has = {bare for line in known.setdefault(heading, []) if len(bare := self._bare(line)) >= MIN_COPY}
            known[heading] += [line for line in lines if line.strip() and self._bare(line) not in has]
        return "\n".join(_written(known, ("", *self.headings))).strip()

    def _bare(self, line: str) -> str:
        """A line without its heading and the marks around it."""
        match = heading_line(self.headings).fullmatch(line)
        return (line if match is None else match[2] or "").strip(_MARKS)


def _written(sections: _Sections, headings: Iterable[str]) -> Iterable[str]:
    for heading in headings:
        first, *rest = sections.get(heading, ()) or ("",)
        if not (first.strip() or any(line.strip() for line in rest)):
            continue
        yield f"{heading}: {first}".rstrip() if heading else first
        yield from rest


def _sections(text: str, headings: tuple[str, ...]) -> _Sections:
    """The lines of a text by their heading; "" has those before the first one, and the first of each is its own."""
    sections: _Sections = {"": []}
    names = {heading.casefold(): heading for heading in headings}
    lines = sections[""]
    for line in text.splitlines():
        match = heading_line(headings).fullmatch(line)
        if match is None:
            lines.append(line)
        elif (name := names[match[1].casefold()]) in sections:
            lines = sections[name]
            lines.append(match[2] or "")
        else:
            lines = sections[name] = [match[2] or ""]
    return sections


@cache
def heading_line(headings: tuple[str, ...]) -> re.Pattern[str]:
    """A line that begins with a heading, in Markdown or not; the second group is the rest of the line."""
    names = "|".join(map(re.escape, headings))
    return re.compile(rf"\s*(?:#{{1,6}}\s*|\*\*)?({names})(?:\*\*)?\s*(?:[:：](?:\*\*)?\s*(.*)|$)", re.IGNORECASE)
