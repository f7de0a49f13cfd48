"""Patience: how long a piece of work waits for the store in all, and writes that go on without a waiting caller."""

import asyncio
import logging
from typing import Any

import pytest

from proxy.conversations.stored import LAST_SHARE, StoredSessions
from proxy.store.access import Patience
from proxy.store.base import Store, StoreError, StoreKey, Write
from tests.support.signals import BOUND
from tests.support.virtual_time import PassingTime, SlowStore

KEY = StoreKey("tenant", "session")
NEW = Write(b"{}", 0, 60)
WHOLE = 1_000.0


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return "asyncio", {"loop_factory": PassingTime}


def slow(store: Store, seconds: float) -> SlowStore:
    return SlowStore(store, lambda _: seconds)


async def test_every_step_takes_from_the_same_patience(store: Store) -> None:
    patience, asked = Patience(WHOLE), slow(store, 400)
    await patience.read(asked.load(KEY))
    assert patience.remaining == pytest.approx(600, abs=BOUND)
    await patience.read(asked.load(KEY))
    assert patience.remaining == pytest.approx(200, abs=BOUND)
    for _ in range(2):  # the second does not even begin
        with pytest.raises(StoreError, match="store-timeout"):
            await patience.read(asked.load(KEY))
    assert (patience.remaining, asked.asked, patience.fresh().remaining) == (0, ["load"] * 3, WHOLE)


async def test_a_failure_of_the_store_is_told_and_costs_what_it_took(store: Store) -> None:
    await store.close()
    patience = Patience(WHOLE)
    with pytest.raises(StoreError, match="store-closed"):
        await patience.read(slow(store, 300).load(KEY))
    assert patience.remaining == pytest.approx(700, abs=BOUND)


async def test_a_write_is_done_although_nobody_waits_for_it(store: Store) -> None:
    stored, patience = StoredSessions(store, WHOLE), Patience(WHOLE)
    patience.remaining = 0
    with pytest.raises(StoreError, match="store-timeout"):
        await stored.write(slow(store, 900).save(KEY, NEW), patience)
    await stored.close()
    assert await store.load(KEY) is not None


async def test_a_cancelled_write_is_done_and_its_failure_logged(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    stored, asked = StoredSessions(store, WHOLE), slow(store, 900)
    caller = asyncio.create_task(stored.write(asked.save(KEY, NEW), stored.patience()))
    await asked.begun.wait()
    caller.cancel()
    await asyncio.wait({caller})
    assert caller.cancelled()
    await stored.close()
    assert await store.load(KEY) is not None
    stored, asked = StoredSessions(store, WHOLE), slow(store, 900)
    caller = asyncio.create_task(stored.write(asked.save(KEY, NEW), stored.patience()))
    await asked.begun.wait()
    caller.cancel()
    await store.close()
    await stored.close()
    assert "store-closed" in caplog.text


async def test_a_write_ends_within_the_limit(store: Store) -> None:
    stored = StoredSessions(store, WHOLE)
    with pytest.raises(StoreError, match="store-timeout"):
        await stored.write(slow(store, 2 * WHOLE).save(KEY, NEW), stored.patience())
    await stored.close()
    assert await store.load(KEY) is None


async def test_the_last_step_is_waited_for_though_patience_is_used_up(store: Store) -> None:
    stored, patience = StoredSessions(store, WHOLE), Patience(WHOLE)
    patience.remaining = 0
    await stored.write(slow(store, LAST_SHARE * WHOLE - BOUND).save(KEY, NEW), patience, is_last=True)
    assert await store.load(KEY) is not None


async def test_the_last_step_is_waited_for_no_longer_than_its_share(store: Store) -> None:
    stored, patience, loop = StoredSessions(store, WHOLE), Patience(WHOLE), asyncio.get_running_loop()
    patience.remaining, began = 0, loop.time()
    with pytest.raises(StoreError, match="store-timeout"):
        await stored.write(slow(store, 900).save(KEY, NEW), patience, is_last=True)
    assert loop.time() - began == pytest.approx(LAST_SHARE * WHOLE, abs=BOUND)
    await stored.close()


async def test_a_defect_in_a_write_that_nobody_waits_for_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def defective() -> None:
        raise ZeroDivisionError

    stored, patience = StoredSessions(SlowStore, WHOLE), Patience(0)  # type: ignore[arg-type]
    with pytest.raises((StoreError, ZeroDivisionError)), caplog.at_level(logging.ERROR):
        await stored.write(defective(), patience)
    await stored.close()
    assert "a write to the store failed" in caplog.text
