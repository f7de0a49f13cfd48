"""A background call that a client comes to wait for is made as that client's own from then on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace

import pytest

from proxy.asking.dispatch import CREDENTIAL_LIFE, Lane
from proxy.runtime.owned_tasks import Waiters
from strategies.core.effects import Failure
from tests.proxy.asking.support import ASK, LATER, asking
from tests.proxy.asking.working import AGES, BOUND, Work, end, lane, poke, settled
from tests.support.stage import summary
from tests.support.upstream import ScriptedUpstream
from tests.support.virtual_time import Clock

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(BOUND)]


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
    "closed",
    [paused, with_a_client, lambda: with_a_client("on", serial=True)],
    ids=["pause", "idle", "serial"],
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
        own.asking.lane.note_refusal("30")
        for age, expected in ((0.0, ""), (CREDENTIAL_LIFE + 1, "expired")):
            asked = asyncio.create_task(own.ask(ASK, caller=replace(LATER, waiters=waiters)))
            await settled()
            assert not asked.done()
            clock.now += age
            with waiters.waiting():
                (found,) = await asked
            assert (found.reason if isinstance(found, Failure) else "") == expected
