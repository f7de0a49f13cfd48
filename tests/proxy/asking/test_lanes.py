"""Lanes: how many background calls begin, when none does, and which are broken off for clients.

What a refusal does to a lane is in test_refusals.py.
"""

from __future__ import annotations

import asyncio

import pytest

from proxy.asking.dispatch import Dispatcher, Lane
from proxy.settings.tables import BackgroundSettings, UpstreamSettings
from proxy.upstream import Upstream
from tests.proxy.asking.working import AGES, BOUND, Work, end, lane, settled
from tests.support.virtual_time import Clock

pytestmark = pytest.mark.anyio

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


async def test_a_call_cancelled_at_its_turn_leaves_it_to_another() -> None:
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
    assert second.blocked == "paused"
    await end(first)


async def test_a_call_in_mode_idle_gives_way_where_others_need_not() -> None:
    way = lane()
    idle, other = Work(way, mode="idle"), Work(way)
    await settled()
    with way.foreground():
        await settled()
        assert (idle.blocked, other.is_running) == ("preempted", True)
        again, more = Work(way, mode="idle"), Work(way)
        await settled()
        assert (again.is_running, more.is_running) == (False, True)
    await settled()
    assert again.is_running
    await end(other, again, more)


async def test_in_mode_off_nothing_is_begun() -> None:
    work = Work(lane(mode="off"))
    await settled()
    assert (work.began.is_set(), work.blocked) == (False, "paused")


async def test_each_server_has_a_lane_of_its_own() -> None:
    upstream = Upstream(UpstreamSettings(base_url="http://a/v1"))
    dispatcher = Dispatcher(upstream, BackgroundSettings(), clock=Clock())
    dispatcher.lane_of("http://a/v1").note_refusal("60")
    assert dispatcher.lane_of(None) is dispatcher.lane_of("http://a/v1")
    work = Work(dispatcher.lane_of("http://b/v1"))
    await settled()
    assert work.is_running
    await end(work)
    await upstream.close()


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


async def test_an_idle_lane_is_broken_off_by_a_client() -> None:
    way = lane(mode="idle", concurrency=2)
    works = [Work(way) for _ in range(3)]
    await settled()
    with way.foreground():
        await settled()
        assert [work.blocked for work in works] == ["preempted", "preempted", ""]
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
    assert work.blocked == ""


async def test_a_time_out_of_the_work_itself_is_its_own() -> None:
    way = lane(mode="idle")
    with pytest.raises(TimeoutError):
        async with way.background(AGES), asyncio.timeout(0):
            await asyncio.Event().wait()


# -- clients -----------------------------------------------------------------------------------------------


async def test_a_serial_server_is_left_to_clients_in_every_mode() -> None:
    lane = Lane(BackgroundSettings(), Clock(), lambda: True)
    with lane.foreground():
        waiting = asyncio.ensure_future(_turn(lane))
        await asyncio.sleep(0)
        assert not waiting.done()
    await waiting


async def _turn(lane: Lane) -> None:
    async with lane.background(60.0):
        pass
