"""Reads and writes sessions, with a bound on how long a request waits for the store.

A request has one `Patience` for all its store work, from its arrival to the last byte of its reply. A read after the
patience is used up fails as if the store were down; what was read before stays valid. A write is always attempted, in
a task that the app owns: patience bounds how long the request waits for it, and neither the end of patience nor a
client that leaves cuts a write short. Stored bytes that cannot be decoded are reported as a failure of the store.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any
from weakref import WeakValueDictionary

from proxy.conversations.codec import Decoders, Records, encode_session
from proxy.conversations.session import Session
from proxy.store.access import SMALLEST, Facts, Outage, Patience, T, compress, secret_of
from proxy.store.base import EVICTS, Store, StoreError, StoreKey, Write

TRIES = 8
LAST_SHARE = 0.25
"""The least share of the whole patience that the last write gets, however long the steps before it took."""
TRIAL_EVERY = 2.0  # seconds between two trials of whether the store can write
LOOK_EVERY = 5.0  # seconds between two looks at whether the store keeps what it is given
_TRIAL, _TRIAL_BYTES, _TRIAL_TTL = "write-trial", 4_096, 60
_ANCESTORS = 8
_AT_ONCE = 4_096  # digests that are looked up at once: 6 ms of the loop, if the store is in memory
IN_THREAD = 64 * 1024  # bytes of a write; larger ones are compressed in a thread
NONE: Mapping[str, bytes] = MappingProxyType({})
NO_DECODERS: Decoders = MappingProxyType({})

_log = logging.getLogger(__name__)


class StoredSessions:
    """Sessions in a store; one per app. `timeout` is how many seconds one piece of work may wait for the store.

    `on_write` is called with the reason when a write has failed, and with "" when one works again. `decoders` read what
    only some sessions have.
    """

    def __init__(
        self,
        store: Store,
        timeout: float,
        on_write: Callable[[str], None] = lambda _reason: None,
        decoders: Decoders = NO_DECODERS,
    ) -> None:
        self.store = store
        self.outage = Outage(time.monotonic, on_write)
        self.facts = Facts(store, timeout, self.outage)
        self._tried_at = -TRIAL_EVERY
        self._evicts, self._looked_at = False, -LOOK_EVERY
        self._timeout = timeout
        self.records = Records(decoders=decoders)
        self._writes: set[asyncio.Task[Any]] = set()
        self._locks: WeakValueDictionary[StoreKey, asyncio.Lock] = WeakValueDictionary()

    def patience(self) -> Patience:
        return Patience(self._timeout)

    def lock(self, key: StoreKey) -> asyncio.Lock:
        """The lock under which this process writes a session, so that only another replica can have written first."""
        return self._locks.setdefault(key, asyncio.Lock())

    async def blocks(self, key: StoreKey, session: Session) -> dict[str, bytes]:
        """All blocks of a session and of the parents from which it inherits messages; raises `StoreError`."""
        blocks = await self.store.blocks(key)
        parent: Session | None = session
        while parent and parent.inherited and parent.parent:
            above = StoreKey(key.tenant, parent.parent)
            parent = await self.load(above)
            blocks = {**(await self.store.blocks(above) if parent else {}), **blocks}
        return blocks

    async def load(self, key: StoreKey) -> Session | None:
        """The session under a key, or None; raises `StoreError`."""
        try:
            session = self.records.session(await self.store.load(key))
        except StoreError as error:
            if error.reason != "store-corrupt":
                raise
            raise StoreError(error.reason, f"session {key.tenant}/{key.name} cannot be read: {error}") from error
        self.outage.answered()
        return session

    async def save(
        self,
        key: StoreKey,
        session: Session,
        ttl: int,
        blocks: Mapping[str, bytes] = NONE,
        index: Sequence[str] = (),
        journal: bytes = b"",
    ) -> bool:
        """Writes a session, its new blocks, index entries for the digests in `index`, and an item of its journal.

        A document of another version counts as none. Returns False if another writer was first; raises `StoreError`.
        """
        meta = encode_session(session)
        length = len(meta)
        size = length + sum(map(len, blocks.values()))
        if size >= SMALLEST:
            packing = meta, blocks
            meta, blocks = _packed(*packing) if size < IN_THREAD else await asyncio.to_thread(_packed, *packing)
        write = Write(meta, session.revision, ttl, blocks, index, journal)
        is_first = await self.store.save(key, write) or await self._save_over_other_version(key, write)
        self.outage.answered(wrote=is_first)
        if is_first:
            has_more = session.condensations or session.pins or session.drops
            bare = session._replace(condensations=(), pins=(), drops=frozenset()) if has_more else session
            self.records.put_session(meta, bare, length)
        return is_first

    async def _save_over_other_version(self, key: StoreKey, write: Write) -> bool:
        """Saves a new session over a document that reads as none; no writer of this version can know its revision."""
        found = None if write.revision else await self.store.load(key)
        if found is None or self.records.session(found) is not None:
            return False
        return await self.store.save(key, replace(write, revision=found.revision))

    async def change(
        self,
        key: StoreKey,
        change: Callable[[Session | None], Session | None],
        ttl: int,
        index: Sequence[str] = (),
        journal: Callable[[Session], bytes] = lambda _session: b"",
    ) -> Session | None:
        """Writes the session that `change` returns for the stored one; tries again if other writers come first.

        The digests in `index` lead to it from then on.

        `change` gets None if there is no session, and returns None if nothing is to be written; then this returns None
        too. `journal` makes the item of the journal that is written with it. Raises `StoreError`.
        """
        async with self.lock(key):
            for _ in range(TRIES):
                session = await self.load(key)
                # In a thread, because comparing memory cards with each other takes time.
                changed = await asyncio.to_thread(change, session)
                if changed is None:
                    return None
                if await self.save(key, changed, ttl, index=index, journal=journal(changed)):
                    return changed
        raise StoreError("store-contended", "other writers were always first")

    async def in_time(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of work that has one step; raises `StoreError` if it takes longer than the timeout."""
        return await Patience(self._timeout).read(work)

    async def secret(self) -> bytes:
        """The secret that all processes on this store share; raises `StoreError`."""
        try:
            found = await self.in_time(secret_of(self.store))
        except StoreError as error:
            self.outage.failed("the secret of compactions was not read", error)
            raise
        self.outage.answered()
        return found

    async def write(self, work: Coroutine[Any, Any, T], patience: Patience, *, is_last: bool = False) -> T:
        """The result of `work`, which runs in a task of its own within the timeout, whether or not anybody waits.

        Raises `StoreError` if it fails, or is not done when the patience is used up. The last write of a request
        (`is_last`) gets at least `LAST_SHARE` of the whole patience.
        """
        task = asyncio.create_task(Patience(self._timeout).read(work))
        self._writes.add(task)
        task.add_done_callback(self._write_done)
        try:
            return await patience.wait_for(task, LAST_SHARE * patience.total if is_last else 0.0)
        except asyncio.CancelledError:
            # Nobody would hear of a failure any more, so it is noted here.
            task.add_done_callback(self._note_failure)
            raise

    async def why_unwritable(self, *, is_suspected: bool = False) -> str:
        """Why the store cannot write, "" if it can.

        If the last write failed, or the store `is_suspected`, a small write is tried, at most once in `TRIAL_EVERY`
        seconds.
        """
        now = time.monotonic()
        if (is_suspected or self.outage.unwritten) and now - self._tried_at >= TRIAL_EVERY:
            self._tried_at = now
            trial = self.store.put_fact(_TRIAL, os.urandom(_TRIAL_BYTES), _TRIAL_TTL)
            try:
                await self.write(trial, self.patience())
                self.outage.answered(wrote=True)
            except StoreError as error:
                self.outage.failed("a trial write failed", error)
        return self.outage.unwritten

    async def why_unreliable(self) -> str:
        """Why the store may lose what nobody else has, "" if it cannot; raises `StoreError`."""
        failure, now = await self.why_unwritable(), time.monotonic()
        if not failure and now - self._looked_at >= LOOK_EVERY:
            self._evicts, self._looked_at = EVICTS in await self.store.weaknesses(), now
        return failure or (EVICTS if self._evicts else "")

    def _write_done(self, task: asyncio.Task[Any]) -> None:
        self._writes.discard(task)
        error = None if task.cancelled() else task.exception()
        if isinstance(error, StoreError):
            self.outage.write_failed(error)
        elif error is not None:
            _log.error("a write to the store failed", exc_info=error)

    def _note_failure(self, task: asyncio.Task[Any]) -> None:
        error = None if task.cancelled() else task.exception()
        if isinstance(error, StoreError):
            self.outage.failed("a write that nobody waited for any longer failed", error)

    async def close(self) -> None:
        """Waits for the writes under way, each of which ends within the timeout."""
        if self._writes:
            await asyncio.wait(self._writes, timeout=self._timeout)


@dataclass(slots=True, eq=False)
class SessionLookup:
    """Reads a tenant's sessions for one request; the `likely` ones are read together with the first names."""

    _stored: StoredSessions
    tenant: str
    _likely: Sequence[str] = ()
    _sessions: dict[str, Session | None] = field(default_factory=dict, init=False)
    _names: dict[str, str] = field(default_factory=dict, init=False)
    _asked: set[str] = field(default_factory=set, init=False)

    async def names(self, digests: Sequence[str]) -> Mapping[str, str]:
        """The names of sessions that the index has for these digests, by digest; each is looked up once."""
        new = [digest for digest in digests if digest not in self._asked]
        for start in range(0, len(new), _AT_ONCE):
            if start:
                await asyncio.sleep(0)  # the store in memory answers on the event loop
            await self._look_up(new[start : start + _AT_ONCE])
        return {digest: self._names[digest] for digest in digests if digest in self._names}

    async def _look_up(self, digests: Sequence[str]) -> None:
        likely, self._likely = self._likely, ()
        found = await self._stored.store.find(self.tenant, digests, likely)
        self._asked.update(digests)
        self._names.update(found.names)
        self._stored.outage.answered()
        for name in likely:
            # One that cannot be read is left out, because it may not be needed.
            with suppress(StoreError):
                self._sessions[name] = self._stored.records.session(found.snapshots.get(name))

    async def session(self, name: str) -> Session | None:
        if name not in self._sessions:
            self._sessions[name] = await self._stored.load(StoreKey(self.tenant, name))
        return self._sessions[name]

    async def ancestors(self, session: Session) -> list[Session]:
        """The sessions that it forked from, nearest first, at most `_ANCESTORS`."""
        ancestors: list[Session] = []
        parent = session.parent
        while parent and len(ancestors) < _ANCESTORS and (ancestor := await self.session(parent)):
            ancestors.append(ancestor)
            parent = ancestor.parent
        return ancestors

    def path(self, name: str | None) -> Iterator[str]:
        """The name of a session and the names of its ancestors, as far as they were read."""
        for _ in range(_ANCESTORS):
            if not name:
                return
            yield name
            session = self._sessions.get(name)
            name = session.parent if session else None


def _packed(meta: bytes, blocks: Mapping[str, bytes]) -> tuple[bytes, Mapping[str, bytes]]:
    return compress(meta), {name: compress(block) for name, block in blocks.items()}
