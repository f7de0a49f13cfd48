"""Tasks that the app owns: they continue even if nobody waits for them, and end with the app at the latest.

`Waiters` counts the clients that wait for a piece of background work. Such work may have to wait for a long time. While
a client waits for its result, its calls are made at once, like a client's own requests.

`offload` runs long work in a thread, and short work on the event loop, which is cheaper. Planning is pure Python, so it
takes as long in a thread, but the event loop can run in between.

`next_step` parts long work on the event loop: in each turn of the loop one request goes on, however many there are.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Hashable, Iterator, Sequence
from contextlib import contextmanager
from operator import attrgetter
from typing import Any, ParamSpec, Protocol, TypeVar
from weakref import WeakKeyDictionary, WeakValueDictionary

P = ParamSpec("P")
T = TypeVar("T")

CLOSING = 5.0  # seconds that a closing app waits for tasks that must run to their end
LINGER = 5.0  # seconds for which a shared result stays available
LARGE = 120  # with this many messages or more, planning may take more than a few milliseconds
MESSAGE_TOKENS = 250  # a message with more tokens than this counts as several

_TOKEN_BYTES = 4
_DATA = attrgetter("data")

_log = logging.getLogger(__name__)


class Written(Protocol):
    @property
    def data(self) -> bytes: ...


class Waiters:
    """Counts the clients that wait for one piece of work."""

    def __init__(self) -> None:
        self._count = 0
        self._callbacks: set[Callable[[], None]] = set()

    @property
    def any(self) -> bool:
        return self._count > 0

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """A context to hold while waiting."""
        self._count += 1
        for callback in tuple(self._callbacks):
            callback()
        try:
            yield
        finally:
            self._count -= 1

    @contextmanager
    def notifying(self, callback: Callable[[], None]) -> Iterator[None]:
        """A context in which `callback` is called whenever somebody begins to wait."""
        self._callbacks.add(callback)
        try:
            yield
        finally:
            self._callbacks.discard(callback)


NOBODY = Waiters()  # for work that nobody can wait for: there are never any waiters


class OwnedTasks:
    """The tasks of one app. Work with a key is done only once at a time."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()
        self._finishing: set[asyncio.Task[Any]] = set()
        self._keyed: dict[Hashable, asyncio.Task[Any]] = {}
        self._waiters: WeakValueDictionary[Hashable, Waiters] = WeakValueDictionary()

    @property
    def number(self) -> int:
        return len(self._tasks)

    def start(self, work: Coroutine[Any, Any, object], key: Hashable | None = None, *, always: bool = False) -> None:
        """Runs `work` in a task, which can be awaited by its key.

        If work with that key is already under way, nothing is done, or with `always` the new work runs without a key.
        """
        is_under_way = key is not None and key in self._keyed
        if is_under_way and not always:
            work.close()
            return
        task = self.own(work)
        if key is not None and not is_under_way:
            self._keyed[key] = task
            task.add_done_callback(lambda _: self._keyed.pop(key, None))

    async def share(self, key: Hashable, work: Coroutine[Any, Any, T], lingers: Callable[[T], bool]) -> tuple[T, bool]:
        """The result of the work with a key, shared by all who want it at the same time; and whether `work` made it.

        If other work with the key is under way, its result is awaited instead, and `work` never starts. If a client
        leaves, the work continues for the others, and work that has been paid for is still recorded. A result that
        `lingers` accepts is kept for `LINGER` seconds, for requests that began before it was there and ask only now;
        results that must last are in the store.
        """
        task = self._keyed.get(key)
        if task is not None:
            work.close()
            return await asyncio.shield(task), False
        task = self._keyed[key] = self.own(work)
        task.add_done_callback(lambda _: self._forget(key, task, lingers))
        return await asyncio.shield(task), True

    def _forget(self, key: Hashable, task: asyncio.Task[T], lingers: Callable[[T], bool]) -> None:
        """Removes a shared task that is done; if its result lingers, only after a while."""
        if not task.cancelled() and task.exception() is None and lingers(task.result()):
            task.get_loop().call_later(LINGER, self._keyed.pop, key, None)
        else:
            self._keyed.pop(key, None)

    def own(self, work: Coroutine[Any, Any, T], *, to_its_end: bool = False) -> asyncio.Task[T]:
        """A task that runs `work`. With `to_its_end` it is awaited, not cancelled, when the app closes."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        if to_its_end:
            self._finishing.add(task)
        task.add_done_callback(self._task_done)
        return task

    def _task_done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        self._finishing.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("work in the background failed", exc_info=error)

    async def result_of(self, key: Hashable, deadline: float) -> Any:
        """The result of the work with a key; waits for it until `deadline` on the event loop's clock.

        None if no such work is under way, or it fails, or is not done by then.
        """
        task = self._keyed.get(key)
        if task is None:
            return None
        with self.waiters(key).waiting():
            await asyncio.wait({task}, timeout=max(deadline - asyncio.get_running_loop().time(), 0))
        return task.result() if task.done() and not task.cancelled() and task.exception() is None else None

    def waiters(self, key: Hashable) -> Waiters:
        """The waiters for work with a key. Only weak references are kept here, so the work itself must hold them."""
        return self._waiters.setdefault(key, Waiters())

    async def idle(self) -> None:
        """Returns when no task is under way."""
        while self._tasks:
            await asyncio.wait(set(self._tasks))

    async def close(self) -> None:
        """Cancels all tasks; those that must run to their end first get `CLOSING` seconds to do so."""
        await _cancel(self._tasks - self._finishing)
        if self._finishing:
            await asyncio.wait(set(self._finishing), timeout=CLOSING)
        while self._tasks:
            await _cancel(set(self._tasks))


async def _cancel(tasks: set[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks)  # `gather` does not yield if all are done, and then their callbacks never run


def message_load(messages: int, tokens: int) -> int:
    """The load of work that reads messages, in messages; a long message counts as several."""
    return max(messages, tokens // MESSAGE_TOKENS)


def load_of(messages: Sequence[Written]) -> int:
    return max(len(messages), sum(map(len, map(_DATA, messages))) // (_TOKEN_BYTES * MESSAGE_TOKENS))


async def offload(messages: int, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """The result of `work`, which takes time in proportion to `messages`."""
    if messages < LARGE:
        return work(*args, **kwargs)
    return await asyncio.to_thread(work, *args, **kwargs)


_turns: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = WeakKeyDictionary()


async def next_step() -> None:
    """Lets everything else that is ready run, and then waits until no other request is in a step."""
    lock = _turns.setdefault(asyncio.get_running_loop(), asyncio.Lock())
    async with lock:
        await asyncio.sleep(0)
