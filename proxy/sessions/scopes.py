"""Scopes: memory cards that several sessions of one tenant share by naming the same scope.

A scope is stored as a session that has cards and no history, under a key of the tenant that no session's id leads to.
The cards of a request's condensation are put into its scope too, each once; of two cards that contradict each other the
later one holds, whichever session it came from. Everything here is pure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from hashlib import blake2b
from typing import NamedTuple

from proxy.sessions.session import Session
from proxy.store.base import SessionKey
from strategies.core.cards import MemoryCard
from strategies.memory.merging import merge_cards

SOURCE = "X-Condenser-Memory-Scope"
SHOWN = "scope:"
"""The prefix of a scope's name where sessions are shown by their ids."""
MAX_CARDS = 500
MAX_SUPERSEDED = 100


class Scope(NamedTuple):
    """A scope as one request sees it; `cards` are the cards that it may see, superseded ones too."""

    key: SessionKey
    name: str
    cards: tuple[MemoryCard, ...] = ()


def scope_key(tenant: str, name: str) -> SessionKey:
    """The key of a scope; the keys of sessions begin with other letters."""
    return SessionKey(tenant, _key(name))


def key_of_shown(shown: str) -> str | None:
    """The stored name of a scope from the id that it is shown with; None for an id that is no scope's."""
    return _key(shown.removeprefix(SHOWN)) if shown.startswith(SHOWN) else None


def _key(name: str) -> str:
    return "m" + blake2b(name.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


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
    """The cards of a scope, superseded ones too, without those that a person has taken out."""
    return _without(scope.added_cards, scope.forgotten_ids) if scope else ()


def combined_cards(
    own: Iterable[MemoryCard], shared: Sequence[MemoryCard], forgotten: Iterable[MemoryCard]
) -> list[MemoryCard]:
    """The cards that hold of a session and its scope, each once; without the cards that the session has forgotten."""
    overtaken = {card.id for card in shared if not card.holds}
    cards = _without((card for card in own if card.holds), overtaken)
    told = {card.content.casefold() for card in (*cards, *forgotten)}
    return [*cards, *(card for card in shared if card.holds and card.content.casefold() not in told)]


def _without(cards: Iterable[MemoryCard], ids: Collection[str]) -> tuple[MemoryCard, ...]:
    """The cards without those of some ids. An id is a digest, so it is computed only if there are ids to compare."""
    return tuple(card for card in cards if card.id not in ids) if ids else tuple(cards)
