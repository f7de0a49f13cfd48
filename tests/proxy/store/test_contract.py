"""One contract for all stores: SQLite in a file and in memory, Redis alone, behind Sentinels, and as a cluster."""

from __future__ import annotations

import asyncio
import random

import pytest

from proxy.store.base import FindResult, Snapshot, StoreKey
from tests.proxy.store.conftest import Stage
from tests.proxy.store.saving import ALL_BYTES, TTL, write

pytestmark = pytest.mark.anyio


# Reading and writing


async def test_an_unknown_session_loads_as_none(stage: Stage) -> None:
    assert await stage.store.load(stage.key()) is None
    assert await stage.store.blocks(stage.key()) == {}


async def test_a_saved_session_loads_as_it_was_saved(stage: Stage) -> None:
    assert await stage.store.save(stage.key(), write(b"one", blocks={"d1": b"block"}))

    assert await stage.store.load(stage.key()) == Snapshot(b"one", revision=1)
    assert await stage.store.blocks(stage.key()) == {"d1": b"block"}


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


async def test_a_snapshot_has_the_records_and_which_of_them_stand(stage: Stage) -> None:
    await stage.store.save(stage.key(), write())
    await stage.store.put_record(stage.key(), "r1", b"first", TTL)
    await stage.store.put_record(stage.key(), "r2", b"second", TTL)
    await stage.store.mark(stage.key(), "r2")

    snapshot = await stage.store.load(stage.key())

    assert snapshot == Snapshot(b"meta", 1, {"r1": b"first", "r2": b"second"}, frozenset({"r2"}))


async def test_every_byte_value_survives(stage: Stage) -> None:
    await stage.store.save(stage.key(), write(ALL_BYTES, blocks={"d": ALL_BYTES[::-1], "none": b""}))

    assert await stage.store.put_record(stage.key(), "r", ALL_BYTES * 3, TTL) == ALL_BYTES * 3
    assert await stage.store.load(stage.key()) == Snapshot(ALL_BYTES, 1, {"r": ALL_BYTES * 3})
    assert await stage.store.blocks(stage.key()) == {"d": ALL_BYTES[::-1], "none": b""}


async def test_an_empty_meta_is_a_session(stage: Stage) -> None:
    assert await stage.store.save(stage.key(), write(b""))

    assert await stage.store.load(stage.key()) == Snapshot(b"", 1)


async def test_two_megabytes_are_no_trouble(stage: Stage) -> None:
    large = random.Random(1).randbytes(2_000_000)

    assert await stage.store.save(stage.key(), write(large, blocks={"d": large[::-1]}))
    await stage.store.put_record(stage.key(), "r", large, TTL)

    assert await stage.store.load(stage.key()) == Snapshot(large, 1, {"r": large})
    assert await stage.store.blocks(stage.key()) == {"d": large[::-1]}


async def test_the_store_answers_a_ping(stage: Stage) -> None:
    await stage.store.ping()


# Revisions


async def test_a_stale_writer_loses_and_writes_nothing(stage: Stage) -> None:
    await stage.store.save(stage.key(), write(b"one"))
    await stage.store.save(stage.key(), write(b"two", 1))

    stale = write(b"stale", 1, blocks={"stale": b"x"}, index=["stale"])

    assert not await stage.store.save(stage.key(), stale)
    assert await stage.store.load(stage.key()) == Snapshot(b"two", 2)
    assert await stage.store.blocks(stage.key()) == {}
    assert (await stage.store.find(stage.tenant, ["stale"])).names == {}


@pytest.mark.parametrize("revision", [0, 2, 7])
async def test_only_the_revision_that_is_stored_may_be_replaced(stage: Stage, revision: int) -> None:
    await stage.store.save(stage.key(), write(b"one"))

    assert not await stage.store.save(stage.key(), write(b"other", revision))


async def test_a_session_that_is_gone_is_not_written_from_an_old_snapshot(stage: Stage) -> None:
    assert not await stage.store.save(stage.key(), write(b"late", 3))
    assert await stage.store.load(stage.key()) is None


async def test_of_concurrent_savers_one_wins_each_revision(stage: Stage) -> None:
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


# Records and marks


async def test_the_first_writer_of_a_record_wins(stage: Stage) -> None:
    assert await stage.store.put_record(stage.key(), "r", b"first", TTL) == b"first"
    assert await stage.store.put_record(stage.key(), "r", b"second", TTL) == b"first"
    assert await stage.store.put_record(stage.key(), "other", b"second", TTL) == b"second"


async def test_of_fifty_writers_of_a_record_all_get_the_bytes_of_one(stage: Stage) -> None:
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


async def test_standing_twice_is_standing(stage: Stage) -> None:
    await stage.store.save(stage.key(), write())
    await stage.store.put_record(stage.key(), "r", b"record", TTL)

    await asyncio.gather(*(stage.store.mark(stage.key(), "r") for _ in range(10)))

    assert await stage.store.load(stage.key()) == Snapshot(b"meta", 1, {"r": b"record"}, frozenset({"r"}))


async def test_a_mark_in_an_unknown_session_is_not_made(stage: Stage) -> None:
    await stage.store.mark(stage.key(), "r")
    await stage.store.save(stage.key(), write())

    assert await stage.store.load(stage.key()) == Snapshot(b"meta", 1)


# Blocks and index


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


async def test_an_index_entry_leads_to_the_session_that_was_saved_last(stage: Stage) -> None:
    await stage.store.save(stage.key("one"), write(index=["a"]))
    await stage.store.save(stage.key("two"), write(index=["a"]))

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


# Tenants


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
