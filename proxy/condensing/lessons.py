"""Lessons that an upstream has taught this process and others: windows, and how it counts.

The lessons of other processes are read now and then in the background. Only the first request for a model waits for
them, and not for long: all are read at once, within the request's one patience with the store. A request that is `off`
does not wait at all.
"""

from __future__ import annotations

import asyncio
from typing import Any

from proxy.calibration.calibrator import Calibrator
from proxy.learning.learned_windows import LearnedWindows
from proxy.learning.proof import Scope
from proxy.runtime.owned_tasks import OwnedTasks
from proxy.store.patience import Patience

FIRST_LOOK = 0.25  # seconds


class Lessons:
    """The lessons of one upstream; one per app."""

    def __init__(self, learned: LearnedWindows, calibrator: Calibrator, tasks: OwnedTasks[Any]) -> None:
        self.calibrator = calibrator
        self.takes_trial = learned.takes_trial
        self._learned = learned
        self._tasks = tasks

    async def refresh(self, scope: Scope, counters: tuple[str, ...], patience: Patience, *, waits: bool) -> None:
        """Reads what others know of a model's window and of these counters, if it is time for that."""
        first = [*self._learned.refresh(scope), *self.calibrator.refresh(scope.model, *counters)]
        if not (first and waits):
            return
        clock = asyncio.get_running_loop().time
        began = clock()
        for key in first:
            await self._tasks.result_of(key, began + min(FIRST_LOOK, patience.remaining))
        patience.spend(clock() - began)
