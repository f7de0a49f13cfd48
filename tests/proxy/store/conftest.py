"""Stores to test, and the means to let time pass in each of them without waiting."""

from __future__ import annotations

import os
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest
from redis.asyncio import Redis

from proxy.store import open_store
from proxy.store.base import SessionKey, SessionStore
from tests.support import redis_server
from tests.support.redis_server import RedisServer

KINDS = ("sqlite", "memory", "redis")


class Clock:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.now = 1_700_000_000.0

    def __call__(self) -> float:
        return self.now


@dataclass(frozen=True)
class Stage:
    """A store, its URL and clock, a tenant that no other test has, and `pass_time(seconds)`."""

    kind: str
    url: str
    store: SessionStore
    clock: Clock
    tenant: str
    pass_time: Callable[[int], Awaitable[None]]

    def key(self, session: str = "s") -> SessionKey:
        return SessionKey(self.tenant, session)


@pytest.fixture(scope="session")
def redis_installed() -> None:
    """Skips, and says how to get it; a skip is no answer where CI=true."""
    if redis_server.available():
        return
    if os.environ.get("CI") == "true":
        pytest.fail(redis_server.HOW_TO_GET_IT)
    pytest.skip(redis_server.HOW_TO_GET_IT)


@pytest.fixture(scope="session")
def redis_url(redis_installed: None) -> Iterator[str]:
    """One server for all tests that leave it as they find it."""
    with RedisServer() as server:
        yield server.url


@pytest.fixture
def own_redis(redis_installed: None) -> Iterator[RedisServer]:
    """A server for one test, to be hurt."""
    with RedisServer() as server:
        yield server


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
    clock = Clock()
    async with AsyncExitStack() as stack:
        if kind == "redis":
            url = request.getfixturevalue("redis_url")
            client = Redis.from_url(url)
            stack.push_async_callback(client.aclose)
            pass_time = _ageing(client, tenant)
        else:
            url = f"sqlite:///{tmp_path}/sessions.db" if kind == "sqlite" else "memory://"
            pass_time = _moving(clock)
        store = await open_store(url, clock=clock)
        stack.push_async_callback(store.close)
        yield Stage(kind, url, store, clock, tenant, pass_time)


def _moving(clock: Clock) -> Callable[[int], Awaitable[None]]:
    async def pass_time(seconds: int) -> None:
        clock.now += seconds

    return pass_time


def _ageing(client: Redis, tenant: str) -> Callable[[int], Awaitable[None]]:
    """Redis has its own clock: instead of waiting, take the time from what each key has left."""

    async def pass_time(seconds: int) -> None:
        for key in await keys_of(client, tenant):
            await client.pexpire(key, await client.pttl(key) - seconds * 1000)

    return pass_time


async def keys_of(client: Redis, tenant: str) -> list[bytes]:
    """Every key that holds the tenant."""
    found: Any = client.scan_iter(f"*{tenant}*", count=1000)
    return [key async for key in found]
