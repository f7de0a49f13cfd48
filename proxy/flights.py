"""Single flight: concurrent requests for the same thing share one piece of work.

The work runs in a task of its own, so a client that leaves does not take it away from the others, and what it paid for
is still recorded. Nothing is remembered once the work is done: what lasts is in the store.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Hashable
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Flights(Generic[T]):
    """Work under way, by key."""

    def __init__(self) -> None:
        self._under_way: dict[Hashable, asyncio.Task[T]] = {}

    async def join(self, key: Hashable, work: Coroutine[Any, Any, T]) -> tuple[T, bool]:
        """The result of `work`, and True; or that of the work under way for `key`, and False: `work` never starts."""
        task = self._under_way.get(key)
        if task is not None:
            work.close()
            return await asyncio.shield(task), False
        task = asyncio.create_task(work)
        self._under_way[key] = task
        task.add_done_callback(lambda _: self._under_way.pop(key, None))
        return await asyncio.shield(task), True
