"""An event that crosses threads and loops: tests wait on it with a bound, coroutines await it."""

import asyncio
import threading

BOUND = 10.0  # seconds any test waits for anything before it fails


class Signal:
    """Set once. Used as a gate (the server holds until the test opens it) and as a report."""

    def __init__(self, name: str = "signal") -> None:
        self._name = name
        self._event = threading.Event()
        self._lock = threading.Lock()
        self._waiters: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = []

    def set(self) -> None:
        with self._lock:
            self._event.set()
            for loop, waiter in self._waiters:
                loop.call_soon_threadsafe(_wake, waiter)
            self._waiters.clear()

    def is_set(self) -> bool:
        return self._event.is_set()

    def wait(self, bound: float = BOUND) -> None:
        """Block this thread until set; fail the test after `bound` seconds."""
        assert self._event.wait(bound), f"{self._name} was not set within {bound} s"

    async def reached(self) -> None:
        """Await the signal on the running loop."""
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[None] = loop.create_future()
        entry = (loop, waiter)
        with self._lock:
            if self._event.is_set():
                return
            self._waiters.append(entry)
        try:
            await waiter
        finally:
            with self._lock:
                if entry in self._waiters:
                    self._waiters.remove(entry)


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
