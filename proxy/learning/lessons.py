"""What an upstream has taught, here and in other processes: windows, and how it counts.

What others have learned is read now and then, and nobody waits for that; but the first request for a model does, if not
for long: all is read at once, out of the request's one patience with the store. One that is `off` does not wait at all.
"""

from __future__ import annotations

import asyncio
from typing import Any

from proxy.calibration.calibrator import Calibrator
from proxy.learning.learned_windows import LearnedWindows
from proxy.runtime.owned_tasks import OwnedTasks
from proxy.sessions.stored import Patience

FIRST_LOOK = 0.25  # seconds


class Lessons:
    """The lessons of one upstream; one per app."""

    def __init__(self, learned: LearnedWindows, calibrator: Calibrator, tasks: OwnedTasks[Any]) -> None:
        self.calibrator = calibrator
        self._learned = learned
        self._tasks = tasks

    async def refresh(self, model: str, counters: tuple[str, ...], patience: Patience, *, waits: bool) -> None:
        """Has what is known of a model's window, and of these ways to count, read where it is time for that."""
        first = [*self._learned.refresh(model), *self.calibrator.refresh(model, *counters)]
        if not (first and waits):
            return
        clock = asyncio.get_running_loop().time
        began = clock()
        for key in first:
            await self._tasks.landed(key, began + min(FIRST_LOOK, patience.left))
        patience.spend(clock() - began)
