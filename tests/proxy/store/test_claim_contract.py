"""The contract of all stores for claims."""

from __future__ import annotations

import asyncio

import pytest

from tests.proxy.store.conftest import Stage

pytestmark = pytest.mark.anyio


async def claimed(stage: Stage, holder: str, work: str = "work") -> bool:
    return await stage.store.claim(stage.tenant, work, holder, 60)


async def test_of_many_who_claim_a_work_one_has_it(stage: Stage) -> None:
    claims = await asyncio.gather(*(claimed(stage, f"h{n}") for n in range(20)))

    assert sorted(claims) == [*[False] * 19, True]


async def test_two_stores_at_one_place_share_their_claims(stage: Stage) -> None:
    if stage.kind == "memory":
        return  # a second one is another memory
    another = await stage.another()

    assert await claimed(stage, "one")
    assert not await another.claim(stage.tenant, "work", "two", 60)


async def test_claims_of_other_works_and_tenants_are_free(stage: Stage) -> None:
    await claimed(stage, "one")

    assert await claimed(stage, "two", "other-work")
    assert await stage.store.claim(stage.tenant + "x", "work", "two", 60)


async def test_a_claim_lasts_for_its_time_and_its_holder_may_renew_it(stage: Stage) -> None:
    await claimed(stage, "one")
    await stage.pass_time(50)
    assert await claimed(stage, "one")
    await stage.pass_time(50)
    assert not await claimed(stage, "two")

    await stage.pass_time(11)
    assert await claimed(stage, "two")
    assert not await claimed(stage, "one")


async def test_a_claim_is_no_session(stage: Stage) -> None:
    await claimed(stage, "one")

    assert await stage.store.keys(stage.tenant) == []
