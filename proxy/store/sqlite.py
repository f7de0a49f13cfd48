"""Sessions in one SQLite file, or in memory: the store that needs no server.

All SQL on a file runs in one thread that this store owns, over one connection: the event loop never waits for a disk,
and other users of the default executor cannot delay us. In memory there is no disk to wait for, and a thread would cost
more than the work, so the SQL runs at once. Each call is one transaction, and one job of the thread. So if a caller is
cancelled, either its job had not begun and is dropped, or it runs to its end by itself; no shield is needed.

Several processes may use one file: it is in WAL mode, and writers wait up to `BUSY` seconds for each other and then
fail with `store-busy`. Writes begin with BEGIN IMMEDIATE, because SQLite cannot make a transaction wait that has read
already.

A session has one `expires_at`, so that all its rows expire together. A row with revision 0 and no meta is a session
that has records and was never saved. Its `bytes` are the size that quotas count, updated in the same transaction; a
tenant's size is their sum, read from an index that covers it. Expired data is invisible at once. It is removed by the
next write under its key, or by a purge, which goes in small steps.
"""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from json import dumps
from pathlib import Path
from typing import Concatenate, NamedTuple, ParamSpec, TypeVar

from proxy.store.base import UNBOUNDED, FindResult, Lease, Quotas, SessionKey, Snapshot, StoreError, Write
from proxy.store.sqlite_file import open_database, rows_of, transaction
from proxy.store.sqlite_rows import (
    Claim,
    ensure_row,
    find_live_row,
    insert_row,
    purge_leases,
    put_block,
    read_document,
    read_lease,
    release_lease,
    size_of,
    size_of_others,
    take_lease,
)

P = ParamSpec("P")
T = TypeVar("T")

PURGE_EVERY = 64  # writes; a purge can remove as many sessions as that many writes create
PURGE_SESSIONS = 64
PURGE_INDEX = 4096

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
    """`SessionStore` over the file at `path`, or over memory where that is None."""

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
            await asyncio.wrap_future(store._executor.submit(_with_store_errors, store._connect, path))
        except BaseException:
            await store.close()
            raise
        return store

    def _connect(self, path: Path | None) -> None:
        self._connection = open_database(path)
        _purge(self._connection, self._clock())

    async def load(self, key: SessionKey) -> Snapshot | None:
        return await self._call(_load, key)

    async def save(self, key: SessionKey, write: Write) -> bool:
        self._count_write()
        return await self._call(_save, key, write, self._quotas)

    async def put_record(self, key: SessionKey, name: str, record: bytes, ttl: int) -> bytes:
        self._count_write()
        new = _Record(name, record, ttl)
        return await self._call(_put_record, key, new, self._quotas)

    async def mark_standing(self, key: SessionKey, name: str) -> None:
        await self._call(_mark_standing, key, name)

    async def blocks(self, key: SessionKey, names: Sequence[str] | None = None) -> dict[str, bytes]:
        return await self._call(_blocks, key, names)

    async def find(self, tenant: str, digests: Sequence[str], likely: Sequence[str] = ()) -> FindResult:
        keys = [SessionKey(tenant, name) for name in likely]
        return await self._call(_find_and_read, tenant, digests, keys)

    async def lease(self, tenant: str, name: str, holder: str, ttl: float) -> Lease:
        self._count_write()
        claim = Claim(tenant, name, holder, ttl)
        return await self._call(take_lease, claim)

    async def read_lease(self, tenant: str, name: str) -> Lease:
        return await self._call(read_lease, tenant, name)

    async def release(self, tenant: str, name: str, holder: str, handover: bytes, ttl: float) -> None:
        claim = Claim(tenant, name, holder, ttl)
        await self._call(release_lease, claim, handover)

    async def get_fact(self, name: str) -> bytes | None:
        return await self._call(_get_fact, name)

    async def put_fact(self, name: str, fact: bytes, ttl: int) -> None:
        self._count_write()
        await self._call(_put_fact, name, fact, ttl)

    async def sessions(self, tenant: str | None = None) -> list[SessionKey]:
        return await self._call(_sessions, tenant)

    async def delete(self, key: SessionKey) -> bool:
        return await self._call(_delete, key)

    async def ping(self) -> None:
        await self._call(_ping)

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
        assert self._connection is not None, "open() comes before any call"
        return _with_store_errors(job, self._connection, self._clock(), *args, **kwargs)

    def _count_write(self) -> None:
        self._writes += 1
        if self._writes % PURGE_EVERY == 0 and self._closing is None:
            # Its result is not awaited: an error that stops a purge is raised by the next write too.
            self._executor.submit(self._perform, _purge)


class _InlineExecutor(Executor):
    """Runs each job at once, in the calling thread."""

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        future: Future[T] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except BaseException as error:  # noqa: BLE001 - like any executor, it stores the exception in the future
            future.set_exception(error)
        return future


def _with_store_errors(job: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """The one place where exceptions of SQLite, and any others of a job, become StoreErrors."""
    try:
        return job(*args, **kwargs)
    except StoreError:
        raise
    except Exception as error:
        raise StoreError(_reason(error), str(error)) from error


def _reason(error: Exception) -> str:
    if isinstance(error, OSError):
        return "store-unavailable"
    if isinstance(error, (TypeError, ValueError)):
        return "store-corrupt"  # a value in a row is not what was written there
    if getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_IOERR_WRITE:
        return "store-full"  # the file may not grow: a limit on files, or a quota of the disk
    # The low byte is the primary code; errors of the Python module itself carry none.
    return _REASONS.get(getattr(error, "sqlite_errorcode", 0) & 0xFF, "store-error")


# Calls; each is one transaction


def _load(connection: sqlite3.Connection, now: float, key: SessionKey) -> Snapshot | None:
    found = read_document(connection, key, now)
    if found is None or not found.has_more:
        # True of nearly all sessions. A single statement needs no transaction to be consistent.
        return found and Snapshot(found.meta, found.revision)
    with transaction(connection, "DEFERRED"):
        found = read_document(connection, key, now)
        if found is None:
            return None
        records = rows_of(connection, "SELECT name, record FROM records WHERE session_id = ?", found.row)
        standing = rows_of(connection, "SELECT name FROM standing WHERE session_id = ?", found.row)
    return Snapshot(found.meta, found.revision, dict(records), frozenset(name for (name,) in standing))


def _save(connection: sqlite3.Connection, now: float, key: SessionKey, write: Write, quotas: Quotas) -> bool:
    expires_at = now + write.ttl
    with transaction(connection, "IMMEDIATE"):
        row, revision, rest = find_live_row(connection, key, now)
        if revision != write.revision:
            return False
        row = insert_row(connection, key, expires_at) if row is None else row
        size = rest + len(write.meta)
        if added := sum(put_block(connection, row, digest, block) for digest, block in write.blocks.items()):
            size += added
            _stay_within(quotas.for_blocks(size_of_others(connection, key, now) if quotas.tenant else 0), size)
        connection.execute(
            "UPDATE sessions SET meta = ?, revision = ?, expires_at = ?, bytes = ? WHERE id = ?",
            (write.meta, revision + 1, expires_at, size, row),
        )
        chained = [(key.tenant, digest, key.session, expires_at) for digest in write.index]
        connection.executemany("INSERT OR REPLACE INTO chain VALUES (?, ?, ?, ?)", chained)
    return True


def _put_record(connection: sqlite3.Connection, now: float, key: SessionKey, new: _Record, quotas: Quotas) -> bytes:
    with transaction(connection, "IMMEDIATE"):
        row = find_live_row(connection, key, now).row
        row = ensure_row(connection, key, row, now + new.ttl)
        select = "SELECT record FROM records WHERE session_id = ? AND name = ?"
        found = rows_of(connection, select, row, new.name)
        if found:
            kept: bytes = found[0][0]
            return kept
        size = size_of(connection, row) + len(new.name) + len(new.data)
        _stay_within(quotas.for_records(size_of_others(connection, key, now) if quotas.tenant else 0), size)
        connection.execute("INSERT INTO records VALUES (?, ?, ?)", (row, new.name, new.data))
        connection.execute("UPDATE sessions SET bytes = ? WHERE id = ?", (size, row))
    return new.data


def _mark_standing(connection: sqlite3.Connection, now: float, key: SessionKey, name: str) -> None:
    with transaction(connection, "IMMEDIATE"):
        row = find_live_row(connection, key, now).row
        if row is not None:
            connection.execute("INSERT INTO standing VALUES (?, ?) ON CONFLICT DO NOTHING", (row, name))


def _blocks(
    connection: sqlite3.Connection, now: float, key: SessionKey, names: Sequence[str] | None
) -> dict[str, bytes]:
    select = (
        "SELECT digest, block FROM blocks JOIN sessions ON sessions.id = session_id"
        " WHERE tenant = ? AND session = ? AND expires_at > ?"
    )
    some = "" if names is None else " AND digest IN (SELECT value FROM json_each(?))"
    asked = () if names is None else (dumps(list(names)),)
    rows = rows_of(connection, select + some, key.tenant, key.session, now, *asked)
    return dict(rows)


def _find_and_read(
    connection: sqlite3.Connection, now: float, tenant: str, digests: Sequence[str], likely: Sequence[SessionKey]
) -> FindResult:
    read = {key.session: _load(connection, now, key) for key in likely}
    known = {name: snapshot for name, snapshot in read.items() if snapshot is not None}
    return FindResult(_find(connection, now, tenant, digests) if digests else {}, known)


def _find(connection: sqlite3.Connection, now: float, tenant: str, digests: Sequence[str]) -> dict[str, str]:
    # One JSON argument, as the number of arguments of a statement is limited.
    rows = rows_of(
        connection,
        "SELECT digest, session FROM chain"
        " WHERE tenant = ? AND digest IN (SELECT value FROM json_each(?)) AND expires_at > ?",
        *(tenant, dumps(list(digests)), now),
    )
    return dict(rows)


def _get_fact(connection: sqlite3.Connection, now: float, name: str) -> bytes | None:
    rows = rows_of(connection, "SELECT fact FROM facts WHERE name = ? AND expires_at > ?", name, now)
    return rows[0][0] if rows else None


def _put_fact(connection: sqlite3.Connection, now: float, name: str, fact: bytes, ttl: int) -> None:
    with transaction(connection, "IMMEDIATE"):
        connection.execute("INSERT OR REPLACE INTO facts VALUES (?, ?, ?)", (name, fact, now + ttl))


def _sessions(connection: sqlite3.Connection, now: float, tenant: str | None) -> list[SessionKey]:
    rows = rows_of(
        connection,
        "SELECT tenant, session FROM sessions"
        " WHERE expires_at > ? AND tenant = coalesce(?, tenant) ORDER BY tenant, session",
        *(now, tenant),
    )
    return [SessionKey(*row) for row in rows]


def _delete(connection: sqlite3.Connection, now: float, key: SessionKey) -> bool:
    with transaction(connection, "IMMEDIATE"):
        row, revision, _ = find_live_row(connection, key, now)
        if row is not None:
            connection.execute("DELETE FROM sessions WHERE id = ?", (row,))
    # Else the text would stay in the log file until it is written over. It may be busy, and is emptied later then.
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return revision > 0


def _ping(connection: sqlite3.Connection, _now: float) -> None:
    rows_of(connection, "SELECT 1 FROM sessions LIMIT 1")


def _purge(connection: sqlite3.Connection, now: float) -> None:
    with transaction(connection, "IMMEDIATE"):
        connection.execute(
            "DELETE FROM sessions WHERE id IN (SELECT id FROM sessions WHERE expires_at <= ? LIMIT ?)",
            (now, PURGE_SESSIONS),
        )
        connection.execute(
            "DELETE FROM chain WHERE (tenant, digest) IN"
            " (SELECT tenant, digest FROM chain WHERE expires_at <= ? LIMIT ?)",
            (now, PURGE_INDEX),
        )
        # No limit: there are only a few facts for each model of an upstream.
        connection.execute("DELETE FROM facts WHERE expires_at <= ?", (now,))
        purge_leases(connection, now)


# Parts


class _Record(NamedTuple):
    name: str
    data: bytes
    ttl: int


def _stay_within(room: int, size: int) -> None:
    """Raises, which rolls the transaction back, if a session would exceed its quota."""
    if room != UNBOUNDED and size > room:
        raise StoreError("store-quota", f"the session would have {size} bytes of {room}")
