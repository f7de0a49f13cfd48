"""Scopes: what they keep, what sessions see of them, and what an unreadable scope costs."""

import logging
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from proxy.conversations.cards import MAX_CARDS, SHOWN, SOURCE, combined_cards, scope_key, with_shared
from proxy.conversations.keeping import Keeper
from proxy.conversations.recognition import Identity, Recognised, Recogniser
from proxy.conversations.session import Session, session_key
from proxy.conversations.stored import StoredSessions
from proxy.store import open_store
from proxy.store.base import StoreKey, Write
from strategies.core.cards import MemoryCard
from strategies.dialects import DIALECTS
from tests.proxy.memory.test_admin import card, condensation


def scope(*cards: MemoryCard) -> Session:
    return Session(id=SHOWN + "home", source=SOURCE, created_at=0.0, added_cards=cards)


def session(*cards: MemoryCard, forgotten: bool = False) -> Session:
    ids = tuple(each.id for each in cards) if forgotten else ()
    return Session(id="s", source="", created_at=0.0, added_cards=cards, forgotten_ids=ids)


def test_a_scope_has_a_key_that_no_session_id_has() -> None:
    key = scope_key("t", "scope:home")
    assert scope_key("t", "scope:Home") != key
    assert key.name not in {session_key("scope:home", dialect) for dialect in DIALECTS}


def test_a_scope_keeps_the_newest_cards_each_once() -> None:
    cards = [card(f"word{each:04} stands alone{each}", condensation=f"c{each}") for each in range(700)]
    some = with_shared(None, scope(), cards[:350], 7.0)
    assert (some.id, some.created_at) == ("scope:home", 7.0)
    full = with_shared(some, scope(), cards[300:], 8.0)
    assert (full.added_cards, full.created_at) == (tuple(cards[700 - MAX_CARDS :]), 7.0)


def test_a_card_of_a_session_and_its_scope_is_told_once() -> None:
    mine, twin = card("The port is 8080.", condensation="c1"), card("the port is 8080.", condensation="c2")
    assert combined_cards(session(), [mine], scope(mine)) == [mine]
    assert combined_cards(session(), [mine], scope(twin)) == [mine]
    assert combined_cards(session(), [], scope(twin)) == [twin]
    assert combined_cards(session(mine, forgotten=True), [], scope(twin)) == []
    assert combined_cards(session(), [], session(twin, forgotten=True)) == []


@pytest.fixture
async def stored() -> AsyncIterator[StoredSessions]:
    """A store in which one scope, "broken", cannot be read."""
    store = await open_store("memory://")
    await store.save(scope_key("t", "scope:broken"), Write(b"not JSON", 0, 60))
    yield StoredSessions(store, 5.0)
    await store.close()


async def scoped(stored: StoredSessions, name: str, **more: Any) -> Recognised:
    """A new session of tenant "t" with the scope of that name."""
    blank = Recognised(Identity("X-Condenser-Session", "s"), StoreKey("t", "s"), "s", stored.patience(), **more)
    return await Recogniser(stored, ()).with_card_scope(blank, name, read=True)


async def test_a_condensation_is_kept_and_its_cards_are_read_with_the_scope(stored: StoredSessions) -> None:
    keeper = Keeper(stored, ttl=60, clock=time.time)
    cards = (card("A.", condensation="c1"), card("B.", condensation="c1"))
    await keeper.record(await scoped(stored, "home"), condensation("c1", *cards), standing=True)
    found = await scoped(stored, "home")
    assert found.card_scope is not None
    assert found.card_scope.added_cards == cards


async def test_a_broken_scope_costs_its_own_cards(stored: StoredSessions, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        found = await scoped(stored, "broken")
        assert (found.card_scope and found.card_scope.added_cards, found.failure) == ((), "")
        made = condensation("c1", card("A.", condensation="c1"))
        kept = await Keeper(stored, ttl=60, clock=time.time).record(found, made, standing=True)
    assert kept.cards == made.cards
    assert ["were not" in record.message for record in caplog.records] == [True, True]


async def test_no_scope_is_read_where_the_store_has_failed_already(stored: StoredSessions) -> None:
    await Keeper(stored, ttl=60, clock=time.time).record(
        await scoped(stored, "home"), condensation("c1", card("A.")), standing=True
    )
    found = await scoped(stored, "home", failure="store-timeout")
    assert found.card_scope is not None
    assert found.card_scope.added_cards == ()
