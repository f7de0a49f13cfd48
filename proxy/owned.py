"""Tasks that the app owns: work that nobody waits for, which ends with the app at the latest."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Hashable
from typing import Any, Generic, TypeVar

T = TypeVar("T")
_log = logging.getLogger(__name__)


class OwnedTasks(Generic[T]):
    """Work under way; one per app. What has a key is done once at a time."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[T]] = set()
        self._keyed: dict[Hashable, asyncio.Task[T]] = {}

    def start(self, work: Coroutine[Any, Any, T], key: Hashable | None = None) -> None:
        """Does `work` in a task of its own; not at all where work of that key is under way."""
        if key is not None and key in self._keyed:
            work.close()
            return
        task = asyncio.create_task(work)
        self._tasks.add(task)
        if key is not None:
            self._keyed[key] = task
        task.add_done_callback(lambda done: self._over(done, key))

    def _over(self, task: asyncio.Task[T], key: Hashable | None) -> None:
        self._tasks.discard(task)
        if key is not None:
            self._keyed.pop(key, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("work in the background failed", exc_info=error)

    async def landed(self, key: Hashable, deadline: float) -> T | None:
        """What work of a key that is under way leads to; None where there is none, or none until a time of the loop's
        clock."""
        task = self._keyed.get(key)
        if task is None:
            return None
        await asyncio.wait({task}, timeout=max(deadline - asyncio.get_running_loop().time(), 0))
        return task.result() if task.done() and not task.cancelled() and task.exception() is None else None

    async def idle(self) -> None:
        """Returns when no work is under way."""
        while self._tasks:
            await asyncio.wait(set(self._tasks))

    async def close(self) -> None:
        """Ends all work."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
