"""Shared by the tests of the Redis store: a store at a server, every call of it, and how a call fails."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest

from proxy.quoting import redacted
from proxy.reasons import REASONS
from proxy.store.base import KeptBytes, Quotas, Store, StoreError, StoreKey
from proxy.store.redis import Limits
from proxy.store.redis_store import RedisStore
from tests.proxy.store.saving import TTL, write

KEY = StoreKey("tenant", "session")
BOUND = 1.5  # seconds within which every call answers or fails


async def fill(store: Store) -> None:
    await store.put_record(KEY, "r", b"record", TTL)
    await store.mark(KEY, "r")
    await store.save(KEY, write(blocks={"d": b"block"}, index=["d"]))


async def execute(client: Any, *command: str | bytes) -> Any:
    return await client.execute_command(*command)  # untyped in redis-py


EVERY_CALL: dict[str, Callable[[Store], Awaitable[Any]]] = {
    "load": lambda store: store.load(KEY),
    "save": lambda store: store.save(KEY, write(index=["d"], journal=b"item")),
    "put_record": lambda store: store.put_record(KEY, "r", b"record", TTL),
    "stand": lambda store: store.mark(KEY, "r"),
    "swap": lambda store: cast(KeptBytes, store).swap(KEY, "records", "r", b"record", b"drocer"),
    "blocks": lambda store: store.blocks(KEY),
    "journal": lambda store: store.journal(KEY),
    "add": lambda store: store.add("hour", {"requests": 1}, TTL),
    "sums": lambda store: store.sums(["hour"]),
    "push": lambda store: store.push("ring", [b"item"], TTL),
    "ring": lambda store: store.ring("ring"),
    "spend": lambda store: store.spend("budget", 1, 10),
    "find": lambda store: store.find("tenant", ["d"]),
    "claim": lambda store: store.claim("tenant", "work", "holder", 3),
    "sessions": lambda store: store.keys(),
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
