"""Merging: new memory cards beside old ones, told once, and the later of two that contradict each other holding.

What says the same, exactly or with nearly the same n-grams and no other number, identifier or negation, is left out.
What contradicts an older card of its type supersedes it. Contradiction is a heuristic, chosen to miss rather than to
invent. Both must name one subject before a copula ("The port is 8080", "数据库是 MySQL", "timeout: 30 s"), or none;
then they contradict each other where

- they tell of that subject values that share no word (not of such subjects as the user or the project, of which many
  things hold at once), or
- their sentences are nearly the same but for a number or a negation. Another identifier is another thing.

A card made from a tool's text supersedes only such cards: no page that an agent reads can lift a rule of the user.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

from strategies.core.cards import MemoryCard
from strategies.core.plain import plain
from strategies.core.transcript import Role
from strategies.memory.terms import STOP, terms

SAME = 0.8
"""Jaccard similarity of n-grams from which on two sentences say the same, or the contrary."""
_GRAM = 3


class _Reading(NamedTuple):
    """What a card's sentence is compared by; `grams` are those of the sentence without what the next three hold."""

    text: str
    grams: frozenset[str]
    numbers: frozenset[str]
    identifiers: frozenset[str]
    negated: bool
    subject: frozenset[str]
    value: frozenset[str]


def merged(old: Sequence[MemoryCard], new: Iterable[MemoryCard]) -> list[MemoryCard]:
    """The old cards and the new ones that say something new; contradicted ones are superseded, and stay.

    A card that was superseded and is told again is new.
    """
    cards = list(old)
    readings = [_read(card.content) for card in cards]
    for card in new:
        reading = _read(card.content)
        standing = [at for at, each in enumerate(cards) if each.holds]
        if any(_same(readings[at], reading) and _may_replace(cards[at], card) for at in standing):
            continue
        for at in standing:
            if cards[at].type == card.type and _may_replace(card, cards[at]) and _contradict(readings[at], reading):
                cards[at] = replace(cards[at], superseded_by=card.id)
        cards.append(card)
        readings.append(reading)
    return cards


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


def _read(text: str) -> _Reading:
    subject, value = _divided(text)
    marks = frozenset(mark.casefold().rstrip(".:") for mark in _MARK.findall(text))
    numbers = frozenset(mark for mark in marks if mark[0].isdigit())
    rest = plain(_NEGATION.sub(" ", _MARK.sub(" ", text)))
    return _Reading(
        plain(text),
        frozenset(rest[i : i + _GRAM] for i in range(max(len(rest) - _GRAM + 1, 1))),
        numbers,
        marks - numbers,
        _NEGATION.search(text) is not None,
        frozenset(terms(subject)),
        frozenset(plain(value).split()) - STOP,
    )


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
