"""Editing: a person adds a card to a session's memory, or takes cards out of it. Pure.

A card that came with a condensation stays in that record, which never changes; the session says that nobody shall see
it. So does what says the same: another condensation may bring it again. What a person writes is seen on all branches,
and what was forgotten is seen again when a person writes it anew.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace

from proxy.memory.scopes import bounded
from proxy.sessions.session import Session
from strategies.core.cards import MemoryCard
from strategies.memory.merging import merged


def with_card(session: Session, card: MemoryCard) -> Session:
    """The session with a card that a person wrote."""
    others = [each for each in session.added if each.id != card.id]
    again = {each.id for each in _all(session) if _alike(each, card)}
    kept = tuple(each for each in session.forgotten if each not in again)
    return session._replace(added=bounded(merged(others, [card])), forgotten=kept)


def without(session: Session, ids: Collection[str]) -> Session:
    """The session without the cards of these ids, and without what says the same."""
    unwanted = [card for card in _all(session) if card.id in ids]
    gone = (each.id for each in _all(session) if each.id in ids or any(_alike(card, each) for card in unwanted))
    return session._replace(forgotten=tuple(dict.fromkeys((*session.forgotten, *gone))))


def forgotten(session: Session) -> list[MemoryCard]:
    """The cards of a session that a person does not want."""
    return [card for card in _all(session) if card.id in session.forgotten] if session.forgotten else []


def standing_for(session: Session, card: MemoryCard) -> MemoryCard | None:
    """The card of a session that says what a card says; None where it was superseded at once."""
    return next((each for each in session.cards() if each.holds and _alike(each, card)), None)


def _all(session: Session) -> Iterator[MemoryCard]:
    """Every card that a session has, each as it came."""
    yield from (card for each in session.condensations for card in each.cards)
    yield from session.added


def _alike(one: MemoryCard, other: MemoryCard) -> bool:
    """Whether the second card would not be told beside the first one."""
    return one.id == other.id or len(merged((replace(one, superseded_by=""),), (other,))) == 1
