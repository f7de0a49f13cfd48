"""Lanes: how many background calls begin, when none does, which are broken off for clients, and what refusals do."""

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from email.utils import formatdate
from typing import Any

import pytest

from proxy.asking.dispatch import CREDENTIAL_LIFE, GRACE, MAX_PAUSE, PAUSE, CallBlocked, Lane, pause_seconds
from proxy.runtime.owned_tasks import NOBODY, Waiters
from proxy.settings.tables import BackgroundSettings, Mode
from strategies.core.effects import Failure
from tests.proxy.asking.support import ASK, LATER, asking
from tests.support.stage import summary
from tests.support.upstream import ScriptedUpstream
from tests.support.virtual_time import Clock

AGES = 1e11
BOUND = 10.0
pytestmark = pytest.mark.timeout(BOUND)


class Work:
    """Work in a lane that goes on until the test ends it; `blocked` says why it was not done."""

    def __init__(self, lane: Lane, deadline: float = AGES, mode: Mode | None = None, waiters: Waiters = NOBODY) -> None:
        self.lane = lane
        self.mode = mode
        self.waiters = waiters
        self.began = asyncio.Event()
        self.end = asyncio.Event()
        self.blocked = ""
        self.task = asyncio.create_task(self._work(deadline))

    async def _work(self, deadline: float) -> None:
        try:
            async with self.lane.background(deadline, self.mode, self.waiters):
                self.began.set()
                await self.end.wait()
                self.lane.note_success()
        except CallBlocked as blocked:
            self.blocked = blocked.reason

    @property
    def is_running(self) -> bool:
        return self.began.is_set() and not self.task.done()


async def settled() -> None:
    """Lets every task go on until it waits for something outside."""
    for _ in range(20):
        await asyncio.sleep(0)


def lane(
    clock: Callable[[], float] | None = None, is_serial: Callable[[], bool] = lambda: False, **settings: Any
) -> Lane:
    return Lane(BackgroundSettings(**settings), clock or Clock(), is_serial)


def lane_after_a_pause(**settings: Any) -> Lane:
    """A lane whose server has refused a request, and may be asked again by now."""
    clock = Clock()
    found = lane(clock, **settings)
    found.note_refusal("0")
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


async def test_no_more_calls_are_under_way_than_the_settings_allow() -> None:
    way = lane(concurrency=3)
    works = [Work(way) for _ in range(5)]
    await settled()
    assert [work.is_running for work in works] == [True, True, True, False, False]
    works[3].task.cancel()  # who gives up waiting takes no place
    await settled()
    await end(works[1])
    assert [work.is_running for work in works] == [True, False, True, False, True]
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


async def test_an_idle_lane_is_broken_off_by_a_client() -> None:
    way = lane(mode="idle", concurrency=2)
    works = [Work(way) for _ in range(3)]
    await settled()
    with way.foreground():
        await settled()
        assert [work.blocked for work in works] == ["preempted", "preempted", ""]
        again = Work(way)
        poke(way)  # the last client counts
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


async def test_a_serial_server_is_left_to_clients_in_every_mode() -> None:
    with with_a_client("on", serial=True) as way:
        work = Work(way)
        await settled()
        assert not work.began.is_set()
    await settled()
    assert work.is_running
    await end(work)


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


async def test_a_call_that_cannot_wait_for_the_longest_refusal_is_held() -> None:
    way = lane()
    way.note_refusal("61")
    work = Work(way, 60.0)
    await settled()
    assert work.blocked == "paused"
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


def test_a_retry_after_is_seconds_or_a_date() -> None:
    for header in (None, "", "soon", "nan", "inf", "9" * 400, "Tue, 32 Foo 2026"):
        assert pause_seconds(header, 1_000_000.0) == PAUSE
    known = {"9": 9.0, " 9 ": 9.0, "0.5": 0.5, "0": 0.0, "-4": 0.0, "86400": MAX_PAUSE}
    dates = {formatdate(1_000_020, usegmt=True): 20.0, formatdate(999_000, usegmt=True): 0.0}
    for header, seconds in (known | dates).items():
        assert pause_seconds(header, 1_000_000.0) == seconds


async def test_a_pause_that_ends_during_a_look_wakes_the_waiting() -> None:
    """Between two readings of the clock it may open: somebody must look once more."""
    readings = iter([0.0, GRACE - 0.02, GRACE - 0.01])
    way = lane(lambda: next(readings, GRACE + 0.01))
    way.note_refusal("0")
    work = Work(way)
    await asyncio.wait_for(work.began.wait(), BOUND)
    await end(work)


@contextmanager
def paused() -> Iterator[Lane]:
    way = lane()
    way.note_refusal("60")
    yield way


@contextmanager
def with_a_client(mode: str = "idle", *, serial: bool = False) -> Iterator[Lane]:
    way = lane(is_serial=lambda: serial, mode=mode)
    with way.foreground():
        yield way


@pytest.mark.parametrize(
    "closed", [paused, with_a_client, lambda: with_a_client("on", serial=True)], ids=["pause", "idle", "serial"]
)
async def test_a_waiting_call_is_made_once_waited_for(closed: Callable[[], AbstractContextManager[Lane]]) -> None:
    with closed() as way:
        waiters = Waiters()
        work, other = Work(way, waiters=waiters), Work(way)
        await settled()
        assert not work.began.is_set()
        with waiters.waiting():
            await settled()
            assert work.is_running
            assert not other.began.is_set()
        other.task.cancel()
        await end(work)
        assert (work.task.done(), work.blocked) == (True, "")


async def test_it_takes_no_place_of_others_and_leaves_none() -> None:
    way, waiters = lane(concurrency=1), Waiters()
    first, work, last = Work(way), Work(way, waiters=waiters), Work(way)
    await settled()
    with waiters.waiting():
        await settled()
        assert [each.is_running for each in (first, work, last)] == [True, True, False]
        await end(work)
        assert not last.began.is_set()
    await end(first)
    assert last.is_running
    await end(last)


async def test_what_is_waited_for_goes_first() -> None:
    way, waiters = lane(mode="idle", concurrency=2), Waiters()
    work, other = Work(way, waiters=waiters), Work(way)
    await settled()
    with waiters.waiting():
        poke(way)
        await settled()
        assert (work.is_running, other.blocked) == (True, "preempted")
    poke(way)
    await settled()
    assert work.blocked == "preempted"


async def test_later_calls_are_a_clients_too_for_as_long_as_it_waits() -> None:
    with with_a_client() as way:
        waiters = Waiters()
        with waiters.waiting():
            work = Work(way, waiters=waiters)
            await settled()
            assert work.is_running
            await end(work)
        late = Work(way, waiters=waiters)
        await settled()
        assert not late.began.is_set()
        late.task.cancel()


async def test_a_call_for_a_client_keeps_others_waiting() -> None:
    way, waiters = lane(mode="idle"), Waiters()
    with waiters.waiting():
        work, other = Work(way, waiters=waiters), Work(way)
        await settled()
        assert (work.is_running, other.began.is_set()) == (True, False)
        await end(work)
    await settled()
    assert other.is_running
    await end(other)


async def test_who_gives_up_before_anybody_waits_is_not_let_through() -> None:
    way, waiters = lane(concurrency=1), Waiters()
    first, held, cancelled = Work(way), Work(way, 0.01, waiters=waiters), Work(way, AGES, waiters=waiters)
    await asyncio.wait_for(held.task, BOUND)
    cancelled.task.cancel()
    await settled()
    with waiters.waiting():
        await settled()
    assert (held.began.is_set(), cancelled.began.is_set()) == (False, False)
    await end(first)


async def test_an_expired_credential_is_not_used_after_a_pause(upstream: ScriptedUpstream) -> None:
    upstream.answer(lambda _exchange: summary())
    clock, waiters = Clock(), Waiters()
    async with asking(upstream.base_url, clock=clock) as own:
        own.lane.note_refusal("30")
        for age, expected in ((0.0, ""), (CREDENTIAL_LIFE + 1, "expired")):
            asked = asyncio.create_task(own.ask(ASK, caller=replace(LATER, waiters=waiters)))
            await settled()
            assert not asked.done()
            clock.now += age
            with waiters.waiting():
                (found,) = await asked
            assert (found.reason if isinstance(found, Failure) else "") == expected
