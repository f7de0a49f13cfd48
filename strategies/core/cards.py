"""Memory cards: single sentences that a summarizer thought worth remembering, each with its origin.

A card is immutable; `strategies.memory.merging` merges new cards with old ones. A card made from a tool's text is of
type code or fact, whatever the summarizer calls it: no page that an agent reads can become a rule or a task.

This module reads cards out of a summarizer's answer (`read_text`, `read_answer`) and converts them to and from JSON.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from hashlib import sha256
from typing import Any, NamedTuple

from strategies.core.messages import Role
from strategies.core.parsing import normalized

TYPES = ("goal", "decision", "constraint", "todo", "code", "fact")
FROM_TOOLS = ("code", "fact")
"""The types that a card made from a tool's text may have."""
MAX_CARDS = 32
LONGEST = 500
_SPEAKERS = (Role.USER, Role.ASSISTANT, Role.TOOL)


@dataclass(frozen=True, slots=True)
class MemoryCard:
    """One thing to remember."""

    content: str
    """A sentence of at most `LONGEST` characters."""
    type: str = "fact"
    """One of `TYPES`."""
    tags: tuple[str, ...] = ()
    created_at: str = ""
    """An ISO 8601 time in UTC."""
    source: str = ""
    """What made the card."""
    role: Role = Role.USER
    """Whose words it was made from."""
    messages: tuple[str, ...] = ()
    """The chain digests, in hex, of the messages that it was made from; empty if none were found."""
    condensation: str = ""
    """The id of the condensation whose summary brought it."""
    superseded_by: str = ""
    """The id of the card that contradicts it; "" while it holds."""
    places: tuple[int, ...] = ()
    """The chain indices of the messages that it was made from; empty if none were found."""

    @property
    def id(self) -> str:
        """An id that is the same for the same content, type and condensation."""
        return _card_id(self.type, self.condensation, self.content)

    @property
    def holds(self) -> bool:
        """Whether no later card contradicts this one."""
        return not self.superseded_by


@lru_cache(maxsize=4_096)
def _card_id(card_type: str, condensation: str, content: str) -> str:
    identity = f"{card_type}\n{condensation}\n{normalized(content)}"
    return sha256(identity.encode("utf-8", "surrogatepass")).hexdigest()[:16]


class Origin(NamedTuple):
    """Where the cards of one answer come from; the fields are those of `MemoryCard`."""

    created_at: str = ""
    role: Role = Role.USER
    messages: tuple[str, ...] = ()
    condensation: str = ""
    source: str = "context_summary"
    places: tuple[int, ...] = ()


UNKNOWN = Origin()
"""The origin of an answer that has just come; its cards get the real one later."""

# -- a summarizer's answer -----------------------------------------------------------------------------------------

_FENCED = re.compile(r"(?>```\w*\s*?\n)(.*)```", re.DOTALL)
_CARDS = ("memories", "memory_cards", "cards")
_BLOCK = re.compile(r"<memory>\s*(?:```\w*\s*)?(?=[\[{])", re.IGNORECASE)
_EMPTY_BLOCK = re.compile(r"<memory>[^<]{0,80}</memory>\s*\Z", re.IGNORECASE)
_CLOSED = re.compile(r"</memory>", re.IGNORECASE)
_SUMMARY = re.compile(r'\s*(?:```\w*\s*)?\{\s*"summary"\s*:\s*(?=")')
_NEXT_MEMBER = re.compile(r'\s*,\s*"')
_DECODER = json.JSONDecoder()


class AnswerParts(NamedTuple):
    """The summary and the cards of an answer.

    `has_card_list` says whether a list of cards begins next to the summary, even a broken one: the summary is complete
    then.
    """

    text: str
    cards: list[MemoryCard]
    has_card_list: bool = False


def read_text(text: str, origin: Origin = UNKNOWN) -> AnswerParts:
    """Splits an answer into its text and its `<memory>` block, a JSON list of cards, bare or in a code fence.

    A block that cannot be parsed is left out of the text too. An answer without a block is returned unchanged.
    """
    opened = _BLOCK.search(text)
    if opened is None:
        return AnswerParts(_EMPTY_BLOCK.sub("", text), [])
    try:
        listed, end = _DECODER.raw_decode(text, opened.end())
    except (ValueError, RecursionError):
        listed, end = None, opened.end()
    after = _CLOSED.split(text[end:], maxsplit=1)[1:]
    return AnswerParts("".join((text[: opened.start()], *after)), _cards(listed, origin), has_card_list=True)


def read_answer(text: str, origin: Origin = UNKNOWN) -> AnswerParts:
    """Reads the summary and the cards out of an answer in JSON.

    The answer is an object with `summary` and `memories`, bare or in a code fence. If the JSON breaks off after the
    summary, the summary is still used. Any other text, or an object without a summary, is the summary itself, without
    cards. Entries that are no cards are left out.
    """
    fenced = _FENCED.fullmatch(text.strip())
    try:
        answer = json.loads(fenced.group(1) if fenced else text)
    except (ValueError, RecursionError):
        complete = _summary_of_broken(text)
        return AnswerParts(text, []) if complete is None else AnswerParts(complete, [], has_card_list=True)
    if not (isinstance(answer, dict) and isinstance(answer.get("summary", 0), str | None)):
        return AnswerParts(text, [])
    return AnswerParts(answer["summary"] or "", _cards(answer, origin), has_card_list=True)


def _summary_of_broken(text: str) -> str | None:
    """The summary in an object that cannot be parsed, if the summary is complete and another member follows it."""
    opened = _SUMMARY.match(text)
    if opened is None:
        return None
    try:
        summary, end = _DECODER.raw_decode(text, opened.end())
    except ValueError:
        return None
    return summary if _NEXT_MEMBER.match(text, end) else None


def _cards(value: object, origin: Origin) -> list[MemoryCard]:
    """The cards in a JSON list, or in an object that has such a list as a member."""
    if isinstance(value, Mapping):
        value = next((value[key] for key in _CARDS if isinstance(value.get(key), list)), [])
    listed = value[:MAX_CARDS] if isinstance(value, list) else []
    return [card for each in listed if (card := _card(each, origin)) is not None]


def _card(value: object, origin: Origin) -> MemoryCard | None:
    if not isinstance(value, Mapping):
        return None
    content = value.get("content")
    if not isinstance(content, str) or not content.strip():
        return None
    role = _role(value.get("role"), origin.role)
    return MemoryCard(
        " ".join(content.split())[:LONGEST],
        _type(value.get("type"), role),
        _tags(value.get("tags")),
        origin.created_at,
        origin.source,
        role,
        origin.messages,
        origin.condensation,
        places=origin.places,
    )


def _role(value: object, role: Role) -> Role:
    """The role that the summarizer names, else `role`. What comes from a tool stays a tool's, whatever it says."""
    return next((each for each in _SPEAKERS if value == each.value), role) if role is not Role.TOOL else role


def _type(value: object, role: Role) -> str:
    named = value.strip().lower() if isinstance(value, str) else ""
    allowed = FROM_TOOLS if role is Role.TOOL else TYPES
    return named if named in allowed else "fact"


def _tags(value: object) -> tuple[str, ...]:
    listed = value if isinstance(value, list) else []
    return tuple(dict.fromkeys(tag.strip() for tag in listed if isinstance(tag, str) and tag.strip()))


# -- JSON ----------------------------------------------------------------------------------------------------------


def to_json(cards: Iterable[MemoryCard]) -> list[dict[str, Any]]:
    """Cards as JSON objects: the members that the source document names, and of the others those that are not empty."""
    return [_to_object(card) for card in cards]


def from_json(objects: object) -> list[MemoryCard]:
    """The cards of such objects, or of objects with the document's members only; raises `ValueError`."""
    if not isinstance(objects, list):
        raise ValueError("cards are a JSON array")  # noqa: TRY004 - the file is wrong, not the program
    return [_from_object(each) for each in objects]


def _to_object(card: MemoryCard) -> dict[str, Any]:
    always = {"content": card.content, "type": card.type, "tags": list(card.tags), "created_at": card.created_at}
    more = {
        "source": card.source,
        "role": card.role.value,
        "messages": list(card.messages),
        "places": list(card.places),
        "condensation": card.condensation,
        "superseded_by": card.superseded_by,
    }
    return always | {key: value for key, value in more.items() if value}


def _from_object(entry: object) -> MemoryCard:
    if not isinstance(entry, Mapping):
        raise ValueError("a card is a JSON object")  # noqa: TRY004 - the file is wrong, not the program
    role = Role(entry.get("role") or Role.USER.value)
    messages = tuple(map(str, entry.get("messages") or ()))
    places = tuple(each for each in entry.get("places") or () if isinstance(each, int))
    created_at, condensation, source = (_text(entry, key) for key in ("created_at", "condensation", "source"))
    card = _card(entry, Origin(created_at, role, messages, condensation, source, places))
    if card is None:
        raise ValueError("a card needs content")
    return replace(card, superseded_by=_text(entry, "superseded_by"))


def _text(entry: Mapping[str, object], key: str) -> str:
    value = entry.get(key)
    return "" if value is None else str(value)
