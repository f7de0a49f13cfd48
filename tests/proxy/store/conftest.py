"""Stores under test, and ways to let time pass in each of them without waiting."""

import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest
from redis.asyncio import Redis

from proxy.store.base import Store, StoreKey
from tests.support.redis_cluster import MASTERS, RedisCluster
from tests.support.redis_sentinel import RedisService
from tests.support.redis_server import RedisServer
from tests.support.stores import open_patient_store
from tests.support.virtual_time import Clock

KINDS = (
    "sqlite",
    "memory",
    "redis",
    pytest.param("sentinel", marks=pytest.mark.torture),
    pytest.param("cluster", marks=pytest.mark.torture),
)


@dataclass(frozen=True)
class Stage:
    """A store, its URL and clock, a tenant that no other test has, and `pass_time(seconds)`."""

    kind: str
    url: str
    store: Store
    clock: Clock
    tenant: str
    pass_time: Callable[[int], Awaitable[None]]
    stack: AsyncExitStack

    async def another(self, **options: int) -> Store:
        """A second store at the same place, closed with the first; a second memory is another one."""
        store = await open_patient_store(self.url, clock=self.clock, **options)
        self.stack.push_async_callback(store.close)
        return store

    def key(self, session: str = "s") -> StoreKey:
        return StoreKey(self.tenant, session)


@pytest.fixture(scope="session")
def redis_url() -> Iterator[str]:
    """One server for all tests that leave it as they find it."""
    with RedisServer() as server:
        yield server.url


@pytest.fixture(scope="session")
def service() -> Iterator[RedisService]:
    """A service behind a Sentinel, for all tests that leave it as they find it."""
    with RedisService() as service:
        yield service


@pytest.fixture(scope="session")
def cluster() -> Iterator[RedisCluster]:
    """A cluster for all tests that leave it as they find it."""
    with RedisCluster() as cluster:
        yield cluster


@pytest.fixture
def own_redis() -> Iterator[RedisServer]:
    """A server for one test, to be hurt."""
    with RedisServer() as server:
        yield server


@pytest.fixture
async def client(own_redis: RedisServer) -> AsyncIterator[Redis]:
    """The way to that server without a store."""
    client = Redis.from_url(own_redis.url)
    yield client
    await client.aclose()


@pytest.fixture
async def admin(redis_url: str) -> AsyncIterator[Redis]:
    """A client of our own on the shared server, to look at what the store wrote."""
    client = Redis.from_url(redis_url)
    yield client
    await client.aclose()


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return cast("str", request.param)


@pytest.fixture
async def stage(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Stage]:
    tenant = uuid.uuid4().hex
    clock = Clock(1_700_000_000.0)
    async with AsyncExitStack() as stack:
        url, servers = _place(kind, tmp_path, request)
        clients = [await stack.enter_async_context(Redis.from_url(server)) for server in servers]
        store = await open_patient_store(url, clock=clock)
        stack.push_async_callback(store.close)
        pass_time = ageing(clients, tenant) if clients else _moving(clock)
        yield Stage(kind, url, store, clock, tenant, pass_time, stack)


def _place(kind: str, folder: Path, request: pytest.FixtureRequest) -> tuple[str, list[str]]:
    """The URL of a store and those of the servers that hold its keys."""
    match kind:
        case "redis":
            url = request.getfixturevalue("redis_url")
            return url, [url]
        case "sentinel":
            service: RedisService = request.getfixturevalue("service")
            return service.url, [service.servers[0].url]
        case "cluster":
            cluster: RedisCluster = request.getfixturevalue("cluster")
            return cluster.url, [node.url for node in cluster.nodes[:MASTERS]]
        case "sqlite":
            return f"sqlite:///{folder}/sessions.db", []
    return "memory://", []


def _moving(clock: Clock) -> Callable[[int], Awaitable[None]]:
    async def pass_time(seconds: int) -> None:
        clock.now += seconds

    return pass_time


def ageing(clients: Sequence[Redis], tenant: str) -> Callable[[int], Awaitable[None]]:
    """Redis has its own clock: instead of waiting, take the time from what each key has left."""

    async def pass_time(seconds: int) -> None:
        for client in clients:
            for key in await keys_of(client, tenant):
                if key.endswith(b":ends"):
                    await _earlier(client, key, seconds)
                await client.pexpire(key, await client.pttl(key) - seconds * 1000)

    return pass_time


async def _earlier(client: Redis, key: bytes, seconds: int) -> None:
    ends: Any = await client.zrange(key, 0, -1, withscores=True)
    await client.zadd(key, {member: score - seconds * 1000 for member, score in ends})


async def keys_of(client: Redis, tenant: str) -> list[bytes]:
    """Every key of this server that holds the tenant."""
    found: Any = client.scan_iter(f"*{tenant}*", count=1000)
    return [key async for key in found]
