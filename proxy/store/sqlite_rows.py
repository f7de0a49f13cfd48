"""The rows of one session in SQLite: where they are, how large they are, and how they are made."""

from __future__ import annotations

import sqlite3
from typing import NamedTuple

from proxy.store.base import SessionKey
from proxy.store.sqlite_file import rows_of


class Document(NamedTuple):
    """The document of a session; `has_more` tells whether it has records, or any that stand."""

    row: int
    meta: bytes
    revision: int
    has_more: bool


class Live(NamedTuple):
    """Row and revision of a session, and the bytes of all but its meta; the default is one that is not there."""

    row: int | None = None
    revision: int = 0
    rest: int = 0


def size_of(connection: sqlite3.Connection, row: int) -> int:
    """The bytes of a session."""
    size: int = rows_of(connection, "SELECT bytes FROM sessions WHERE id = ?", row)[0][0]
    return size


def put_block(connection: sqlite3.Connection, row: int, digest: str, block: bytes) -> int:
    """Adds a block that the session does not have; the bytes that it has more."""
    put = connection.execute("INSERT INTO blocks VALUES (?, ?, ?) ON CONFLICT DO NOTHING", (row, digest, block))
    return len(digest) + len(block) if put.rowcount else 0


def size_of_others(connection: sqlite3.Connection, key: SessionKey, now: float) -> int:
    """The bytes of the tenant's other sessions."""
    select = "SELECT coalesce(sum(bytes), 0) FROM sessions WHERE tenant = ? AND expires_at > ? AND session <> ?"
    size: int = rows_of(connection, select, key.tenant, now, key.session)[0][0]
    return size


def document(connection: sqlite3.Connection, key: SessionKey, now: float) -> Document | None:
    """The document of a session that was saved and has not expired; None where there is none."""
    found = rows_of(
        connection,
        "SELECT id, meta, revision, EXISTS (SELECT 1 FROM records WHERE session_id = id)"
        " OR EXISTS (SELECT 1 FROM standing WHERE session_id = id) FROM sessions"
        " WHERE tenant = ? AND session = ? AND expires_at > ? AND meta IS NOT NULL",
        *(key.tenant, key.session, now),
    )
    return Document(*found[0]) if found else None


def live(connection: sqlite3.Connection, key: SessionKey, now: float) -> Live:
    """Where a session is; one that has expired is removed."""
    found = rows_of(
        connection,
        "SELECT id, revision, bytes - coalesce(length(meta), 0), expires_at FROM sessions"
        " WHERE tenant = ? AND session = ?",
        *key,
    )
    if not found:
        return Live()
    *live, expires_at = found[0]
    if expires_at <= now:
        connection.execute("DELETE FROM sessions WHERE id = ?", (live[0],))
        return Live()
    return Live(*live)


def ensured(connection: sqlite3.Connection, key: SessionKey, row: int | None, expires_at: float) -> int:
    """The row of a session that lives until `expires_at` or longer; made if need be."""
    if row is None:
        return made(connection, key, expires_at)
    connection.execute(
        "UPDATE sessions SET expires_at = ? WHERE id = ? AND expires_at < ?", (expires_at, row, expires_at)
    )
    return row


def made(connection: sqlite3.Connection, key: SessionKey, expires_at: float) -> int:
    """The row of a session that is new."""
    row = connection.execute(
        "INSERT INTO sessions (tenant, session, revision, expires_at) VALUES (?, ?, 0, ?)", (*key, expires_at)
    ).lastrowid
    assert row is not None
    return row
