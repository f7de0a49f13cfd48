"""Merging: new memory cards beside old ones, told once, and the later of two that contradict each other holding.

What says the same, exactly or with nearly the same n-grams and no other number, identifier or negation, is left out.
What contradicts an older card of its type supersedes it. Contradiction is a heuristic, chosen to miss rather than to
invent:

- both name one subject before a copula ("The port is 8080", "数据库是 MySQL", "timeout: 30 s") and tell of it values
  that share no word; not of such subjects as the user or the project, of which many things hold at once, or
- their sentences are nearly the same but for a number, an identifier or a negation.

A card made from a tool's text supersedes only such cards: no page that an agent reads can lift a rule of the user.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

from strategies.core.transcript import Role
from strategies.memory.cards import MemoryCard
from strategies.memory.terms import plain, terms

SAME = 0.8
"""Jaccard similarity of n-grams from which on two sentences say the same."""
ALIKE = 0.6
"""That from which on another number, identifier or negation makes it a contradiction."""
_GRAM = 3


class _Reading(NamedTuple):
    """What a card's sentence is compared by."""

    text: str
    grams: frozenset[str]
    marks: frozenset[str]
    """Numbers and identifiers."""
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
_MARK = re.compile(r"[^\W_]*\d[\w.:/%-]*|[A-Za-z]\w*(?:[._/\\-]\w+)+")
_COPULA = re.compile(
    r"\s*(?::|：|=)\s*|\s+(?:is|are|was|equals|runs on|lives? in)\s+|改为|改成|设为|是|为", re.IGNORECASE
)
_BROAD = frozenset(
    terms("user assistant agent customer project app system task goal decision constraint todo note fact code file")
    + terms("用户 助手 客户 项目 系统 任务 目标 决策 约束 待办 备注 事实 代码 文件")
)


def _read(content: str) -> _Reading:
    text = plain(content)
    subject, value = _divided(content)
    return _Reading(
        text,
        frozenset(text[i : i + _GRAM] for i in range(max(len(text) - _GRAM + 1, 1))),
        frozenset(mark.casefold().rstrip(".:") for mark in _MARK.findall(content)),
        _NEGATION.search(content) is not None,
        frozenset(terms(subject)),
        frozenset(terms(value)),
    )


def _divided(content: str) -> tuple[str, str]:
    """What a sentence is about, "" where no copula tells, and what it says of that."""
    found = _COPULA.search(content)
    return (content[: found.start()], content[found.end() :]) if found else ("", content)


def _same(one: _Reading, other: _Reading) -> bool:
    if one.text == other.text:
        return True
    return not _differ(one, other) and _similar(one, other) >= SAME


def _contradict(old: _Reading, new: _Reading) -> bool:
    if _differ(old, new) and _similar(old, new) >= ALIKE:
        return True
    return bool(new.subject - _BROAD) and old.subject == new.subject and old.value.isdisjoint(new.value)


def _differ(one: _Reading, other: _Reading) -> bool:
    """Whether they differ in a number, an identifier or a negation."""
    return one.marks != other.marks or one.negated != other.negated


def _similar(one: _Reading, other: _Reading) -> float:
    """The Jaccard similarity of their n-grams; 0 where their lengths alone forbid that it matters."""
    sizes = sorted((len(one.grams), len(other.grams)))
    if sizes[0] < ALIKE * sizes[1]:
        return 0.0
    return len(one.grams & other.grams) / len(one.grams | other.grams)
