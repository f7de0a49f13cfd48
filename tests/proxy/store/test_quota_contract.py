"""The contract of all stores for quotas: bytes of a session, and of all sessions of a tenant."""

from __future__ import annotations

import random
from collections.abc import Awaitable
from typing import Any

import pytest

from proxy.store.base import Snapshot, StoreError, StoreKey
from tests.proxy.store.conftest import Stage
from tests.proxy.store.saving import TTL, write

pytestmark = pytest.mark.anyio


def incompressible(size: int, seed: int = 0) -> bytes:
    return random.Random(seed).randbytes(size)


async def assert_over_quota(call: Awaitable[Any]) -> None:
    with pytest.raises(StoreError) as raised:
        await call
    assert raised.value.reason == "store-quota"


async def test_blocks_beyond_the_quota_of_a_session_are_refused(stage: Stage) -> None:
    store = await stage.another(max_session_bytes=10_000)
    full = write(b"m" * 100, blocks={"d1": incompressible(9_898)})
    assert await store.save(stage.key(), full)  # 100 of meta, 2 of the digest: not a byte is left

    await assert_over_quota(store.save(stage.key(), write(b"m" * 100, 1, blocks={"d": b""}, index=["d"])))

    assert await store.load(stage.key()) == Snapshot(b"m" * 100, 1)
    assert set(await store.blocks(stage.key())) == {"d1"}
    assert (await store.find(stage.tenant, ["d"])).names == {}


async def test_a_save_without_new_blocks_is_never_refused(stage: Stage) -> None:
    store = await stage.another(max_session_bytes=1_000)
    blocks = {"d": incompressible(900)}
    await store.save(stage.key(), write(b"", blocks=blocks))

    assert await store.save(stage.key(), write(incompressible(2_000), 1, blocks=blocks, index=["d"]))
    assert (await store.find(stage.tenant, ["d"])).names == {"d": "s"}
    await assert_over_quota(store.save(stage.key(), write(b"", 2, blocks={"e": incompressible(200)})))


async def test_a_session_that_is_full_keeps_records_up_to_a_fourth_more(stage: Stage) -> None:
    store = await stage.another(max_session_bytes=10_000)
    await store.save(stage.key(), write(b"", blocks={"d": incompressible(9_999)}))

    record = incompressible(2_499)
    assert await store.put_record(stage.key(), "r", record, TTL) == record
    await assert_over_quota(store.put_record(stage.key(), "s", b"", TTL))
    assert await store.put_record(stage.key(), "r", b"late", TTL) == record
    assert await store.load(stage.key()) == Snapshot(b"", 1, {"r": record})


async def test_a_stale_writer_is_told_so_and_not_of_a_quota(stage: Stage) -> None:
    store = await stage.another(max_session_bytes=100)
    await store.save(stage.key(), write())

    assert not await store.save(stage.key(), write(blocks={"d": incompressible(200)}))


async def test_a_smaller_meta_makes_room(stage: Stage) -> None:
    store = await stage.another(max_session_bytes=1_000)
    await store.save(stage.key(), write(incompressible(900)))
    block = {"d": incompressible(500)}

    await assert_over_quota(store.save(stage.key(), write(incompressible(900), 1, blocks=block)))
    assert await store.save(stage.key(), write(b"", 1, blocks=block))


async def test_each_tenant_has_a_quota_for_all_its_sessions(stage: Stage) -> None:
    store = await stage.another(max_tenant_bytes=10_000)
    await store.save(stage.key("one"), write(b"", blocks={"d": incompressible(6_000)}))

    await assert_over_quota(store.save(stage.key("two"), write(b"", blocks={"d": incompressible(5_000)})))
    assert await store.save(stage.key("two"), write(b"", blocks={"d": incompressible(3_000)}))
    await assert_over_quota(store.put_record(stage.key("two"), "r", incompressible(4_000), TTL))
    other = StoreKey(stage.tenant + "x", "one")
    assert await store.save(other, write(b"", blocks={"d": incompressible(9_000)}))


async def test_what_is_deleted_or_expires_leaves_the_quota_of_its_tenant(stage: Stage) -> None:
    store = await stage.another(max_tenant_bytes=10_000)
    large = {"d": incompressible(6_000)}
    await store.save(stage.key("deleted"), write(b"", blocks=large))
    await store.delete(stage.key("deleted"))
    assert await store.save(stage.key("expiring"), write(b"", blocks=large))

    await assert_over_quota(store.save(stage.key("next"), write(b"", blocks=large)))
    await stage.pass_time(TTL + 1)
    assert await store.save(stage.key("next"), write(b"", blocks=large))
