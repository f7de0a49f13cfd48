"""Attribution: finds the messages that a memory card comes from, and so whose words it has.

The words of a card are looked up in the summarized messages, whatever the summarizer claims, because a page that an
agent reads may pretend to be the user's wish. If most of a card's words are in tool results, and more of them than in
what people said, it counts as a tool's: it can be code or a fact, never a rule. For a rule only the user's own words
count, because an assistant that reads such a page may repeat it. A card whose words only the assistant said is the
assistant's.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence, Set
from dataclasses import replace
from itertools import chain
from typing import NamedTuple

from strategies.core.cards import FROM_TOOLS, MemoryCard
from strategies.core.history import originals
from strategies.core.messages import Message, Role
from strategies.core.terms import distinct
from strategies.core.view import Item, View

QUOTED = 0.6  # the share of a card's terms that must be in tool results for the card to count as a tool's
SOURCE_SHARE = 1 / 3  # the share of a card's terms that a few messages must have together to be its sources
MAX_SOURCES = 3
RULE = "constraint"

Occurrences = Mapping[str, Sequence[int]]  # for each term, the indices of the candidates that contain it


class _Candidate(NamedTuple):
    """A summarized message that cards may come from: its chain index, its role, and the cards' terms in it.

    `called` are the terms in the arguments of its calls. A card may come from them, but nobody has said them.
    """

    place: int
    role: Role
    said: Set[str]
    called: Set[str]


def attribute_cards(cards: Sequence[MemoryCard], view: View, items: Sequence[Item]) -> tuple[MemoryCard, ...]:
    """The cards of a summary of these items, each with the messages that it comes from and the role of their author.

    `places` and `messages` stay empty if enough of a card's words are not found in a few messages. The words may have
    been in an earlier record.
    """
    if not cards:
        return ()
    terms = [sorted(distinct(card.content)) for card in cards]
    all_terms = frozenset(chain.from_iterable(terms))
    candidates = [_candidate(place, message, all_terms) for place, message in originals(view, items)]
    by_term: defaultdict[str, list[int]] = defaultdict(list)
    for at, candidate in enumerate(candidates):
        for term in candidate.said | candidate.called:
            by_term[term].append(at)
    occurrences = ({term: by_term.get(term, ()) for term in of_card} for of_card in terms)
    digests = view.transcript.digests
    return tuple(_attribute(card, found, candidates, digests) for card, found in zip(cards, occurrences, strict=True))


def _candidate(place: int, message: Message, wanted: Set[str]) -> _Candidate:
    """The wanted terms in a message. Its text is read only once, however many terms there are."""
    called = "\n".join(call.arguments for call in message.calls)
    return _Candidate(place, message.role, wanted & distinct(message.text), wanted & distinct(called))


def _attribute(
    card: MemoryCard, occurrences: Occurrences, candidates: Sequence[_Candidate], digests: Sequence[bytes]
) -> MemoryCard:
    in_tools = _terms_said_by((Role.TOOL,), occurrences, candidates)
    speakers = (Role.USER,) if card.type == RULE else (Role.USER, Role.ASSISTANT)
    if in_tools >= QUOTED * len(occurrences) and in_tools > _terms_said_by(speakers, occurrences, candidates):
        card = replace(card, role=Role.TOOL, type=card.type if card.type in FROM_TOOLS else "fact")
    by_tool = card.role is Role.TOOL
    sources = _sources(
        {
            term: [at for at in found if (candidates[at].role is Role.TOOL) is by_tool]
            for term, found in occurrences.items()
        }
    )
    places = tuple(sorted(candidates[at].place for at in sources))
    if sources and card.role is Role.USER and all(candidates[at].role is Role.ASSISTANT for at in sources):
        card = replace(card, role=Role.ASSISTANT)
    return replace(card, places=places, messages=tuple(digests[place].hex() for place in places))


def _terms_said_by(roles: Sequence[Role], occurrences: Occurrences, candidates: Sequence[_Candidate]) -> int:
    """How many terms are in the text of messages with one of these roles."""
    return sum(
        any(candidates[at].role in roles and term in candidates[at].said for at in found)
        for term, found in occurrences.items()
    )


def _sources(occurrences: Occurrences) -> list[int]:
    """The few candidates that together contain most terms; rare terms count most. Empty if they contain too few."""
    left = {term: places for term, places in occurrences.items() if places}
    sources: list[int] = []
    while left and len(sources) < MAX_SOURCES:
        worth: dict[int, float] = {}
        for places in left.values():
            for at in places:
                worth[at] = worth.get(at, 0.0) + 1 / len(places)
        best = max(worth, key=lambda at: (worth[at], -at))
        sources.append(best)
        left = {term: places for term, places in left.items() if best not in places}
    contained = sum(any(at in places for at in sources) for places in occurrences.values())
    return sources if contained >= SOURCE_SHARE * len(occurrences) else []
