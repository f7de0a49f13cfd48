"""Storing a turn, a fork, a record and an append, with concurrent writers and within quotas."""

import asyncio
import json
import string
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from proxy.conversations.keeping import SessionUpdate, is_small
from proxy.conversations.session import Tip
from proxy.conversations.supply import Append
from proxy.store import open_store
from proxy.store.base import Store, StoreKey
from strategies.core.pieces import Keep
from tests.proxy.remembered import NAMED, Sessions, condensation, made, recognised, settled, turn
from tests.support.chat_bodies import element


async def test_a_fork_stores_shared_messages_when_it_goes_on(sessions: Sessions) -> None:
    first = await settled(sessions, "abcdefg")
    fork = await settled(sessions, "abcdefX")
    assert await sessions.texts(fork.key) == ["X"]
    assert await sessions.texts(fork.key, whole=True) == list("abcdefX")
    again = await settled(sessions, "abcdefXYZ")
    assert again.key == fork.key
    assert await sessions.texts(fork.key) == list("abcdefXYZ")
    assert first.key != fork.key


async def test_the_first_writer_of_a_condensation_wins(sessions: Sessions) -> None:
    first, second = await recognised(sessions, "abc", NAMED), await recognised(sessions, "abc", NAMED)
    won = await sessions.keep(first, condensation("ab"))
    lost = await sessions.keep(second, replace(condensation("ab"), pieces=(Keep(1),)))
    assert lost.pieces == won.pieces == (Keep(0),)
    assert lost.standing


async def test_two_turns_at_once_are_both_kept(sessions: Sessions) -> None:
    await settled(sessions, "abc", NAMED)
    one, two = await recognised(sessions, "abcde", NAMED), await recognised(sessions, "xyz", NAMED)
    await asyncio.gather(sessions.settle(one, turn("abcde")), sessions.settle(two, turn("xyz")))
    found = await recognised(sessions, "abcdefg", NAMED)
    assert found.session is not None
    assert {each.length for each in found.session.branches} == {5, 3}
    assert found.session.totals["requests"] == 3


def appended(base: Tip, text: str, reply: str) -> SessionUpdate:
    """An append of one message to the line `base`, with what was answered."""
    sent = element(json.dumps({"role": "user", "content": text}))
    tip, block = Append(base, (sent,), f"{base.head}/{text}").block([{"role": "assistant", "content": reply}])
    return turn("abc")._replace(tip=tip, tip_before=base, blocks={tip.block: block})


async def settle_append(sessions: Sessions, *turns: SessionUpdate) -> list[str]:
    """Stores what was decided at the same time, in this order; the texts of the history that stands then."""
    found = [await recognised(sessions, "abc", NAMED) for _ in turns]
    for each, made_one in zip(found, turns, strict=True):
        await sessions.settle(each, made_one)
    return [element.value["content"] for element in (await sessions.history("t", NAMED)).elements]


async def test_an_append_that_was_overtaken_leaves_what_was_stored_before_it(sessions: Sessions) -> None:
    first = appended(Tip(), "one", "1")
    assert await settle_append(sessions, first) == ["one", "1"]
    assert first.tip is not None
    won, lost = appended(first.tip, "two", "2"), appended(first.tip, "other", "3")
    assert await settle_append(sessions, won, lost) == ["one", "1", "two", "2"]


async def test_the_same_append_at_once_is_stored_once_with_the_newer_reply(sessions: Sessions) -> None:
    texts = await settle_append(sessions, appended(Tip(), "one", "1"), appended(Tip(), "one", "1 again"))
    assert texts == ["one", "1 again"]


async def test_an_append_to_a_history_that_is_gone_is_not_stored(sessions: Sessions, store: Store) -> None:
    first = appended(Tip(), "one", "1")
    await settle_append(sessions, first)
    assert first.tip is not None
    await store.delete((await recognised(sessions, "abc", NAMED)).key)
    assert await settle_append(sessions, appended(first.tip, "two", "2")) == []


@pytest.mark.parametrize(
    ("tokens", "window", "small"),
    [(1_023, 4_096, True), (1_024, 4_096, False), (2_047, None, True), (2_048, None, False), (0, 256, True)],
)
async def test_small_is_below_a_quarter_of_the_window(tokens: int, window: int | None, small: bool) -> None:
    assert is_small(tokens, window) is small


SHARED = string.ascii_letters[:40]


@asynccontextmanager
async def forked(shared: str, most: int) -> AsyncIterator[tuple[Sessions, StoreKey]]:
    """A conversation, and a fork of it behind all but its last message, in a store of so many bytes for the tenant."""
    store = await open_store("memory://", max_tenant_bytes=most)
    sessions = made(store)
    await settled(sessions, shared)
    fork = await settled(sessions, f"{shared[:-1]}1")
    try:
        yield sessions, fork.key
    finally:
        await store.close()


async def test_a_fork_inherits_what_it_may_not_store() -> None:
    async with forked(SHARED, most=3_100) as (sessions, fork):
        for length in (3, 5):
            await settled(sessions, f"{SHARED[:-1]}{'12345'[:length]}")
        assert sorted(await sessions.texts(fork)) == [*"12345"]
        assert await sessions.texts(fork, whole=True) == [*SHARED[:-1], *"12345"]


async def test_a_fork_that_may_store_nothing_still_inherits_what_it_shares() -> None:
    later = f"{SHARED[:-1]}1{string.digits[2:] * 5}"
    async with forked(SHARED, most=2_300) as (sessions, fork):
        await settled(sessions, later)
        found = await recognised(sessions, f"{later}x")
        assert found.key == fork
        assert found.session is not None
        assert found.session.inherited == len(SHARED) - 1
