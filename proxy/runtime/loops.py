"""Loops of the background: a step that is done again and again until the app ends.

A step that fails ends nothing: it is logged when its failures begin and when they end, counted, and tried again. A loop
whose step does not come back stands still, which `/readyz` says.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from time import monotonic

STANDING = 30.0  # seconds after its time in which a step must have ended

_log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class _Loop:
    name: str
    every: float
    step: Callable[[], Awaitable[float | None]]
    due: float  # when the next step begins, or the running one began
    failures: int = 0  # in a row
    task: asyncio.Task[None] | None = None


@dataclass(slots=True, eq=False)
class Loops:
    """The loops of one app; `report` is called with the name of each whose step has failed. `clock` is in seconds."""

    report: Callable[[str], None] = lambda _name: None
    clock: Callable[[], float] = monotonic
    _running: list[_Loop] = field(default_factory=list)

    async def start(self, name: str, every: float, step: Callable[[], Awaitable[float | None]]) -> None:
        """Returns after the first step; the next one follows after `every` seconds, or those that the step returns."""
        loop = _Loop(name, every, step, self.clock())
        pause = await self._do(loop)
        loop.task = asyncio.create_task(self._go_on(loop, pause))
        self._running.append(loop)

    def standing(self) -> list[str]:
        """The names of the loops that stand still."""
        latest = self.clock() - STANDING
        return [each.name for each in self._running if each.due < latest or each.task is None or each.task.done()]

    async def close(self) -> None:
        for each in self._running:
            if each.task is not None:
                each.task.cancel()
                with suppress(asyncio.CancelledError):
                    await each.task
        self._running.clear()

    async def _go_on(self, loop: _Loop, pause: float) -> None:
        while True:
            loop.due = self.clock() + pause
            await asyncio.sleep(pause)
            pause = await self._do(loop)

    async def _do(self, loop: _Loop) -> float:
        """Does one step; returns the seconds until the next."""
        try:
            pause = await loop.step()
        except Exception as error:  # noqa: BLE001 - of any kind, or the loop would end with it
            loop.failures += 1
            self.report(loop.name)
            if loop.failures == 1:
                _log.error("the loop %s failed, and goes on", loop.name, exc_info=error)
            return loop.every
        if loop.failures:
            _log.warning("the loop %s works again, after %d failures", loop.name, loop.failures)
            loop.failures = 0
        return loop.every if pause is None else pause
