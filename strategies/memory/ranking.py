"""Ranking: finds the entries that a query is about, by BM25 in which a term also counts for neighbouring messages.

In a conversation, the words of a question and those of its answer are in different messages: "What does the museum
cost?" "45 yuan." So each occurrence of a term also counts, less with each step, for some messages after it and for two
before it. The sums saturate like BM25's term frequency, so that a message whose surroundings contain *all* terms of the
query comes before one that repeats a single term. On annotated dialogues this helps more than all other rules together;
see docs/internals/quality.md.

The other rules have small effects. A message scores higher if the query names its speaker, or the month or day on which
it was said (a date at the beginning of a message holds for the messages after it). A term of the query counts more in
quotation marks, or if it looks like an identifier. Cards have no neighbours.

The work is bounded: only the rarest terms of a long query count, up to `MAX_POSTINGS` occurrences in all. An entry that
the caller may not see has no effect, neither on scores nor on frequencies.

The entries are stored messages, parts of long ones, and cards. An entry's `key` decides who may see it. For a message,
the key is the chain digest up to and including that message, so that the message is visible only after the same
history. A long message is split at the ends of lines and sentences; its parts, joined, are byte for byte the message.

A text is searched by its *terms* (`core.terms`), and by the speakers and dates in it.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from functools import cache
from heapq import nlargest
from itertools import count
from typing import NamedTuple

from strategies.core.cards import MemoryCard
from strategies.core.handles import handle_in, handle_of
from strategies.core.messages import Message, Role
from strategies.core.terms import TokenTerms, informative_share, terms, terms_of_token, width
from strategies.core.transcript import Transcript

# -- names ---------------------------------------------------------------------------------------------------------

_SPEAKER = re.compile(r"\s*(?:\[[^\]\n]{1,60}\]\s*)?([^\W\d_][\w.' -]{0,30}?)\s?(?::(?=\s|$)|：)")


def speaker(text: str) -> str:
    """The speaker that a text names, as in `Caroline: hello` or `[1:56 pm on 8 May, 2023] Mel: hi`; "" if none."""
    match = _SPEAKER.match(text)
    return match.group(1).casefold() if match else ""


# -- dates ---------------------------------------------------------------------------------------------------------


class Date(NamedTuple):
    """A date, possibly incomplete: a missing field is 0."""

    year: int
    month: int
    day: int

    def meets(self, other: Date) -> bool:
        """Whether both dates have a month, and agree in all fields that both have."""
        shared = [(mine, its) for mine, its in zip(self, other, strict=True) if mine and its]
        return bool(self.month and other.month) and all(mine == its for mine, its in shared)


_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_MONTH = (
    r"(?P<name>Jan(?:uary)?|Feb(?:ruary)?|Mar(?:ch)?|Apr(?:il)?|May|June?|July?|Aug(?:ust)?|Sept?(?:ember)?"
    r"|Oct(?:ober)?|Nov(?:ember)?|Dec(?:ember)?)\b\.?"
)
_DATES = (
    re.compile(r"\b(?P<year>\d{4})[-/.](?P<month>\d{1,2})(?:[-/.](?P<day>\d{1,2}))?\b"),
    re.compile(rf"\b(?P<day>\d{{1,2}})(?:st|nd|rd|th)?\s+(?:of\s+)?{_MONTH}(?:,?\s+(?P<year>\d{{4}}))?"),
    re.compile(rf"\b{_MONTH}(?:\s+(?P<day>\d{{1,2}})(?!\d)(?:st|nd|rd|th)?)?(?:,?\s+(?P<year>\d{{4}}))?"),
    re.compile(r"(?:(?P<year>\d{4})\s*年\s*)?(?P<month>\d{1,2})\s*月(?:\s*(?P<day>\d{1,2})\s*[日号])?"),
)
_STAMP = 60


def dates(text: str) -> list[Date]:
    """The dates in a text that have a month, in no particular order."""
    dates: list[Date] = []
    for match in (match for pattern in _DATES for match in pattern.finditer(text)):
        groups = match.groupdict()
        name = groups.get("name")
        month = _MONTHS.index(name[:3].lower()) + 1 if name else int(groups.get("month") or 0)
        if 1 <= month <= 12:
            dates.append(Date(int(groups.get("year") or 0), month, int(groups.get("day") or 0)))
    return dates


def leading_date(text: str) -> Date | None:
    """The complete date near the beginning of a text. It holds for all later messages until the next such date."""
    return next((date for date in dates(text[:_STAMP]) if date.day), None)


NOWHERE = -1
PART_WIDTH = 600  # the maximum width (see `terms.width`) of a part: about 150 tokens, so that a block of 800 holds five
_BOUNDARIES = (
    re.compile(r"\n\s*\n"),
    re.compile(r"\n"),
    re.compile(r"[.!?…]['\")\]]*\s|[。！？]"),
    re.compile(r"\s"),
)

K1, B = 1.2, 0.75
MAX_POSTINGS = 1_000
MAX_HITS = 400
QUERY_END = 1_000  # how many characters are read at the beginning, and at the end, of a long query

_QUOTED = re.compile(r"[\"“「『`《]([^\"”」』`》\n]{2,60})[\"”」』`》]")
_WORD = re.compile(r"\w+")
# Each run of letters is matched once, from its beginning, so that the time stays linear.
_IDENTIFIER = re.compile(r"(?<![A-Za-z])[A-Za-z]*+\d[\w.]*|(?<!\w)\w+(?:[._/:@\\-]+\w+)+")


# -- entries ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Entry:
    key: str  # decides who may see the entry
    role: Role  # whose words these are; for a card, whose words it was made from
    text: str
    place: int = NOWHERE  # the index of the message in the conversation; `NOWHERE` for a card, which has no neighbours
    part: int = 0
    parts: int = 1
    card: str = ""  # the type of the card; "" for a message


def message_entries(key: str, message: Message, place: int) -> list[Entry]:
    """The entries of a stored message; none for a system message, or one without text and calls."""
    if message.role is Role.SYSTEM:
        return []
    calls = (f"{call.name}({call.arguments})" for call in message.calls)
    entries = text_entries(key, message.role, "\n".join(filter(None, (message.printed, *calls))), place)
    if message.role is not Role.TOOL or not (words := message.words):
        return entries
    # The user's words beside a result have parts of their own, behind those of the result.
    entries += text_entries(key, Role.USER, words, place)
    return [replace(each, part=number, parts=len(entries)) for number, each in enumerate(entries)]


def expanded(query: str, transcript: Transcript, places: Sequence[int]) -> list[Hit]:
    """All entries of the message whose handle is the query; none if the query is something else.

    Of equal messages, the newest one of these places counts.
    """
    handle = handle_in(query)
    if handle is None:
        return []
    place = next((each for each in reversed(places) if handle_of(transcript.chain[each]) == handle), None)
    if place is None:
        return []
    entries = message_entries(transcript.digests[place].hex(), transcript.chain[place], place)
    return [Hit(entry, position, 1.0) for position, entry in enumerate(entries)]


def text_entries(key: str, role: Role, text: str, place: int) -> list[Entry]:
    parts = split(text) if text.strip() else []
    return [Entry(key, role, part, place, number, len(parts)) for number, part in enumerate(parts)]


def card_entry(key: str, card: MemoryCard) -> Entry:
    return Entry(key, card.role, card.content, card=card.type)


def split(text: str) -> list[str]:
    """The parts of a text, each at most `PART_WIDTH` wide. Joined, they are the text again."""
    parts = []
    start = 0
    while start < len(text):
        end = _end(text, start)
        parts.append(text[start:end])
        start = end
    return parts


def _end(text: str, start: int) -> int:
    """Where the part that begins at `start` ends: at the best boundary in the second half of its room."""
    longest = text[start : start + PART_WIDTH]
    most = max(PART_WIDTH * len(longest) // max(width(longest), PART_WIDTH), 1)
    if len(text) - start <= most:
        return len(text)
    for boundary in _BOUNDARIES:
        ends = [match.end() for match in boundary.finditer(text, start + most // 2, start + most)]
        if ends:
            return ends[-1]
    return start + most


# -- the index -------------------------------------------------------------------------------------------


AFTER = tuple(round(0.5 * 0.7**steps, 3) for steps in range(5))
"""How much a term counts one, two, … messages after its own."""
BEFORE = (0.25, 0.125)  # how much a term counts one, two, … messages before its own
SPEAKER = 1.2  # the factor for a message whose speaker the query names
DATED = 1.2  # the factor for a message that was said on a date that the query names
QUOTED = 1.5  # the factor for a term in quotation marks, or one that looks like an identifier
SINGLE = 0.3  # the factor for a term that is a single character of a script without spaces
_KERNEL = (*enumerate(AFTER, 1), *((-step, share) for step, share in enumerate(BEFORE, 1)))
"""How much a term counts at other places, by their distance."""
_APART = 2 * len(_KERNEL) + 1  # positions between two cards, so that they are no neighbours


@dataclass(frozen=True, slots=True)
class Hit:
    """An entry that was found. `position` is its place among the visible entries: neighbours differ by one.

    `said` has the query's terms in the entry, each with its rarity: 1 for a term that no entry has.
    """

    entry: Entry
    position: int
    score: float
    said: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Line:
    """The visible entries of an index, in order. An entry has a number in the index, and a position in this line."""

    positions: dict[int, int]  # positions by number
    numbers: dict[int, int]  # numbers by position
    end: int  # the position after the last message; cards follow at greater distances
    length: float  # the mean length of the entries, in terms; at least 1

    def rarity(self, occurrences: int) -> float:
        """How rare a term is that so many of the entries have."""
        return math.log(1 + (len(self.numbers) - occurrences + 0.5) / (occurrences + 0.5))


_Found = tuple[str, Sequence[tuple[int, int]], float]


class Index:
    """A searchable index of one session's entries. Adding entries in parts gives the same index as all at once."""

    def __init__(self, entries: Iterable[Entry] = ()) -> None:
        self._entries: list[Entry] = []
        self._keys: list[str] = []
        self._places: list[int] = []
        self._lengths: list[int] = []
        self._cards: set[int] = set()
        self._stamps: list[tuple[int, Date]] = []
        self._said_by: dict[str, list[int]] = {}
        self._postings: dict[str, list[tuple[int, int]]] = {}
        self._known: set[tuple[str, int]] = set()
        self.add(entries)

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, entries: Iterable[Entry]) -> None:
        """Adds entries that are not in the index yet. Their `place` gives their order, not that of adding."""
        remembered = cache(
            terms_of_token
        )  # of these entries only: what one tenant has said must not be quicker for another
        for entry in entries:
            if (entry.key, entry.part) not in self._known:
                self._known.add((entry.key, entry.part))
                self._add(entry, remembered)

    def _add(self, entry: Entry, remembered: TokenTerms) -> None:
        number = len(self._entries)
        counts = Counter(terms(entry.text, remembered))
        postings = {times: (number, times) for times in counts.values()}  # shared by the terms: most occur once
        for term, times in counts.items():
            self._postings.setdefault(term, []).append(postings[times])
        self._entries.append(entry)
        self._keys.append(entry.key)
        self._places.append(entry.place)
        self._lengths.append(counts.total())
        for name in speaker(entry.text).split():
            self._said_by.setdefault(name, []).append(number)
        if entry.place == NOWHERE:
            self._cards.add(number)
        elif date := leading_date(entry.text):
            self._stamps.append((number, date))

    def search(self, query: str, limit: int = MAX_HITS, allowed: AbstractSet[str] | None = None) -> list[Hit]:
        """The entries that a query is about, best first; if scores are equal, newer first. Empty if no term occurs.

        `allowed` holds the keys of the entries that may be seen; None allows all.
        """
        text = query if len(query) <= 2 * QUERY_END else f"{query[:QUERY_END]}\n{query[-QUERY_END:]}"
        marked = {term for part in (*_QUOTED.findall(text), *_IDENTIFIER.findall(text)) for term in terms(part)}
        weights = {term: informative_share(term, SINGLE) * (QUOTED if term in marked else 1.0) for term in terms(text)}
        line = self._line(allowed)
        found = self._found(weights, line)
        scores = self._scores(found, line)
        self._boost(scores, text, line)
        best = nlargest(limit, ((score, at) for at, score in scores.items() if at in line.numbers))
        rarest, said = line.rarity(0), defaultdict[int, dict[str, float]](dict)
        for term, places, worth in found:
            for number, _ in places:
                said[line.positions[number]][term] = worth / rarest
        return [Hit(self._entries[line.numbers[at]], at, score, said.get(at, {})) for score, at in best]

    def _line(self, allowed: AbstractSet[str] | None) -> _Line:
        """Messages have consecutive positions; a card is too far from everything else to have neighbours."""
        visible = [number for number, key in enumerate(self._keys) if allowed is None or key in allowed]
        messages = sorted((number for number in visible if number not in self._cards), key=self._places.__getitem__)
        numbers = dict(enumerate(messages))
        end = len(numbers)
        cards = (number for number in visible if number in self._cards)
        numbers.update(zip(count(end + _APART, _APART), cards, strict=False))
        positions = {number: at for at, number in numbers.items()}
        mean = sum(map(self._lengths.__getitem__, visible)) / max(len(visible), 1)
        return _Line(positions, numbers, end, max(mean, 1.0))

    def _found(self, weights: Mapping[str, float], line: _Line) -> list[_Found]:
        """The rarest terms, each with its postings (none if no entry has it) and what it is worth."""
        terms = [(term, self._postings.get(term, [])) for term in weights]
        if len(line.numbers) < len(self._entries):
            terms = [(term, [place for place in places if place[0] in line.positions]) for term, places in terms]
        terms.sort(key=lambda pair: (len(pair[1]), pair[0]))
        found, room = list[_Found](), MAX_POSTINGS
        for term, places in terms:
            df = len(places)
            found.append((term, places[-room:], weights[term] * line.rarity(df)))
            room -= df
            if room <= 0:
                break
        return found

    def _scores(self, found: Iterable[_Found], line: _Line) -> dict[int, float]:
        """The scores by position. Some positions beyond the ends of the line have a score but no entry."""
        scores: dict[int, float] = {}
        for _, places, worth in found:
            for at, share in self._spread(places, line).items():
                scores[at] = scores.get(at, 0.0) + worth * share / (share + 1)
        return scores

    def _spread(self, postings: Sequence[tuple[int, int]], line: _Line) -> dict[int, float]:
        """How much a term counts at each position: BM25's normalized term frequency, spread to the neighbours."""
        shares: dict[int, float] = {}
        for number, times in postings:
            at = line.positions[number]
            norm = K1 * (1 - B + B * self._lengths[number] / line.length)
            share = times / norm
            shares[at] = shares.get(at, 0.0) + share
            if number not in self._cards:
                for offset, weight in _KERNEL:
                    shares[at + offset] = shares.get(at + offset, 0.0) + weight * share
        return shares

    def _boost(self, scores: dict[int, float], query: str, line: _Line) -> None:
        """Raises the scores of entries whose speaker or date the query names."""
        for name in set(_WORD.findall(query.casefold())) & self._said_by.keys():
            _multiply(scores, (line.positions.get(number) for number in self._said_by[name]), SPEAKER)
        named_dates = dates(query)
        if not named_dates:
            return
        # The date of a message holds until the next one.
        stamped = sorted((line.positions[number], date) for number, date in self._stamps if number in line.positions)
        ends = [*(at for at, _ in stamped[1:]), line.end]
        for (start, date), end in zip(stamped, ends, strict=False):
            if any(map(date.meets, named_dates)):
                _multiply(scores, range(start, end), DATED)


def _multiply(scores: dict[int, float], positions: Iterable[int | None], factor: float) -> None:
    for at in positions:
        if at in scores:
            scores[at] *= factor
