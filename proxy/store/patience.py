"""Patience: the seconds for which one request may wait for the store in all."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from proxy.store.base import StoreError

T = TypeVar("T")


class Patience:
    """A budget of seconds for which one piece of work waits for the store; each step spends from `remaining`.

    A step spends its time on the loop's clock, so steps that run at the same time are each charged in full.
    """

    def __init__(self, seconds: float) -> None:
        self.total = seconds
        self.remaining = seconds

    def fresh(self) -> Patience:
        """A full budget of the same size, for another piece of work."""
        return Patience(self.total)

    def spend(self, seconds: float) -> None:
        """Charges seconds that were waited elsewhere."""
        self.remaining = max(self.remaining - seconds, 0.0)

    async def read(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of `work`; raises `StoreError` where it takes longer than what remains.

        Where nothing remains, `work` is not begun.
        """
        left = self.remaining
        if left <= 0:
            work.close()
            raise StoreError("store-timeout", f"{self.total} s were used up before")
        clock = asyncio.get_running_loop().time
        began = clock()
        try:
            async with asyncio.timeout(left):
                return await work
        except TimeoutError:
            raise StoreError("store-timeout", f"not done in the {left:.2f} s that were left") from None
        finally:
            self.spend(clock() - began)

    async def wait_for(self, task: asyncio.Future[T], at_least: float = 0.0) -> T:
        """The result of a task; raises `StoreError` where it takes longer than what remains, and `at_least` seconds.

        A task that is not waited for any longer is not cancelled.
        """
        limit = max(self.remaining, at_least)
        clock = asyncio.get_running_loop().time
        began = clock()
        try:
            # A store in this process finishes at the task's first step.
            await asyncio.sleep(0)
            if not task.done():
                await asyncio.wait({task}, timeout=limit)
        finally:
            self.spend(clock() - began)
        if not task.done():
            raise StoreError("store-timeout", f"not done in {limit:.2f} s, and not waited for any longer")
        return task.result()
