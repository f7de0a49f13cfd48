"""The contract of all stores for leases."""

from __future__ import annotations

import asyncio

import pytest

from proxy.store.base import Lease
from tests.proxy.store.conftest import Stage

pytestmark = pytest.mark.anyio

ALL_BYTES = bytes(range(256))
HELD, REFUSED = Lease(held=True), Lease(held=False)


async def leased(stage: Stage, holder: str, work: str = "work") -> Lease:
    return await stage.store.lease(stage.tenant, work, holder, 60)


async def test_of_many_who_ask_for_a_lease_one_has_it(stage: Stage) -> None:
    leases = await asyncio.gather(*(leased(stage, f"h{n}") for n in range(20)))

    assert sorted(leases) == [*[REFUSED] * 19, HELD]


async def test_two_stores_at_one_place_share_their_leases(stage: Stage) -> None:
    if stage.kind == "memory":
        return  # a second one is another memory
    another = await stage.another()

    assert await leased(stage, "one") == HELD
    assert await another.lease(stage.tenant, "work", "two", 60) == REFUSED


async def test_leases_of_other_names_and_tenants_are_free(stage: Stage) -> None:
    await leased(stage, "one")

    assert await leased(stage, "two", "other-work") == HELD
    assert await stage.store.lease(stage.tenant + "x", "work", "two", 60) == HELD


async def test_a_lease_lasts_for_its_time_and_is_renewed_by_its_holder(stage: Stage) -> None:
    await leased(stage, "one")
    await stage.pass_time(50)
    assert await leased(stage, "one") == HELD
    await stage.pass_time(50)
    assert await leased(stage, "two") == REFUSED

    await stage.pass_time(11)
    assert await leased(stage, "two") == HELD
    assert await leased(stage, "one") == REFUSED


async def test_a_lease_that_ends_with_nothing_left_is_free(stage: Stage) -> None:
    await leased(stage, "one")
    await stage.store.release(stage.tenant, "work", "one", b"", 60)

    assert await leased(stage, "two") == HELD


async def test_what_a_holder_leaves_is_given_to_all_who_ask_until_its_time_is_over(stage: Stage) -> None:
    await leased(stage, "one")
    await stage.store.release(stage.tenant, "work", "one", ALL_BYTES * 9, 60)

    for holder in ("two", "three", "one"):
        assert await leased(stage, holder) == Lease(held=False, handover=ALL_BYTES * 9)
    await stage.pass_time(61)
    assert await leased(stage, "two") == HELD


async def test_only_its_holder_ends_a_lease(stage: Stage) -> None:
    await leased(stage, "one")
    await stage.store.release(stage.tenant, "work", "two", b"not theirs", 60)
    assert await leased(stage, "three") == REFUSED

    await stage.pass_time(61)
    await stage.store.release(stage.tenant, "work", "one", b"too late", 60)
    assert await leased(stage, "three") == HELD
    await stage.store.release(stage.tenant, "work", "one", b"much too late", 60)
    assert await leased(stage, "four") == REFUSED


async def test_a_lease_ends_once(stage: Stage) -> None:
    await leased(stage, "one")
    await stage.store.release(stage.tenant, "work", "one", b"first", 60)
    await stage.store.release(stage.tenant, "work", "one", b"second", 60)

    assert await leased(stage, "two") == Lease(held=False, handover=b"first")


async def test_a_look_at_a_lease_takes_nothing_and_sees_how_it_stands(stage: Stage) -> None:
    assert await stage.store.read_lease(stage.tenant, "work") == REFUSED
    assert await leased(stage, "one") == HELD
    assert await stage.store.read_lease(stage.tenant, "work") == HELD

    await stage.store.release(stage.tenant, "work", "one", ALL_BYTES, 60)
    assert await stage.store.read_lease(stage.tenant, "work") == Lease(held=False, handover=ALL_BYTES)

    await stage.pass_time(61)
    assert await stage.store.read_lease(stage.tenant, "work") == REFUSED
    assert await leased(stage, "two") == HELD


async def test_a_lease_that_is_over_without_anything_left_looks_free(stage: Stage) -> None:
    await leased(stage, "one")
    await stage.store.release(stage.tenant, "work", "one", b"", 60)

    assert await stage.store.read_lease(stage.tenant, "work") == REFUSED


async def test_a_lease_is_no_session(stage: Stage) -> None:
    await leased(stage, "one")

    assert await stage.store.keys(stage.tenant) == []
