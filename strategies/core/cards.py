"""Memory cards: what a summarizer thought worth remembering, one sentence each, with where it comes from.

A card is never changed; `strategies.memory.merging` puts new ones to old ones. A card made from a tool's text is code
or a fact, whatever the summarizer calls it: no page that an agent reads can become a rule or a task.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from hashlib import sha256
from typing import Any, NamedTuple

from strategies.core.plain import plain
from strategies.core.transcript import Role

TYPES = ("goal", "decision", "constraint", "todo", "code", "fact")
FROM_TOOLS = ("code", "fact")
"""What a card may be that was made from a tool's text."""
MOST_CARDS = 32
LONGEST = 500
_SPEAKERS = (Role.USER, Role.ASSISTANT, Role.TOOL)


@dataclass(frozen=True, slots=True)
class MemoryCard:
    """One thing to remember. `created_at` is an ISO 8601 time in UTC; `source` says what made the card.

    `role` is whose words it was made from, `places` where those messages stand in the history from 0, `messages` the
    digests of the history up to each of them, in hex; both are empty where its words stand in none of them.
    `condensation` is the id of the record whose summary brought it. `superseded_by` is the id of the card that holds
    instead, "" while it holds.
    """

    content: str
    type: str = "fact"
    tags: tuple[str, ...] = ()
    created_at: str = ""
    source: str = ""
    role: Role = Role.USER
    messages: tuple[str, ...] = ()
    condensation: str = ""
    superseded_by: str = ""
    places: tuple[int, ...] = ()

    @property
    def id(self) -> str:
        """The same for the same content, type and condensation."""
        return _card_id(self.type, self.condensation, self.content)

    @property
    def holds(self) -> bool:
        """Whether no later card contradicts it."""
        return not self.superseded_by


@lru_cache(maxsize=4_096)
def _card_id(kind: str, condensation: str, content: str) -> str:
    told = f"{kind}\n{condensation}\n{plain(content)}"
    return sha256(told.encode("utf-8", "surrogatepass")).hexdigest()[:16]


class Origin(NamedTuple):
    """Where the cards of one answer come from; see `MemoryCard`."""

    created_at: str = ""
    role: Role = Role.USER
    messages: tuple[str, ...] = ()
    condensation: str = ""
    source: str = "context_summary"
    places: tuple[int, ...] = ()


UNKNOWN = Origin()
"""Of an answer that was just given: what is known of it is put to its cards later."""

# -- a summarizer's answer -----------------------------------------------------------------------------------------

_FENCED = re.compile(r"(?>```\w*\s*?\n)(.*)```", re.DOTALL)
_CARDS = ("memories", "memory_cards", "cards")
_BLOCK = re.compile(r"<memory>\s*(?:```\w*\s*)?(?=[\[{])", re.IGNORECASE)
_EMPTY_BLOCK = re.compile(r"<memory>[^<]{0,80}</memory>\s*\Z", re.IGNORECASE)
_CLOSED = re.compile(r"</memory>", re.IGNORECASE)
_SUMMARY = re.compile(r'\s*(?:```\w*\s*)?\{\s*"summary"\s*:\s*(?=")')
_NEXT_MEMBER = re.compile(r'\s*,\s*"')
_DECODER = json.JSONDecoder()


class Parted(NamedTuple):
    """An answer's summary and its cards; `is_parted` where a list of cards was begun beside it, be it a broken one."""

    text: str
    cards: list[MemoryCard]
    is_parted: bool = False


def read_text(text: str, origin: Origin = UNKNOWN) -> Parted:
    """An answer without its `<memory>` block, which is a JSON list of cards, bare or in a code fence.

    A block that cannot be read is left out like one that can. Without a block the text is as it is.
    """
    opened = _BLOCK.search(text)
    if opened is None:
        return Parted(_EMPTY_BLOCK.sub("", text), [])
    try:
        listed, end = _DECODER.raw_decode(text, opened.end())
    except (ValueError, RecursionError):
        listed, end = None, opened.end()
    behind = _CLOSED.split(text[end:], maxsplit=1)[1:]
    return Parted("".join((text[: opened.start()], *behind)), _cards(listed, origin), is_parted=True)


def read_answer(text: str, origin: Origin = UNKNOWN) -> Parted:
    """The summary and the cards in a summarizer's answer.

    The answer is a JSON object with `summary` and `memories`, bare or in a code fence. Of one that breaks behind its
    summary that stands. Anything else is the summary as it is, without cards; so is an object without a summary.
    Entries that are no cards are left out.
    """
    fenced = _FENCED.fullmatch(text.strip())
    try:
        answer = json.loads(fenced.group(1) if fenced else text)
    except (ValueError, RecursionError):
        begun = _begun(text)
        return Parted(text, []) if begun is None else Parted(begun, [], is_parted=True)
    summary = answer.get("summary") if isinstance(answer, dict) else None
    if not isinstance(summary, str) or not summary.strip():
        return Parted(text, [])
    return Parted(summary, _cards(answer, origin), is_parted=True)


def _begun(text: str) -> str | None:
    """The summary of an object that cannot be read, where it is whole and another member follows."""
    opened = _SUMMARY.match(text)
    if opened is None:
        return None
    try:
        summary, end = _DECODER.raw_decode(text, opened.end())
    except ValueError:
        return None
    return summary if _NEXT_MEMBER.match(text, end) and summary.strip() else None


def _cards(told: object, origin: Origin) -> list[MemoryCard]:
    """The cards of a list, or of the object that it is a member of."""
    if isinstance(told, Mapping):
        told = next((told[key] for key in _CARDS if isinstance(told.get(key), list)), [])
    listed = told[:MOST_CARDS] if isinstance(told, list) else []
    return [card for each in listed if (card := _card(each, origin)) is not None]


def _card(told: object, origin: Origin) -> MemoryCard | None:
    if not isinstance(told, Mapping):
        return None
    content = told.get("content")
    if not isinstance(content, str) or not content.strip():
        return None
    role = _role(told.get("role"), origin.role)
    return MemoryCard(
        " ".join(content.split())[:LONGEST],
        _type(told.get("type"), role),
        _tags(told.get("tags")),
        origin.created_at,
        origin.source,
        role,
        origin.messages,
        origin.condensation,
        places=origin.places,
    )


def _role(told: object, role: Role) -> Role:
    """Whose words a card comes from: a summarizer may say that they are another's, never that a tool's are."""
    return next((each for each in _SPEAKERS if told == each.value), role) if role is not Role.TOOL else role


def _type(told: object, role: Role) -> str:
    named = told.strip().lower() if isinstance(told, str) else ""
    known = FROM_TOOLS if role is Role.TOOL else TYPES
    return named if named in known else "fact"


def _tags(told: object) -> tuple[str, ...]:
    listed = told if isinstance(told, list) else []
    return tuple(dict.fromkeys(tag.strip() for tag in listed if isinstance(tag, str) and tag.strip()))


# -- JSON ----------------------------------------------------------------------------------------------------------


def to_json(cards: Iterable[MemoryCard]) -> str:
    """The document's array, one object a card; of what it does not name, only what is not empty."""
    return json.dumps([_told(card) for card in cards], ensure_ascii=False, indent=1)


def from_json(text: str) -> list[MemoryCard]:
    """The cards of such an array, also of one that has only the document's members. Raises ValueError."""
    match json.loads(text):
        case list(listed):
            return [_from(each) for each in listed]
    raise ValueError("cards are a JSON array")


def _told(card: MemoryCard) -> dict[str, Any]:
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


def _from(told: object) -> MemoryCard:
    if not isinstance(told, Mapping):
        raise ValueError("a card is a JSON object")  # noqa: TRY004 - the file is wrong, not the program
    role = Role(told.get("role") or Role.USER.value)
    messages = tuple(map(str, told.get("messages") or ()))
    places = tuple(each for each in told.get("places") or () if isinstance(each, int))
    created_at, condensation, source = (_text(told, key) for key in ("created_at", "condensation", "source"))
    card = _card(told, Origin(created_at, role, messages, condensation, source, places))
    if card is None:
        raise ValueError("a card needs content")
    return replace(card, superseded_by=_text(told, "superseded_by"))


def _text(told: Mapping[str, object], key: str) -> str:
    value = told.get(key)
    return "" if value is None else str(value)
