"""What can be found: each stored message, or each part of a long one, and each card.

An entry's `key` is what visibility is decided by: for a message the chain digest that ends with it, so that it is
seen only where the same history leads up to it. A long message is split where its lines and sentences end; the parts
put together are the message again, byte for byte.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from strategies.core.cards import MemoryCard
from strategies.core.transcript import Message, Role
from strategies.memory.terms import width

NOWHERE = -1
PART_WIDTH = 600
"""The width (see `terms.width`) of a part: about 150 tokens, so that a block of 800 holds five."""
_BOUNDARIES = (
    re.compile(r"\n\s*\n"),
    re.compile(r"\n"),
    re.compile(r"[.!?…]['\")\]]*\s|[。！？]"),
    re.compile(r"\s"),
)


@dataclass(frozen=True, slots=True)
class Entry:
    """One thing that can be found.

    `place` counts the messages of the conversation from 0; a card has none and no neighbours. `part` counts from 0.
    `card` is the card's type, "" for a message. `role` is whose words these are: of a card, those it was made from.
    """

    key: str
    role: Role
    text: str
    place: int = NOWHERE
    part: int = 0
    parts: int = 1
    card: str = ""


def message_entries(key: str, message: Message, place: int) -> list[Entry]:
    """The entries of a stored message; none for system messages and for what only a digest is left of."""
    if message.role is Role.SYSTEM or not message.known:
        return []
    calls = (f"{call.name}({call.arguments})" for call in message.calls)
    return text_entries(key, message.role, "\n".join(filter(None, (message.text, *calls))), place)


def text_entries(key: str, role: Role, text: str, place: int) -> list[Entry]:
    """The entries of a text that was said at a place: one, or one for each part; none where there is no text."""
    if not text.strip():
        return []
    parts = split(text)
    return [Entry(key, role, part, place, number, len(parts)) for number, part in enumerate(parts)]


def card_entry(key: str, card: MemoryCard) -> Entry:
    """The entry of a card."""
    return Entry(key, card.role, card.content, card=card.type)


def split(text: str) -> list[str]:
    """The parts of a text, each at most `PART_WIDTH` wide; joined they are the text."""
    parts = []
    start = 0
    while start < len(text):
        end = _end(text, start)
        parts.append(text[start:end])
        start = end
    return parts


def _end(text: str, start: int) -> int:
    """Where the part that begins at `start` ends: at the best boundary in the second half of what it may have."""
    longest = text[start : start + PART_WIDTH]
    most = max(PART_WIDTH * len(longest) // max(width(longest), PART_WIDTH), 1)
    if len(text) - start <= most:
        return len(text)
    for boundary in _BOUNDARIES:
        ends = [found.end() for found in boundary.finditer(text, start + most // 2, start + most)]
        if ends:
            return ends[-1]
    return start + most
