"""Adds a card that a person wrote to a session's memory, or takes cards out of it. Pure.

A card that came with a condensation stays in that record, which never changes; the session lists it as forgotten, and
it is not shown. So are cards that say the same, since another condensation may bring the card again. A card that a
person writes is seen on all branches; if it says what was forgotten, that is seen again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace

from proxy.sessions.scopes import bound_cards
from proxy.sessions.session import Session
from strategies.core.cards import MemoryCard
from strategies.memory.merging import merge_cards


def with_card(session: Session, card: MemoryCard) -> Session:
    """The session with a card that a person wrote."""
    others = [each for each in session.added_cards if each.id != card.id]
    again = {each.id for each in _all(session) if _alike(each, card)}
    kept = tuple(each for each in session.forgotten_ids if each not in again)
    return session._replace(added_cards=bound_cards(merge_cards(others, [card])), forgotten_ids=kept)


def without_cards(session: Session, ids: Collection[str]) -> Session:
    """The session without the cards of these ids, and without cards that say the same."""
    unwanted = [card for card in _all(session) if card.id in ids]
    gone = (each.id for each in _all(session) if each.id in ids or any(_alike(card, each) for card in unwanted))
    return session._replace(forgotten_ids=tuple(dict.fromkeys((*session.forgotten_ids, *gone))))


def forgotten_cards(session: Session) -> list[MemoryCard]:
    """The cards of a session that a person has taken out."""
    return [card for card in _all(session) if card.id in session.forgotten_ids] if session.forgotten_ids else []


def standing_for(session: Session, card: MemoryCard) -> MemoryCard | None:
    """The card that holds in a session and says the same as `card`; None where that was superseded at once."""
    return next((each for each in session.cards() if each.holds and _alike(each, card)), None)


def _all(session: Session) -> Iterator[MemoryCard]:
    """All cards of a session, as they were recorded or written."""
    yield from (card for each in session.condensations for card in each.cards)
    yield from session.added_cards


def _alike(one: MemoryCard, other: MemoryCard) -> bool:
    """Whether the second card says the same as the first, so that merging keeps one of them."""
    return one.id == other.id or len(merge_cards((replace(one, superseded_by=""),), (other,))) == 1
