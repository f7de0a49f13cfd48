"""The contract of all stores for cancelled calls, and for closing a store."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from proxy.store.base import Snapshot, StoreError
from tests.proxy.store.conftest import Stage
from tests.proxy.store.saving import TTL, cancelled_after, write, yields

pytestmark = pytest.mark.anyio


# Cancellation


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


# The end


async def test_closing_twice_is_harmless_and_then_every_call_says_closed(stage: Stage) -> None:
    await stage.store.close()
    await stage.store.close()

    for call in every_call(stage):
        with pytest.raises(StoreError) as raised:
            await call
        assert raised.value.reason == "store-closed"


def every_call(stage: Stage) -> list[Coroutine[Any, Any, Any]]:
    store, key = stage.store, stage.key()
    return [
        store.load(key),
        store.save(key, write()),
        store.put_record(key, "r", b"", TTL),
        store.mark(key, "r"),
        store.blocks(key),
        store.find(stage.tenant, ["a"]),
        store.claim(stage.tenant, "work", "one", 3),
        store.keys(),
        store.delete(key),
        store.ping(),
    ]


async def test_closing_waits_for_a_write_that_is_under_way(stage: Stage) -> None:
    saving = asyncio.create_task(stage.store.save(stage.key(), write()))
    await yields(1)
    await stage.store.close()

    assert await saving
