"""The record that rules make of covered messages, without a model.

Quoted, word for word: what the assistant said last in its messages; lines in which tools report that they failed, with
the name of the tool. Told, under headings of their own: what calls changed and what they looked at; what was too large
to be quoted. What the user said, and names, stand in the ledger behind it. What tools say has the mark `>>`, and so has
what calls take along: a page may have put it into the assistant's mouth.

Each section has a share of the room, in which the rarest lines come first. Of what was done, calls whose results give
names that are used later come first, and calls that failed last.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from strategies.core.covered import LARGE, Covered
from strategies.core.excerpt import cut_text
from strategies.core.findings import closing_in
from strategies.core.handles import handle_of
from strategies.core.messages import Role, TokenCounter
from strategies.core.quotes import STEP, Quote, chosen, is_quotable, lines, quotes
from strategies.core.rarity import terms_of
from strategies.core.units import Kind

_ENGLISH = ("What was done:", "Errors:", "Looked at:", "Not quoted, because it is long:", "What the assistant said:")
_CHINESE = ("做过的事：", "错误：", "查看过：", "因过长而未引用：", "助手说过的话：")
_SHARES = (0.4, 0.2, 0.15, 0.05, 0.2)  # of the record's tokens
_TARGETS = 12  # of one tool
_LEAST = 50  # tokens of a summary of which both ends are shown
_FIRST = 200  # characters of what is too long to be quoted


class _Line(NamedTuple):
    rank: tuple[int, ...]  # lower is kept first
    place: int
    text: str


def is_heading(line: str) -> bool:
    """Whether a line is one of the record's headings, in any language."""
    return line in _ENGLISH or line in _CHINESE


def record(source: Covered, cap: int, counter: TokenCounter, *, chinese: bool) -> str:
    """The record in at most `cap` tokens; "" if nothing fits."""
    titles = _CHINESE if chinese else _ENGLISH
    told = (_done(source), _errors(source), _looked(source, cap // 2, counter), _left(source, cap // LARGE, counter))
    sections = [_Section(title, found, counter) for title, found in zip(titles, told, strict=False)]
    spare = sum(int(cap * share) - part.fit(int(cap * share)) for part, share in zip(sections, _SHARES, strict=False))
    for part in sections:  # What one leaves goes to the first that needs it.
        room = part.used + spare
        spare = room - part.fit(room)
    parts = [str(part) for part in sections if part.kept]
    # What the assistant said gets no more than its share: what tools leave is for the user's words.
    room = int(cap * _SHARES[-1]) - counter.text(titles[-1]) - 2
    kept, _ = chosen(_closings(source), room, room, counter, _is_printed(source))
    parts += ["\n".join((titles[-1], *lines(kept, "> ")))] if kept else []
    return "\n\n".join(parts)


class _Section:
    """A heading and the best of its lines that fit, in their places."""

    def __init__(self, title: str, candidates: Iterable[_Line], counter: TokenCounter) -> None:
        self._title, self._heading = title, counter.text(title) + 2
        self._sized = [(line, counter.text(line.text) + 1) for line in sorted(candidates)]
        self.kept: list[_Line] = []
        self.used = 0

    def fit(self, room: int) -> int:
        """Keeps what fits into `room` tokens, heading included; how many tokens it takes."""
        left, self.kept = room - self._heading, []
        for line, tokens in self._sized:
            if tokens <= left:
                left -= tokens
                self.kept.append(line)
        self.used = room - left if self.kept else 0
        return self.used

    def __str__(self) -> str:
        placed = sorted(self.kept, key=lambda line: (line.place, line.rank))
        return "\n".join((self._title, *(line.text for line in placed)))


def _done(source: Covered) -> Iterator[_Line]:
    """A line for each call that changed something; of equal ones the newest."""
    found = {act.line(): (index, act) for index, act in source.actions if act.changes}
    for text, (index, act) in found.items():
        score = source.rarity.score(terms_of(text)) // STEP
        rank = (act.has_failed, not act.is_used_later, not act.has_created, -score, -index)
        yield _Line(rank, index, _marked(text))


def _looked(source: Covered, most: int, counter: TokenCounter) -> Iterator[_Line]:
    """A line for each tool that looked something up, with what it was used on last, as far as `most` tokens hold it."""
    used: dict[str, dict[str, int]] = {}
    for index, act in source.actions:
        if not act.changes:
            of = used.setdefault(act.tool, {})
            of.pop(act.on, None)
            of[act.on] = index
    for tool, targets in used.items():
        listed = list(targets)[-_TARGETS:]
        while len(listed) > 1 and counter.text(_marked(f"{tool}: {', '.join(listed)}")) > most:
            listed = listed[len(listed) // 2 :]
        yield _Line((-max(targets.values()),), max(targets.values()), _marked(f"{tool}: {', '.join(listed)}"))


def _errors(source: Covered) -> Iterator[_Line]:
    """The lines of failed calls; of those that differ in their digits only, the newest."""
    newest: dict[str, _Line] = {}
    for index, _, calls, told in source.results:
        tool = next((call.name for call in calls if call is not None), "")
        for line in told:
            key = "".join(char for char in line if not char.isdigit())
            newest.pop(key, None)
            newest[key] = _Line((-index,), index, _marked(f"{tool}:", f" {line}") if tool else _marked("", line))
    return iter(newest.values())


def _marked(told: str, quoted: str = "") -> str:
    """One line of words that are neither ours nor the user's; what is quoted keeps its own spaces."""
    return f">> {' '.join(told.split())}{quoted}"


def _closings(source: Covered) -> list[Quote]:
    """What the assistant said in the last paragraph of its messages."""
    spoken = ((index, message) for index, message in source.messages if message.role is Role.ASSISTANT)
    return quotes(((index, closing_in(message)) for index, message in spoken), source.rarity)


def _is_printed(source: Covered) -> Callable[[Quote], bool]:
    """Whether a tool has said the same: then these are its words, whoever repeats them."""
    printed = "\n".join(" ".join(result.message.printed.split()) for result in source.results)
    return lambda quote: " ".join(quote.unit.text.split()) in printed


def _left(source: Covered, most: int, counter: TokenCounter) -> Iterator[_Line]:
    """What the user gave that is too large to be quoted: its size, how it begins, its handle."""
    chain = source.view.transcript.chain
    for quote in source.said:
        unit = quote.unit
        if quote.fills_only or is_quotable(quote, most, counter):
            continue
        handle = handle_of(chain[quote.message])
        text = f"- ({quote.message + 1}) {stand_in(unit.kind, unit.text, unit.lines)} handle {handle}"
        yield _Line((-quote.message, quote.place), quote.message, text)


def stand_in(kind: Kind, text: str, line_count: int) -> str:
    """`[code, 40 lines]`, or the size and the first words of a text."""
    if kind in (Kind.CODE, Kind.LOG):
        return f"[{kind.value}, {line_count:,} line{'s' * (line_count != 1)}]"
    first = " ".join(text[: _FIRST + 1].split())
    cut = first if len(text) <= _FIRST else first.rsplit(" ", 1)[0]
    return f"[{len(text):,} characters] {cut} [cut]"


def whole_paragraphs(text: str, cap: int, counter: TokenCounter) -> str:
    """As many of the first paragraphs of a text as fit into `cap` tokens; of one that is too long, both ends."""
    kept: list[str] = []
    left = cap
    for paragraph in text.split("\n\n"):
        left -= counter.text(paragraph) + 1
        if left < 0:
            break
        kept.append(paragraph)
    return "\n\n".join(kept) or (cut_text(text, cap, counter) if cap >= _LEAST else "")


def written_by_model(text: str) -> str:
    """The part of an earlier record, without its ledger, that stands before the first of our headings."""
    kept: list[str] = []
    for line in text.splitlines():
        if is_heading(line):
            break
        kept.append(line)
    return "\n".join(kept).strip()
