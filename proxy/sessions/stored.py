"""Sessions as they are stored, and how long anybody waits for that.

A request has one `Patience` for all its store work, from its arrival to the last byte of its reply. What is read when
it is used up is not read, as if the store were out; what was read before stays valid. What is written is always
attempted, in a task that the app owns: patience says how long it is waited for, and neither its end nor that of the
client cuts a write short. Whatever a store hands out that cannot be read is the store's failure, told like any other.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from proxy.sessions.records import Records
from proxy.sessions.session import Session
from proxy.store.base import SessionKey, SessionStore, Snapshot, StoreError, Write
from proxy.store.codec import UNREADABLE, encode_session
from strategies.core.condensation import Condensation

T = TypeVar("T")

TRIES = 8
LAST_SHARE = 0.25
"""The share of a whole patience that the last step is waited for at the least, however much the others took."""

NONE: Mapping[str, bytes] = MappingProxyType({})

_log = logging.getLogger(__name__)


class Patience:
    """How many seconds one piece of work yet waits for the store; each of its steps takes from what is `left`.

    What a step takes is its time on the loop's clock, so steps at the same time count each for itself.
    """

    def __init__(self, seconds: float) -> None:
        self.whole = seconds
        self.left = seconds

    def anew(self) -> Patience:
        """The whole again, for another piece of work."""
        return Patience(self.whole)

    def spend(self, seconds: float) -> None:
        """Takes what was waited for elsewhere."""
        self.left = max(self.left - seconds, 0.0)

    async def read(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of `work`; raises `StoreError` where it takes longer than is left, before it begins on nothing."""
        left = self.left
        if left <= 0:
            work.close()
            raise StoreError("store-timeout", f"{self.whole} s were used up before")
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
        """The result of a task that goes on by itself; raises `StoreError` where it takes longer than is left.

        It is waited for `at_least` so many seconds.
        """
        most = max(self.left, at_least)
        clock = asyncio.get_running_loop().time
        began = clock()
        try:
            # A store in this process is done at the task's first step.
            await asyncio.sleep(0)
            if not task.done():
                await asyncio.wait({task}, timeout=most)
        finally:
            self.spend(clock() - began)
        if not task.done():
            raise StoreError("store-timeout", f"not done in {most:.2f} s, and not waited for any longer")
        return task.result()


class StoredSessions:
    """A store, the seconds that one piece of work may wait for it, and the writes under way; one per app."""

    def __init__(self, store: SessionStore, timeout: float) -> None:
        self.store = store
        self._timeout = timeout
        self._records = Records()
        self._writing: set[asyncio.Task[Any]] = set()
        # Those of one process take turns; only those of other replicas are met by trying again.
        self._changing: WeakValueDictionary[SessionKey, asyncio.Lock] = WeakValueDictionary()

    def patience(self) -> Patience:
        """That of a new piece of work."""
        return Patience(self._timeout)

    async def blocks(self, key: SessionKey, session: Session) -> dict[str, bytes]:
        """All blocks of a session, with those of the parents that it inherits messages from; raises `StoreError`."""
        blocks = await self.store.blocks(key)
        parent: Session | None = session
        while parent and parent.inherited and parent.parent:
            above = SessionKey(key.tenant, parent.parent)
            parent = await self.load(above)
            blocks = {**(await self.store.blocks(above) if parent else {}), **blocks}
        return blocks

    async def load(self, key: SessionKey) -> Session | None:
        """The session under a key, or None; raises `StoreError`."""
        return self._session(await self.store.load(key))

    async def find(
        self, tenant: str, digests: Sequence[str], likely: Sequence[str]
    ) -> tuple[Mapping[str, str], dict[str, Session | None]]:
        """The names of sessions by the digests that lead to them, and all that are `likely`; raises `StoreError`."""
        found = await self.store.find(tenant, digests, likely)
        return found.sessions, {name: self._session(found.read.get(name)) for name in likely}

    def _session(self, snapshot: Snapshot | None) -> Session | None:
        try:
            return self._records.session(snapshot) if snapshot else None
        except UNREADABLE as error:
            raise StoreError("store-corrupt", f"a session cannot be read: {type(error).__name__}") from error

    def condensation(self, data: bytes, *, standing: bool) -> Condensation | None:
        """The condensation in a record, None where a newer version wrote it; raises `StoreError` for a broken one."""
        try:
            return self._records.condensation(data, standing=standing)
        except UNREADABLE as error:
            raise StoreError("store-corrupt", f"a record cannot be read: {type(error).__name__}") from error

    async def save(
        self, key: SessionKey, session: Session, ttl: int, blocks: Mapping[str, bytes] = NONE, index: Sequence[str] = ()
    ) -> bool:
        """Writes a session with its new blocks and what shall lead to it; False where another writer was first.

        Raises `StoreError`.
        """
        meta = encode_session(session)
        if not await self.store.save(key, Write(meta, session.revision, ttl, blocks, index)):
            return False
        self._records.wrote(meta, session._replace(condensations=()))
        return True

    async def change(
        self, key: SessionKey, change: Callable[[Session | None], Session | None], ttl: int
    ) -> Session | None:
        """Writes what `change` makes of a session, of the newest one while other writers come first.

        It is given None where there is no session, and gives None where there is nothing to write; so does this.
        Raises `StoreError`.
        """
        async with self._changing.setdefault(key, asyncio.Lock()):
            for _ in range(TRIES):
                session = await self.load(key)
                # Cards are compared with each other, which takes its time.
                changed = await asyncio.to_thread(change, session)
                if changed is None:
                    return None
                if await self.save(key, changed, ttl):
                    return changed
        raise StoreError("store-contended", "other writers were always first")

    async def in_time(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of a piece of work of one step; raises `StoreError` where it takes longer than the limit."""
        return await self.patience().read(work)

    async def write(self, work: Coroutine[Any, Any, T], patience: Patience, *, is_last: bool = False) -> T:
        """The result of `work`, which is done in a task of its own within the limit, waited for or not.

        Raises `StoreError` where it fails, or is not done when patience is used up. What `is_last` is waited for a
        share of the whole patience in any case.
        """
        task = asyncio.create_task(self.in_time(work))
        self._writing.add(task)
        task.add_done_callback(self._written)
        try:
            return await patience.wait_for(task, LAST_SHARE * patience.whole if is_last else 0.0)
        except asyncio.CancelledError:
            task.add_done_callback(_tell)
            raise

    def _written(self, task: asyncio.Task[Any]) -> None:
        """A store's failure is told to who waits for the write; who does so no longer has told of that."""
        self._writing.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, StoreError):
            _log.error("a write failed", exc_info=error)

    async def close(self) -> None:
        """Lets the writes under way end, each within the limit."""
        if self._writing:
            await asyncio.wait(self._writing, timeout=self._timeout)


def _tell(task: asyncio.Task[Any]) -> None:
    """Says that a write has failed in place of who waited for it, and has left."""
    error = None if task.cancelled() else task.exception()
    if isinstance(error, StoreError):
        _log.warning("a write that nobody waited for any longer failed: %s", error)
