"""Lanes: how many background calls begin, when none does, and who is broken off for whom.

The clock is the test's. What waits is looked at anew whenever a call or a client's request ends; `settled` lets all
that can go on do so.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import ExitStack
from email.utils import formatdate
from typing import Any

import pytest

from proxy.asking.lanes import CROWD, CROWD_PATIENCE, GRACE, LONGEST_PAUSE, PAUSE, Held, Lane, Lanes, pause
from proxy.setting_tables import BackgroundSettings
from tests.proxy.asking.support import Clock

pytestmark = pytest.mark.anyio

AGES = 1e11
BOUND = 10.0


class Work:
    """Work in a lane that goes on until the test ends it; `held` says why it was not done."""

    def __init__(self, lane: Lane, deadline: float = AGES) -> None:
        self.lane = lane
        self.began = asyncio.Event()
        self.end = asyncio.Event()
        self.held = ""
        self.task = asyncio.create_task(self._work(deadline))

    async def _work(self, deadline: float) -> None:
        try:
            async with self.lane.background(deadline):
                self.began.set()
                await self.end.wait()
                self.lane.served()
        except Held as held:
            self.held = held.reason

    @property
    def is_running(self) -> bool:
        return self.began.is_set() and not self.task.done()


async def settled() -> None:
    """Lets every task go on until it waits for something outside."""
    for _ in range(20):
        await asyncio.sleep(0)


def lane(clock: Callable[[], float] | None = None, **settings: Any) -> Lane:
    return Lane(BackgroundSettings(**settings), clock or Clock())


def lane_after_a_pause(**settings: Any) -> Lane:
    """A lane whose server has refused a request, and may be asked again by now."""
    clock = Clock()
    found = lane(clock, **settings)
    found.refused("0")
    clock.now += GRACE
    return found


def running(works: list[Work]) -> int:
    return sum(work.is_running for work in works)


def poke(lane: Lane) -> None:
    """A client's request comes and goes."""
    with lane.foreground():
        pass


async def end(*works: Work) -> None:
    for work in works:
        work.end.set()
    await settled()


# -- how many ----------------------------------------------------------------------------------------------


async def test_no_more_calls_are_under_way_than_the_settings_allow() -> None:
    way = lane(concurrency=3)
    works = [Work(way) for _ in range(5)]
    await settled()
    assert [work.is_running for work in works] == [True, True, True, False, False]
    await end(works[1])
    assert [work.is_running for work in works] == [True, False, True, True, False]
    await end(*works)
    assert all(work.task.done() for work in works)


async def test_work_that_fails_leaves_its_place() -> None:
    way = lane(concurrency=1)
    with pytest.raises(ZeroDivisionError):
        async with way.background(AGES):
            raise ZeroDivisionError
    work = Work(way)
    await settled()
    assert work.is_running
    await end(work)


async def test_who_gives_up_waiting_takes_no_place() -> None:
    way = lane(concurrency=1)
    first, second, third = works = [Work(way) for _ in range(3)]
    await settled()
    second.task.cancel()
    await settled()
    await end(first)
    assert third.is_running
    await end(*works)


async def test_who_is_cancelled_just_as_its_turn_comes_leaves_it_to_the_next() -> None:
    way = lane(concurrency=1)
    async with way.background(AGES):
        second, third = Work(way), Work(way)
        await settled()
    second.task.cancel()
    await settled()
    assert not second.began.is_set()
    assert third.is_running
    await end(third)


async def test_who_waits_in_vain_until_its_deadline_is_held() -> None:
    way = lane(concurrency=1)
    first, second = Work(way), Work(way, 0.01)
    await asyncio.wait_for(second.task, BOUND)
    assert second.held == "paused"
    await end(first)


async def test_in_mode_off_nothing_is_begun() -> None:
    work = Work(lane(mode="off"))
    await settled()
    assert (work.began.is_set(), work.held) == (False, "paused")


async def test_each_server_has_a_lane_of_its_own() -> None:
    lanes = Lanes(BackgroundSettings(), Clock())
    lanes.to("http://a/").refused("60")
    work = Work(lanes.to("http://b/"))
    await settled()
    assert work.is_running
    await end(work)


# -- after a refusal ---------------------------------------------------------------------------------------


async def test_after_a_refusal_nothing_is_begun_for_as_long_as_the_server_asks_and_a_moment_longer() -> None:
    clock = Clock()
    way = lane(clock)
    way.refused("9")
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


async def test_who_cannot_wait_for_as_long_as_the_server_asks_is_held_at_once() -> None:
    way = lane()
    way.refused("61")
    work = Work(way, 60.0)
    await settled()
    assert work.held == "paused"


async def test_a_second_refusal_does_not_shorten_the_first() -> None:
    clock = Clock()
    way = lane(clock)
    way.refused("60")
    way.refused("1")
    clock.now = 59.0
    work = Work(way)
    await settled()
    assert not work.began.is_set()
    work.task.cancel()


async def test_the_pause_ends_by_itself() -> None:
    way = lane(time.time)
    way.refused("0.05")
    work = Work(way)
    await asyncio.wait_for(work.began.wait(), BOUND)
    await end(work)


async def test_what_is_under_way_when_a_client_is_refused_goes_on() -> None:
    way = lane()
    work = Work(way)
    await settled()
    way.refused(None)
    await settled()
    assert work.is_running
    await end(work)
    assert work.held == ""


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
    way.refused("0")
    clock.now = GRACE
    works = [Work(way) for _ in range(20)]
    await settled()
    await end(works[0])
    assert running(works) == 2
    way.refused("5")
    await end(works[1], works[2])
    assert running(works) == 0
    clock.now += 5.0 + GRACE
    poke(way)
    await settled()
    assert running(works) == 1
    for work in works:
        work.task.cancel()


async def test_after_a_pause_clients_go_first_until_the_server_has_shown_what_it_can_do() -> None:
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


# -- idle --------------------------------------------------------------------------------------------------


async def test_in_mode_idle_calls_wait_for_the_last_client() -> None:
    way = lane(mode="idle")
    with way.foreground():
        with way.foreground():
            work = Work(way)
            await settled()
            assert not work.began.is_set()
        await settled()
        assert not work.began.is_set()
    await settled()
    assert work.is_running
    await end(work)


async def test_in_mode_idle_a_client_that_arrives_breaks_off_what_is_running_and_it_may_begin_again() -> None:
    way = lane(mode="idle", concurrency=2)
    works = [Work(way) for _ in range(3)]
    await settled()
    with way.foreground():
        await settled()
        assert [work.held for work in works] == ["preempted", "preempted", ""]
        again = Work(way)
        await settled()
        assert not again.began.is_set()
    await settled()
    assert works[2].is_running
    assert again.is_running
    await end(works[2], again)


async def test_who_is_cancelled_from_outside_was_not_broken_off_by_a_client() -> None:
    way = lane(mode="idle")
    work = Work(way)
    await settled()
    with way.foreground():
        work.task.cancel()
        await settled()
    assert work.task.cancelled()
    assert work.held == ""


async def test_a_time_out_of_the_work_itself_is_its_own() -> None:
    way = lane(mode="idle")
    with pytest.raises(TimeoutError):
        async with way.background(AGES), asyncio.timeout(0):
            await asyncio.Event().wait()


# -- Retry-After -------------------------------------------------------------------------------------------


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
        ("86400", LONGEST_PAUSE),
        (formatdate(1_000_020, usegmt=True), 20.0),
        (formatdate(999_000, usegmt=True), 0.0),
        ("Tue, 32 Foo 2026", PAUSE),
    ],
)
def test_a_retry_after_is_seconds_or_a_date_and_anything_else_is_half_a_minute(
    header: str | None, seconds: float
) -> None:
    assert pause(header, 1_000_000.0) == seconds


async def test_a_server_that_is_found_to_do_one_thing_at_a_time_is_left_to_clients_also_in_mode_on() -> None:
    lane = Lane(BackgroundSettings(), Clock(), lambda: True)
    with lane.foreground():
        waiting = asyncio.ensure_future(_turn(lane))
        await asyncio.sleep(0)
        assert not waiting.done()
    await waiting


async def _turn(lane: Lane) -> None:
    async with lane.background(60.0):
        pass


async def test_a_crowd_of_clients_is_let_through_first_and_one_that_stays_is_none() -> None:
    clock = Clock()
    lane = Lane(BackgroundSettings(), clock)
    with ExitStack() as crowd:
        for _ in range(CROWD):
            crowd.enter_context(lane.foreground())
        waiting = asyncio.ensure_future(_turn(lane))
        await asyncio.sleep(0)
        assert not waiting.done()
        clock.now += CROWD_PATIENCE
        with lane.foreground():
            pass
        await waiting
