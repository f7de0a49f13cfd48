"""Entries in one SQLite file, or in memory: the store that needs no server.

All SQL on a file runs in one thread that this store owns, over one connection: the event loop never waits for a disk,
and other users of the default executor cannot delay us. In memory there is no disk to wait for, and a thread would cost
more than the work, so the SQL runs at once. Each call is one job (`sqlite_jobs`), which is one transaction. So if a
caller is cancelled, either its job had not begun and is dropped, or it runs to its end by itself; no shield is needed.

Several processes may use one file: it is in WAL mode, and writers wait up to `BUSY` seconds for each other and then
fail with `store-busy`. Writes begin with BEGIN IMMEDIATE, because SQLite cannot make a transaction wait that has read
already.

The file holds people's conversations, so it and the directories made for it are readable by their owner only. SQLite
gives its -wal and -shm files the mode of the database. A file with an older schema is migrated when it is opened; older
programs cannot open it after that. A file with a newer schema, or of another program, is refused and left unchanged.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar

from proxy.store import sqlite_jobs as jobs
from proxy.store.base import FindResult, Lease, Quotas, Snapshot, StoreError, StoreKey, Write
from proxy.store.sqlite_jobs import rows_of, transaction

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


@dataclass(slots=True, eq=False)
class SqliteStore:
    """`Store` over the file at `path`, or over memory where that is None."""

    _clock: Callable[[], float]
    _quotas: Quotas
    _executor: Executor
    _connection: sqlite3.Connection | None = field(default=None, init=False)
    _closing: Future[None] | None = field(default=None, init=False)
    _writes: int = field(default=0, init=False)

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


# The file: its schema and migrations, and how it is opened. All of it blocks, so it runs in the thread of the store.

SCHEMA_VERSION = 4


_MAGIC = b"SQLite format 3\0"


_HEADER = 64  # bytes, of which the last four are the version


BUSY = 1.0  # seconds to wait for another process; about as long as a request may wait for its store


_SCHEMA = (
    """
    CREATE TABLE sessions (
        id INTEGER PRIMARY KEY,
        tenant TEXT NOT NULL,
        session TEXT NOT NULL,
        revision INTEGER NOT NULL,
        expires_at REAL NOT NULL,
        meta BLOB,
        UNIQUE (tenant, session)
    )
    """,
    """
    CREATE TABLE records (
        session_id INTEGER NOT NULL REFERENCES sessions ON DELETE CASCADE,
        name TEXT NOT NULL,
        record BLOB NOT NULL,
        UNIQUE (session_id, name)
    )
    """,
    """
    CREATE TABLE standing (
        session_id INTEGER NOT NULL REFERENCES sessions ON DELETE CASCADE,
        name TEXT NOT NULL,
        PRIMARY KEY (session_id, name)
    ) WITHOUT ROWID
    """,
    """
    CREATE TABLE blocks (
        session_id INTEGER NOT NULL REFERENCES sessions ON DELETE CASCADE,
        digest TEXT NOT NULL,
        block BLOB NOT NULL,
        UNIQUE (session_id, digest)
    )
    """,
    """
    CREATE TABLE chain (
        tenant TEXT NOT NULL,
        digest TEXT NOT NULL,
        session TEXT NOT NULL,
        expires_at REAL NOT NULL,
        PRIMARY KEY (tenant, digest)
    ) WITHOUT ROWID
    """,
    "CREATE INDEX sessions_by_expiry ON sessions (expires_at)",
    "CREATE INDEX chain_by_expiry ON chain (expires_at)",
)


# The statements that migrate each version to the next; version 0 is an empty file.
_STEPS: dict[int, tuple[str, ...]] = {
    0: _SCHEMA,
    1: (
        "ALTER TABLE sessions ADD COLUMN bytes INTEGER NOT NULL DEFAULT 0",
        """
        UPDATE sessions SET bytes = coalesce(length(meta), 0)
            + (SELECT coalesce(sum(length(name) + length(record)), 0) FROM records WHERE session_id = id)
            + (SELECT coalesce(sum(length(digest) + length(block)), 0) FROM blocks WHERE session_id = id)
        """,
        # It covers the sum over a tenant, so that no meta is read for it.
        "CREATE INDEX sessions_by_tenant ON sessions (tenant, expires_at, session, bytes)",
    ),
    2: (
        # A lease without a holder has ended, and only its handover (left_behind) lives on.
        """
        CREATE TABLE leases (
            tenant TEXT NOT NULL,
            name TEXT NOT NULL,
            holder TEXT,
            expires_at REAL NOT NULL,
            left_behind BLOB NOT NULL,
            PRIMARY KEY (tenant, name)
        )
        """,
    ),
    3: ("CREATE TABLE facts (name TEXT PRIMARY KEY, fact BLOB NOT NULL, expires_at REAL NOT NULL) WITHOUT ROWID",),
}


def open_database(path: Path | None) -> sqlite3.Connection:
    """Opens the database at `path`, creating it where it is missing; None stands for one in memory."""
    target = ":memory:" if path is None else _private_file(path)
    # Without an isolation level the module starts no transactions of its own.
    connection = sqlite3.connect(target, timeout=BUSY, isolation_level=None)
    try:
        _refuse_unknown_schema(connection)
        _configure(connection)
        _bring_up_to_date(connection)
    except BaseException:
        connection.close()
        raise
    return connection


def version_on_disk(path: Path) -> int | None:
    """The schema version of a file, read without opening it as a database, so that nothing changes.

    None for a file that is no database. Not to be called in a process that has the database open: closing the file
    would drop its locks.
    """
    with path.open("rb") as file:
        header = file.read(_HEADER)
    return int.from_bytes(header[-4:]) if len(header) == _HEADER and header.startswith(_MAGIC) else None


def _private_file(path: Path) -> str:
    """Creates the file if need be, and returns its absolute path. File and new directories are for their owner only."""
    path = Path(os.path.abspath(path))
    for directory in [parent for parent in reversed(path.parents) if not parent.exists()]:
        directory.mkdir(mode=0o700, exist_ok=True)
    with suppress(FileExistsError):
        # Only ever with O_EXCL: closing any descriptor of a database drops the locks of this process on it.
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    return str(path)


def _refuse_unknown_schema(connection: sqlite3.Connection) -> None:
    with transaction(connection, "DEFERRED"):  # one consistent view: another process may be creating the tables
        version = _version(connection)
        tables = rows_of(connection, "SELECT 1 FROM sqlite_master LIMIT 1")
    if version > SCHEMA_VERSION:
        newer = f"the file has version {version} of a newer Condenser; this one knows {SCHEMA_VERSION}"
        raise StoreError("store-schema", newer)
    if version == 0 and tables:
        raise StoreError("store-schema", "the file is a database of another program")


def _configure(connection: sqlite3.Connection) -> None:
    _use_wal(connection)
    # In WAL mode NORMAL cannot corrupt the file. A power cut may lose the last commits, which clients send again.
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute("PRAGMA foreign_keys = ON")
    connection.execute("PRAGMA journal_size_limit = 67108864")
    connection.execute("PRAGMA secure_delete = ON")


def _use_wal(connection: sqlite3.Connection) -> None:
    # SQLite does not always wait for a lock when it changes this mode: processes that start together collide.
    deadline = time.monotonic() + BUSY
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(0.01)
        else:
            return


def _bring_up_to_date(connection: sqlite3.Connection) -> None:
    if _version(connection) == SCHEMA_VERSION:
        return
    with transaction(connection, "IMMEDIATE"):
        # The version is read again: another process may have migrated the file meanwhile.
        for version in range(_version(connection), SCHEMA_VERSION):
            for statement in _STEPS[version]:
                connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")


def _version(connection: sqlite3.Connection) -> int:
    version: int = connection.execute("PRAGMA user_version").fetchone()[0]
    return version
