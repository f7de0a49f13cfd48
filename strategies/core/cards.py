"""Memory cards: single sentences that a summarizer thought worth remembering, each with its origin.

A card made from a tool's text has the type code or fact, whatever the summarizer calls it: no page that an agent reads
can become a rule or a task.

This module reads cards as a summarizer writes them, and converts them to and from stored JSON.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import sha256
from typing import Any

from strategies.core.messages import Role
from strategies.core.parsing import normalized

TYPES = ("goal", "decision", "constraint", "todo", "code", "fact")
FROM_TOOLS = ("code", "fact")  # the types that a card made from a tool's text may have
MAX_CARDS = 32
LONGEST = 500
_CARDS = ("memories", "memory_cards", "cards")
_SPEAKERS = (Role.USER, Role.ASSISTANT, Role.TOOL)


@dataclass(frozen=True)
class MemoryCard:
    content: str  # a sentence of at most `LONGEST` characters
    type: str = "fact"  # one of `TYPES`
    tags: tuple[str, ...] = ()
    created_at: str = ""
    source: str = ""
    role: Role = Role.USER
    messages: tuple[str, ...] = ()
    """The chain digests, in hex, of the messages that it was made from; empty if none were found."""
    condensation: str = ""  # the id of the condensation whose summary brought it
    places: tuple[int, ...] = ()  # the chain indices of the messages that it was made from; empty if none were found

    @cached_property
    def id(self) -> str:
        """Cards with the same content, type and condensation have the same id."""
        identity = f"{self.type}\n{self.condensation}\n{self.words}"
        return sha256(identity.encode("utf-8", "surrogatepass")).hexdigest()[:16]

    @cached_property
    def words(self) -> str:
        return normalized(self.content)

    def repeats(self, earlier: MemoryCard) -> bool:
        """Whether it says the same in the same words. A tool's words never stand for somebody else's."""
        return self.words == earlier.words and (earlier.role is not Role.TOOL or self.role is Role.TOOL)


def distinct(cards: Iterable[MemoryCard]) -> list[MemoryCard]:
    """The cards in their order, without those that repeat an earlier one."""
    firsts: dict[str, list[MemoryCard]] = {}
    unique = []
    for card in cards:
        same = firsts.setdefault(card.words, [])
        if not any(card.repeats(earlier) for earlier in same):
            same.append(card)
            unique.append(card)
    return unique


def read_cards(value: object) -> tuple[MemoryCard, ...]:
    """The cards in a JSON list, or in an object with such a list; entries that are no cards are left out."""
    if isinstance(value, Mapping):
        value = next((value[key] for key in _CARDS if isinstance(value.get(key), list)), [])
    listed = value[:MAX_CARDS] if isinstance(value, list) else []
    return tuple(card for entry in listed if (card := _read_card(entry)) is not None)


def _read_card(value: object) -> MemoryCard | None:
    if not isinstance(value, Mapping):
        return None
    content, named, tags = value.get("content"), value.get("type"), value.get("tags")
    if not isinstance(content, str) or not content.strip():
        return None
    role = next((speaker for speaker in _SPEAKERS if value.get("role") == speaker.value), Role.USER)
    card_type = named.strip().lower() if isinstance(named, str) else ""
    texts = [tag.strip() for tag in tags if isinstance(tag, str)] if isinstance(tags, list) else []
    return MemoryCard(
        " ".join(content.split())[:LONGEST],
        card_type if card_type in (FROM_TOOLS if role is Role.TOOL else TYPES) else "fact",
        tuple(dict.fromkeys(filter(None, texts))),
        source="context_summary",
        role=role,
    )


# -- JSON ----------------------------------------------------------------------------------------------------------


def to_json(cards: Iterable[MemoryCard]) -> list[dict[str, Any]]:
    """Cards as JSON objects, with all members that the source document names and those others that are not empty."""
    return [_to_object(card) for card in cards]


def _to_object(card: MemoryCard) -> dict[str, Any]:
    always = {"content": card.content, "type": card.type, "tags": list(card.tags), "created_at": card.created_at}
    more = {
        "source": card.source,
        "role": card.role.value,
        "messages": list(card.messages),
        "places": list(card.places),
        "condensation": card.condensation,
    }
    return always | {key: value for key, value in more.items() if value}


def from_json(objects: object) -> list[MemoryCard]:
    """The cards in such objects, or in objects that only have the document's members; raises `ValueError`."""
    if not isinstance(objects, list):
        raise ValueError("cards are a JSON array")  # noqa: TRY004 - the file is wrong, not the program
    return [_from_object(entry) for entry in objects]


def _from_object(entry: object) -> MemoryCard:
    if not isinstance(entry, Mapping):
        raise ValueError("a card is a JSON object")  # noqa: TRY004 - the file is wrong, not the program
    role, card = Role(entry.get("role") or Role.USER.value), _read_card(entry)
    if card is None:
        raise ValueError("a card needs content")
    return replace(
        card,
        role=role,
        created_at=str(entry.get("created_at") or ""),
        source=str(entry.get("source") or ""),
        messages=tuple(map(str, entry.get("messages") or ())),
        condensation=str(entry.get("condensation") or ""),
        places=tuple(place for place in entry.get("places") or () if isinstance(place, int)),
    )
