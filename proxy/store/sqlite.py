"""Entries in one SQLite file, or in memory: the store that needs no server.

All SQL on a file runs in one thread that this store owns, over one connection: the event loop never waits for a disk,
and other users of the default executor cannot delay us. In memory there is no disk to wait for, and a thread would cost
more than the work, so the SQL runs at once. Each call is one job, which is one transaction. So if a caller is
cancelled, either its job had not begun and is dropped, or it runs to its end by itself; no shield is needed.

Several processes may use one file: it is in WAL mode, and writers wait up to `BUSY` seconds for each other and then
fail with `store-busy`. Writes begin with BEGIN IMMEDIATE, because SQLite cannot make a transaction wait once it has
read something.

An entry has one `expires_at`, so that all its rows expire together. A row with revision 0 and no meta is an entry
that has records and was never saved. Its `bytes` are the size that quotas count, updated in the same transaction; a
tenant's size is their sum, read from an index that covers it. It is not read for each write: an upper bound is kept for
a minute, and nothing is refused before the sum was read again. Expired data is invisible at once. It is removed by the
next write under its key, or by a purge, which goes in small steps.

What is deleted is overwritten (`secure_delete`), but the log file still has it. So the log file is emptied after a
deletion, and within a minute after a purge; while another process reads or writes, some moments later.

The file holds people's conversations, so it and the directories made for it are readable by their owner only. SQLite
gives its -wal and -shm files the mode of the database. A file of another version of the schema, or of another program,
is refused and left unchanged.
"""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial, wraps
from json import dumps
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import Any, Concatenate, ParamSpec, TypeVar

from proxy.runtime.lru import Lru
from proxy.store.base import (
    JOURNAL,
    MOST_MISSING,
    MOST_SUMMED,
    RING,
    UNBOUNDED,
    FindResult,
    Part,
    Quotas,
    Snapshot,
    Store,
    StoreError,
    StoreKey,
    Write,
)
from proxy.store.sqlite_file import BUSY, open_database, transaction

P = ParamSpec("P")
T = TypeVar("T")

PURGE_EVERY = 64  # writes; a purge can remove as many entries as that many writes create
PURGE_SESSIONS = 64
PURGE_INDEX = 4096
TIDY_EVERY, TIDY_SOON = 60.0, 0.5  # seconds from one look for what has expired to the next; from a step to the next
SUM_LIFE = 60.0  # seconds that a bound on the bytes of a tenant is used, in which other processes may write more
SUMS = 10_000  # tenants

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


Jobs = SimpleQueue[tuple[asyncio.Future[Any], Callable[[], Any]] | None]
"""What a thread does one after another, each with where its result goes; the last one is None."""


def _own_thread() -> Jobs:
    """The jobs of a new thread. An executor makes four times as many calls for each."""
    jobs: Jobs = SimpleQueue()
    Thread(target=_work, args=[jobs], name="condenser-sqlite", daemon=True).start()
    return jobs


def _work(jobs: Jobs) -> None:
    while (asked := jobs.get()) is not None:
        future, job = asked
        if not future.cancelled():
            _do(job, future)
        del asked, future, job  # nothing of it is kept while the thread waits


def _do(job: Callable[[], Any], future: asyncio.Future[Any]) -> None:
    result, settle = None, future.set_result
    try:
        result = job()
    except Exception as error:  # noqa: BLE001 - of any kind: whoever waits gets it
        result, settle = error, future.set_exception
    with suppress(RuntimeError):  # the loop has ended meanwhile
        future.get_loop().call_soon_threadsafe(_settle, future, settle, result)
    del future, settle, result  # an error refers to this call


def _settle(future: asyncio.Future[Any], settle: Callable[[Any], None], result: Any) -> None:
    if not future.done():
        settle(result)


def _job(
    method: Callable[Concatenate[SqliteStore, float, P], T],
) -> Callable[Concatenate[SqliteStore, P], Coroutine[Any, Any, T]]:
    """Turns a job, which runs where the SQL runs and gets the time that it begins at, into a method of the store.

    The one place where exceptions of SQLite, and any others of a job, become StoreErrors.
    """

    def perform(self: SqliteStore, *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return method(self, self._clock(), *args, **kwargs)
        except StoreError:
            raise
        except Exception as error:
            raise StoreError(_reason(error), str(error)) from error

    @wraps(method)
    async def call(self: SqliteStore, /, *args: P.args, **kwargs: P.kwargs) -> T:
        if self._is_closed:
            raise StoreError("store-closed")
        if self._jobs is None:
            return perform(self, *args, **kwargs)
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._jobs.put((future, partial(perform, self, *args, **kwargs)))
        try:
            return await future
        finally:
            del future  # which has the error that refers to this call

    return call


@dataclass(slots=True, eq=False)
class SqliteStore(Store):
    """`Store` over the file at `path`, or in memory if that is None."""

    _clock: Callable[[], float]
    _quotas: Quotas
    _jobs: Jobs | None  # None if jobs run at once, on the event loop
    _connection: sqlite3.Connection = field(init=False)
    _is_closed: bool = field(default=False, init=False)
    _closing: asyncio.Future[None] = field(init=False)
    _writes: int = field(default=0, init=False)
    _is_log_stale: bool = field(default=True, init=False)  # whether the log file may have what was deleted
    _bounds: Lru[str, tuple[float, int]] = field(default_factory=lambda: Lru(SUMS), init=False)
    """By tenant: until when a bound on its bytes may be used, and the bound."""

    @classmethod
    async def open(
        cls, path: Path | None, *, clock: Callable[[], float] = time.time, quotas: Quotas | None = None
    ) -> SqliteStore:
        store = cls(clock, quotas or Quotas(), _own_thread() if path is not None else None)
        try:
            await store._connect(path)
        except BaseException:
            await store.close()
            raise
        return store

    @_job
    def _connect(self, now: float, path: Path | None) -> None:
        self._connection = open_database(path)

    async def close(self) -> None:
        """Lets the jobs that are queued end, then closes. May be repeated."""
        was_closed, self._is_closed = self._is_closed, True
        if self._jobs is None:
            self._disconnect()
            return
        if not was_closed:
            self._closing = asyncio.get_running_loop().create_future()
            self._jobs.put((self._closing, self._disconnect))
            self._jobs.put(None)
        await asyncio.shield(self._closing)

    def _disconnect(self) -> None:
        if hasattr(self, "_connection"):  # not if it could not be opened
            self._connection.close()

    # Entries

    @_job
    def load(self, now: float, key: StoreKey) -> Snapshot | None:
        return self._load(now, key)

    def _load(self, now: float, key: StoreKey) -> Snapshot | None:
        entry = self._document(now, key)
        if entry is None or not entry[-1]:
            # So it is with nearly all entries. A single statement needs no transaction to be consistent.
            return entry and Snapshot(*entry[1:3])
        with transaction(self._connection, "DEFERRED"):
            entry = self._document(now, key)
            if entry is None:
                return None
            row, meta, revision, _ = entry
            records = self._rows("SELECT name, record FROM records WHERE session_id = ?", row)
            marks = self._rows("SELECT name FROM standing WHERE session_id = ?", row)
        return Snapshot(meta, revision, dict(records), frozenset(name for (name,) in marks))

    def _document(self, now: float, key: StoreKey) -> tuple[int, bytes, int, bool] | None:
        """Row, meta and revision of an entry, and whether it has records or marks; None if it was never saved."""
        rows = self._rows(
            "SELECT id, meta, revision, EXISTS (SELECT 1 FROM records WHERE session_id = id)"
            " OR EXISTS (SELECT 1 FROM standing WHERE session_id = id) FROM sessions"
            " WHERE tenant = ? AND session = ? AND expires_at > ? AND meta IS NOT NULL",
            *(*key, now),
        )
        return rows[0] if rows else None

    @_job
    def save(self, now: float, key: StoreKey, write: Write) -> bool:
        self._purge_at_times(now)
        expires_at = now + write.ttl
        with transaction(self._connection, "IMMEDIATE"):
            row, revision, rest = self._live_row(now, key)
            if revision != write.revision:
                return False
            row = row or self._new_row(key, expires_at)
            added, insert = 0, "INSERT INTO blocks VALUES (?, ?, ?) ON CONFLICT DO NOTHING"
            for digest, block in write.blocks.items():
                if self._connection.execute(insert, (row, digest, block)).rowcount:
                    added += len(digest) + len(block)
            size = rest + added + len(write.meta)
            if added:
                self._stay_within(self._quotas.for_blocks, now, key, size)
            self._rows(
                "UPDATE sessions SET meta = ?, revision = ?, expires_at = ?, bytes = ? WHERE id = ?",
                *(write.meta, revision + 1, expires_at, size, row),
            )
            chained = [(key.tenant, digest, key.name, expires_at) for digest in write.index]
            self._connection.executemany("INSERT OR REPLACE INTO chain VALUES (?, ?, ?, ?)", chained)
            if write.journal:
                self._append(row, write.journal)
        return True

    @_job
    def put_record(self, now: float, key: StoreKey, name: str, record: bytes, ttl: int) -> bytes:
        self._purge_at_times(now)
        expires_at = now + ttl
        with transaction(self._connection, "IMMEDIATE"):
            row = self._live_row(now, key)[0] or self._new_row(key, expires_at)
            renew = "UPDATE sessions SET expires_at = ? WHERE id = ? AND expires_at < ?"
            self._rows(renew, expires_at, row, expires_at)
            rows = self._rows("SELECT record FROM records WHERE session_id = ? AND name = ?", row, name)
            if rows:
                kept: bytes = rows[0][0]
                return kept
            ((before,),) = self._rows("SELECT bytes FROM sessions WHERE id = ?", row)
            size = before + len(name) + len(record)
            self._stay_within(self._quotas.for_records, now, key, size)
            self._rows("INSERT INTO records VALUES (?, ?, ?)", row, name, record)
            self._rows("UPDATE sessions SET bytes = ? WHERE id = ?", size, row)
        return record

    @_job
    def mark(self, now: float, key: StoreKey, name: str) -> None:
        with transaction(self._connection, "IMMEDIATE"):
            row = self._live_row(now, key)[0]
            if row is not None:
                self._rows("INSERT INTO standing VALUES (?, ?) ON CONFLICT DO NOTHING", row, name)

    @_job
    def swap(self, now: float, key: StoreKey, part: Part, name: str, before: bytes, after: bytes) -> bool:
        with transaction(self._connection, "IMMEDIATE"):
            row = self._live_row(now, key)[0]
            changed = self._connection.execute(_SWAPS[part], (after, before, row, name)).rowcount
        self._is_log_stale |= changed > 0
        return changed > 0

    @_job
    def blocks(self, now: float, key: StoreKey, names: Sequence[str] | None = None) -> dict[str, bytes]:
        select = (
            "SELECT digest, block FROM blocks JOIN sessions ON sessions.id = session_id"
            " WHERE tenant = ? AND session = ? AND expires_at > ?"
        )
        if names is None:
            return dict(self._rows(select, *key, now))
        # One JSON argument, because the number of arguments of a statement is limited.
        some = " AND digest IN (SELECT value FROM json_each(?))"
        return dict(self._rows(select + some, *key, now, dumps(list(names))))

    @_job
    def journal(self, now: float, key: StoreKey) -> list[tuple[int, bytes]]:
        select = "SELECT number, item FROM journal JOIN sessions ON sessions.id = session_id"
        select += " WHERE tenant = ? AND session = ? AND expires_at > ? ORDER BY number"
        return self._rows(select, *key, now)

    @_job
    def find(self, now: float, tenant: str, digests: Sequence[str], likely: Sequence[str] = ()) -> FindResult:
        read = {name: self._load(now, StoreKey(tenant, name)) for name in likely}
        select = "SELECT digest, session FROM chain WHERE tenant = ? AND expires_at > ?"
        select += " AND digest IN (SELECT value FROM json_each(?))"
        rows = self._rows(select, tenant, now, dumps(list(digests))) if digests else []
        return FindResult(dict(rows), {name: snapshot for name, snapshot in read.items() if snapshot is not None})

    @_job
    def keys(self, now: float, tenant: str | None = None) -> list[StoreKey]:
        select = "SELECT tenant, session FROM sessions WHERE expires_at > ? AND tenant = coalesce(?, tenant)"
        select += " ORDER BY tenant, session"
        return [StoreKey(*row) for row in self._rows(select, now, tenant)]

    @_job
    def newest(self, now: float, count: int, tenant: str = "") -> list[StoreKey]:
        # A save, and a record of the same turn, renews the life by `store.ttl`, so the last to expire was written last.
        # After a change of that setting the order is right when the entries written before it have expired.
        select = "SELECT tenant, session FROM sessions WHERE expires_at > ? AND revision > 0"
        select += f"{' AND tenant = ?' if tenant else ''} ORDER BY expires_at DESC LIMIT ?"
        return [StoreKey(*row) for row in self._rows(select, now, *([tenant] if tenant else []), count)]

    @_job
    def delete(self, now: float, key: StoreKey) -> bool:
        with transaction(self._connection, "IMMEDIATE"):
            row, revision, _ = self._live_row(now, key)
            self._rows("DELETE FROM sessions WHERE id = ?", row)
            self._rows("DELETE FROM chain WHERE tenant = ? AND session = ?", *key)
        self._is_log_stale = True
        self._empty_log()
        return revision > 0

    # Claims and facts

    @_job
    def claim(self, now: float, tenant: str, name: str, holder: str, ttl: float) -> bool:
        self._purge_at_times(now)
        with transaction(self._connection, "IMMEDIATE"):
            rows = self._rows(
                "INSERT INTO claims VALUES (?, ?, ?, ?) ON CONFLICT (tenant, name) DO UPDATE"
                " SET holder = excluded.holder, expires_at = excluded.expires_at"
                " WHERE holder = excluded.holder OR expires_at <= ? RETURNING 1",
                *(tenant, name, holder, now + ttl, now),
            )
        return bool(rows)

    @_job
    def get_fact(self, now: float, name: str) -> bytes | None:
        rows = self._rows("SELECT fact FROM facts WHERE name = ? AND expires_at > ?", name, now)
        return rows[0][0] if rows else None

    @_job
    def put_fact(self, now: float, name: str, fact: bytes, ttl: int) -> None:
        self._purge_at_times(now)
        with transaction(self._connection, "IMMEDIATE"):
            self._rows("INSERT OR REPLACE INTO facts VALUES (?, ?, ?)", name, fact, now + ttl)

    @_job
    def add(self, now: float, name: str, amounts: Mapping[str, int], ttl: int) -> None:
        self._purge_at_times(now)
        with transaction(self._connection, "IMMEDIATE"):
            self._rows("DELETE FROM sums WHERE name = ? AND expires_at <= ?", name, now)
            self._connection.executemany(
                "INSERT INTO sums VALUES (?1, ?2, max(min(?3, ?5), -?5), ?4) ON CONFLICT (name, amount) DO UPDATE"
                " SET value = max(min(value + excluded.value, ?5), -?5), expires_at = excluded.expires_at",
                [(name, amount, min(value, MOST_SUMMED), now + ttl, MOST_SUMMED) for amount, value in amounts.items()],
            )

    @_job
    def sums(self, now: float, names: Sequence[str]) -> list[dict[str, int]]:
        select = "SELECT name, amount, value FROM sums WHERE expires_at > ?"
        select += " AND typeof(value) = 'integer' AND name IN (SELECT value FROM json_each(?))"
        found: dict[str, dict[str, int]] = {name: {} for name in names}
        for name, amount, value in self._rows(select, now, dumps(list(names))):
            found[name][amount] = value
        return [found[name] for name in names]

    @_job
    def push(self, now: float, name: str, items: Sequence[bytes], ttl: int) -> None:
        self._purge_at_times(now)
        with transaction(self._connection, "IMMEDIATE"):
            insert = "INSERT INTO rings (name, item, expires_at) VALUES (?, ?, ?)"
            self._connection.executemany(insert, [(name, item, now + ttl) for item in items])
            self._rows(
                "DELETE FROM rings WHERE name = ? AND number <="
                " (SELECT number FROM rings WHERE name = ? ORDER BY number DESC LIMIT 1 OFFSET ?)",
                *(name, name, RING),
            )

    @_job
    def ring(self, now: float, name: str) -> list[bytes]:
        rows = self._rows("SELECT item FROM rings WHERE name = ? AND expires_at > ? ORDER BY number", name, now)
        return [item for (item,) in rows]

    @_job
    def spend(self, now: float, name: str, amount: int, most: int) -> int:
        self._purge_at_times(now)
        at = round(now * 1000)
        with transaction(self._connection, "IMMEDIATE"):
            rows = self._rows("SELECT value FROM sums WHERE name = ? AND amount = 'full at'", name)
            missing = min(max(rows[0][0] - at, 0), MOST_MISSING) if rows else 0
            if most != UNBOUNDED and missing >= most:
                return missing - most + 1
            full_at = at + min(max(missing + amount, 0), MOST_MISSING)
            self._rows("INSERT OR REPLACE INTO sums VALUES (?, 'full at', ?, ?)", name, full_at, full_at / 1000)
        return 0

    # All of the database

    @_job
    def ping(self, _now: float) -> None:
        self._rows("SELECT 1 FROM sessions LIMIT 1")

    def _purge_at_times(self, now: float) -> None:
        """Purges before every `PURGE_EVERY`th write. Its own errors are dropped: the write after it raises the same."""
        self._writes += 1
        if self._writes % PURGE_EVERY == 0:
            with suppress(sqlite3.Error):
                self._purge(now)

    async def keep_tidy(self) -> float:
        """One step of tidying; returns the seconds until the next."""
        has_more = False
        with suppress(StoreError):  # the next write raises the same
            has_more = await self.tidy()
        return TIDY_SOON if has_more else TIDY_EVERY

    @_job
    def tidy(self, now: float) -> bool:
        """Removes some of what has expired, and empties the log file of it. Returns whether there is more to do."""
        if self._purge(now):
            return True
        self._empty_log()
        return self._is_log_stale

    def _empty_log(self) -> None:
        """Empties the log file, if it may have what was deleted and nobody else uses it now."""
        if self._is_log_stale:
            self._rows("PRAGMA busy_timeout = 0")  # requests are not to wait for it
            try:
                ((is_busy, _, _),) = self._rows("PRAGMA wal_checkpoint(TRUNCATE)")
            finally:
                self._rows(f"PRAGMA busy_timeout = {BUSY * 1000:.0f}")
            self._is_log_stale = bool(is_busy)

    def _purge(self, now: float) -> bool:
        """Removes some of what has expired; returns whether there may be more."""
        before = self._connection.total_changes
        with transaction(self._connection, "IMMEDIATE"):
            self._rows(
                "DELETE FROM sessions WHERE id IN (SELECT id FROM sessions WHERE expires_at <= ? LIMIT ?)",
                *(now, PURGE_SESSIONS),
            )
            self._rows(
                "DELETE FROM chain WHERE (tenant, digest) IN"
                " (SELECT tenant, digest FROM chain WHERE expires_at <= ? LIMIT ?)",
                *(now, PURGE_INDEX),
            )
            # No limit: there are a few facts for each model of an upstream, a claim lives for minutes, a sum is small.
            self._rows("DELETE FROM facts WHERE expires_at <= ?", now)
            self._rows("DELETE FROM claims WHERE expires_at <= ?", now)
            self._rows("DELETE FROM sums WHERE expires_at <= ?", now)
            self._rows("DELETE FROM rings WHERE expires_at <= ?", now)
        has_removed = self._connection.total_changes > before
        self._is_log_stale |= has_removed
        return has_removed

    # Statements of several jobs, inside their transactions

    def _rows(self, statement: str, *values: object) -> list[Any]:
        return self._connection.execute(statement, values).fetchall()

    def _live_row(self, now: float, key: StoreKey) -> tuple[int | None, int, int]:
        """Row id and revision of an entry, and the bytes of all but its meta. One that has expired is deleted."""
        rows = self._rows(
            "SELECT id, revision, bytes - coalesce(length(meta), 0), expires_at FROM sessions"
            " WHERE tenant = ? AND session = ?",
            *key,
        )
        if not rows:
            return None, 0, 0
        ((row, revision, rest, expires_at),) = rows
        if expires_at <= now:
            self._rows("DELETE FROM sessions WHERE id = ?", row)
            return None, 0, 0
        return row, revision, rest

    def _append(self, row: int, item: bytes) -> None:
        """Appends an item to the journal of an entry, and drops what exceeds its bound."""
        ((last,),) = self._rows("SELECT coalesce(max(number), 0) FROM journal WHERE session_id = ?", row)
        self._rows("INSERT INTO journal VALUES (?, ?, ?)", row, last + 1, item)
        self._rows("DELETE FROM journal WHERE session_id = ? AND number <= ?", row, last + 1 - JOURNAL)

    def _new_row(self, key: StoreKey, expires_at: float) -> int:
        insert = "INSERT INTO sessions (tenant, session, revision, expires_at) VALUES (?, ?, 0, ?)"
        row = self._connection.execute(insert, (*key, expires_at)).lastrowid
        assert row is not None
        return row

    def _stay_within(self, room_beside: Callable[[int], int], now: float, key: StoreKey, size: int) -> None:
        """Raises, which rolls the transaction back, if an entry of that size would exceed a quota."""
        until, others = self._bounds.use(key.tenant) or (0.0, 0)
        room = room_beside(others)
        if self._quotas.tenant and (now >= until or UNBOUNDED != room < size):
            until, others = now + SUM_LIFE, self._size_of_others(now, key)
            room = room_beside(others)
        if UNBOUNDED != room < size:
            raise StoreError("store-quota", f"the session would have {size} bytes of {room}")
        if self._quotas.tenant:
            self._bounds.put(key.tenant, (until, others + size))

    def _size_of_others(self, now: float, key: StoreKey) -> int:
        """The bytes of the tenant's other entries."""
        select = "SELECT coalesce(sum(bytes), 0) FROM sessions WHERE tenant = ? AND expires_at > ? AND session <> ?"
        size: int = self._rows(select, key.tenant, now, key.name)[0][0]
        return size


_SWAPS: Mapping[Part, str] = {
    "meta": "UPDATE sessions SET meta = ? WHERE meta = ? AND id = ? AND ? = ''",
    "records": "UPDATE records SET record = ? WHERE record = ? AND session_id = ? AND name = ?",
    "blocks": "UPDATE blocks SET block = ? WHERE block = ? AND session_id = ? AND digest = ?",
}


def _reason(error: Exception) -> str:
    if isinstance(error, OSError):
        return "store-unavailable"
    if isinstance(error, (TypeError, ValueError)):
        return "store-corrupt"  # a value in a row is not what was written there
    if getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_IOERR_WRITE:
        return "store-full"  # the file may not grow: a limit on files, or a quota of the disk
    # The low byte is the primary code; errors of the Python module itself carry none.
    return _REASONS.get(getattr(error, "sqlite_errorcode", 0) & 0xFF, "store-error")
