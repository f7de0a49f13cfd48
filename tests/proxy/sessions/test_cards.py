"""Scopes: what they keep, what sessions see of them, and what an unreadable scope costs."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from proxy.sessions.cards import (
    MAX_CARDS,
    MAX_SUPERSEDED,
    cards_of_scope,
    combined_cards,
    scope_key,
    with_shared,
)
from proxy.sessions.keeping import Keeper
from proxy.sessions.recognition import Identity, Recognised, Recogniser
from proxy.sessions.stored import StoredSessions
from proxy.store import open_store
from proxy.store.base import StoreKey, Write
from strategies.core.cards import MemoryCard
from tests.proxy.memory.test_admin import card, condensation


def test_a_scope_has_a_key_that_no_session_id_has() -> None:
    key = scope_key("t", "home")
    assert key.name.startswith("m")
    assert scope_key("t", "Home") != key


def test_a_scope_keeps_the_newest_cards_and_of_superseded_ones_a_few() -> None:
    def number(each: int) -> MemoryCard:
        return card(f"word{each:04} stands alone{each}", condensation=f"c{each}")

    full = with_shared(None, "home", (), 0.0)
    for start in range(0, 700, 350):
        full = with_shared(full, "home", map(number, range(start, start + 350)), 0.0)
    assert [each.content for each in cards_of_scope(full)] == [
        number(each).content for each in range(700 - MAX_CARDS, 700)
    ]
    port = with_shared(
        None, "home", (card(f"The port is {each}.", condensation=f"c{each}") for each in range(150)), 0.0
    )
    assert len(port.added_cards) == 1 + MAX_SUPERSEDED
    assert [each.content for each in port.added_cards if each.holds] == ["The port is 149."]


def test_what_a_scope_has_superseded_does_not_hold_in_the_session_that_it_came_from() -> None:
    mine, theirs = card("The port is 8080.", condensation="c1"), card("The port is 9090.", condensation="c2")
    shared = cards_of_scope(with_shared(with_shared(None, "home", [mine], 0.0), "home", [theirs], 1.0))
    assert combined_cards([mine], shared, ()) == [theirs]
    assert combined_cards([mine], shared, [theirs]) == []


def test_a_card_of_a_session_and_its_scope_is_told_once() -> None:
    mine, twin = card("The port is 8080.", condensation="c1"), card("the port is 8080.", condensation="c2")
    assert combined_cards([mine], [mine], ()) == [mine]
    assert combined_cards([mine], [twin], ()) == [mine]
    assert combined_cards([], [twin], ()) == [twin]
    assert combined_cards([], [twin], [mine]) == []


@pytest.fixture
async def stored() -> AsyncIterator[StoredSessions]:
    """A store in which one scope, "broken", cannot be read."""
    store = await open_store("memory://")
    await store.save(scope_key("t", "broken"), Write(b"not JSON", 0, 60))
    yield StoredSessions(store, 5.0)
    await store.close()


async def scoped(stored: StoredSessions, name: str, **more: Any) -> Recognised:
    """A new session of tenant "t" with the scope of that name."""
    blank = Recognised(Identity("X-Condenser-Session", "s"), StoreKey("t", "s"), "s", stored.patience(), **more)
    return await Recogniser(stored, ()).with_card_scope(blank, name, read=True)


@pytest.mark.anyio
async def test_a_condensation_is_kept_and_its_cards_are_read_with_the_scope(stored: StoredSessions) -> None:
    keeper = Keeper(stored, ttl=60, clock=time.time)
    cards = (card("A.", condensation="c1"), card("B.", condensation="c1"))
    await keeper.record(await scoped(stored, "home"), condensation("c1", *cards), standing=True)
    found = await scoped(stored, "home")
    assert found.card_scope is not None
    assert found.card_scope.cards == cards


@pytest.mark.anyio
async def test_a_scope_that_cannot_be_read_costs_its_cards_only(
    stored: StoredSessions, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        found = await scoped(stored, "broken")
        assert (found.card_scope and found.card_scope.cards, found.failure) == ((), "")
        made = condensation("c1", card("A.", condensation="c1"))
        kept = await Keeper(stored, ttl=60, clock=time.time).record(found, made, standing=True)
    assert kept.cards == made.cards
    assert ["were not" in record.message for record in caplog.records] == [True, True]


@pytest.mark.anyio
async def test_no_scope_is_read_where_the_store_has_failed_already(stored: StoredSessions) -> None:
    await Keeper(stored, ttl=60, clock=time.time).record(
        await scoped(stored, "home"), condensation("c1", card("A.")), standing=True
    )
    found = await scoped(stored, "home", failure="store-timeout")
    assert found.card_scope is not None
    assert found.card_scope.cards == ()
