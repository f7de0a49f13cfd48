"""Lanes after a refusal: how long no call begins at that server, and how calls begin again."""

from __future__ import annotations

import asyncio
import time
from email.utils import formatdate

import pytest

from proxy.asking.dispatch import GRACE, MAX_PAUSE, PAUSE, pause_seconds
from tests.proxy.asking.working import BOUND, Work, end, lane, lane_after_a_pause, poke, running, settled
from tests.support.virtual_time import Clock

pytestmark = pytest.mark.anyio


async def test_background_pauses_as_long_as_the_server_asks() -> None:
    clock = Clock()
    way = lane(clock)
    way.note_refusal("9")
    work = Work(way)
    for clock.now in (0.0, 8.9, 9.0):
        poke(way)
        await settled()
        assert not work.began.is_set()
    clock.now = 9.0 + GRACE
    poke(way)
    await settled()
    assert work.is_running
    await end(work)


async def test_a_call_that_cannot_wait_long_enough_is_held() -> None:
    way = lane()
    way.note_refusal("61")
    work = Work(way, 60.0)
    await settled()
    assert work.blocked == "paused"


async def test_a_second_refusal_does_not_shorten_the_first() -> None:
    clock = Clock()
    way = lane(clock)
    way.note_refusal("60")
    way.note_refusal("1")
    clock.now = 59.0
    work = Work(way)
    await settled()
    assert not work.began.is_set()
    work.task.cancel()


async def test_the_pause_ends_by_itself() -> None:
    way = lane(time.time)
    way.note_refusal("0.05")
    work = Work(way)
    await asyncio.wait_for(work.began.wait(), BOUND)
    await end(work)


async def test_what_is_under_way_when_a_client_is_refused_goes_on() -> None:
    way = lane()
    work = Work(way)
    await settled()
    way.note_refusal(None)
    await settled()
    assert work.is_running
    await end(work)
    assert work.blocked == ""


async def test_after_a_pause_calls_begin_one_by_one_and_double_with_success() -> None:
    way = lane_after_a_pause(concurrency=8)
    works = [Work(way) for _ in range(40)]
    seen = []
    for _ in range(5):
        await settled()
        seen.append(running(works))
        await end(*(work for work in works if work.is_running))
    assert seen == [1, 2, 4, 8, 8]
    await end(*works)


async def test_a_call_that_failed_opens_nothing() -> None:
    way = lane_after_a_pause(concurrency=8)
    works = [Work(way) for _ in range(4)]
    await settled()
    for work in works[:2]:
        work.task.cancel()
        await settled()
    assert running(works) == 1
    for work in works[2:]:
        work.task.cancel()


async def test_a_refusal_on_the_way_up_begins_anew() -> None:
    clock = Clock()
    way = lane(clock, concurrency=8)
    way.note_refusal("0")
    clock.now = GRACE
    works = [Work(way) for _ in range(20)]
    await settled()
    await end(works[0])
    assert running(works) == 2
    way.note_refusal("5")
    await end(works[1], works[2])
    assert running(works) == 0
    clock.now += 5.0 + GRACE
    poke(way)
    await settled()
    assert running(works) == 1
    for work in works:
        work.task.cancel()


async def test_clients_go_first_after_a_pause() -> None:
    way = lane_after_a_pause(concurrency=2)
    with way.foreground():
        works = [Work(way) for _ in range(4)]
        await settled()
        assert running(works) == 0
    await settled()
    assert running(works) == 1
    await end(works[0])
    with way.foreground():
        assert running(works) == 2
        await end(works[1])
        assert running(works) == 2
    await end(*works)


async def test_a_lane_for_one_call_opens_again_too() -> None:
    way = lane_after_a_pause(concurrency=1)
    first, second = Work(way), Work(way)
    await settled()
    with way.foreground():
        await end(first)
        assert second.is_running
    await end(second)


async def test_without_refusals_calls_begin_beside_clients() -> None:
    way = lane()
    with way.foreground():
        work = Work(way)
        await settled()
        assert work.is_running
    await end(work)


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        (None, PAUSE),
        ("", PAUSE),
        ("9", 9.0),
        (" 9 ", 9.0),
        ("0.5", 0.5),
        ("0", 0.0),
        ("-4", 0.0),
        ("soon", PAUSE),
        ("nan", PAUSE),
        ("inf", PAUSE),
        ("9" * 400, PAUSE),
        ("86400", MAX_PAUSE),
        (formatdate(1_000_020, usegmt=True), 20.0),
        (formatdate(999_000, usegmt=True), 0.0),
        ("Tue, 32 Foo 2026", PAUSE),
    ],
)
def test_a_retry_after_is_seconds_or_a_date(header: str | None, seconds: float) -> None:
    assert pause_seconds(header, 1_000_000.0) == seconds


async def test_a_pause_that_ends_during_a_look_wakes_the_waiting() -> None:
    """Between two readings of the clock it may open: somebody must look once more."""
    readings = iter([0.0, GRACE - 0.02, GRACE - 0.01])
    way = lane(lambda: next(readings, GRACE + 0.01))
    way.note_refusal("0")
    work = Work(way)
    await asyncio.wait_for(work.began.wait(), BOUND)
    await end(work)
