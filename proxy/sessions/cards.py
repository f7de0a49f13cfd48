"""Memory cards that a session's condensations did not bring: those that a person changed. Pure.

A card that came with a condensation stays in that record, which never changes. If a person deletes it, the session
lists it as forgotten, and it is no longer shown. The same happens to cards that say the same, because another
condensation may bring the card again. A card that a person writes is seen on all branches; if it repeats a forgotten
card, that card is shown again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

from proxy.sessions.session import Session
from strategies.core.cards import MemoryCard
from strategies.memory.merging import merge_cards

MAX_CARDS = 500
MAX_SUPERSEDED = 100


def bound_cards(cards: Sequence[MemoryCard]) -> tuple[MemoryCard, ...]:
    """The newest of the cards that hold, and of those that do not, in their order."""
    holding = [card.id for card in cards if card.holds]
    superseded = [card.id for card in cards if not card.holds]
    kept = {*holding[-MAX_CARDS:], *superseded[-MAX_SUPERSEDED:]}
    return tuple(card for card in cards if card.id in kept)


def with_card(session: Session, card: MemoryCard) -> Session:
    others = [other for other in session.added_cards if other.id != card.id]
    again = {known.id for known in _all(session) if _alike(known, card)}
    kept = tuple(id_ for id_ in session.forgotten_ids if id_ not in again)
    return session._replace(added_cards=bound_cards(merge_cards(others, [card])), forgotten_ids=kept)


def without_cards(session: Session, ids: Collection[str]) -> Session:
    """The session without the cards of these ids, and without cards that say the same."""
    unwanted = [card for card in _all(session) if card.id in ids]
    gone = (known.id for known in _all(session) if known.id in ids or any(_alike(card, known) for card in unwanted))
    return session._replace(forgotten_ids=tuple(dict.fromkeys((*session.forgotten_ids, *gone))))


def standing_for(session: Session, card: MemoryCard) -> MemoryCard | None:
    """The card that holds in a session and says the same as `card`; None if that was superseded at once."""
    return next((known for known in session.cards() if known.holds and _alike(known, card)), None)


def _all(session: Session) -> Iterator[MemoryCard]:
    """All cards of a session, as they were recorded or written."""
    yield from (card for record in session.condensations for card in record.cards)
    yield from session.added_cards


def _alike(one: MemoryCard, other: MemoryCard) -> bool:
    """Whether the second card says the same as the first, so that merging keeps one of them."""
    return one.id == other.id or len(merge_cards((replace(one, superseded_by=""),), (other,))) == 1
