"""Background calls stand back while many clients arrive at once."""

from __future__ import annotations

import asyncio
import time

import pytest

from proxy.asking.dispatch import CROWD, PATIENCE, SPAN, TRUST, Lane
from tests.proxy.asking.working import BOUND, Work, end, lane, poke, settled
from tests.support.virtual_time import Clock

pytestmark = pytest.mark.anyio


def crowd(way: Lane, size: int = CROWD) -> None:
    for _ in range(size):
        way.note_arrival()


async def begins(way: Lane) -> bool:
    """Whether a call may begin now, once somebody looks."""
    poke(way)
    work = Work(way)
    await settled()
    work.end.set()
    began = work.is_running
    if not began:
        work.task.cancel()
    await settled()
    return began


async def test_a_call_waits_until_a_crowd_of_clients_has_paused() -> None:
    clock = Clock()
    way = lane(clock)
    crowd(way)
    assert not await begins(way)
    clock.now += SPAN
    assert await begins(way)


async def test_a_crowd_is_many_clients_in_a_short_time() -> None:
    clock = Clock()
    way = lane(clock)
    crowd(way, CROWD - 1)
    assert await begins(way)
    clock.now += SPAN
    crowd(way, 1)
    assert await begins(way)


async def test_a_crowd_that_is_served_is_no_reason_to_wait() -> None:
    clock = Clock()
    way = lane(clock)
    for _ in range(int(PATIENCE)):
        crowd(way)
        assert not await begins(way)
        clock.now += SPAN
    crowd(way)
    assert await begins(way)
    clock.now += TRUST / 2
    crowd(way)
    assert await begins(way)
    clock.now += TRUST
    crowd(way)
    assert not await begins(way)


async def test_after_a_refusal_the_next_crowd_is_waited_for_again() -> None:
    clock = Clock()
    way = lane(clock)
    crowd(way)
    clock.now += PATIENCE
    way.note_refusal("0")
    clock.now += PATIENCE
    crowd(way)
    assert not await begins(way)


async def test_a_wait_for_a_crowds_pause_ends_by_itself() -> None:
    ahead = 0.0
    way = lane(lambda: time.time() + ahead)
    crowd(way)
    ahead = SPAN - 0.02
    work = Work(way)
    await asyncio.wait_for(work.began.wait(), BOUND)
    await end(work)
