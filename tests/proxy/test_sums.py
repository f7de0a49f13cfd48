"""The sums of all requests: replicas add to them, an outage loses none, and what waits keeps nothing busy."""

import asyncio
from collections.abc import Mapping

import pytest

from proxy.asking import FinishedCall
from proxy.conversations.stored import StoredSessions
from proxy.runtime.owned_tasks import OwnedTasks
from proxy.store.base import StoreError
from proxy.store.sqlite import SqliteStore
from proxy.telemetry import KEPT, SLOT, Sums
from strategies.core.economics import Prices
from tests.support.redis_server import RedisServer, asking
from tests.support.stores import open_patient_store
from tests.support.virtual_time import Clock

NOON = 1_800_000_000 // 3_600 * 3_600.0
PRICES = Prices(input=2.0, cached_input=0.2, cache_write=2.0, output=8.0)


async def sums_of(clock: Clock, replicas: int = 1) -> tuple[SqliteStore, list[Sums]]:
    store, tasks = await SqliteStore.open(None, clock=clock), OwnedTasks()
    priced = {"gpt-4o": PRICES}
    return store, [Sums(StoredSessions(store, 1.0), tasks, clock, priced.get) for _ in range(replicas)]


async def test_replicas_add_to_the_same_slots() -> None:
    clock = Clock(NOON)
    _, (one, other) = await sums_of(clock, 2)
    one.note({"requests": 1, "client_tokens": 100})
    other.note({"requests": 1, "saved_tokens": -5})
    await other.write()
    clock.now = NOON + SLOT
    one.note({"requests": 1})
    first = {"requests": 2, "client_tokens": 100, "saved_tokens": -5}
    assert await one.since(3_600) == [(NOON, first), (NOON + SLOT, {"requests": 1})]
    clock.now = NOON + 2 * SLOT - 1
    assert await one.since(SLOT - 1) == [(NOON + SLOT, {"requests": 1})]
    assert (one.total["requests"], other.total["requests"]) == (2, 1)


async def test_an_outage_loses_nothing_and_keeps_no_more_than_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fails(_store: SqliteStore, _name: str, _amounts: Mapping[str, int], _ttl: int) -> None:
        raise StoreError("store-unavailable")

    clock = Clock(NOON)
    _, (sums,) = await sums_of(clock)
    with monkeypatch.context() as out:
        out.setattr(SqliteStore, "add", fails)
        sums.note({"requests": 1})
        await sums.write()
        clock.now = NOON + KEPT
        sums.note({"requests": 2})
        await sums.write()
    assert await sums.since(KEPT) == [(NOON + KEPT, {"requests": 2})]


async def test_a_slot_that_cannot_be_written_is_dropped_with_a_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock, hour = Clock(NOON), int(NOON // 3_600)
    with RedisServer() as redis:
        store = await open_patient_store(redis.url)
        sums = Sums(StoredSessions(store, 20.0), OwnedTasks(), clock, lambda _model: None)
        with asking(redis.port) as client:
            client.set(f"condenser:{{hour-{hour}}}:sum", "no hash")
            client.hset(f"condenser:{{hour-{hour + 2}}}:sum", mapping={"0:failed": "many", "of-later": 3})
        sums.note({"requests": 1})
        await sums.write()
        clock.now += 7_200
        sums.note({"requests": 2})
        await sums.write()
        assert [record.getMessage().partition(":")[0] for record in caplog.records] == ["sums were dropped"]
        assert await sums.since(1) == [(NOON + 7_200, {"requests": 2})]
        await store.close()


async def test_an_app_is_idle_while_its_sums_wait_to_be_written() -> None:
    store, tasks = await SqliteStore.open(None, clock=Clock(NOON)), OwnedTasks()
    sums = Sums(StoredSessions(store, 1.0), tasks, Clock(NOON), lambda _model: None)
    sums.note({"requests": 1})
    idle = asyncio.ensure_future(tasks.idle())
    await asyncio.sleep(0)
    assert idle.done()


async def test_an_own_call_costs_what_a_prompt_of_its_size_does() -> None:
    _, (sums,) = await sums_of(Clock(NOON))
    sums.note_call(FinishedCall("summarizer", "gpt-4o", True, "", 500_000))
    sums.note_call(FinishedCall("summarizer", "unpriced", True, "timeout", 7))
    sums.note_call(FinishedCall("summarizer", "unpriced", True, "cancelled", 0))  # a client came: that is no failure
    assert sums.total == {"own_calls": 3, "own_failed": 1, "own_tokens": 500_007, "own_cost": 1_000_000}
