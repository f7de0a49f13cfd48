"""Scopes: memory cards that the sessions of one tenant share which name the same scope.

A scope is kept as a session of its own that has cards and no history. Its key is in the tenant's key space, where no
session's id leads to it. What a request's condensation brings of cards is put there too, told once: of two that
contradict each other the later one holds, whichever session it came from. Everything here is pure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from hashlib import blake2b
from typing import NamedTuple

from proxy.sessions.session import Session
from proxy.store.base import SessionKey
from strategies.core.cards import MemoryCard
from strategies.memory.merging import merged

SOURCE = "X-Condenser-Memory-Scope"
SHOWN = "scope:"
"""What a scope's name is shown with, where sessions are shown by their ids."""
MOST_CARDS = 500
MOST_SUPERSEDED = 100


class Scope(NamedTuple):
    """A scope as one request has it; `cards` are those that it may see, superseded ones too."""

    key: SessionKey
    name: str
    cards: tuple[MemoryCard, ...] = ()


def scope_key(tenant: str, name: str) -> SessionKey:
    """Where a scope is kept; the keys of sessions begin with other letters."""
    return SessionKey(tenant, _key(name))


def key_of_shown(shown: str) -> str | None:
    """The part of a scope's key behind its tenant, by what it is shown as; None for what is no scope."""
    return _key(shown.removeprefix(SHOWN)) if shown.startswith(SHOWN) else None


def _key(name: str) -> str:
    return "m" + blake2b(name.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def with_shared(scope: Session | None, name: str, cards: Iterable[MemoryCard], now: float) -> Session:
    """A scope, a new one where there is none, with more cards; `now` in seconds since the epoch."""
    scope = scope or Session(id=SHOWN + name, source=SOURCE, created_at=now)
    return scope._replace(added=bounded(merged(scope.added, (card for card in cards if card.holds))))


def bounded(cards: Sequence[MemoryCard]) -> tuple[MemoryCard, ...]:
    """The newest cards that hold, and the newest that do not, in their order."""
    holding = [card.id for card in cards if card.holds]
    superseded = [card.id for card in cards if not card.holds]
    kept = {*holding[-MOST_CARDS:], *superseded[-MOST_SUPERSEDED:]}
    return tuple(card for card in cards if card.id in kept)


def shared_by(scope: Session | None) -> tuple[MemoryCard, ...]:
    """The cards of a scope, superseded ones too, without those that a person does not want."""
    return _without(scope.added, scope.forgotten) if scope else ()


def together(
    own: Iterable[MemoryCard], shared: Sequence[MemoryCard], forgotten: Iterable[MemoryCard]
) -> list[MemoryCard]:
    """The cards that hold of a session and of its scope, each told once; without what is `forgotten` there."""
    overtaken = {card.id for card in shared if not card.holds}
    cards = _without((card for card in own if card.holds), overtaken)
    told = {card.content.casefold() for card in (*cards, *forgotten)}
    return [*cards, *(card for card in shared if card.holds and card.content.casefold() not in told)]


def _without(cards: Iterable[MemoryCard], ids: Collection[str]) -> tuple[MemoryCard, ...]:
    """Cards but for those of some ids. An id is a digest: it is asked for only where there is something to compare."""
    return tuple(card for card in cards if card.id not in ids) if ids else tuple(cards)
