"""Time that passes at once: a loop whose clock jumps to what is due next while only a slow store is waited for.

Tests of minutes take milliseconds, and what they measure is what the code would wait, not what the machine does.
"""

import asyncio
import selectors
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from typing import Any, TypeVar

from proxy.store.base import Store

T = TypeVar("T")


class Clock:
    """A clock that stands still until a test moves it, in seconds."""

    def __init__(self, now: float = 0.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


class PassingTime(asyncio.SelectorEventLoop):
    """A loop whose clock jumps while somebody is in `passing` and nobody in `working`."""

    def __init__(self) -> None:
        self._passed = 0.0
        self._waiting = 0
        self._working = 0
        super().__init__(_Selector(self))

    @property
    def passed(self) -> float:
        """Seconds by which the clock has jumped: what was waited for, without the time that any work took."""
        return self._passed

    def time(self) -> float:
        return super().time() + self._passed

    def run_in_executor(  # type: ignore[override]
        self, executor: Executor | None, func: Callable[..., T], *args: Any
    ) -> asyncio.Future[T]:
        working = self.working()
        working.__enter__()
        future = super().run_in_executor(executor, func, *args)
        future.add_done_callback(lambda _: working.__exit__(None, None, None))
        return future

    def jump(self, seconds: float) -> bool:
        """Lets seconds pass, if they may; whether they did."""
        if not self._waiting or self._working:
            return False
        self._passed += seconds
        return True

    @contextmanager
    def passing(self) -> Iterator[None]:
        """What is waited for inside takes its time on this clock only."""
        self._waiting += 1
        try:
            yield
        finally:
            self._waiting -= 1

    @contextmanager
    def working(self) -> Iterator[None]:
        """What is done inside is done by a thread, for which the clock stands still."""
        self._working += 1
        try:
            yield
        finally:
            self._working -= 1


class _Selector(selectors.DefaultSelector):
    """Jumps where the loop would sleep."""

    def __init__(self, loop: PassingTime) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is not None and timeout > 0:
            events = super().select(0)
            if events or self._loop.jump(timeout):
                return events
        return super().select(timeout)


class SlowStore:
    """A store whose answers come late: `takes` says by the name of a call how many seconds. It notes what is asked."""

    def __init__(self, inner: Store, takes: Callable[[str], float]) -> None:
        self.inner = inner
        self.takes = takes
        self.asked: list[str] = []
        self.begun = asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        async def call(*args: Any) -> Any:
            loop = asyncio.get_running_loop()
            assert isinstance(loop, PassingTime)
            self.asked.append(name)
            self.begun.set()
            with loop.passing():
                await asyncio.sleep(self.takes(name))
            with loop.working():
                return await getattr(self.inner, name)(*args)

        return call
