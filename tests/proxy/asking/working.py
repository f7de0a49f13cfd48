"""What the tests of lanes share: work in a lane that goes on until the test ends it, and a lane with the test's clock.

What waits is looked at anew whenever a call or a client's request ends; `settled` lets all that can go on do so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from proxy.asking.dispatch import GRACE, CallBlocked, Lane
from proxy.runtime.owned_tasks import NOBODY, Waiters
from proxy.settings.tables import BackgroundSettings, Mode
from tests.support.virtual_time import Clock

AGES = 1e11
BOUND = 10.0


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
