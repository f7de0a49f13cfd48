"""Single flight: concurrent requests for the same thing share one piece of work.

The work runs in a task of the app. So a client that leaves does not take it away from the others, and work that has
been paid for is still recorded. A useful result is kept for a moment, for requests that set out before it was there and
ask only now; what must last is in the store.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Hashable
from typing import Any, Generic, TypeVar

from proxy.runtime.owned_tasks import OwnedTasks

T = TypeVar("T")
LINGER = 5.0
"""Seconds for which a result is kept."""


class Flights(Generic[T]):
    """Work under way, by key. Results that `lingers` accepts are given out for `LINGER` seconds more."""

    def __init__(self, tasks: OwnedTasks[Any], lingers: Callable[[T], bool]) -> None:
        self._tasks = tasks
        self._lingers = lingers
        self._under_way: dict[Hashable, asyncio.Task[T]] = {}

    async def join(self, key: Hashable, work: Coroutine[Any, Any, T]) -> tuple[T, bool]:
        """The result for `key`, and whether `work` was the one that made it.

        If other work for `key` is under way, its result is awaited instead, and `work` never starts.
        """
        task = self._under_way.get(key)
        if task is not None:
            work.close()
            return await asyncio.shield(task), False
        task = self._tasks.own(work)
        self._under_way[key] = task
        task.add_done_callback(lambda done: self._finish(key, done))
        return await asyncio.shield(task), True

    def _finish(self, key: Hashable, task: asyncio.Task[T]) -> None:
        if not task.cancelled() and task.exception() is None and self._lingers(task.result()):
            task.get_loop().call_later(LINGER, self._under_way.pop, key, None)
        else:
            self._under_way.pop(key, None)
