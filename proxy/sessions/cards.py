"""Memory cards that a session's condensations did not bring: those that a person changed. Pure.

A card that came with a condensation stays in that record, which never changes. If a person deletes it, the session
lists it as forgotten, and it is no longer shown. The same happens to cards that say the same, because another
condensation may bring the card again. A card that a person writes is seen on all branches; if it repeats a forgotten
card, that card is shown again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from proxy.sessions.session import Session
from strategies.core.cards import MemoryCard, distinct

MAX_CARDS = 500


def with_card(session: Session, card: MemoryCard) -> Session:
    others = [other for other in session.added_cards if other.id != card.id]
    again = {known.id for known in _all(session) if _alike(known, card)}
    kept = tuple(id_ for id_ in session.forgotten_ids if id_ not in again)
    return session._replace(added_cards=tuple(distinct([*others, card])[-MAX_CARDS:]), forgotten_ids=kept)


def without_cards(session: Session, ids: Collection[str]) -> Session:
    """The session without the cards of these ids, and without cards that say the same."""
    unwanted = [card for card in _all(session) if card.id in ids]
    gone = (known.id for known in _all(session) if known.id in ids or any(_alike(card, known) for card in unwanted))
    return session._replace(forgotten_ids=tuple(dict.fromkeys((*session.forgotten_ids, *gone))))


def _all(session: Session) -> Iterator[MemoryCard]:
    """All cards of a session, as they were recorded or written."""
    yield from (card for record in session.condensations for card in record.cards)
    yield from session.added_cards


def _alike(one: MemoryCard, other: MemoryCard) -> bool:
    return one.id == other.id or other.repeats(one)
