"""Tasks that the app owns: work that goes on though nobody waits for it, and ends with the app at the latest."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Hashable, Iterable
from typing import Any, Generic, TypeVar
from weakref import WeakValueDictionary

from proxy.runtime.waiters import Waiters

T = TypeVar("T")
R = TypeVar("R")

CLOSING = 5.0  # seconds that a closing app has for what must be finished

_log = logging.getLogger(__name__)


class OwnedTasks(Generic[T]):
    """Work under way; one per app. What has a key is done once at a time."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()
        self._finishing: set[asyncio.Task[Any]] = set()
        self._keyed: dict[Hashable, asyncio.Task[T]] = {}
        self._waiters: WeakValueDictionary[Hashable, Waiters] = WeakValueDictionary()

    def start(self, work: Coroutine[Any, Any, T], key: Hashable | None = None) -> None:
        """Does `work` in a task of its own; not at all where work of that key is under way."""
        if key is not None and key in self._keyed:
            work.close()
            return
        self.add(work, key)

    def add(self, work: Coroutine[Any, Any, T], key: Hashable | None) -> None:
        """Does `work` in a task of its own, to be waited for by its key unless other work of that key is under way."""
        task = self.own(work)
        if key is not None and key not in self._keyed:
            self._keyed[key] = task
            task.add_done_callback(lambda _: self._keyed.pop(key, None))

    def own(self, work: Coroutine[Any, Any, R], *, to_its_end: bool = False) -> asyncio.Task[R]:
        """The task that does `work`. What goes on `to_its_end` is not cancelled when the app closes, but awaited."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        if to_its_end:
            self._finishing.add(task)
        task.add_done_callback(self._over)
        return task

    def _over(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        self._finishing.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("work in the background failed", exc_info=error)

    async def landed(self, key: Hashable, deadline: float) -> T | None:
        """What work of a key that is under way leads to; None where there is none, or none until a time of the loop's
        clock."""
        task = self._keyed.get(key)
        if task is None:
            return None
        with self.waiters(key).one_more():
            await asyncio.wait({task}, timeout=max(deadline - asyncio.get_running_loop().time(), 0))
        return task.result() if task.done() and not task.cancelled() and task.exception() is None else None

    def waiters(self, key: Hashable) -> Waiters:
        """Who waits for work of a key; the work itself must keep them."""
        return self._waiters.setdefault(key, Waiters())

    async def idle(self) -> None:
        """Returns when no work is under way."""
        while self._tasks:
            await asyncio.wait(set(self._tasks))

    async def close(self) -> None:
        """Ends all work; what must be finished has `CLOSING` seconds for that."""
        await _cancelled(self._tasks - self._finishing)
        if self._finishing:
            await asyncio.wait(set(self._finishing), timeout=CLOSING)
        while self._tasks:
            await _cancelled(set(self._tasks))


async def _cancelled(tasks: Iterable[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
