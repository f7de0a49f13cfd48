"""The rows of a session in SQLite: finding them, creating them, and their size; and the rows of leases.

The functions on a session's rows run inside their caller's transaction; those on leases are transactions of their own,
but for `purge_leases`. A lease that has expired is replaced by the next holder of its name, or removed by the store's
purge.
"""

from __future__ import annotations

import sqlite3
from typing import NamedTuple

from proxy.store.base import Lease, SessionKey
from proxy.store.sqlite_file import rows_of, transaction


class Document(NamedTuple):
    """The document of a session, and its row id; `has_more` says whether it has records, or marks of standing ones."""

    row: int
    meta: bytes
    revision: int
    has_more: bool


class LiveRow(NamedTuple):
    """Row id and revision of a session, and the bytes of all but its meta; the default stands for no session."""

    row: int | None = None
    revision: int = 0
    rest: int = 0


def size_of(connection: sqlite3.Connection, row: int) -> int:
    size: int = rows_of(connection, "SELECT bytes FROM sessions WHERE id = ?", row)[0][0]
    return size


def put_block(connection: sqlite3.Connection, row: int, digest: str, block: bytes) -> int:
    """Adds a block unless the session has it. Returns by how many bytes the session grows."""
    put = connection.execute("INSERT INTO blocks VALUES (?, ?, ?) ON CONFLICT DO NOTHING", (row, digest, block))
    return len(digest) + len(block) if put.rowcount else 0


def size_of_others(connection: sqlite3.Connection, key: SessionKey, now: float) -> int:
    select = "SELECT coalesce(sum(bytes), 0) FROM sessions WHERE tenant = ? AND expires_at > ? AND session <> ?"
    size: int = rows_of(connection, select, key.tenant, now, key.session)[0][0]
    return size


def read_document(connection: sqlite3.Connection, key: SessionKey, now: float) -> Document | None:
    """The document of a session; None where it was never saved, or has expired."""
    found = rows_of(
        connection,
        "SELECT id, meta, revision, EXISTS (SELECT 1 FROM records WHERE session_id = id)"
        " OR EXISTS (SELECT 1 FROM standing WHERE session_id = id) FROM sessions"
        " WHERE tenant = ? AND session = ? AND expires_at > ? AND meta IS NOT NULL",
        *(key.tenant, key.session, now),
    )
    return Document(*found[0]) if found else None


def find_live_row(connection: sqlite3.Connection, key: SessionKey, now: float) -> LiveRow:
    """The row of a session that has not expired; one that has is deleted."""
    found = rows_of(
        connection,
        "SELECT id, revision, bytes - coalesce(length(meta), 0), expires_at FROM sessions"
        " WHERE tenant = ? AND session = ?",
        *key,
    )
    if not found:
        return LiveRow()
    *row, expires_at = found[0]
    if expires_at <= now:
        connection.execute("DELETE FROM sessions WHERE id = ?", (row[0],))
        return LiveRow()
    return LiveRow(*row)


def ensure_row(connection: sqlite3.Connection, key: SessionKey, row: int | None, expires_at: float) -> int:
    """The row of a session, created if need be, which now lives until `expires_at` or longer."""
    if row is None:
        return insert_row(connection, key, expires_at)
    connection.execute(
        "UPDATE sessions SET expires_at = ? WHERE id = ? AND expires_at < ?", (expires_at, row, expires_at)
    )
    return row


def insert_row(connection: sqlite3.Connection, key: SessionKey, expires_at: float) -> int:
    """Inserts a row for a new session. Returns its id."""
    row = connection.execute(
        "INSERT INTO sessions (tenant, session, revision, expires_at) VALUES (?, ?, 0, ?)", (*key, expires_at)
    ).lastrowid
    assert row is not None
    return row


class Claim(NamedTuple):
    """Which lease a holder asks for or ends; `ttl` are the seconds that the lease, or its handover, lives."""

    tenant: str
    name: str
    holder: str
    ttl: float


def take_lease(connection: sqlite3.Connection, now: float, claim: Claim) -> Lease:
    """Takes a lease if it is free, or renews the holder's own."""
    with transaction(connection, "IMMEDIATE"):
        connection.execute(
            "INSERT INTO leases VALUES (?, ?, ?, ?, x'') ON CONFLICT (tenant, name) DO UPDATE"
            " SET holder = excluded.holder, expires_at = excluded.expires_at, left_behind = x''"
            " WHERE holder = excluded.holder OR expires_at <= ?",
            (claim.tenant, claim.name, claim.holder, now + claim.ttl, now),
        )
        select = "SELECT holder, left_behind FROM leases WHERE tenant = ? AND name = ?"
        ((holder, handover),) = rows_of(connection, select, claim.tenant, claim.name)
    return Lease(holder == claim.holder, handover)


def read_lease(connection: sqlite3.Connection, now: float, tenant: str, name: str) -> Lease:
    """The state of a lease; changes nothing."""
    select = "SELECT holder, left_behind FROM leases WHERE tenant = ? AND name = ? AND expires_at > ?"
    rows = rows_of(connection, select, tenant, name, now)
    return Lease(rows[0][0] is not None, rows[0][1]) if rows else Lease(held=False)


def release_lease(connection: sqlite3.Connection, now: float, claim: Claim, handover: bytes) -> None:
    """Ends a lease if the holder still has it."""
    # Without a handover the row expires now, which is as good as deleting it.
    ends = now + claim.ttl if handover else now
    with transaction(connection, "IMMEDIATE"):
        connection.execute(
            "UPDATE leases SET holder = NULL, expires_at = ?, left_behind = ?"
            " WHERE tenant = ? AND name = ? AND holder = ? AND expires_at > ?",
            (ends, handover, claim.tenant, claim.name, claim.holder, now),
        )


def purge_leases(connection: sqlite3.Connection, now: float) -> None:
    """Removes expired leases, in its caller's transaction; they are few, since leases live for seconds."""
    connection.execute("DELETE FROM leases WHERE expires_at <= ?", (now,))
