"""Who is admitted, who waits, and who is refused."""

import asyncio
from typing import Any

import pytest

from proxy.errors import Overloaded
from proxy.http.admission import PEAK, SMALL, Admission, Place, Refusal
from proxy.settings import LimitSettings


def admission(most: int = 2, *, refused: list[Refusal] | None = None, **limits: Any) -> Admission:
    return Admission(LimitSettings(**limits), most, (refused if refused is not None else []).append)


async def entered(door: Admission, tenant: str, size: int = 0, *, is_upload: bool = False) -> Place:
    """A place that is taken for a body of this size."""
    place = door.place(tenant)
    try:
        place.hold(size)
        await place.take(is_upload=is_upload)
    except BaseException:
        place.leave()
        raise
    return place


def entering(door: Admission, tenant: str, size: int = 0) -> asyncio.Task[Place]:
    return asyncio.ensure_future(entered(door, tenant, size))


async def test_the_one_who_has_waited_longest_gets_the_next_place() -> None:
    door = admission(1)
    first = await entered(door, "a")
    waiting = [entering(door, tenant) for tenant in "bc"]
    await asyncio.sleep(0)
    first.leave()
    (await waiting[0]).leave()
    (await waiting[1]).leave()
    assert not door.waiting


async def test_a_tenant_that_has_all_its_places_keeps_no_other_waiting() -> None:
    door = admission(3, per_tenant=1)
    await entered(door, "a")
    again = entering(door, "a")
    await asyncio.sleep(0)
    await entered(door, "b")
    assert not again.done()
    again.cancel()


async def test_nobody_has_more_than_half_of_an_upstream_while_others_ask() -> None:
    refused: list[Refusal] = []
    door = admission(9, refused=refused)

    def at_upstream(tenant: str, name: str = "one", most: int = 4) -> Place | None:
        place = door.place(tenant)
        try:
            place.enter_upstream(name, most)
        except Overloaded:
            return None
        return place

    alone = [at_upstream("a") for _ in range(5)]
    assert alone[4] is None
    assert at_upstream("b") is None  # none is free, but from now on it asks
    for place in alone[:3]:
        assert place is not None
        place.leave()
    again = at_upstream("a")
    assert again is not None
    assert at_upstream("a") is None
    theirs = [at_upstream("b") for _ in range(3)]
    assert [each is not None for each in theirs] == [True, True, False]
    assert all(at_upstream("a", "other") is not None for _ in range(4))
    assert all(each is Refusal.UPSTREAM for each in refused)
    small = at_upstream("a", "small", 1)
    assert small is not None
    assert at_upstream("b", "small", 1) is None
    small.leave()
    assert at_upstream("b", "small", 1) is not None


async def test_a_refusal_says_when_to_come_back() -> None:
    refused: list[Refusal] = []
    door = admission(1, refused=refused, queue=1, queue_timeout=0.01)
    place = await entered(door, "a")
    waiting = entering(door, "a")
    await asyncio.sleep(0)
    with pytest.raises(Overloaded) as raised:
        await entered(door, "b")
    assert ("Retry-After", "1") in raised.value.headers
    with pytest.raises(Overloaded):
        await waiting
    assert refused == [Refusal.QUEUE_FULL, Refusal.QUEUE_TIMEOUT]
    place.leave()
    (await entered(door, "a")).leave()


async def test_a_place_of_one_who_left_goes_to_the_next() -> None:
    door = admission(1)
    place = await entered(door, "a")
    left, next_one = (entering(door, tenant) for tenant in "bc")
    await asyncio.sleep(0)
    place.leave()
    left.cancel()
    (await next_one).leave()


async def test_a_body_that_never_completes_takes_no_place() -> None:
    door = admission(1)
    for _ in range(600):
        door.place("junk").hold(1)
    (await entered(door, "a")).leave()


async def test_bodies_on_their_way_are_bounded_but_small_ones_come_in() -> None:
    refused: list[Refusal] = []
    door = admission(refused=refused, bodies=4 * SMALL * 4)
    flood = [door.place("junk") for _ in range(3)]
    for place in flood:
        place.hold(SMALL)
    (await entered(door, "a", SMALL // PEAK)).leave()
    with pytest.raises(Overloaded):
        flood[0].hold(SMALL + 1)
    assert refused == [Refusal.BODIES]
    flood[0].leave()
    late = door.place("b")
    late.hold(SMALL + 1)


async def test_a_body_waits_until_its_peak_has_room() -> None:
    door = admission(3, bodies=PEAK * 100)
    one = await entered(door, "a", 80)
    other = entering(door, "b", 80)
    await asyncio.sleep(0)
    assert not other.done()
    one.ease()
    (await other).leave()
    one.leave()
    door = admission(3, bodies=PEAK * 100)
    small = await entered(door, "a", 1)
    large = entering(door, "b", 1_000)
    await asyncio.sleep(0)
    assert not large.done()
    small.leave()
    (await large).leave()


async def test_a_request_that_expands_waits_for_its_new_peak_and_lets_others_in() -> None:
    door = admission(2, bodies=PEAK * 400)
    growing, other = [await entered(door, tenant, 80) for tenant in "ab"]
    small = entering(door, "c", 1)
    await asyncio.sleep(0)
    expanding = asyncio.ensure_future(growing.grow(300, 10_000))
    await asyncio.sleep(0)
    assert not expanding.done()
    (await small).leave()
    assert not expanding.done()
    other.leave()
    await expanding
    again = asyncio.ensure_future(growing.grow(10_000, 10_000))  # more than there is: it is served alone
    await asyncio.sleep(0)
    assert again.done()
    growing.leave()
    assert (door.memory, door.incoming, door._served, door.waiting) == (0, 0, 0, {})


async def test_memory_that_a_request_can_do_without_is_held_only_where_there_is_room() -> None:
    door = admission(9, bodies=40_000_000)
    one, other = [await entered(door, tenant, 1_000_000) for tenant in "ab"]
    assert [one.spare(each) for each in (12_000_000, 21_000_000, 20_000_000, 20_000_000)] == [True, False, True, True]
    assert not other.spare(12_000_001)  # beyond its peak
    one.ease()  # its view is on its way
    assert other.spare(12_000_001)
    assert one.spare(19_000_000)
    assert not one.spare(20_000_000)
    one.leave()
    other.leave()
    assert door.memory == 0


async def test_uploads_leave_half_of_the_places() -> None:
    door = admission(2)
    await entered(door, "a", is_upload=True)
    other = asyncio.ensure_future(entered(door, "a", is_upload=True))
    await asyncio.sleep(0)
    assert not other.done()
    (await entered(door, "b")).leave()
    other.cancel()
