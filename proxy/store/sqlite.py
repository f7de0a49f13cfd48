"""Entries in one SQLite file, or in memory: the store that needs no server.

All SQL on a file runs in one thread that this store owns, over one connection: the event loop never waits for a disk,
and other users of the default executor cannot delay us. In memory there is no disk to wait for, and a thread would cost
more than the work, so the SQL runs at once. Each call is one job (`sqlite_jobs`), which is one transaction. So if a
caller is cancelled, either its job had not begun and is dropped, or it runs to its end by itself; no shield is needed.

Several processes may use one file: it is in WAL mode, and writers wait up to `BUSY` seconds for each other and then
fail with `store-busy`. Writes begin with BEGIN IMMEDIATE, because SQLite cannot make a transaction wait that has read
already.
"""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar

from proxy.store import sqlite_jobs as jobs
from proxy.store.base import FindResult, Lease, Quotas, Snapshot, StoreError, StoreKey, Write
from proxy.store.sqlite_file import open_database

P = ParamSpec("P")
T = TypeVar("T")

PURGE_EVERY = 64  # writes; a purge can remove as many entries as that many writes create

_REASONS = {
    sqlite3.SQLITE_BUSY: "store-busy",
    sqlite3.SQLITE_LOCKED: "store-busy",
    sqlite3.SQLITE_FULL: "store-full",
    sqlite3.SQLITE_READONLY: "store-read-only",
    sqlite3.SQLITE_CORRUPT: "store-corrupt",
    sqlite3.SQLITE_NOTADB: "store-corrupt",
    sqlite3.SQLITE_CANTOPEN: "store-unavailable",
    sqlite3.SQLITE_IOERR: "store-unavailable",
    sqlite3.SQLITE_PERM: "store-refused",
    sqlite3.SQLITE_AUTH: "store-refused",
}


class SqliteStore:
    """`Store` over the file at `path`, or over memory where that is None."""

    def __init__(self, clock: Callable[[], float], quotas: Quotas, executor: Executor) -> None:
        self._clock = clock
        self._quotas = quotas
        self._executor = executor
        self._connection: sqlite3.Connection | None = None
        self._closing: Future[None] | None = None
        self._writes = 0

    @classmethod
    async def open(
        cls, path: Path | None, *, clock: Callable[[], float] = time.time, quotas: Quotas | None = None
    ) -> SqliteStore:
        """Opens the file; creates it and its tables where they are missing."""
        own_thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="condenser-sqlite")
        store = cls(clock, quotas or Quotas(), own_thread if path is not None else _InlineExecutor())
        try:
            await asyncio.wrap_future(store._executor.submit(store._connect, path))
        except BaseException as error:
            await store.close()
            if isinstance(error, Exception) and not isinstance(error, StoreError):
                raise StoreError(_reason(error), str(error)) from error
            raise
        return store

    def _connect(self, path: Path | None) -> None:
        self._connection = open_database(path)
        jobs.purge(self._connection, self._clock())

    async def load(self, key: StoreKey) -> Snapshot | None:
        return await self._call(jobs.load, key)

    async def save(self, key: StoreKey, write: Write) -> bool:
        self._count_write()
        return await self._call(jobs.save, key, write, self._quotas)

    async def put_record(self, key: StoreKey, name: str, record: bytes, ttl: int) -> bytes:
        self._count_write()
        new = jobs.Record(name, record, ttl)
        return await self._call(jobs.put_record, key, new, self._quotas)

    async def mark(self, key: StoreKey, name: str) -> None:
        await self._call(jobs.mark, key, name)

    async def blocks(self, key: StoreKey, names: Sequence[str] | None = None) -> dict[str, bytes]:
        return await self._call(jobs.blocks, key, names)

    async def find(self, tenant: str, digests: Sequence[str], likely: Sequence[str] = ()) -> FindResult:
        keys = [StoreKey(tenant, name) for name in likely]
        return await self._call(jobs.find_and_read, tenant, digests, keys)

    async def lease(self, tenant: str, name: str, holder: str, ttl: float) -> Lease:
        self._count_write()
        claim = jobs.Claim(tenant, name, holder, ttl)
        return await self._call(jobs.take_lease, claim)

    async def read_lease(self, tenant: str, name: str) -> Lease:
        return await self._call(jobs.read_lease, tenant, name)

    async def release(self, tenant: str, name: str, holder: str, handover: bytes, ttl: float) -> None:
        claim = jobs.Claim(tenant, name, holder, ttl)
        await self._call(jobs.release_lease, claim, handover)

    async def get_fact(self, name: str) -> bytes | None:
        return await self._call(jobs.get_fact, name)

    async def put_fact(self, name: str, fact: bytes, ttl: int) -> None:
        self._count_write()
        await self._call(jobs.put_fact, name, fact, ttl)

    async def keys(self, tenant: str | None = None) -> list[StoreKey]:
        return await self._call(jobs.keys, tenant)

    async def delete(self, key: StoreKey) -> bool:
        return await self._call(jobs.delete, key)

    async def ping(self) -> None:
        await self._call(jobs.ping)

    async def close(self) -> None:
        """Lets the jobs that are queued end, then closes. May be repeated."""
        if self._closing is None:
            self._closing = self._executor.submit(self._disconnect)
            self._executor.shutdown(wait=False)
        await asyncio.shield(asyncio.wrap_future(self._closing))

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()

    async def _call(
        self,
        job: Callable[Concatenate[sqlite3.Connection, float, P], T],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """The result of a job, which gets the connection and the time that it begins at, then the arguments."""
        if self._closing is not None:
            raise StoreError("store-closed")
        if isinstance(self._executor, _InlineExecutor):
            # This path runs twice in each request, so it does without a future.
            return self._perform(job, *args, **kwargs)
        return await asyncio.wrap_future(self._executor.submit(lambda: self._perform(job, *args, **kwargs)))

    def _perform(
        self,
        job: Callable[Concatenate[sqlite3.Connection, float, P], T],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """The one place where exceptions of SQLite, and any others of a job, become StoreErrors."""
        assert self._connection is not None, "open() comes before any call"
        try:
            return job(self._connection, self._clock(), *args, **kwargs)
        except StoreError:
            raise
        except Exception as error:
            raise StoreError(_reason(error), str(error)) from error

    def _count_write(self) -> None:
        self._writes += 1
        if self._writes % PURGE_EVERY == 0 and self._closing is None:
            # Its result is not awaited: an error that stops a purge is raised by the next write too.
            self._executor.submit(self._perform, jobs.purge)


class _InlineExecutor(Executor):
    """Runs each job at once, in the calling thread."""

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        future: Future[T] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except BaseException as error:  # noqa: BLE001 - like any executor, it stores the exception in the future
            future.set_exception(error)
        return future


def _reason(error: Exception) -> str:
    if isinstance(error, OSError):
        return "store-unavailable"
    if isinstance(error, (TypeError, ValueError)):
        return "store-corrupt"  # a value in a row is not what was written there
    if getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_IOERR_WRITE:
        return "store-full"  # the file may not grow: a limit on files, or a quota of the disk
    # The low byte is the primary code; errors of the Python module itself carry none.
    return _REASONS.get(getattr(error, "sqlite_errorcode", 0) & 0xFF, "store-error")
