"""The file of the SQLite store: opened privately, in WAL mode, with its tables; and transactions on it."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal

from proxy.store.base import StoreError

SCHEMA_VERSION = 7

BUSY = 1.0  # seconds to wait for another process; about as long as a request may wait for its store

_SCHEMA = Path(__file__).with_name("schema.sql").read_text("utf-8")


@contextmanager
def transaction(connection: sqlite3.Connection, mode: Literal["DEFERRED", "IMMEDIATE"]) -> Iterator[None]:
    """A transaction, which is committed at its end, or rolled back if an error is raised in it."""
    connection.execute(f"BEGIN {mode}")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:  # some errors roll back by themselves
            connection.execute("ROLLBACK")
        raise


def open_database(path: Path | None) -> sqlite3.Connection:
    """Opens the database at `path`, creating it if it is missing; None stands for one in memory."""
    target = ":memory:" if path is None else _private_file(path)
    # Without an isolation level the module starts no transactions of its own.
    connection = sqlite3.connect(target, timeout=BUSY, isolation_level=None)
    try:
        _refuse_unknown_schema(connection)
        _use_wal(connection)
        # In WAL mode NORMAL cannot corrupt the file. A power cut may lose the last commits, which clients send again.
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute("PRAGMA journal_size_limit = 67108864")
        connection.execute("PRAGMA secure_delete = ON")
        _create_tables(connection)
    except BaseException:
        connection.close()
        raise
    return connection


def _private_file(path: Path) -> str:
    """Creates the file if need be, and returns its absolute path. File and new directories are for their owner only."""
    path = Path(os.path.abspath(path))
    for directory in [parent for parent in reversed(path.parents) if not parent.exists()]:
        directory.mkdir(mode=0o700, exist_ok=True)
    with suppress(FileExistsError):
        # Only ever with O_EXCL: closing any descriptor of a database drops the locks of this process on it.
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    return str(path)


_ANOTHER_FILE = "move it away, or name another file in store.url"


def _refuse_unknown_schema(connection: sqlite3.Connection) -> None:
    with transaction(connection, "DEFERRED"):  # one consistent view: another process may be creating the tables
        version = _version(connection)
        tables = connection.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchall()
    if version not in (0, SCHEMA_VERSION):
        other = f"the file has version {version}, of another version of Condenser; this one knows {SCHEMA_VERSION}"
        raise StoreError("store-schema", f"{other}; {_ANOTHER_FILE}")
    if version == 0 and tables:
        raise StoreError("store-schema", f"the file is a database of another program; {_ANOTHER_FILE}")


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


def _create_tables(connection: sqlite3.Connection) -> None:
    if _version(connection) == SCHEMA_VERSION:
        return
    with transaction(connection, "IMMEDIATE"):
        # The version is read again: another process may have created the tables meanwhile.
        if _version(connection) == SCHEMA_VERSION:
            return
        for statement in _SCHEMA.split(";"):
            connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")


def _version(connection: sqlite3.Connection) -> int:
    version: int = connection.execute("PRAGMA user_version").fetchone()[0]
    return version
