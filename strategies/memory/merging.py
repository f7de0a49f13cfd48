"""Merging: new memory cards beside old ones, told once, and the later of two that contradict each other holding.

What says the same, exactly or with nearly the same n-grams and no other number, identifier or negation, is left out.
What contradicts an older card of its type supersedes it. Contradiction is a heuristic, chosen to miss rather than to
invent. Both must name one subject before a copula ("The port is 8080", "数据库是 MySQL", "timeout: 30 s"), or none;
then they contradict each other where

- they tell of that subject values that share no word (not of such subjects as the user or the project, of which many
  things hold at once), or
- their sentences are nearly the same but for a number or a negation. Another identifier is another thing.

A card made from a tool's text supersedes only such cards: no page that an agent reads can lift a rule of the user.

A session may have hundreds of cards, and each request sees them merged. So a card is compared only with those that it
can be like: with a similarity of `SAME`, two sets share one of the first few of their elements, in whatever order.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from math import ceil
from typing import NamedTuple

from strategies.core.cards import MemoryCard
from strategies.core.plain import plain
from strategies.core.transcript import Role
from strategies.memory.terms import STOP, terms

SAME = 0.8
"""Jaccard similarity of n-grams from which on two sentences say the same, or the contrary."""
_GRAM = 3


class _Reading(NamedTuple):
    """What a card's sentence is compared by; `grams` are those of the sentence without what the next three hold.

    `first` are those of the grams of which a similar sentence has one among its own.
    """

    text: str
    grams: frozenset[str]
    numbers: frozenset[str]
    identifiers: frozenset[str]
    negated: bool
    subject: frozenset[str]
    value: frozenset[str]
    first: tuple[str, ...]


def merged(old: Sequence[MemoryCard], new: Iterable[MemoryCard]) -> list[MemoryCard]:
    """The old cards and the new ones that say something new; contradicted ones are superseded, and stay.

    A card that was superseded and is told again is new.
    """
    cards: list[MemoryCard] = []
    board = _Board()
    for card in old:
        board.put(len(cards), card)
        cards.append(card)
    for card in new:
        reading = _read(card.content)
        near = board.near(reading)
        if any(_same(_read(cards[at].content), reading) and _may_replace(cards[at], card) for at in near):
            continue
        for at in near | board.about(reading):
            if _overtakes(card, reading, cards[at]):
                board.take(at, cards[at])
                cards[at] = replace(cards[at], superseded_by=card.id)
        board.put(len(cards), card)
        cards.append(card)
    return cards


@lru_cache(maxsize=32)
def settled(cards: tuple[MemoryCard, ...]) -> tuple[MemoryCard, ...]:
    """Cards in the order in which they came, merged: the same for every request until another one comes."""
    return tuple(merged((), cards))


class _Board:
    """The numbers of cards that hold, by what a new one may be like."""

    def __init__(self) -> None:
        self._texts: dict[str, set[int]] = {}
        self._grams: dict[tuple[str, frozenset[str]], set[int]] = {}
        self._subjects: dict[frozenset[str], set[int]] = {}

    def put(self, at: int, card: MemoryCard) -> None:
        """Adds the card of a number, where it holds."""
        if card.holds:
            for found in self._of(_read(card.content)):
                found.add(at)

    def take(self, at: int, card: MemoryCard) -> None:
        """Takes the card of a number out."""
        for found in self._of(_read(card.content)):
            found.discard(at)

    def near(self, reading: _Reading) -> set[int]:
        """All that may be as similar as `SAME` and name the same identifiers, and some others."""
        found = (self._grams.get((gram, reading.identifiers), ()) for gram in reading.first)
        return self._texts.get(reading.text, set()).union(*found)

    def about(self, reading: _Reading) -> set[int]:
        """All that tell of the same subject, where that is one of which one thing holds at a time."""
        return self._subjects.get(reading.subject, set()) if reading.subject - _BROAD else set()

    def _of(self, reading: _Reading) -> Iterator[set[int]]:
        yield self._texts.setdefault(reading.text, set())
        yield self._subjects.setdefault(reading.subject, set())
        for gram in reading.first:
            yield self._grams.setdefault((gram, reading.identifiers), set())


def _overtakes(card: MemoryCard, reading: _Reading, old: MemoryCard) -> bool:
    return old.type == card.type and _may_replace(card, old) and _contradict(_read(old.content), reading)


def _may_replace(card: MemoryCard, other: MemoryCard) -> bool:
    """Whether `card` may stand where `other` stood: what a tool said never stands for what others said."""
    return card.role is not Role.TOOL or other.role is Role.TOOL


_NEGATION = re.compile(
    r"\b(?:not?|never|cannot|without|avoid|stop|\w+n't|no longer)\b|不|没有|別|别|勿|禁止|停止|取消|无需", re.IGNORECASE
)
_MARK = re.compile(r"[A-Za-z_]*\d[\w.:/%-]*|[A-Za-z]\w*(?:[._/\\-]\w+)+", re.ASCII)
_COPULA = re.compile(
    r"\s*(?::|：|=)\s*|\s+(?:is|are|was|equals|runs on|lives? in)\s+|改为|改成|设为|是|为", re.IGNORECASE
)
_BROAD = frozenset(
    terms("user assistant agent customer project app system task goal decision constraint todo note fact code file")
    + terms("用户 助手 客户 项目 系统 任务 目标 决策 约束 待办 备注 事实 代码 文件")
)


@lru_cache(maxsize=4_096)
def _read(text: str) -> _Reading:
    subject, value = _divided(text)
    marks = frozenset(mark.casefold().rstrip(".:") for mark in _MARK.findall(text))
    numbers = frozenset(mark for mark in marks if mark[0].isdigit())
    rest = plain(_NEGATION.sub(" ", _MARK.sub(" ", text)))
    grams = frozenset(rest[i : i + _GRAM] for i in range(max(len(rest) - _GRAM + 1, 1)))
    return _Reading(
        plain(text),
        grams,
        numbers,
        marks - numbers,
        _NEGATION.search(text) is not None,
        frozenset(terms(subject)),
        frozenset(plain(value).split()) - STOP,
        tuple(sorted(grams, key=_order)[: len(grams) - ceil(SAME * len(grams)) + 1]),
    )


def _order(gram: str) -> tuple[int, str]:
    """One order for all, in which grams from within words come first: the others are shared by many sentences."""
    return gram.count(" "), gram


def _divided(content: str) -> tuple[str, str]:
    """What a sentence is about, "" where no copula tells, and what it says of that."""
    found = _COPULA.search(content)
    return (content[: found.start()], content[found.end() :]) if found else ("", content)


def _same(one: _Reading, other: _Reading) -> bool:
    if one.text == other.text:
        return True
    return one[2:5] == other[2:5] and _similar(one, other) >= SAME


def _contradict(old: _Reading, new: _Reading) -> bool:
    if old.subject != new.subject:
        return False
    if new.subject - _BROAD and old.value.isdisjoint(new.value):
        return True
    differ = old.numbers != new.numbers or old.negated != new.negated
    return differ and old.identifiers == new.identifiers and _similar(old, new) >= SAME


def _similar(one: _Reading, other: _Reading) -> float:
    """The Jaccard similarity of their n-grams; 0 where their sizes alone forbid that they are similar."""
    sizes = sorted((len(one.grams), len(other.grams)))
    if sizes[0] < SAME * sizes[1]:
        return 0.0
    return len(one.grams & other.grams) / len(one.grams | other.grams)
