"""One contract for all stores: SQLite in a file and in memory, Redis alone, behind Sentinels, and as a cluster."""

import asyncio
import random
from collections.abc import Awaitable
from typing import Any, cast

import pytest

from proxy.store.access import secret_of
from proxy.store.base import (
    JOURNAL,
    RING,
    SECRET,
    UNBOUNDED,
    FindResult,
    KeptBytes,
    Part,
    Snapshot,
    StoreError,
    StoreKey,
)
from tests.proxy.store.conftest import Stage
from tests.proxy.store.on_redis import EVERY_CALL, failure
from tests.proxy.store.saving import ALL_BYTES, TTL, cancelled_after, write, yields


async def test_a_saved_session_loads_as_it_was_saved(stage: Stage) -> None:
    assert await stage.store.load(stage.key()) is None
    assert await stage.store.blocks(stage.key()) == {}
    assert not await stage.store.save(stage.key(), write(b"late", 3))
    assert await stage.store.save(stage.key(), write(b"one", blocks={"d1": b"block"}))
    assert await stage.store.load(stage.key()) == Snapshot(b"one", revision=1)
    assert await stage.store.blocks(stage.key()) == {"d1": b"block"}


async def test_a_journal_keeps_its_newest_items_under_their_numbers(stage: Stage) -> None:
    key, store = stage.key(), stage.store
    assert await store.journal(key) == []
    await store.save(key, write(journal=b"1"))
    assert not await store.save(key, write(journal=b"of a writer that came too late"))
    await store.save(key, write(revision=1))
    for number in range(2, JOURNAL + 3):
        assert await store.save(key, write(revision=number, journal=b"%d" % number))
    assert await store.journal(key) == [(number, b"%d" % number) for number in range(3, JOURNAL + 3)]
    assert await store.journal(stage.key("other")) == []
    await store.delete(key)
    assert await store.journal(key) == []


async def test_all_who_ask_for_the_secret_get_that_of_the_first(stage: Stage) -> None:
    asked = set(await asyncio.gather(*(secret_of(stage.store) for _ in range(20))))
    assert {len(secret) for secret in asked} == {64}
    assert len(asked) == 1
    assert await stage.store.load(SECRET) is None
    assert SECRET not in await stage.store.newest(1_000)
    await stage.store.delete(SECRET)
    assert await secret_of(stage.store) not in asked
    await stage.store.delete(SECRET)
    await stage.store.put_record(SECRET, SECRET.name, b"condenser", TTL)
    with pytest.raises(StoreError, match="store-corrupt"):
        await secret_of(stage.store)
    await stage.store.delete(SECRET)


async def test_sums_grow_by_what_each_writer_adds(stage: Stage) -> None:
    first, second = f"{stage.tenant}-1", f"{stage.tenant}-2"
    await asyncio.gather(*(stage.store.add(first, {"requests": 1, "tokens": 10 * i}, TTL) for i in range(5)))
    await stage.store.add(first, {"errors": 2}, TTL)
    assert await stage.store.sums([second, first]) == [{}, {"requests": 5, "tokens": 100, "errors": 2}]
    assert await stage.store.sums([]) == []


async def test_a_sum_stops_at_what_every_reader_can_count(stage: Stage) -> None:
    name = f"{stage.tenant}-most"
    for amounts in ({"up": 2**53 - 1, "down": -(2**53)}, {"up": 2**53, "down": -1}, {"up": 10**30, "down": 1}):
        await stage.store.add(name, amounts, TTL)
    assert await stage.store.sums([name]) == [{"up": 2**53, "down": 1 - 2**53}]


async def test_a_budget_lacks_ten_minutes_at_most(stage: Stage) -> None:
    name, minute = f"debt-{stage.tenant}", 60_000
    await stage.store.spend(name, 10**30, UNBOUNDED)
    await stage.store.spend(name, 10**12, UNBOUNDED)
    assert 0 < await stage.store.spend(name, 1, minute) <= 9 * minute + 1
    await stage.store.spend(name, -9 * minute - 1, UNBOUNDED)
    assert await stage.store.spend(name, 1, minute) == 0


async def test_bytes_are_swapped_only_for_those_that_are_stored(stage: Stage) -> None:
    store, key = cast(KeptBytes, stage.store), stage.key()
    await store.save(key, write(b"meta", blocks={"d": b"block"}))
    await store.put_record(key, "r", b"record", TTL)
    swaps: list[tuple[Part, str, bytes]] = [
        ("meta", "", b"meta"),
        ("records", "r", b"record"),
        ("blocks", "d", b"block"),
    ]
    for part, name, before in swaps:
        assert not await store.swap(key, part, name, b"other", b"wrong")
        assert not await store.swap(stage.key("other"), part, name, before, b"wrong")
        assert await store.swap(key, part, name, before, before[::-1])
    assert await store.load(key) == Snapshot(b"atem", 1, {"r": b"drocer"})
    assert await store.blocks(key) == {"d": b"kcolb"}


async def test_a_budget_is_spent_by_all_and_fills_up_with_time(stage: Stage) -> None:
    name, minute = f"tokens-{stage.tenant}", 60_000
    assert [await stage.store.spend(name, amount, minute) for amount in (0, 50_000, 30_000)] == [0, 0, 0]
    empty = await stage.store.spend(name, 1, minute)
    assert 15_000 < empty <= 20_001
    assert await stage.store.spend(name, 10_000, UNBOUNDED) == 0
    assert 25_000 < await stage.store.spend(name, 1, minute) <= 30_001
    assert await stage.store.spend(name, -25_000, UNBOUNDED) == 0
    await stage.pass_time(6)
    assert await stage.store.spend(name, 0, minute) == 0
    assert await stage.store.spend(f"{name}-other", 1, minute) == 0
    await stage.store.spend(name, -minute, UNBOUNDED)  # more than was missing
    assert await stage.store.spend(name, 2 * minute, minute) == 0
    assert await stage.store.spend(name, 1, minute) > 0


@pytest.mark.parametrize("names", [[], ["d1"], ["d3", "d1"], ["d2", "unknown"], ["unknown"]])
async def test_blocks_are_read_by_their_names_as_far_as_they_exist(names: list[str], stage: Stage) -> None:
    blocks = {f"d{i}": f"block {i}".encode() * 100 for i in range(1, 4)}
    await stage.store.save(stage.key(), write(blocks=blocks))
    await stage.store.save(stage.key("other"), write(blocks={"unknown": b"another session's"}))
    assert await stage.store.blocks(stage.key(), names) == {name: blocks[name] for name in names if name in blocks}


async def test_the_newest_are_those_saved_last(stage: Stage) -> None:
    for after, (name, revision) in enumerate((("a", 0), ("b", 0), ("c", 0), ("a", 1))):
        await stage.store.save(stage.key(name), write(revision=revision, ttl=TTL + after))
    await stage.store.delete(stage.key("c"))
    # Other tests share the server; what is gone may still be named.
    named = [key.name for key in await stage.store.newest(1_000) if key.tenant == stage.tenant and key.name != "c"]
    assert named == ["a", "b"]
    assert len(await stage.store.newest(1)) == 1


async def test_the_newest_of_a_tenant_are_found_however_many_another_has_saved(stage: Stage) -> None:
    await stage.store.save(stage.key("mine"), write(ttl=TTL))
    others = [StoreKey(f"{stage.tenant}x", f"s{number}") for number in range(1_001)]
    for after, key in enumerate(others, 1):
        await stage.store.save(key, write(ttl=TTL + after))
    assert await stage.store.newest(9, stage.tenant) == [stage.key("mine")]
    assert await stage.store.newest(2, others[0].tenant) == others[:-3:-1]


async def test_a_ring_keeps_its_newest_items(stage: Stage) -> None:
    store, first, second = stage.store, f"{stage.tenant}-1", f"{stage.tenant}-2"
    assert await store.ring(first) == []
    await store.push(first, [b"%d" % number for number in range(RING + 2)], TTL)
    await store.push(second, [b"of another"], TTL)
    await store.push(first, [b"\xff\x00", b"last"], TTL)
    assert await store.ring(first) == [*(b"%d" % number for number in range(4, RING + 2)), b"\xff\x00", b"last"]
    assert await store.ring(second) == [b"of another"]
    await stage.pass_time(TTL + 1)
    assert await store.ring(first) == []


async def test_a_snapshot_has_the_records_and_which_of_them_stand(stage: Stage) -> None:
    await stage.store.save(stage.key(), write())
    await stage.store.put_record(stage.key(), "r1", b"first", TTL)
    await stage.store.put_record(stage.key(), "r2", b"second", TTL)
    await stage.store.mark(stage.key(), "r2")
    snapshot = await stage.store.load(stage.key())
    assert snapshot == Snapshot(b"meta", 1, {"r1": b"first", "r2": b"second"}, frozenset({"r2"}))


async def test_every_byte_of_megabytes_survives(stage: Stage) -> None:
    await stage.store.save(stage.key(), write(ALL_BYTES, blocks={"d": ALL_BYTES[::-1], "none": b""}))
    assert await stage.store.put_record(stage.key(), "r", ALL_BYTES * 3, TTL) == ALL_BYTES * 3
    assert await stage.store.load(stage.key()) == Snapshot(ALL_BYTES, 1, {"r": ALL_BYTES * 3})
    assert await stage.store.blocks(stage.key()) == {"d": ALL_BYTES[::-1], "none": b""}
    large, large_one = random.Random(1).randbytes(2_000_000), stage.key("large")
    assert await stage.store.save(large_one, write(large, blocks={"d": large[::-1]}))
    await stage.store.put_record(large_one, "r", large, TTL)
    assert await stage.store.load(large_one) == Snapshot(large, 1, {"r": large})
    assert await stage.store.blocks(large_one) == {"d": large[::-1]}


async def test_a_stale_writer_loses_and_writes_nothing(stage: Stage) -> None:
    await stage.store.save(stage.key(), write(b"one"))
    await stage.store.save(stage.key(), write(b"two", 1))
    stale = write(b"stale", 1, blocks={"stale": b"x"}, index=["stale"])
    assert not await stage.store.save(stage.key(), stale)
    assert not await stage.store.save(stage.key("gone"), write(b"late", 3))
    assert await stage.store.load(stage.key("gone")) is None
    for revision in (0, 3, 7):
        assert not await stage.store.save(stage.key(), write(b"other", revision))
    assert await stage.store.load(stage.key()) == Snapshot(b"two", 2)
    assert await stage.store.blocks(stage.key()) == {}
    assert (await stage.store.find(stage.tenant, ["stale"])).names == {}


async def test_of_concurrent_savers_anywhere_one_wins_each_revision(stage: Stage) -> None:
    for revision in range(5):
        metas = [b"%d-%d" % (revision, n) for n in range(20)]
        won = await asyncio.gather(*(stage.store.save(stage.key(), write(m, revision)) for m in metas))
        assert sum(won) == 1
        assert await stage.store.load(stage.key()) == Snapshot(metas[won.index(True)], revision + 1)


async def test_two_stores_at_one_place_share_one_revision(stage: Stage) -> None:
    if stage.kind == "memory":
        return  # a second one is another memory
    stores = [stage.store, await stage.another()] * 10
    calls = (store.save(stage.key(), write(b"%d" % n)) for n, store in enumerate(stores))
    assert sum(await asyncio.gather(*calls)) == 1


async def test_of_fifty_writers_of_a_record_all_get_the_bytes_of_one(stage: Stage) -> None:
    await stage.store.save(stage.key("empty"), write(b""))
    assert await stage.store.load(stage.key("empty")) == Snapshot(b"", 1)
    puts = (stage.store.put_record(stage.key(), "r", b"%d" % n, TTL) for n in range(50))
    kept = await asyncio.gather(*puts)
    await stage.store.save(stage.key(), write())
    assert len(set(kept)) == 1
    assert await stage.store.load(stage.key()) == Snapshot(b"meta", 1, {"r": kept[0]})


async def test_a_record_may_come_before_the_first_save(stage: Stage) -> None:
    await stage.store.put_record(stage.key(), "r", b"record", TTL)
    await stage.store.mark(stage.key(), "r")
    assert await stage.store.load(stage.key()) is None
    assert await stage.store.save(stage.key(), write())
    assert await stage.store.load(stage.key()) == Snapshot(b"meta", 1, {"r": b"record"}, frozenset({"r"}))


async def test_marks_stand_once_and_only_in_known_sessions(stage: Stage) -> None:
    await stage.store.save(stage.key(), write())
    await stage.store.put_record(stage.key(), "r", b"record", TTL)
    await asyncio.gather(*(stage.store.mark(stage.key(), "r") for _ in range(10)))
    assert await stage.store.load(stage.key()) == Snapshot(b"meta", 1, {"r": b"record"}, frozenset({"r"}))
    await stage.store.mark(stage.key("other"), "r")
    await stage.store.save(stage.key("other"), write())
    assert await stage.store.load(stage.key("other")) == Snapshot(b"meta", 1)


async def test_a_block_is_added_where_absent_and_else_left(stage: Stage) -> None:
    await stage.store.save(stage.key(), write(blocks={"a": b"1", "b": b"2"}))
    await stage.store.save(stage.key(), write(revision=1, blocks={"b": b"other", "c": b"3"}))
    assert await stage.store.blocks(stage.key()) == {"a": b"1", "b": b"2", "c": b"3"}


async def test_the_index_finds_what_it_knows_and_leaves_out_the_rest(stage: Stage) -> None:
    await stage.store.save(stage.key("one"), write(index=["a", "b"]))
    await stage.store.save(stage.key("two"), write(index=["c"]))
    found = await stage.store.find(stage.tenant, ["x", "c", "a", "y"])
    assert found.names == {"a": "one", "c": "two"}
    assert (await stage.store.find(stage.tenant, [])).names == {}
    await stage.store.save(stage.key("two"), write(revision=1, index=["a"]))
    assert (await stage.store.find(stage.tenant, ["a"])).names == {"a": "two"}


async def test_likely_sessions_are_read_with_the_names_as_far_as_they_exist(stage: Stage) -> None:
    await stage.store.save(stage.key("one"), write(index=["a"]))
    await stage.store.save(stage.key("two"), write(b"second"))
    await stage.store.put_record(stage.key("two"), "r", b"record", TTL)
    found = await stage.store.find(stage.tenant, ["a"], ["two", "gone", "one"])
    read = {"one": Snapshot(b"meta", 1), "two": Snapshot(b"second", 1, {"r": b"record"})}
    assert found == FindResult({"a": "one"}, read)
    assert await stage.store.find(stage.tenant, [], ["one"]) == FindResult({}, {"one": read["one"]})


async def test_five_thousand_digests_are_found_at_once(stage: Stage) -> None:
    digests = [f"{n:064x}" for n in range(5_000)]
    await stage.store.save(stage.key(), write(index=digests[::2]))
    assert (await stage.store.find(stage.tenant, digests)).names == dict.fromkeys(digests[::2], "s")


async def test_another_tenant_finds_nothing_under_the_same_names(stage: Stage) -> None:
    await stage.store.save(stage.key(), write(blocks={"d": b"block"}, index=["a"]))
    await stage.store.put_record(stage.key(), "r", b"record", TTL)
    other = StoreKey(stage.tenant + "x", "s")
    assert await stage.store.load(other) is None
    assert await stage.store.blocks(other) == {}
    assert await stage.store.find(other.tenant, ["a"], ["s"]) == FindResult()
    assert not await stage.store.delete(other)
    assert await stage.store.put_record(other, "r", b"theirs", TTL) == b"theirs"
    assert await stage.store.load(stage.key()) == Snapshot(b"meta", 1, {"r": b"record"})


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


async def test_the_sessions_of_a_tenant_are_those_that_live(stage: Stage) -> None:
    await stage.store.save(stage.key("b"), write())
    await stage.store.save(stage.key("a"), write(index=["a", "b"], blocks={"d": b"block"}))
    await stage.store.put_record(stage.key("never-saved"), "r", b"record", TTL)
    await stage.store.save(stage.key("deleted"), write())
    await stage.store.delete(stage.key("deleted"))
    await stage.store.put_fact(f"{stage.tenant}-fact", b"no session", 60)
    await stage.store.claim(stage.tenant, "no session", "holder", 60)
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


def incompressible(size: int, seed: int = 0) -> bytes:
    return random.Random(seed).randbytes(size)


async def assert_over_quota(call: Awaitable[Any]) -> None:
    with pytest.raises(StoreError) as raised:
        await call
    assert raised.value.reason == "store-quota"


async def test_blocks_beyond_the_quota_of_a_session_are_refused(stage: Stage) -> None:
    store = await stage.another(max_session_bytes=10_000)
    full = write(b"m" * 100, blocks={"d1": incompressible(9_898)})
    assert await store.save(stage.key(), full)  # 100 of meta, 2 of the digest: not a byte is left
    await assert_over_quota(store.save(stage.key(), write(b"m" * 100, 1, blocks={"d": b""}, index=["d"])))
    assert await store.load(stage.key()) == Snapshot(b"m" * 100, 1)
    assert set(await store.blocks(stage.key())) == {"d1"}
    assert (await store.find(stage.tenant, ["d"])).names == {}


async def test_a_save_without_new_blocks_is_never_refused(stage: Stage) -> None:
    store = await stage.another(max_session_bytes=1_000)
    blocks = {"d": incompressible(900)}
    await store.save(stage.key(), write(b"", blocks=blocks))
    assert await store.save(stage.key(), write(incompressible(2_000), 1, blocks=blocks, index=["d"]))
    assert (await store.find(stage.tenant, ["d"])).names == {"d": "s"}
    await assert_over_quota(store.save(stage.key(), write(b"", 2, blocks={"e": incompressible(200)})))


async def test_a_session_that_is_full_keeps_records_up_to_a_fourth_more(stage: Stage) -> None:
    store = await stage.another(max_session_bytes=10_000)
    await store.save(stage.key(), write(b"", blocks={"d": incompressible(9_999)}))
    record = incompressible(2_499)
    assert await store.put_record(stage.key(), "r", record, TTL) == record
    await assert_over_quota(store.put_record(stage.key(), "s", b"", TTL))
    assert await store.put_record(stage.key(), "r", b"late", TTL) == record
    assert await store.load(stage.key()) == Snapshot(b"", 1, {"r": record})


async def test_a_stale_writer_is_told_so_and_not_of_a_quota(stage: Stage) -> None:
    store = await stage.another(max_session_bytes=100)
    await store.save(stage.key(), write())
    assert not await store.save(stage.key(), write(blocks={"d": incompressible(200)}))


async def test_a_smaller_meta_makes_room(stage: Stage) -> None:
    store = await stage.another(max_session_bytes=1_000)
    await store.save(stage.key(), write(incompressible(900)))
    block = {"d": incompressible(500)}
    await assert_over_quota(store.save(stage.key(), write(incompressible(900), 1, blocks=block)))
    assert await store.save(stage.key(), write(b"", 1, blocks=block))


async def test_each_tenant_has_a_quota_for_all_its_sessions(stage: Stage) -> None:
    store = await stage.another(max_tenant_bytes=10_000)
    await store.save(stage.key("one"), write(b"", blocks={"d": incompressible(6_000)}))
    await assert_over_quota(store.save(stage.key("two"), write(b"", blocks={"d": incompressible(5_000)})))
    assert await store.save(stage.key("two"), write(b"", blocks={"d": incompressible(3_000)}))
    await assert_over_quota(store.put_record(stage.key("two"), "r", incompressible(4_000), TTL))
    other = StoreKey(stage.tenant + "x", "one")
    assert await store.save(other, write(b"", blocks={"d": incompressible(9_000)}))


async def test_what_is_deleted_or_expires_leaves_the_quota_of_its_tenant(stage: Stage) -> None:
    store = await stage.another(max_tenant_bytes=10_000)
    large = {"d": incompressible(6_000)}
    await store.save(stage.key("deleted"), write(b"", blocks=large))
    await store.delete(stage.key("deleted"))
    assert await store.save(stage.key("expiring"), write(b"", blocks=large))
    await assert_over_quota(store.save(stage.key("next"), write(b"", blocks=large)))
    await stage.pass_time(TTL + 1)
    assert await store.save(stage.key("next"), write(b"", blocks=large))


async def claimed(stage: Stage, holder: str, work: str = "work") -> bool:
    return await stage.store.claim(stage.tenant, work, holder, 60)


async def test_one_of_many_who_claim_a_work_has_it(stage: Stage) -> None:
    claims = await asyncio.gather(*(claimed(stage, f"h{n}") for n in range(20)))
    assert sorted(claims) == [*[False] * 19, True]
    await claimed(stage, "one")
    assert await claimed(stage, "two", "other-work")
    assert await stage.store.claim(stage.tenant + "x", "work", "two", 60)


async def test_two_stores_at_one_place_share_claims_and_facts(stage: Stage) -> None:
    if stage.kind == "memory":
        return  # a second one is another memory
    another = await stage.another()
    assert await claimed(stage, "one")
    assert not await another.claim(stage.tenant, "work", "two", 60)
    await stage.store.put_fact(f"{stage.tenant}-fact", b"said", 60)
    assert await another.get_fact(f"{stage.tenant}-fact") == b"said"


async def test_the_last_writer_of_a_fact_wins(stage: Stage) -> None:
    name = f"{stage.tenant}-fact"
    for fact in (b"first", ALL_BYTES * 9, b""):
        await stage.store.put_fact(name, fact, 60)
        assert await stage.store.get_fact(name) == fact
    assert await stage.store.get_fact(f"{stage.tenant}-other") is None


async def test_a_rewritten_fact_lives_longer(stage: Stage) -> None:
    name = f"{stage.tenant}-fact"
    await stage.store.put_fact(name, b"old", 60)
    await stage.pass_time(50)
    await stage.store.put_fact(name, b"new", 60)
    await stage.pass_time(50)
    assert await stage.store.get_fact(name) == b"new"
    await stage.pass_time(11)
    assert await stage.store.get_fact(name) is None


async def test_a_claim_lasts_for_its_time_and_its_holder_may_renew_it(stage: Stage) -> None:
    await claimed(stage, "one")
    await stage.pass_time(50)
    assert await claimed(stage, "one")
    await stage.pass_time(50)
    assert not await claimed(stage, "two")
    await stage.pass_time(11)
    assert await claimed(stage, "two")
    assert not await claimed(stage, "one")


async def test_a_cancelled_save_leaves_the_old_state_or_the_new_one(stage: Stage) -> None:
    await stage.store.save(stage.key(), write(b"0", blocks={"0": b"x"}))
    for turns in range(60):
        revision = (await loaded(stage)).revision
        change = write(b"%d" % revision, revision, blocks={str(revision): b"x"})
        await cancelled_after(turns % 12, stage.store.save(stage.key(), change))
        # A write that goes on by itself may land between these reads, never within one of them.
        before = await loaded(stage)
        blocks = set(await stage.store.blocks(stage.key()))
        after = await loaded(stage)
        assert before.meta == b"%d" % (before.revision - 1)
        assert names(before) <= blocks <= names(after)


async def loaded(stage: Stage) -> Snapshot:
    snapshot = await stage.store.load(stage.key())
    assert snapshot is not None
    return snapshot


def names(snapshot: Snapshot) -> set[str]:
    """The blocks that a session has which was saved so often, by the test above."""
    return {str(n) for n in range(snapshot.revision)}


async def test_after_cancelled_calls_everyone_gets_the_answer_to_his_own_question(stage: Stage) -> None:
    for n in range(30):
        await stage.store.save(stage.key(f"s{n}"), write(b"%d" % n))
    for turns in range(12):
        victims = [cancelled_after(turns, stage.store.load(stage.key(f"s{n}"))) for n in range(0, 30, 2)]
        others = [stage.store.load(stage.key(f"s{n}")) for n in range(1, 30, 2)]
        answers = await asyncio.gather(*others, *victims)
        assert answers[: len(others)] == [Snapshot(b"%d" % n, 1) for n in range(1, 30, 2)]


async def test_closing_waits_for_writes_and_then_every_call_says_closed(stage: Stage) -> None:
    saving = asyncio.create_task(stage.store.save(stage.key(), write()))
    await yields(1)
    await stage.store.close()
    assert await saving
    await stage.store.close()
    await stage.store.close()
    for call in EVERY_CALL.values():
        assert (await failure(call(stage.store))).reason == "store-closed"
