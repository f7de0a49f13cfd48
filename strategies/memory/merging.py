"""Merging: adds new memory cards to old ones, without duplicates. If two contradict each other, the later one holds.

A card that says the same as an earlier one is left out: the same text, or nearly the same n-grams with the same
numbers, identifiers and negation. A card that contradicts an older card of its type supersedes it. The heuristic for
contradictions would rather miss one than invent one. Both cards must name the same subject before a copula ("The port
is 8080", "数据库是 MySQL", "timeout: 30 s"), or neither may name one. They then contradict each other if

- the values after the copula share no word (except for subjects such as the user or the project, about which many
  things are true at once), or
- their sentences are nearly the same except for a number or a negation. Another identifier means another thing.

A card made from a tool's text supersedes only other such cards: no page that an agent reads can lift a user's rule.

A session may have hundreds of cards, which are merged for each request. So a card is compared only with cards that it
can be similar to: two sets with a similarity of `SAME` share one of their first few elements, in any fixed order.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache, lru_cache
from math import ceil
from typing import NamedTuple

from strategies.core.cards import MemoryCard
from strategies.core.messages import Role
from strategies.core.parsing import normalized
from strategies.memory.terms import STOP, terms

SAME = 0.8
"""Two sentences whose n-grams have at least this Jaccard similarity say the same, or the opposite."""
_GRAM = 3


class _Reading(NamedTuple):
    """The features by which a card's sentence is compared."""

    text: str
    grams: frozenset[str]
    """The n-grams of the sentence without its numbers, identifiers and negations."""
    numbers: frozenset[str]
    identifiers: frozenset[str]
    negated: bool
    subject: frozenset[str]
    """The terms before the copula; empty if there is none."""
    value: frozenset[str]
    """The words after the copula."""
    first: tuple[str, ...]
    """The first few n-grams in a fixed order: two sentences with a similarity of `SAME` have one of them in common."""


def merge_cards(old: Sequence[MemoryCard], new: Iterable[MemoryCard]) -> list[MemoryCard]:
    """The old cards and those new ones that add something. Contradicted cards stay, marked as superseded.

    A new card that repeats a superseded one counts as new.
    """
    cards, board, read = list(old), _Board(), cache(_read)
    for at, card in enumerate(cards):
        board.put(at, card, read(card.content))
    for card in new:
        reading = read(card.content)
        near = board.near(reading)
        if any(_says_the_same(read(cards[at].content), reading) and _may_replace(cards[at], card) for at in near):
            continue
        for at in near | board.about(reading):
            earlier = cards[at]
            can_replace = earlier.type == card.type and _may_replace(card, earlier)
            if can_replace and _contradict(read(earlier.content), reading):
                board.remove(at, read(earlier.content))
                cards[at] = replace(earlier, superseded_by=card.id)
        board.put(len(cards), card, reading)
        cards.append(card)
    return cards


@lru_cache(maxsize=32)
def settled_cards(cards: tuple[MemoryCard, ...]) -> tuple[MemoryCard, ...]:
    """`cards`, given in the order in which they came, after merging. Cached until another card comes.

    A session's cards have its random ids and times, so no other session has the same.
    """
    return tuple(merge_cards((), cards))


class _Board:
    """Finds the cards that hold and may be similar to a new one; cards are identified by their index."""

    def __init__(self) -> None:
        self._texts: dict[str, set[int]] = {}
        self._grams: dict[tuple[str, frozenset[str]], set[int]] = {}
        self._subjects: dict[frozenset[str], set[int]] = {}

    def put(self, at: int, card: MemoryCard, reading: _Reading) -> None:
        if card.holds:
            for indices in self._of(reading):
                indices.add(at)

    def remove(self, at: int, reading: _Reading) -> None:
        for indices in self._of(reading):
            indices.discard(at)

    def near(self, reading: _Reading) -> set[int]:
        """All cards with the same identifiers and a similarity of at least `SAME`, and a few others."""
        candidates = (self._grams.get((gram, reading.identifiers), ()) for gram in reading.first)
        return self._texts.get(reading.text, set()).union(*candidates)

    def about(self, reading: _Reading) -> set[int]:
        """All cards with the same subject, unless many things can be true about it at once."""
        return self._subjects.get(reading.subject, set()) if reading.subject - _BROAD else set()

    def _of(self, reading: _Reading) -> Iterator[set[int]]:
        yield self._texts.setdefault(reading.text, set())
        yield self._subjects.setdefault(reading.subject, set())
        for gram in reading.first:
            yield self._grams.setdefault((gram, reading.identifiers), set())


def _may_replace(card: MemoryCard, other: MemoryCard) -> bool:
    """Whether `card` may replace `other`: a tool's card never replaces anybody else's."""
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


def _read(text: str) -> _Reading:
    copula = _COPULA.search(text)
    subject, value = (text[: copula.start()], text[copula.end() :]) if copula else ("", text)
    marks = frozenset(mark.casefold().rstrip(".:") for mark in _MARK.findall(text))
    numbers = frozenset(mark for mark in marks if mark[0].isdigit())
    rest = normalized(_NEGATION.sub(" ", _MARK.sub(" ", text)))
    grams = frozenset(rest[i : i + _GRAM] for i in range(max(len(rest) - _GRAM + 1, 1)))
    return _Reading(
        normalized(text),
        grams,
        numbers,
        marks - numbers,
        _NEGATION.search(text) is not None,
        frozenset(terms(subject)),
        frozenset(normalized(value).split()) - STOP,
        # Grams inside one word come first, because those with spaces are in many sentences.
        tuple(sorted(grams, key=lambda gram: (gram.count(" "), gram))[: len(grams) - ceil(SAME * len(grams)) + 1]),
    )


def _says_the_same(one: _Reading, other: _Reading) -> bool:
    return one.text == other.text or (one[2:5] == other[2:5] and _similar(one, other) >= SAME)


def _contradict(old: _Reading, new: _Reading) -> bool:
    if old.subject != new.subject:
        return False
    if new.subject - _BROAD and old.value.isdisjoint(new.value):
        return True
    differ = old.numbers != new.numbers or old.negated != new.negated
    return differ and old.identifiers == new.identifiers and _similar(old, new) >= SAME


def _similar(one: _Reading, other: _Reading) -> float:
    """The Jaccard similarity of the n-grams; 0 if their counts alone rule out a similarity of `SAME`."""
    sizes = sorted((len(one.grams), len(other.grams)))
    if sizes[0] < SAME * sizes[1]:
        return 0.0
    return len(one.grams & other.grams) / len(one.grams | other.grams)
