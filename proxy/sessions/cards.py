"""Memory cards that a session's own condensations did not bring: those a person changed, and shared scopes. Pure.

A card that came with a condensation stays in that record, which never changes. If a person deletes it, the session
lists it as forgotten, and it is no longer shown. The same happens to cards that say the same, because another
condensation may bring the card again. A card that a person writes is seen on all branches; if it repeats a forgotten
card, that card is shown again.

A scope is a set of cards that several sessions of one tenant share by naming it. It is stored as a session with cards
and no history, under a key that no session id leads to. The cards of a request's condensation are also put into its
scope, each once. If two cards contradict each other, the later one holds, whichever session it came from.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from hashlib import blake2b
from typing import NamedTuple

from proxy.sessions.session import Session
from proxy.store.base import StoreKey
from strategies.core.cards import MemoryCard
from strategies.memory.merging import merge_cards

SOURCE = "X-Condenser-Memory-Scope"
SHOWN = "scope:"
"""The prefix of a scope's name when it is shown as a session's id."""
MAX_CARDS = 500
MAX_SUPERSEDED = 100


class CardScope(NamedTuple):
    """A scope as one request sees it; `cards` are the cards that it may see, including superseded ones."""

    key: StoreKey
    name: str
    cards: tuple[MemoryCard, ...] = ()


def scope_key(tenant: str, name: str) -> StoreKey:
    """The key of a scope; the keys of sessions begin with other letters."""
    return StoreKey(tenant, "m" + blake2b(name.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest())


def with_shared(scope: Session | None, name: str, cards: Iterable[MemoryCard], now: float) -> Session:
    """A scope with more cards, created if there is none; `now` is in seconds since the epoch."""
    scope = scope or Session(id=SHOWN + name, source=SOURCE, created_at=now)
    return scope._replace(
        added_cards=bound_cards(merge_cards(scope.added_cards, (card for card in cards if card.holds)))
    )


def bound_cards(cards: Sequence[MemoryCard]) -> tuple[MemoryCard, ...]:
    """The newest of the cards that hold, and of those that do not, in their order."""
    holding = [card.id for card in cards if card.holds]
    superseded = [card.id for card in cards if not card.holds]
    kept = {*holding[-MAX_CARDS:], *superseded[-MAX_SUPERSEDED:]}
    return tuple(card for card in cards if card.id in kept)


def cards_of_scope(scope: Session | None) -> tuple[MemoryCard, ...]:
    """The cards of a scope, including superseded ones, without those that a person deleted."""
    return _without(scope.added_cards, scope.forgotten_ids) if scope else ()


def combined_cards(
    own: Iterable[MemoryCard], shared: Sequence[MemoryCard], forgotten: Iterable[MemoryCard]
) -> list[MemoryCard]:
    """The cards of a session and its scope that hold, each once, without those that the session has forgotten."""
    overtaken = {card.id for card in shared if not card.holds}
    cards = _without((card for card in own if card.holds), overtaken)
    told = {card.content.casefold() for card in (*cards, *forgotten)}
    return [*cards, *(card for card in shared if card.holds and card.content.casefold() not in told)]


def _without(cards: Iterable[MemoryCard], ids: Collection[str]) -> tuple[MemoryCard, ...]:
    """The cards without those of some ids. An id is a digest, so it is computed only if there are ids to compare."""
    return tuple(card for card in cards if card.id not in ids) if ids else tuple(cards)


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


def forgotten_cards(session: Session) -> list[MemoryCard]:
    return [card for card in _all(session) if card.id in session.forgotten_ids] if session.forgotten_ids else []


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
