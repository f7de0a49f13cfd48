"""What only the Redis store promises: slots, scripts, bounds, no repetition, and its errors."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from redis import exceptions
from redis.asyncio import Redis

from proxy.store import REASONS, open_store, redacted
from proxy.store.base import SessionKey, SessionStore, Snapshot, StoreError, Write
from proxy.store.quotas import Quotas
from proxy.store.redis import Limits, Node, server_options
from proxy.store.redis_routes import Direct, slot_of
from proxy.store.redis_store import RedisStore
from tests.proxy.store.conftest import keys_of
from tests.proxy.store.tcp_proxy import tcp_proxy
from tests.support.redis_server import RedisServer

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("redis_installed")]

KEY = SessionKey("tenant", "session")
TTL = 600
ALL_BYTES = bytes(range(256))
BOUND = 1.5  # seconds within which every call answers or fails


def write(meta: bytes = b"meta", revision: int = 0, **parts: Any) -> Write:
    return Write(meta, revision, **{"ttl": TTL, **parts})


async def fill(store: SessionStore) -> None:
    await store.put_record(KEY, "r", b"record", TTL)
    await store.stand(KEY, "r")
    await store.save(KEY, write(blocks={"d": b"block"}, index=["d"]))


async def execute(client: Any, *command: str | bytes) -> Any:
    return await client.execute_command(*command)  # untyped in redis-py


EVERY_CALL: dict[str, Callable[[SessionStore], Awaitable[Any]]] = {
    "load": lambda store: store.load(KEY),
    "save": lambda store: store.save(KEY, write(index=["d"])),
    "put_record": lambda store: store.put_record(KEY, "r", b"record", TTL),
    "stand": lambda store: store.stand(KEY, "r"),
    "blocks": lambda store: store.blocks(KEY),
    "find": lambda store: store.find("tenant", ["d"]),
    "lease": lambda store: store.lease("tenant", "work", "holder", 3),
    "release": lambda store: store.release("tenant", "work", "holder", b"left", 3),
    "sessions": lambda store: store.sessions(),
    "delete": lambda store: store.delete(KEY),
    "ping": lambda store: store.ping(),
}


async def failure(call: Awaitable[Any]) -> StoreError:
    """The error that a call raises within its bound."""
    async with asyncio.timeout(BOUND):
        with pytest.raises(StoreError) as raised:
            await call
    assert raised.value.reason in REASONS
    return raised.value


@asynccontextmanager
async def opened(url: str, limits: Limits | None = None, quotas: Quotas | None = None) -> AsyncIterator[RedisStore]:
    store = RedisStore(url, shown=redacted(url), limits=limits, quotas=quotas)
    try:
        yield store
    finally:
        await store.close()


@pytest.fixture
async def store(own_redis: RedisServer) -> AsyncIterator[RedisStore]:
    async with opened(own_redis.url) as store:
        yield store


@pytest.fixture
async def client(own_redis: RedisServer) -> AsyncIterator[Redis]:
    client = Redis.from_url(own_redis.url)
    yield client
    await client.aclose()


# Keys


async def test_every_key_holds_the_tenant_and_has_a_time_to_live(store: RedisStore, client: Redis) -> None:
    await fill(store)
    await store.lease("tenant", "held", "holder", 3)
    await store.lease("tenant", "over", "holder", 3)
    await store.release("tenant", "over", "holder", b"left", 5)

    keys = sorted(await client.keys("*"))

    parts = (b"blocks", b"meta", b"records", b"standing")
    chain = b"condenser:{tenant:d}:chain:d"
    leases = [b"condenser:{tenant:held}:lease", b"condenser:{tenant:over}:lease"]
    session = [b"condenser:{tenant:session}:" + part for part in parts]
    assert keys == sorted([chain, *leases, *session])
    for key in keys:
        assert 0 < await client.pttl(key) <= TTL * 1000


async def test_a_lease_and_what_it_leaves_live_for_seconds_and_parts_of_them(store: RedisStore, client: Redis) -> None:
    for ttl in (30, 40):  # the second time it is renewed
        await store.lease("tenant", "work", "holder", ttl + 0.5)
        assert ttl * 1000 < await client.pttl("condenser:{tenant:work}:lease") <= ttl * 1000 + 500

    await store.release("tenant", "work", "holder", b"left", 20.5)
    assert 20_000 < await client.pttl("condenser:{tenant:work}:lease") <= 20_500


async def test_the_keys_of_a_session_share_a_slot(store: RedisStore, client: Redis) -> None:
    await fill(store)
    keys = await keys_of(client, "{tenant:session}")

    assert len(keys) == 4
    assert len({slot_of(key.decode()) for key in keys}) == 1


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
    async with opened(own_redis.url, quotas=Quotas(session=1_000)) as store:
        await fill(store)

    assert await client.keys("condenser:{tenant}:*") == []


async def test_the_usage_of_a_tenant_has_a_time_to_live_and_leaves_with_its_last_session(
    own_redis: RedisServer, client: Redis
) -> None:
    async with opened(own_redis.url, quotas=Quotas(tenant=1_000)) as store:
        await fill(store)
        assert await usage(client) == {b"": b"17", b"session": b"17"}  # r, record, meta, d, block
        for key in await client.keys("condenser:{tenant}:*"):
            assert 0 < await client.pttl(key) <= TTL * 1000

        await store.delete(KEY)
        await store.delete(KEY)
    assert await usage(client) == {b"": b"0"}


@pytest.mark.parametrize("lost", ["sizes", "ends"])
async def test_a_usage_that_was_lost_or_is_wrong_is_right_after_the_next_write(
    own_redis: RedisServer, client: Redis, lost: str
) -> None:
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
async def test_every_call_works_after_the_server_forgot_its_scripts(
    store: RedisStore, client: Redis, name: str
) -> None:
    await fill(store)
    await client.script_flush()

    await EVERY_CALL[name](store)


async def test_reading_and_deleting_work_when_the_server_is_full_and_a_write_leaves_nothing_half_done(
    store: RedisStore, client: Redis
) -> None:
    await fill(store)
    before = await store.load(KEY)
    await client.config_set("maxmemory", "1")

    changes = (
        store.save(KEY, write(b"new", 1, blocks={"e": b"block"})),
        store.put_record(KEY, "other", b"record", TTL),
        store.stand(KEY, "other"),
    )
    for change in changes:
        assert (await failure(change)).reason == "store-full"

    assert await store.load(KEY) == before
    assert await store.blocks(KEY) == {"d": b"block"}
    assert await store.find("tenant", ["d"]) == {"d": "session"}
    assert await store.delete(KEY)


async def test_a_replica_reads_and_says_that_it_does_not_write(store: RedisStore, client: Redis) -> None:
    await fill(store)
    await execute(client, "REPLICAOF", "127.0.0.1", "1")

    assert await store.load(KEY) == Snapshot(b"meta", 1, {"r": b"record"}, frozenset({"r"}))
    assert (await failure(store.save(KEY, write(b"new", 1)))).reason == "store-read-only"


# A server that dies, hangs, or is not there


@pytest.mark.parametrize("name", EVERY_CALL)
async def test_every_call_fails_within_its_bound_when_the_server_is_dead(
    store: RedisStore, own_redis: RedisServer, name: str
) -> None:
    await fill(store)
    own_redis.kill()

    for _ in range(2):  # with connections that were open, and without
        assert (await failure(EVERY_CALL[name](store))).reason == "store-unavailable"


async def test_every_call_fails_within_its_bound_when_the_server_hangs(
    store: RedisStore, own_redis: RedisServer
) -> None:
    await asyncio.gather(*(store.ping() for _ in EVERY_CALL))
    own_redis.stop()

    failures = await asyncio.gather(*(failure(call(store)) for call in EVERY_CALL.values()))

    assert {error.reason for error in failures} == {"store-timeout"}


async def test_the_same_store_works_when_the_server_is_back_at_its_port(
    store: RedisStore, own_redis: RedisServer
) -> None:
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


async def test_a_hung_server_that_goes_on_answers_the_next_question_and_not_the_last(
    store: RedisStore, own_redis: RedisServer
) -> None:
    await store.save(KEY, write(b"old question"))
    other = KEY._replace(session="other")
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


# Repetition


WRITES = {name: EVERY_CALL[name] for name in ("save", "put_record", "stand", "delete")}


@pytest.mark.parametrize("name", WRITES)
async def test_a_write_whose_answer_was_lost_is_not_sent_again(own_redis: RedisServer, name: str) -> None:
    async with (
        tcp_proxy(own_redis.port) as between,
        opened(f"redis://127.0.0.1:{between.port}") as store,
    ):
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
    async with (
        tcp_proxy(own_redis.port) as between,
        opened(f"redis://127.0.0.1:{between.port}") as store,
    ):
        await store.ping()

        assert bytes(between.sent) == b"*1\r\n$4\r\nPING\r\n" * 2


def test_every_connection_has_our_bounds_and_does_not_retry() -> None:
    node = Node(server_options("redis://host", ""), shown="", limits=Limits())
    pool: Any = node._pool
    connection = pool.make_connection()

    assert (connection.socket_connect_timeout, connection.socket_timeout) == (0.25, 0.5)
    assert (connection.retry.get_retries(), connection.health_check_interval) == (0, 30)


# Errors


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
    async def raising(until: float) -> None:
        raise error

    async with opened("redis://host") as store:
        assert (await failure(store._call(raising))).reason == reason


async def test_a_server_that_reads_its_data_is_loading() -> None:
    slowly = ("--key-load-delay", "20000", "--loading-process-events-interval-bytes", "1024")
    with RedisServer(*slowly) as server:
        async with opened(server.url) as store, Redis.from_url(server.url) as client:
            for n in range(40):
                await store.put_record(SessionKey("tenant", f"s{n}"), "r", ALL_BYTES * 8, TTL)
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
    async def raising(until: float) -> None:
        raise exceptions.NoPermissionError("User whisper has no permissions to run the 'evalsha' command")

    async with opened("redis://whisper:hush@host") as store:
        error = await failure(store._call(raising))

    assert "whisper" not in "".join(traceback.format_exception(error))


async def test_a_password_in_the_url_opens_a_server_that_asks_for_it() -> None:
    with RedisServer(password="s/e@c?ret") as server:
        url = server.url.replace("s/e@c?ret", "s%2Fe%40c%3Fret")
        async with opened(url) as store:
            assert await store.save(KEY, write())


# Listings


async def test_a_listing_steps_through_the_keys_and_holds_up_nobody(own_redis: RedisServer) -> None:
    async with opened(own_redis.url) as store, Redis.from_url(own_redis.url) as client:
        await fill(store)
        await client.mset({f"foreign:{n}": b"x" for n in range(3_000)})

        assert await store.sessions() == [KEY]

        used: Any = await client.info("commandstats")
        assert used["cmdstat_scan"]["calls"] >= 3
        assert "cmdstat_keys" not in used


async def test_a_listing_that_runs_out_of_time_says_so(own_redis: RedisServer) -> None:
    node = Node(server_options(own_redis.url, "it"), shown="it", limits=Limits())
    async with Redis.from_url(own_redis.url) as client:
        await client.mset({f"k:{n}": b"x" for n in range(3_000)})

        with pytest.raises(StoreError) as raised:
            await Direct(node).keys("k:*", until=0.0)

        assert raised.value.reason == "store-timeout"
        assert len(await Direct(node).keys("k:*", until=float("inf"))) == 3_000
    await node.close()
