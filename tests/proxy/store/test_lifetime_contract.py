"""The contract of all stores for time: how long a session lives, which are listed, and what a deletion removes."""

from __future__ import annotations

import asyncio

import pytest

from proxy.store.base import Snapshot, StoreKey
from tests.proxy.store.conftest import Stage
from tests.proxy.store.saving import TTL, write

pytestmark = pytest.mark.anyio


# Time to live


async def test_a_session_lives_for_its_time_and_no_longer(stage: Stage) -> None:
    await stage.store.save(stage.key(), write(blocks={"d": b"block"}, index=["a"]))
    await stage.store.put_record(stage.key(), "r", b"record", TTL)

    await stage.pass_time(TTL - 60)
    assert await stage.store.load(stage.key()) == Snapshot(b"meta", 1, {"r": b"record"})

    await stage.pass_time(61)
    assert await stage.store.load(stage.key()) is None
    assert await stage.store.blocks(stage.key()) == {}
    assert (await stage.store.find(stage.tenant, ["a"])).names == {}
    assert not await stage.store.delete(stage.key())


async def test_a_new_session_has_nothing_of_an_expired_one(stage: Stage) -> None:
    await stage.store.save(stage.key(), write(blocks={"d": b"block"}))
    await stage.store.put_record(stage.key(), "r", b"old", TTL)
    await stage.store.mark(stage.key(), "r")

    await stage.pass_time(TTL + 1)

    assert not await stage.store.save(stage.key(), write(revision=1))
    assert await stage.store.save(stage.key(), write(b"new"))
    assert await stage.store.load(stage.key()) == Snapshot(b"new", 1)
    assert await stage.store.blocks(stage.key()) == {}


async def test_a_save_renews_all_of_a_session(stage: Stage) -> None:
    await stage.store.save(stage.key(), write(blocks={"d": b"block"}))
    await stage.store.put_record(stage.key(), "r", b"record", TTL)
    await stage.store.mark(stage.key(), "r")

    await stage.pass_time(TTL - 60)
    await stage.store.save(stage.key(), write(revision=1))
    await stage.pass_time(TTL - 60)

    everything = Snapshot(b"meta", 2, {"r": b"record"}, frozenset({"r"}))
    assert await stage.store.load(stage.key()) == everything
    assert await stage.store.blocks(stage.key()) == {"d": b"block"}


async def test_a_record_lengthens_the_life_of_its_session_and_never_shortens_it(stage: Stage) -> None:
    await stage.store.save(stage.key(), write(ttl=100, blocks={"d": b"block"}))
    await stage.store.put_record(stage.key(), "long", b"record", 1000)
    await stage.store.put_record(stage.key(), "short", b"record", 10)

    await stage.pass_time(900)

    both = {"long": b"record", "short": b"record"}
    assert await stage.store.load(stage.key()) == Snapshot(b"meta", 1, both)
    assert await stage.store.blocks(stage.key()) == {"d": b"block"}


async def test_a_mark_lives_as_long_as_its_session(stage: Stage) -> None:
    await stage.store.save(stage.key(), write())
    await stage.pass_time(TTL - 60)
    await stage.store.mark(stage.key(), "r")
    await stage.pass_time(61)
    await stage.store.save(stage.key(), write())

    assert await stage.store.load(stage.key()) == Snapshot(b"meta", 1)


# Deleting


async def test_the_sessions_of_a_tenant_are_those_that_live(stage: Stage) -> None:
    await stage.store.save(stage.key("b"), write())
    await stage.store.save(stage.key("a"), write(index=["a", "b"], blocks={"d": b"block"}))
    await stage.store.put_record(stage.key("never-saved"), "r", b"record", TTL)
    await stage.store.save(stage.key("deleted"), write())
    await stage.store.delete(stage.key("deleted"))

    assert await stage.store.keys(stage.tenant) == [stage.key(each) for each in ("a", "b", "never-saved")]
    await stage.pass_time(TTL + 1)
    assert await stage.store.keys(stage.tenant) == []


async def test_without_a_tenant_all_sessions_are_listed(stage: Stage) -> None:
    other = StoreKey(stage.tenant[::-1], "s")
    await stage.store.save(stage.key(), write())
    await stage.store.save(other, write())

    assert await stage.store.keys(other.tenant) == [other]
    every = await stage.store.keys()
    assert every == sorted(every)
    assert {stage.key(), other} <= set(every)
    await stage.store.delete(other)


@pytest.mark.parametrize("tenant", ["*", "?" * 32, "[a-z0-9]*", "", "a\\*", "^"])
async def test_a_tenant_in_a_listing_is_no_pattern(stage: Stage, tenant: str) -> None:
    await stage.store.save(stage.key(), write())

    assert await stage.store.keys(tenant) == []


async def test_thousands_of_sessions_are_listed_once_each(stage: Stage) -> None:
    keys = [stage.key(f"s{n:04}") for n in range(2_500)]
    for start in range(0, len(keys), 20):
        await asyncio.gather(*(stage.store.save(key, write(index=[key.name])) for key in keys[start : start + 20]))

    assert await stage.store.keys(stage.tenant) == keys


async def test_deleting_removes_all_of_one_session_and_nothing_of_another(stage: Stage) -> None:
    for session in ("gone", "kept"):
        await stage.store.save(stage.key(session), write(blocks={"d": b"block"}))
        await stage.store.put_record(stage.key(session), "r", b"record", TTL)
        await stage.store.mark(stage.key(session), "r")

    assert await stage.store.delete(stage.key("gone"))
    assert not await stage.store.delete(stage.key("gone"))

    assert await stage.store.load(stage.key("gone")) is None
    assert await stage.store.blocks(stage.key("gone")) == {}
    assert await stage.store.save(stage.key("gone"), write(b"new"))
    assert await stage.store.load(stage.key("gone")) == Snapshot(b"new", 1)
    kept = Snapshot(b"meta", 1, {"r": b"record"}, frozenset({"r"}))
    assert await stage.store.load(stage.key("kept")) == kept
    assert await stage.store.blocks(stage.key("kept")) == {"d": b"block"}


async def test_deleting_a_record_without_a_session_removes_it_and_is_no_session(stage: Stage) -> None:
    await stage.store.put_record(stage.key(), "r", b"first", TTL)

    assert not await stage.store.delete(stage.key())
    assert await stage.store.put_record(stage.key(), "r", b"second", TTL) == b"second"
