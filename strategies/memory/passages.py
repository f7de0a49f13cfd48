"""Passages: the searchable entries, which are stored messages, parts of long ones, and cards.

An entry's `key` decides who may see it. For a message it is the chain digest up to and including that message, so that
the message is visible only after the same history. A long message is split at the ends of lines and sentences; its
parts, joined, are the message again, byte for byte.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from strategies.core.cards import MemoryCard
from strategies.core.messages import Message, Role
from strategies.memory.terms import width

NOWHERE = -1
PART_WIDTH = 600
"""The maximum width (see `terms.width`) of a part: about 150 tokens, so that a block of 800 holds five."""
_BOUNDARIES = (
    re.compile(r"\n\s*\n"),
    re.compile(r"\n"),
    re.compile(r"[.!?…]['\")\]]*\s|[。！？]"),
    re.compile(r"\s"),
)


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry that a search can find."""

    key: str
    """Decides who may see the entry."""
    role: Role
    """Whose words these are; for a card, whose words it was made from."""
    text: str
    place: int = NOWHERE
    """The index of the message in the conversation; `NOWHERE` for a card, which has no neighbours."""
    part: int = 0
    """The index of this part of the message."""
    parts: int = 1
    """How many parts the message has."""
    card: str = ""
    """The type of the card; "" for a message."""


def message_entries(key: str, message: Message, place: int) -> list[Entry]:
    """The entries of a stored message; none for system messages, and for messages of which only a digest is left."""
    if message.role is Role.SYSTEM or not message.has_text:
        return []
    calls = (f"{call.name}({call.arguments})" for call in message.calls)
    return text_entries(key, message.role, "\n".join(filter(None, (message.text, *calls))), place)


def text_entries(key: str, role: Role, text: str, place: int) -> list[Entry]:
    """The entries of the text at a place of the conversation, one for each part; none if the text is blank."""
    if not text.strip():
        return []
    parts = split(text)
    return [Entry(key, role, part, place, number, len(parts)) for number, part in enumerate(parts)]


def card_entry(key: str, card: MemoryCard) -> Entry:
    return Entry(key, card.role, card.content, card=card.type)


def split(text: str) -> list[str]:
    """The parts of a text, each at most `PART_WIDTH` wide. Joined they are the text again."""
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
