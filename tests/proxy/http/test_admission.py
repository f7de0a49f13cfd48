"""Who is admitted, who waits, and who is refused."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from proxy.errors import Overloaded
from proxy.http.admission import Admission, Refusal
from proxy.settings import LimitSettings

pytestmark = pytest.mark.anyio


def admission(most: int = 2, *, refused: list[Refusal] | None = None, **limits: Any) -> Admission:
    return Admission(LimitSettings(**limits), most, (refused if refused is not None else []).append)


async def test_the_one_who_has_waited_longest_gets_the_next_place() -> None:
    door = admission(1)
    first = await door.enter("a")
    waiting = [asyncio.ensure_future(door.enter(tenant)) for tenant in "bc"]
    await asyncio.sleep(0)
    first.leave()
    (await waiting[0]).leave()
    (await waiting[1]).leave()
    assert door.waiting == 0


async def test_a_tenant_that_has_all_its_places_keeps_no_other_waiting() -> None:
    door = admission(3, per_tenant=1)
    await door.enter("a")
    again = asyncio.ensure_future(door.enter("a"))
    await asyncio.sleep(0)
    await door.enter("b")
    assert not again.done()
    again.cancel()


async def test_a_full_queue_and_a_long_wait_are_refused_with_a_time_to_come_back() -> None:
    refused: list[Refusal] = []
    door = admission(1, refused=refused, queue=1, queue_timeout=0.01)
    place = await door.enter("a")
    waiting = asyncio.ensure_future(door.enter("a"))
    await asyncio.sleep(0)
    with pytest.raises(Overloaded) as raised:
        await door.enter("b")
    assert ("Retry-After", "1") in raised.value.headers
    with pytest.raises(Overloaded):
        await waiting
    assert refused == [Refusal.QUEUE_FULL, Refusal.QUEUE_TIMEOUT]
    place.leave()
    (await door.enter("a")).leave()


async def test_a_place_that_is_given_to_one_who_has_left_goes_on_to_the_next() -> None:
    door = admission(1)
    place = await door.enter("a")
    left, next_one = (asyncio.ensure_future(door.enter(tenant)) for tenant in "bc")
    await asyncio.sleep(0)
    place.leave()
    left.cancel()
    (await next_one).leave()


async def test_bodies_are_bounded_together_and_what_a_request_held_is_free_again() -> None:
    refused: list[Refusal] = []
    door = admission(refused=refused, bodies=100)
    one, other = await door.enter("a"), await door.enter("b")
    one.hold(80)
    with pytest.raises(Overloaded):
        other.hold(30)
    assert refused == [Refusal.BODIES]
    other.leave()
    one.hold(20)
    one.leave()
    (await door.enter("c")).hold(100)
