"""Where a memory card comes from, whatever the summarizer says of it: which messages, and so whose words it has.

The words of a card are looked for in what was summarized. A page that an agent reads may tell the summarizer that it is
the user's wish: a card whose words stand in what tools returned, and not as much in what was said, is taken for a
tool's, and can be code or a fact, never a rule. To make a rule only the user's words count: an assistant that reads the
page may repeat it. A card whose words only the assistant said is the assistant's.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import replace
from itertools import chain
from typing import NamedTuple

from strategies.core.cards import FROM_TOOLS, MemoryCard
from strategies.core.history import originals
from strategies.core.transcript import Message, Role
from strategies.core.view import Item, View
from strategies.memory.terms import distinct

QUOTED = 0.6
"""The share of a card's terms that stand in tools' text from which on it may be theirs."""
TOLD = 1 / 3
"""The share of a card's terms that stand in a few messages from which on it comes from these."""
MOST_SOURCES = 3
RULE = "constraint"

Standing = Mapping[str, Sequence[int]]
"""Terms, with the numbers of the texts in which they stand."""


class _Heard(NamedTuple):
    """One message of what was summarized: its place in the history, whose it is, and what it has of the cards' terms.

    `called` are those in the arguments of its calls: where a card may come from, but nothing that anybody said.
    """

    place: int
    role: Role
    said: Set[str]
    called: Set[str]


def attributed(cards: Sequence[MemoryCard], view: View, items: Sequence[Item]) -> tuple[MemoryCard, ...]:
    """The cards of a summary of these items, each with the messages that it comes from and the role of their author.

    `places` and `messages` stay empty where its words stand in no few messages: an earlier record may have had them.
    """
    if not cards:
        return ()
    wanted = [sorted(distinct(card.content)) for card in cards]
    every = frozenset(chain.from_iterable(wanted))
    heard = [_heard(place, message, every) for place, message in originals(view, items)]
    where, digests = _where(heard), view.transcript.digests
    standing = ({term: where.get(term, ()) for term in each} for each in wanted)
    return tuple(_attributed(card, each, heard, digests) for card, each in zip(cards, standing, strict=True))


def _heard(place: int, message: Message, wanted: Set[str]) -> _Heard:
    """What a message has of the terms that are wanted: its text is read once, whatever their number."""
    called = "\n".join(call.arguments for call in message.calls)
    return _Heard(place, message.role, wanted & distinct(message.text), wanted & distinct(called))


def _where(heard: Sequence[_Heard]) -> Standing:
    """In which of the texts each term stands."""
    found: defaultdict[str, list[int]] = defaultdict(list)
    for at, each in enumerate(heard):
        for term in each.said | each.called:
            found[term].append(at)
    return found


def _attributed(card: MemoryCard, standing: Standing, heard: Sequence[_Heard], digests: Sequence[bytes]) -> MemoryCard:
    if _is_quoted(card, standing, heard):
        card = _as_a_tools(card)
    by_tools = card.role is Role.TOOL
    sources = _sources({term: _by(by_tools, found, heard) for term, found in standing.items()})
    places = tuple(sorted(heard[at].place for at in sources))
    if sources and card.role is Role.USER and all(heard[at].role is Role.ASSISTANT for at in sources):
        card = replace(card, role=Role.ASSISTANT)
    return replace(card, places=places, messages=tuple(digests[place].hex() for place in places))


def _by(tools: bool, found: Iterable[int], heard: Sequence[_Heard]) -> list[int]:
    """Those of the texts that are tools', or that are not."""
    return [at for at in found if (heard[at].role is Role.TOOL) is tools]


def _is_quoted(card: MemoryCard, standing: Standing, heard: Sequence[_Heard]) -> bool:
    speakers = (Role.USER,) if card.type == RULE else (Role.USER, Role.ASSISTANT)
    in_tools = _told_by((Role.TOOL,), standing, heard)
    return in_tools >= QUOTED * len(standing) and in_tools > _told_by(speakers, standing, heard)


def _told_by(roles: Sequence[Role], standing: Standing, heard: Sequence[_Heard]) -> int:
    """How many terms stand in what these said."""
    return sum(
        any(heard[at].role in roles and term in heard[at].said for at in found) for term, found in standing.items()
    )


def _as_a_tools(card: MemoryCard) -> MemoryCard:
    return replace(card, role=Role.TOOL, type=card.type if card.type in FROM_TOOLS else "fact")


def _sources(standing: Standing) -> list[int]:
    """The few texts that together have most of the terms, a rare term counting most; none where they have too few."""
    left = {term: found for term, found in standing.items() if found}
    sources: list[int] = []
    while left and len(sources) < MOST_SOURCES:
        worth: dict[int, float] = {}
        for found in left.values():
            for at in found:
                worth[at] = worth.get(at, 0.0) + 1 / len(found)
        best = max(worth, key=lambda at: (worth[at], -at))
        sources.append(best)
        left = {term: found for term, found in left.items() if best not in found}
    told = sum(any(at in found for at in sources) for found in standing.values())
    return sources if told >= TOLD * len(standing) else []
