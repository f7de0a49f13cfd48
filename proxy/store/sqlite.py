"""Sessions in one SQLite file, or in memory; the store that needs no server.

All SQL on a file runs in one thread that this store owns, over one connection: the event loop never waits for a
disk, and the default executor cannot starve us. In memory there is no disk to wait for, and a thread would cost more
than the work. Each call is one transaction, and one job of that thread. So a
caller that is cancelled leaves the old state (its job had not begun and is dropped) or the new one (the job
runs to its end by itself), and no shield is needed.

Several processes may use one file: it is in WAL mode, writers queue for `BUSY` seconds and then fail with
`store-busy`. Writes begin IMMEDIATE, because a transaction that reads first cannot be made to wait.

A session has one `expires_at`, so that all of it lives and dies together. A row with revision 0 and no meta
is a session that has records and was never saved. Its `bytes` are those that quotas count, changed in the same
transaction; a tenant's are their sum over an index that holds them. What has expired is invisible at once, is
removed by the next write under its key, and else by a purge in small steps.
"""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from json import dumps
from pathlib import Path
from typing import NamedTuple, ParamSpec, TypeVar

from proxy.store import sqlite_leases
from proxy.store.base import Found, Lease, SessionKey, Snapshot, StoreError, Write
from proxy.store.quotas import UNBOUNDED, Quotas
from proxy.store.sqlite_file import open_database, rows_of, transaction
from proxy.store.sqlite_leases import Claim
from proxy.store.sqlite_rows import document, ensured, live, made, put_block, size_of, size_of_others

P = ParamSpec("P")
T = TypeVar("T")

PURGE_EVERY = 64  # writes; a purge removes at least as many sessions as that many writes can make
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
        """Opens the file, and makes it and its tables where they are missing."""
        own_thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="condenser-sqlite")
        store = cls(clock, quotas or Quotas(), own_thread if path is not None else _AtOnce())
        try:
            await asyncio.wrap_future(store._submit(lambda: store._connect(path)))
        except BaseException:
            await store.close()
            raise
        return store

    def _connect(self, path: Path | None) -> None:
        self._connection = open_database(path)
        _purge(self._connection, self._clock())

    async def load(self, key: SessionKey) -> Snapshot | None:
        return await self._call(lambda connection, now: _load(connection, key, now))

    async def save(self, key: SessionKey, write: Write) -> bool:
        self._count_write()
        return await self._call(lambda connection, now: _save(connection, key, write, now, self._quotas))

    async def put_record(self, key: SessionKey, name: str, record: bytes, ttl: int) -> bytes:
        self._count_write()
        new = _Record(name, record, ttl)
        return await self._call(lambda connection, now: _put_record(connection, key, new, now, self._quotas))

    async def stand(self, key: SessionKey, name: str) -> None:
        await self._call(lambda connection, now: _stand(connection, key, name, now))

    async def blocks(self, key: SessionKey, names: Sequence[str] | None = None) -> dict[str, bytes]:
        return await self._call(lambda connection, now: _blocks(connection, key, names, now))

    async def find(self, tenant: str, digests: Sequence[str], likely: Sequence[str] = ()) -> Found:
        keys = [SessionKey(tenant, name) for name in likely]
        return await self._call(lambda connection, now: _found(connection, tenant, digests, keys, now))

    async def lease(self, tenant: str, name: str, holder: str, ttl: float) -> Lease:
        self._count_write()
        claim = Claim(tenant, name, holder, ttl)
        return await self._call(lambda connection, now: sqlite_leases.lease(connection, claim, now))

    async def leased(self, tenant: str, name: str) -> Lease:
        return await self._call(lambda connection, now: sqlite_leases.leased(connection, tenant, name, now))

    async def release(self, tenant: str, name: str, holder: str, left: bytes, ttl: float) -> None:
        claim = Claim(tenant, name, holder, ttl)
        await self._call(lambda connection, now: sqlite_leases.release(connection, claim, left, now))

    async def recall(self, name: str) -> bytes | None:
        return await self._call(lambda connection, now: _recall(connection, name, now))

    async def remember(self, name: str, fact: bytes, ttl: int) -> None:
        self._count_write()
        await self._call(lambda connection, now: _remember(connection, name, fact, now + ttl))

    async def sessions(self, tenant: str | None = None) -> list[SessionKey]:
        return await self._call(lambda connection, now: _sessions(connection, tenant, now))

    async def delete(self, key: SessionKey) -> bool:
        return await self._call(lambda connection, now: _delete(connection, key, now))

    async def ping(self) -> None:
        await self._call(lambda connection, _: rows_of(connection, "SELECT 1 FROM sessions LIMIT 1"))

    async def close(self) -> None:
        """Lets the jobs that are queued end, then closes. Again waits for the first."""
        if self._closing is None:
            self._closing = self._executor.submit(self._disconnect)
            self._executor.shutdown(wait=False)
        await asyncio.shield(asyncio.wrap_future(self._closing))

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()

    async def _call(self, job: Callable[[sqlite3.Connection, float], T]) -> T:
        if isinstance(self._executor, _AtOnce):
            # With each request twice: not even a future is needed.
            self._must_be_open()
            return _translated(lambda: self._perform(job))
        return await asyncio.wrap_future(self._submit(lambda: self._perform(job)))

    def _perform(self, job: Callable[[sqlite3.Connection, float], T]) -> T:
        assert self._connection is not None, "open() comes before any call"
        return job(self._connection, self._clock())

    def _submit(self, job: Callable[[], T]) -> Future[T]:
        self._must_be_open()
        return self._executor.submit(_translated, job)

    def _must_be_open(self) -> None:
        if self._closing is not None:
            raise StoreError("store-closed")

    def _count_write(self) -> None:
        self._writes += 1
        if self._writes % PURGE_EVERY == 0:
            # Nobody waits for it; what hinders a purge is raised by the next write as well.
            self._submit(lambda: self._perform(_purge))


class _AtOnce(Executor):
    """Does each job when it is given one."""

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        future: Future[T] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except BaseException as error:  # noqa: BLE001 - as any executor, it hands over what was raised
            future.set_exception(error)
        return future


def _translated(job: Callable[[], T]) -> T:
    """The one boundary where SQLite's errors, and whatever else a job raises, become ours."""
    try:
        return job()
    except StoreError:
        raise
    except Exception as error:
        raise StoreError(_reason(error), str(error)) from error


def _reason(error: Exception) -> str:
    if isinstance(error, OSError):
        return "store-unavailable"
    # The low byte is the primary code; errors of the Python module itself carry none.
    return _REASONS.get(getattr(error, "sqlite_errorcode", 0) & 0xFF, "store-error")


# Calls; each is one transaction


def _load(connection: sqlite3.Connection, key: SessionKey, now: float) -> Snapshot | None:
    found = document(connection, key, now)
    if found is None or not found.has_more:
        # Nearly all sessions: one statement is consistent by itself.
        return found and Snapshot(found.meta, found.revision)
    with transaction(connection, "DEFERRED"):
        found = document(connection, key, now)
        if found is None:
            return None
        records = rows_of(connection, "SELECT name, record FROM records WHERE session_id = ?", found.row)
        standing = rows_of(connection, "SELECT name FROM standing WHERE session_id = ?", found.row)
    return Snapshot(found.meta, found.revision, dict(records), frozenset(name for (name,) in standing))


def _save(connection: sqlite3.Connection, key: SessionKey, write: Write, now: float, quotas: Quotas) -> bool:
    expires_at = now + write.ttl
    with transaction(connection, "IMMEDIATE"):
        row, revision, rest = live(connection, key, now)
        if revision != write.revision:
            return False
        row = made(connection, key, expires_at) if row is None else row
        size = rest + len(write.meta)
        if added := sum(put_block(connection, row, digest, block) for digest, block in write.blocks.items()):
            size += added
            _stay_within(quotas.for_blocks(size_of_others(connection, key, now) if quotas.tenant else 0), size)
        connection.execute(
            "UPDATE sessions SET meta = ?, revision = ?, expires_at = ?, bytes = ? WHERE id = ?",
            (write.meta, revision + 1, expires_at, size, row),
        )
        for digest in write.index:
            chained = key.tenant, digest, key.session, expires_at
            connection.execute("INSERT OR REPLACE INTO chain VALUES (?, ?, ?, ?)", chained)
    return True


def _put_record(connection: sqlite3.Connection, key: SessionKey, new: _Record, now: float, quotas: Quotas) -> bytes:
    with transaction(connection, "IMMEDIATE"):
        row = live(connection, key, now).row
        row = ensured(connection, key, row, now + new.ttl)
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


def _stand(connection: sqlite3.Connection, key: SessionKey, name: str, now: float) -> None:
    with transaction(connection, "IMMEDIATE"):
        row = live(connection, key, now).row
        if row is not None:
            connection.execute("INSERT INTO standing VALUES (?, ?) ON CONFLICT DO NOTHING", (row, name))


def _blocks(
    connection: sqlite3.Connection, key: SessionKey, names: Sequence[str] | None, now: float
) -> dict[str, bytes]:
    select = (
        "SELECT digest, block FROM blocks JOIN sessions ON sessions.id = session_id"
        " WHERE tenant = ? AND session = ? AND expires_at > ?"
    )
    some = "" if names is None else " AND digest IN (SELECT value FROM json_each(?))"
    asked = () if names is None else (dumps(list(names)),)
    rows = rows_of(connection, select + some, key.tenant, key.session, now, *asked)
    return dict(rows)


def _found(
    connection: sqlite3.Connection, tenant: str, digests: Sequence[str], likely: Sequence[SessionKey], now: float
) -> Found:
    read = {key.session: _load(connection, key, now) for key in likely}
    known = {name: snapshot for name, snapshot in read.items() if snapshot is not None}
    return Found(_find(connection, tenant, digests, now) if digests else {}, known)


def _find(connection: sqlite3.Connection, tenant: str, digests: Sequence[str], now: float) -> dict[str, str]:
    # One JSON argument, as the number of arguments of a statement is limited.
    rows = rows_of(
        connection,
        "SELECT digest, session FROM chain"
        " WHERE tenant = ? AND digest IN (SELECT value FROM json_each(?)) AND expires_at > ?",
        *(tenant, dumps(list(digests)), now),
    )
    return dict(rows)


def _recall(connection: sqlite3.Connection, name: str, now: float) -> bytes | None:
    rows = rows_of(connection, "SELECT fact FROM facts WHERE name = ? AND expires_at > ?", name, now)
    return rows[0][0] if rows else None


def _remember(connection: sqlite3.Connection, name: str, fact: bytes, expires_at: float) -> None:
    with transaction(connection, "IMMEDIATE"):
        connection.execute("INSERT OR REPLACE INTO facts VALUES (?, ?, ?)", (name, fact, expires_at))


def _sessions(connection: sqlite3.Connection, tenant: str | None, now: float) -> list[SessionKey]:
    rows = rows_of(
        connection,
        "SELECT tenant, session FROM sessions"
        " WHERE expires_at > ?1 AND (?2 IS NULL OR tenant = ?2) ORDER BY tenant, session",
        *(now, tenant),
    )
    return [SessionKey(*row) for row in rows]


def _delete(connection: sqlite3.Connection, key: SessionKey, now: float) -> bool:
    with transaction(connection, "IMMEDIATE"):
        row, revision, _ = live(connection, key, now)
        if row is not None:
            connection.execute("DELETE FROM sessions WHERE id = ?", (row,))
    return revision > 0


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
        # No more than there are upstreams with models.
        connection.execute("DELETE FROM facts WHERE expires_at <= ?", (now,))
        sqlite_leases.purge(connection, now)


# Parts


class _Record(NamedTuple):
    name: str
    data: bytes
    ttl: int


def _stay_within(room: int, size: int) -> None:
    """Raises, and so undoes the transaction, where a session gets larger than it may."""
    if room != UNBOUNDED and size > room:
        raise StoreError("store-quota", f"the session would have {size} bytes of {room}")
