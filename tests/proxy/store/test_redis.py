"""What only the Redis store promises for its keys and scripts: slots, times to live, usage, listings."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from redis.asyncio import Redis
from redis.crc import key_slot

from proxy.store.base import Quotas, Snapshot, StoreError
from proxy.store.redis import Limits, Server, server_options
from proxy.store.redis_store import RedisStore
from tests.proxy.store.conftest import keys_of
from tests.proxy.store.on_redis import EVERY_CALL, KEY, execute, failure, fill, opened
from tests.proxy.store.saving import TTL, write
from tests.support.redis_server import RedisServer

pytestmark = [pytest.mark.anyio]


@pytest.fixture
async def store(own_redis: RedisServer) -> AsyncIterator[RedisStore]:
    async with opened(own_redis.url) as store:
        yield store


# Keys


async def test_every_key_holds_the_tenant_and_has_a_time_to_live(store: RedisStore, client: Redis) -> None:
    await fill(store)
    await store.claim("tenant", "work", "holder", 3)

    keys = sorted(await client.keys("*"))

    parts = (b"blocks", b"meta", b"records", b"standing")
    chain = b"condenser:{tenant:d}:chain:d"
    claim = b"condenser:{tenant:work}:claim"
    session = [b"condenser:{tenant:session}:" + part for part in parts]
    newest = b"condenser:{}:newest"
    assert keys == sorted([chain, claim, newest, *session])
    for key in keys:
        assert 0 < await client.pttl(key) <= TTL * 1000


async def test_a_claim_lives_for_seconds_and_parts_of_them(store: RedisStore, client: Redis) -> None:
    for ttl in (30, 40):  # the second time it is renewed
        await store.claim("tenant", "work", "holder", ttl + 0.5)
        assert ttl * 1000 < await client.pttl("condenser:{tenant:work}:claim") <= ttl * 1000 + 500


async def test_the_keys_of_a_session_share_a_slot(store: RedisStore, client: Redis) -> None:
    await fill(store)
    keys = await keys_of(client, "{tenant:session}")

    assert len(keys) == 4
    assert len({key_slot(key) for key in keys}) == 1


async def test_a_save_renews_the_time_of_every_key(store: RedisStore, client: Redis) -> None:
    await fill(store)
    for key in await keys_of(client, "tenant"):
        await client.pexpire(key, 5_000)

    await store.save(KEY, write(revision=1, index=["d"]))

    for key in await keys_of(client, "tenant"):
        assert await client.pttl(key) > 5_000


async def test_deleting_leaves_no_key_of_the_session(store: RedisStore, client: Redis) -> None:
    await fill(store)
    await store.delete(KEY)

    assert await keys_of(client, "{tenant:session}") == []


# The usage of a tenant


async def usage(client: Redis) -> dict[bytes, bytes]:
    sizes: Any = client.hgetall("condenser:{tenant}:sizes")
    return dict(await sizes)


async def test_without_a_quota_of_tenants_nothing_is_noted(own_redis: RedisServer, client: Redis) -> None:
    async with opened(own_redis.url, quotas=Quotas(entry=1_000)) as store:
        await fill(store)

    assert await client.keys("condenser:{tenant}:*") == []


async def test_a_tenants_usage_expires_and_leaves_with_its_session(own_redis: RedisServer, client: Redis) -> None:
    async with opened(own_redis.url, quotas=Quotas(tenant=1_000)) as store:
        await fill(store)
        assert await usage(client) == {b"": b"17", b"session": b"17"}  # r, record, meta, d, block
        for key in await client.keys("condenser:{tenant}:*"):
            assert 0 < await client.pttl(key) <= TTL * 1000

        await store.delete(KEY)
        await store.delete(KEY)
    assert await usage(client) == {b"": b"0"}


@pytest.mark.parametrize("lost", ["sizes", "ends"])
async def test_a_wrong_usage_is_mended_by_a_write(own_redis: RedisServer, client: Redis, lost: str) -> None:
    async with opened(own_redis.url, quotas=Quotas(tenant=1_000)) as store:
        await fill(store)
        await client.delete(f"condenser:{{tenant}}:{lost}")
        await store.save(KEY, write(revision=1))
        assert await usage(client) == {b"": b"17", b"session": b"17"}

        # As after a fail-over that forgot a note.
        await client.hset("condenser:{tenant}:sizes", mapping={"session": 5, "": 5})
        await store.save(KEY, write(revision=2))
        assert await usage(client) == {b"": b"17", b"session": b"17"}


# Scripts


@pytest.mark.parametrize("name", EVERY_CALL)
async def test_every_call_works_after_scripts_are_lost(store: RedisStore, client: Redis, name: str) -> None:
    await fill(store)
    await client.script_flush()

    await EVERY_CALL[name](store)


async def test_a_full_server_reads_deletes_and_never_half_writes(store: RedisStore, client: Redis) -> None:
    await fill(store)
    before = await store.load(KEY)
    await client.config_set("maxmemory", "1")

    changes = (
        store.save(KEY, write(b"new", 1, blocks={"e": b"block"})),
        store.put_record(KEY, "other", b"record", TTL),
        store.mark(KEY, "other"),
    )
    for change in changes:
        assert (await failure(change)).reason == "store-full"

    assert await store.load(KEY) == before
    assert await store.blocks(KEY) == {"d": b"block"}
    assert (await store.find("tenant", ["d"])).names == {"d": "session"}
    assert await store.delete(KEY)


async def test_a_replica_reads_and_says_that_it_does_not_write(store: RedisStore, client: Redis) -> None:
    await fill(store)
    await execute(client, "REPLICAOF", "127.0.0.1", "1")

    assert await store.load(KEY) == Snapshot(b"meta", 1, {"r": b"record"}, frozenset({"r"}))
    assert (await failure(store.save(KEY, write(b"new", 1)))).reason == "store-read-only"


# Exchanges


async def test_one_server_is_asked_once_for_each_turn(store: RedisStore, client: Redis) -> None:
    await fill(store)
    await store.load(KEY)  # the server knows both scripts

    async def exchanges() -> int:
        return int((await client.info("stats"))["total_reads_processed"])

    before = await exchanges()
    found = await store.find("tenant", ["d", "other"], ["session"])
    await store.save(KEY, write(b"new", 1, blocks={"e": b"block"}, index=["d", "e"]))

    assert await exchanges() - before == 2 + 1  # the question itself is one
    assert found.snapshots["session"].revision == 1
    assert (await store.find("tenant", ["e"])).names == {"e": "session"}


# Listings


async def test_a_listing_steps_through_the_keys_and_holds_up_nobody(own_redis: RedisServer) -> None:
    async with opened(own_redis.url) as store, Redis.from_url(own_redis.url) as client:
        await fill(store)
        await client.mset({f"foreign:{n}": b"x" for n in range(3_000)})

        assert await store.keys() == [KEY]

        used: Any = await client.info("commandstats")
        assert used["cmdstat_scan"]["calls"] >= 3
        assert "cmdstat_keys" not in used


async def test_a_listing_that_runs_out_of_time_says_so(own_redis: RedisServer) -> None:
    server = Server(server_options(own_redis.url, "it"), shown="it", limits=Limits())
    async with Redis.from_url(own_redis.url) as client:
        await client.mset({f"k:{n}": b"x" for n in range(3_000)})

        with pytest.raises(StoreError) as raised:
            await server.keys("k:*", until=0.0)

        assert raised.value.reason == "store-timeout"
        assert len(await server.keys("k:*", until=float("inf"))) == 3_000
    await server.close()
