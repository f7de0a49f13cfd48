"""Ranking: which entries a query is about. BM25 in which a message also speaks for its neighbours.

Why neighbours. In a conversation the words of a question and those of its answer stand in different messages: "What
does the museum cost?" "45 yuan." So each occurrence of a term counts, less with each step, for some messages after
it and for two before it; the sums saturate as BM25's term frequency does, so that a message
whose surroundings hold *all* of the query's terms comes before one that repeats a single term. On annotated dialogues
this is worth more than everything else together; see docs/quality.md.

The rest is light. A message is worth more where the query names who says it, and where it names the month or day on
which it was said (a date that a message begins with holds for those after it); a term of the query counts more where
it stands in quotation marks or looks like an identifier. Cards have no neighbours. `Weights` holds it all.

Work is bounded: of a long query the rarest terms are taken, as many as have `MOST_POSTINGS` occurrences. An entry
that is not allowed changes nothing: neither scores nor frequencies know of it.
"""

from __future__ import annotations

import math
import re
from collections import Counter as Multiset
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from heapq import nlargest
from itertools import count
from typing import NamedTuple

from strategies.memory.passages import NOWHERE, Entry
from strategies.memory.terms import Date, content, dates, speaker, stamp, terms

K1, B = 1.2, 0.75
MOST_POSTINGS = 1_000
MOST_HITS = 400
QUERY_END = 1_000
"""Characters of a long query's beginning and end that are read."""

_QUOTED = re.compile(r"[\"“「『`《]([^\"”」』`》\n]{2,60})[\"”」』`》]")
_WORD = re.compile(r"\w+")
# Each run of letters is tried once, from where it begins.
_IDENTIFIER = re.compile(r"(?<![A-Za-z])[A-Za-z]*+\d[\w.]*|(?<!\w)\w+(?:[._/:@\\-]+\w+)+")


@dataclass(frozen=True, slots=True)
class Weights:
    """What counts how much. `after` is what a term counts one, two, … messages later, `before` one, two, … earlier."""

    after: tuple[float, ...] = tuple(round(0.5 * 0.7**steps, 3) for steps in range(5))
    before: tuple[float, ...] = (0.25, 0.125)
    speaker: float = 1.2
    dated: float = 1.2
    quoted: float = 1.5
    single: float = 0.3

    def kernel(self) -> tuple[tuple[int, float], ...]:
        """(offset, weight) for each neighbour."""
        later = ((step, weight) for step, weight in enumerate(self.after, 1))
        earlier = ((-step, weight) for step, weight in enumerate(self.before, 1))
        return (*later, *earlier)


DEFAULT = Weights()


@dataclass(frozen=True, slots=True)
class Hit:
    """An entry that was found. `position` is its place in the line of what may be seen: neighbours differ by one."""

    entry: Entry
    position: int
    score: float


@dataclass(frozen=True, slots=True)
class _Line:
    """The allowed entries of an index in their order, and their mean length in terms."""

    positions: dict[int, int]
    """The position by the entry's number."""
    numbers: dict[int, int]
    """The number by position."""
    end: int
    """The position behind the last message; cards stand further on."""
    length: float


class _Found(NamedTuple):
    """A term of the query: what it counts, and where it stands as (number of the entry, times)."""

    weight: float
    postings: Sequence[tuple[int, int]]


class Index:
    """The entries of one session, to be searched. Built in pieces or at once, it is the same."""

    def __init__(self, entries: Iterable[Entry] = (), weights: Weights = DEFAULT) -> None:
        self._weights = weights
        self._kernel = weights.kernel()
        self._apart = 2 * (len(weights.after) + len(weights.before)) + 1
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
        """Adds entries; their places say in which order they were said. Those that are known are left out."""
        for entry in entries:
            if (entry.key, entry.part) not in self._known:
                self._known.add((entry.key, entry.part))
                self._add(entry)

    def _add(self, entry: Entry) -> None:
        number = len(self._entries)
        counts = Multiset(terms(entry.text))
        for term, times in counts.items():
            self._postings.setdefault(term, []).append((number, times))
        self._entries.append(entry)
        self._keys.append(entry.key)
        self._places.append(entry.place)
        self._lengths.append(counts.total())
        for name in speaker(entry.text).split():
            self._said_by.setdefault(name, []).append(number)
        if entry.place == NOWHERE:
            self._cards.add(number)
        elif date := stamp(entry.text):
            self._stamps.append((number, date))

    def search(self, query: str, limit: int = MOST_HITS, allowed: AbstractSet[str] | None = None) -> list[Hit]:
        """The entries that a query is about, best first, the newer of equals first.

        `allowed` holds the keys that may be seen; None allows all. Empty where no term of the query stands anywhere.
        """
        asked = query if len(query) <= 2 * QUERY_END else f"{query[:QUERY_END]}\n{query[-QUERY_END:]}"
        line = self._line(allowed)
        scores = self._scores(self._weigh(asked), line)
        self._boost(scores, asked, line)
        best = nlargest(limit, ((score, at) for at, score in scores.items() if at in line.numbers))
        return [Hit(self._entries[line.numbers[at]], at, score) for score, at in best]

    def visible(self, allowed: AbstractSet[str]) -> list[Hit]:
        """All entries with these keys, in their order and without a score, each with the position of its hits."""
        return [Hit(self._entries[number], at, 0.0) for at, number in self._line(allowed).numbers.items()]

    def _weigh(self, query: str) -> dict[str, float]:
        """What each term of a query counts."""
        marked = {term for text in (*_QUOTED.findall(query), *_IDENTIFIER.findall(query)) for term in terms(text)}
        single, quoted = self._weights.single, self._weights.quoted
        return {term: content(term, single) * (quoted if term in marked else 1.0) for term in terms(query)}

    def _line(self, allowed: AbstractSet[str] | None) -> _Line:
        """Messages stand one beside the other; a card is further from everything than any neighbour counts."""
        shown = [number for number, key in enumerate(self._keys) if allowed is None or key in allowed]
        said = sorted((number for number in shown if number not in self._cards), key=self._places.__getitem__)
        numbers = dict(enumerate(said))
        end = len(numbers)
        cards = (number for number in shown if number in self._cards)
        numbers.update(zip(count(end + self._apart, self._apart), cards, strict=False))
        positions = {number: at for at, number in numbers.items()}
        mean = sum(map(self._lengths.__getitem__, shown)) / max(len(shown), 1)
        return _Line(positions, numbers, end, max(mean, 1.0))

    def _scores(self, weights: Mapping[str, float], line: _Line) -> dict[int, float]:
        """The score by position; beside the ends of the line some have one that nothing stands at."""
        scores: dict[int, float] = {}
        room = MOST_POSTINGS
        for found in self._rarest(weights, line):
            df = len(found.postings)
            worth = found.weight * math.log(1 + (len(line.numbers) - df + 0.5) / (df + 0.5))
            for at, share in self._spread(found.postings[-room:], line).items():
                scores[at] = scores.get(at, 0.0) + worth * share / (share + 1)
            room -= df
            if room <= 0:
                break
        return scores

    def _rarest(self, weights: Mapping[str, float], line: _Line) -> list[_Found]:
        """The terms that stand in the line, rarest first."""
        known = [(term, self._postings[term]) for term in weights if term in self._postings]
        if len(line.numbers) < len(self._entries):
            known = [(term, [each for each in postings if each[0] in line.positions]) for term, postings in known]
        known.sort(key=lambda each: (len(each[1]), each[0]))
        return [_Found(weights[term], postings) for term, postings in known if postings]

    def _spread(self, postings: Sequence[tuple[int, int]], line: _Line) -> dict[int, float]:
        """How much a term counts at each position: BM25's term frequency over its norm, there and around."""
        shares: dict[int, float] = {}
        for number, times in postings:
            at = line.positions[number]
            norm = K1 * (1 - B + B * self._lengths[number] / line.length)
            share = times / norm
            shares[at] = shares.get(at, 0.0) + share
            if number not in self._cards:
                for offset, weight in self._kernel:
                    shares[at + offset] = shares.get(at + offset, 0.0) + weight * share
        return shares

    def _boost(self, scores: dict[int, float], query: str, line: _Line) -> None:
        """Entries are worth more where the query names who said them, or when."""
        for name in set(_WORD.findall(query.casefold())) & self._said_by.keys():
            _multiply(scores, (line.positions.get(number) for number in self._said_by[name]), self._weights.speaker)
        asked = dates(query)
        if asked:
            _multiply(scores, self._said_on(asked, line), self._weights.dated)

    def _said_on(self, asked: Sequence[Date], line: _Line) -> Iterator[int]:
        """The positions of messages that were said on one of the dates: from where it was told to where another is."""
        told = sorted((line.positions[number], date) for number, date in self._stamps if number in line.positions)
        ends = [*(at for at, _ in told[1:]), line.end]
        for (start, date), end in zip(told, ends, strict=False):
            if any(date.meets(each) for each in asked):
                yield from range(start, end)


def _multiply(scores: dict[int, float], positions: Iterable[int | None], factor: float) -> None:
    for at in positions:
        if at in scores:
            scores[at] *= factor
