"""What only the Redis store promises: its keys and scripts, bounds when the server fails, errors that quote nothing."""

import asyncio
import traceback
from collections.abc import AsyncIterator
from typing import Any

import pytest
from redis import exceptions
from redis.asyncio import Redis

from proxy.store import open_store
from proxy.store.base import Quotas, Snapshot, StoreError, StoreKey
from proxy.store.redis import Limits, Server, server_options
from proxy.store.redis_store import RedisStore
from tests.proxy.store.conftest import keys_of
from tests.proxy.store.on_redis import BOUND, EVERY_CALL, KEY, execute, failure, fill, opened
from tests.proxy.store.saving import ALL_BYTES, TTL, write
from tests.proxy.store.tcp_proxy import tcp_proxy
from tests.support.redis_server import RedisServer


@pytest.fixture
async def store(own_redis: RedisServer) -> AsyncIterator[RedisStore]:
    async with opened(own_redis.url) as store:
        yield store


async def test_every_key_holds_the_tenant_and_has_a_time_to_live(store: RedisStore, client: Redis) -> None:
    await fill(store)
    await store.claim("tenant", "work", "holder", 3)
    keys = sorted(await client.keys("*"))
    parts = (b"blocks", b"meta", b"records", b"standing")
    chain = b"condenser:{tenant:d}:chain:d"
    claim = b"condenser:{tenant:work}:claim"
    session = [b"condenser:{tenant:session}:" + part for part in parts]
    newest = [b"condenser:{}:newest", b"condenser:{tenant}:newest"]
    assert keys == sorted([chain, claim, *newest, *session])
    for key in keys:
        assert 0 < await client.pttl(key) <= TTL * 1000


async def test_a_claim_lives_for_its_seconds(store: RedisStore, client: Redis) -> None:
    for ttl in (30, 40):  # the second time it is renewed
        await store.claim("tenant", "work", "holder", ttl + 0.5)
        assert ttl * 1000 < await client.pttl("condenser:{tenant:work}:claim") <= ttl * 1000 + 500


async def test_a_save_renews_every_key_and_a_deletion_leaves_none(store: RedisStore, client: Redis) -> None:
    await fill(store)
    for key in await keys_of(client, "tenant"):
        await client.pexpire(key, 5_000)
    await store.save(KEY, write(revision=1, index=["d"]))
    for key in await keys_of(client, "tenant"):
        assert await client.pttl(key) > 5_000
    await store.delete(KEY)
    assert await keys_of(client, "{tenant:session}") == []


async def usage(client: Redis) -> dict[bytes, bytes]:
    sizes: Any = client.hgetall("condenser:{tenant}:sizes")
    return dict(await sizes)


async def test_without_a_quota_of_tenants_only_their_newest_sessions_are_noted(
    own_redis: RedisServer, client: Redis
) -> None:
    async with opened(own_redis.url, quotas=Quotas(entry=1_000)) as store:
        await fill(store)
    assert await client.keys("condenser:{tenant}:*") == [b"condenser:{tenant}:newest"]


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


# A server that dies, hangs, or is not there


@pytest.mark.parametrize("name", EVERY_CALL)
async def test_a_dead_server_fails_in_bounds(store: RedisStore, own_redis: RedisServer, name: str) -> None:
    await fill(store)
    own_redis.kill()
    for _ in range(2):  # with connections that were open, and without
        assert (await failure(EVERY_CALL[name](store))).reason == "store-unavailable"


async def test_a_hung_server_fails_within_bounds(store: RedisStore, own_redis: RedisServer) -> None:
    await asyncio.gather(*(store.ping() for _ in EVERY_CALL))
    own_redis.stop()
    failures = await asyncio.gather(*(failure(call(store)) for call in EVERY_CALL.values()))
    assert {error.reason for error in failures} == {"store-timeout"}


async def test_a_server_back_at_its_port_is_used(store: RedisStore, own_redis: RedisServer) -> None:
    await asyncio.gather(*(store.ping() for _ in range(8)))
    own_redis.kill()
    await failure(store.ping())
    own_redis.restart()
    await asyncio.gather(*(store.ping() for _ in range(8)))
    assert await store.save(KEY, write())


async def test_a_restart_that_nobody_noticed_costs_no_call(store: RedisStore, own_redis: RedisServer) -> None:
    await asyncio.gather(*(store.ping() for _ in range(8)))
    await asyncio.to_thread(own_redis.restart)  # the loop sees the connections end
    assert await store.save(KEY, write())
    await asyncio.gather(*(store.ping() for _ in range(8)))


async def test_a_hung_server_answers_the_next_question(store: RedisStore, own_redis: RedisServer) -> None:
    await store.save(KEY, write(b"old question"))
    other = KEY._replace(name="other")
    await store.save(other, write(b"new question"))
    own_redis.stop()
    await failure(store.load(KEY))
    own_redis.cont()
    assert await store.load(other) == Snapshot(b"new question", 1)


async def test_a_store_can_be_opened_before_its_server_runs(own_redis: RedisServer) -> None:
    own_redis.kill()
    store = await open_store(own_redis.url)
    await failure(store.ping())
    own_redis.restart()
    await store.ping()
    await store.close()


async def test_closing_ends_within_its_bound_when_the_server_hangs(own_redis: RedisServer) -> None:
    store = await open_store(own_redis.url)
    await store.ping()
    own_redis.stop()
    calls = [asyncio.create_task(failure(store.load(KEY))) for _ in range(4)]
    await asyncio.sleep(0)
    async with asyncio.timeout(2 * BOUND):
        await store.close()
        await asyncio.gather(*calls)


async def test_waiting_for_a_free_connection_is_bounded(own_redis: RedisServer) -> None:
    one = Limits(connections=1, free_connection=0.05)
    async with opened(own_redis.url, one) as store:
        await store.ping()
        own_redis.stop()
        failures = await asyncio.gather(*(failure(store.ping()) for _ in range(5)))
    assert sorted(error.reason for error in failures) == ["store-timeout"] + ["store-unavailable"] * 4


async def test_more_callers_than_connections_are_all_served(own_redis: RedisServer) -> None:
    async with opened(own_redis.url, Limits(connections=2, free_connection=10, call=20)) as store:
        puts = (store.put_record(KEY, f"r{n}", b"%d" % n, TTL) for n in range(100))
        assert await asyncio.gather(*puts) == [b"%d" % n for n in range(100)]


WRITES = {name: EVERY_CALL[name] for name in ("save", "put_record", "stand", "delete")}


@pytest.mark.parametrize("name", WRITES)
async def test_a_write_whose_answer_was_lost_is_not_sent_again(own_redis: RedisServer, name: str) -> None:
    async with tcp_proxy(own_redis.port) as between, opened(f"redis://127.0.0.1:{between.port}") as store:
        await WRITES[name](store)  # the server knows the script from here on
        await store.delete(KEY)
        between.sent.clear()
        between.lose_answers = True
        assert (await failure(WRITES[name](store))).reason == "store-unavailable"
        assert between.sent.count(b"EVALSHA") == 1
        between.lose_answers = False
        await store.ping()
        assert between.sent.count(b"EVALSHA") == 1


async def test_a_new_connection_costs_a_health_check_and_no_other_command(own_redis: RedisServer) -> None:
    async with tcp_proxy(own_redis.port) as between, opened(f"redis://127.0.0.1:{between.port}") as store:
        await store.ping()
        assert bytes(between.sent) == b"*1\r\n$4\r\nPING\r\n" * 2


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (exceptions.AuthenticationError(), "store-refused"),
        (exceptions.NoPermissionError(), "store-refused"),
        (exceptions.BusyLoadingError(), "store-loading"),
        (exceptions.ConnectionError(), "store-unavailable"),
        (exceptions.TimeoutError(), "store-timeout"),
        (exceptions.OutOfMemoryError(), "store-full"),
        (exceptions.ReadOnlyError(), "store-read-only"),
        (exceptions.InvalidResponse(), "store-error"),
        (exceptions.ResponseError(), "store-error"),
        (exceptions.DataError(), "store-error"),
        (TimeoutError(), "store-timeout"),
        (OSError(), "store-unavailable"),
        (RuntimeError("unable to perform operation; the handler is closed"), "store-error"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
async def test_whatever_the_client_raises_is_a_store_error(error: Exception, reason: str) -> None:
    async def raising() -> None:
        raise error

    async with opened("redis://host") as store:
        assert (await failure(store._call(raising()))).reason == reason


async def test_a_server_that_reads_its_data_is_loading() -> None:
    slowly = ("--key-load-delay", "20000", "--loading-process-events-interval-bytes", "1024")
    with RedisServer(*slowly) as server:
        async with opened(server.url) as store, Redis.from_url(server.url) as client:
            for n in range(40):
                await store.put_record(StoreKey("tenant", f"s{n}"), "r", ALL_BYTES * 8, TTL)
            await client.save()
            assert "store-loading" in await failures_during_restart(server, store)


async def failures_during_restart(server: RedisServer, store: RedisStore) -> set[str]:
    restarting = asyncio.create_task(asyncio.to_thread(server.restart))
    reasons = set()
    while not restarting.done():
        try:
            await store.ping()
        except StoreError as error:
            reasons.add(error.reason)
    return reasons


@pytest.mark.parametrize("credentials", [":hush", "hush:hush", "default:hush"])
async def test_no_error_shows_credentials(credentials: str) -> None:
    with RedisServer(password="right") as server:
        url = server.url.replace(":right", credentials)
        async with opened(url) as store:
            error = await failure(store.load(KEY))
    assert error.reason == "store-refused"
    assert f"127.0.0.1:{server.port}" in str(error)
    assert "hush" not in "".join(traceback.format_exception(error))


async def test_a_user_without_permission_is_refused(own_redis: RedisServer, client: Redis) -> None:
    await execute(client, "ACL", "SETUSER", "whisper", "on", ">hush", "~*", "-@all", "+ping")
    async with opened(own_redis.url.replace("127", "whisper:hush@127")) as store:
        await store.ping()
        assert (await failure(store.load(KEY))).reason == "store-refused"


async def test_a_user_whom_a_server_names_is_not_named_by_us() -> None:
    async def raising() -> None:
        raise exceptions.NoPermissionError("User whisper has no permissions to run the 'evalsha' command")

    async with opened("redis://whisper:hush@host") as store:
        error = await failure(store._call(raising()))
    assert "whisper" not in "".join(traceback.format_exception(error))


async def test_a_password_in_the_url_opens_a_server_that_asks_for_it() -> None:
    with RedisServer(password="s/e@c?ret") as server:
        url = server.url.replace("s/e@c?ret", "s%2Fe%40c%3Fret")
        async with opened(url) as store:
            assert await store.save(KEY, write())


async def test_what_went_wrong_is_told_without_names(store: RedisStore, caplog: pytest.LogCaptureFixture) -> None:
    found = await failure(store.get_fact("\ud800"))  # no name of ours, and nothing that can be sent
    assert found.reason == "store-error"
    assert isinstance(found.__cause__, UnicodeEncodeError)
    assert "UnicodeEncodeError" in caplog.text
    async with opened("redis://somebody:secret@127.0.0.1:9/0") as named:
        found = await failure(named.ping())
    assert found.reason == "store-unavailable"
    assert found.__cause__ is None
    assert "somebody" not in caplog.text
