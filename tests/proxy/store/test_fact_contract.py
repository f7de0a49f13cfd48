"""The contract of all stores for facts."""

from __future__ import annotations

import pytest

from tests.proxy.store.conftest import Stage

pytestmark = pytest.mark.anyio

ALL_BYTES = bytes(range(256))


async def test_a_fact_is_recalled_by_its_name_and_no_other(stage: Stage) -> None:
    await stage.store.put_fact(f"{stage.tenant}-one", ALL_BYTES, 60)

    assert await stage.store.get_fact(f"{stage.tenant}-one") == ALL_BYTES
    assert await stage.store.get_fact(f"{stage.tenant}-two") is None


async def test_the_last_writer_of_a_fact_wins(stage: Stage) -> None:
    name = f"{stage.tenant}-fact"
    for fact in (b"first", ALL_BYTES * 9, b""):
        await stage.store.put_fact(name, fact, 60)

        assert await stage.store.get_fact(name) == fact


async def test_a_rewritten_fact_lives_longer(stage: Stage) -> None:
    name = f"{stage.tenant}-fact"
    await stage.store.put_fact(name, b"old", 60)
    await stage.pass_time(50)
    await stage.store.put_fact(name, b"new", 60)
    await stage.pass_time(50)
    assert await stage.store.get_fact(name) == b"new"

    await stage.pass_time(11)
    assert await stage.store.get_fact(name) is None


async def test_two_stores_at_one_place_share_their_facts(stage: Stage) -> None:
    if stage.kind == "memory":
        return  # a second one is another memory
    another = await stage.another()
    await stage.store.put_fact(f"{stage.tenant}-fact", b"said", 60)

    assert await another.get_fact(f"{stage.tenant}-fact") == b"said"


async def test_a_fact_is_no_session(stage: Stage) -> None:
    await stage.store.put_fact(f"{stage.tenant}-fact", b"said", 60)

    assert await stage.store.keys(stage.tenant) == []
