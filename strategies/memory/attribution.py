"""Whose words a memory card has, whatever the summarizer says of it.

A page that an agent reads may tell the summarizer that it is the user's wish. So a card whose words stand in what
tools returned, and not as much in what was said, is taken for a tool's: it can be code or a fact, never a rule.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from strategies.core.cards import FROM_TOOLS, MemoryCard
from strategies.core.plain import fold
from strategies.core.transcript import Message, Role
from strategies.memory.terms import terms

QUOTED = 0.6
"""The share of a card's terms that stand in tools' text from which on it may be theirs."""


def attributed(cards: Sequence[MemoryCard], messages: Sequence[Message]) -> list[MemoryCard]:
    """The cards made from these messages; those from tools' text with a tool's role and a type that it may have."""
    if not cards:
        return []
    said = _joined(message for message in messages if message.role is not Role.TOOL)
    quoted = _joined(message for message in messages if message.role is Role.TOOL)
    return [_as_a_tools(card) if _is_quoted(card, said, quoted) else card for card in cards]


def _joined(messages: Iterable[Message]) -> str:
    return fold("\n".join(message.text for message in messages)).casefold()


def _is_quoted(card: MemoryCard, said: str, quoted: str) -> bool:
    found = set(terms(card.content))
    in_tools = sum(term in quoted for term in found)
    return in_tools >= QUOTED * len(found) and in_tools > sum(term in said for term in found)


def _as_a_tools(card: MemoryCard) -> MemoryCard:
    return replace(card, role=Role.TOOL, type=card.type if card.type in FROM_TOOLS else "fact")
