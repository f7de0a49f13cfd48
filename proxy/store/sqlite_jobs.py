"""What is done with an open SQLite database: the jobs of the store, each of which is one transaction.

An entry has one `expires_at`, so that all its rows expire together. A row with revision 0 and no meta is an entry
that has records and was never saved. Its `bytes` are the size that quotas count, updated in the same transaction; a
tenant's size is their sum, read from an index that covers it. Expired data is invisible at once. It is removed by the
next write under its key, or by `purge`, which goes in small steps.

A job gets the connection and the time that it begins at. Functions on an entry's rows (`Document` to `stay_within`)
run inside the transaction of their job.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from json import dumps
from typing import Any, Literal, NamedTuple

from proxy.store.base import UNBOUNDED, FindResult, Lease, Quotas, Snapshot, StoreError, StoreKey, Write

PURGE_SESSIONS = 64
PURGE_INDEX = 4096


@contextmanager
def transaction(connection: sqlite3.Connection, mode: Literal["DEFERRED", "IMMEDIATE"]) -> Iterator[None]:
    """A transaction: what is done inside is committed, or rolled back if it raises."""
    connection.execute(f"BEGIN {mode}")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:  # some errors roll back by themselves
            connection.execute("ROLLBACK")
        raise


def rows_of(connection: sqlite3.Connection, statement: str, *values: object) -> list[Any]:
    return connection.execute(statement, values).fetchall()


# Entries


def load(connection: sqlite3.Connection, now: float, key: StoreKey) -> Snapshot | None:
    found = read_document(connection, key, now)
    if found is None or not found.has_more:
        # True of nearly all entries. A single statement needs no transaction to be consistent.
        return found and Snapshot(found.meta, found.revision)
    with transaction(connection, "DEFERRED"):
        found = read_document(connection, key, now)
        if found is None:
            return None
        records = rows_of(connection, "SELECT name, record FROM records WHERE session_id = ?", found.row)
        standing = rows_of(connection, "SELECT name FROM standing WHERE session_id = ?", found.row)
    return Snapshot(found.meta, found.revision, dict(records), frozenset(name for (name,) in standing))


def save(connection: sqlite3.Connection, now: float, key: StoreKey, write: Write, quotas: Quotas) -> bool:
    expires_at = now + write.ttl
    with transaction(connection, "IMMEDIATE"):
        row, revision, rest = find_live_row(connection, key, now)
        if revision != write.revision:
            return False
        row = insert_row(connection, key, expires_at) if row is None else row
        size = rest + len(write.meta)
        added = 0
        for digest, block in write.blocks.items():
            put = connection.execute("INSERT INTO blocks VALUES (?, ?, ?) ON CONFLICT DO NOTHING", (row, digest, block))
            added += len(digest) + len(block) if put.rowcount else 0
        if added:
            size += added
            stay_within(quotas.for_blocks(size_of_others(connection, key, now) if quotas.tenant else 0), size)
        connection.execute(
            "UPDATE sessions SET meta = ?, revision = ?, expires_at = ?, bytes = ? WHERE id = ?",
            (write.meta, revision + 1, expires_at, size, row),
        )
        if write.index:
            chained = [(key.tenant, digest, key.name, expires_at) for digest in write.index]
            connection.executemany("INSERT OR REPLACE INTO chain VALUES (?, ?, ?, ?)", chained)
    return True


def put_record(connection: sqlite3.Connection, now: float, key: StoreKey, new: Record, quotas: Quotas) -> bytes:
    with transaction(connection, "IMMEDIATE"):
        expires_at = now + new.ttl
        row = find_live_row(connection, key, now).row
        if row is None:
            row = insert_row(connection, key, expires_at)
        else:
            renew = "UPDATE sessions SET expires_at = ? WHERE id = ? AND expires_at < ?"
            connection.execute(renew, (expires_at, row, expires_at))
        select = "SELECT record FROM records WHERE session_id = ? AND name = ?"
        found = rows_of(connection, select, row, new.name)
        if found:
            kept: bytes = found[0][0]
            return kept
        ((before,),) = rows_of(connection, "SELECT bytes FROM sessions WHERE id = ?", row)
        size = before + len(new.name) + len(new.data)
        stay_within(quotas.for_records(size_of_others(connection, key, now) if quotas.tenant else 0), size)
        connection.execute("INSERT INTO records VALUES (?, ?, ?)", (row, new.name, new.data))
        connection.execute("UPDATE sessions SET bytes = ? WHERE id = ?", (size, row))
    return new.data


def mark(connection: sqlite3.Connection, now: float, key: StoreKey, name: str) -> None:
    with transaction(connection, "IMMEDIATE"):
        row = find_live_row(connection, key, now).row
        if row is not None:
            connection.execute("INSERT INTO standing VALUES (?, ?) ON CONFLICT DO NOTHING", (row, name))


def blocks(connection: sqlite3.Connection, now: float, key: StoreKey, names: Sequence[str] | None) -> dict[str, bytes]:
    select = (
        "SELECT digest, block FROM blocks JOIN sessions ON sessions.id = session_id"
        " WHERE tenant = ? AND session = ? AND expires_at > ?"
    )
    some = "" if names is None else " AND digest IN (SELECT value FROM json_each(?))"
    asked = () if names is None else (dumps(list(names)),)
    rows = rows_of(connection, select + some, key.tenant, key.name, now, *asked)
    return dict(rows)


def find_and_read(
    connection: sqlite3.Connection, now: float, tenant: str, digests: Sequence[str], likely: Sequence[StoreKey]
) -> FindResult:
    read = {key.name: load(connection, now, key) for key in likely}
    known = {name: snapshot for name, snapshot in read.items() if snapshot is not None}
    return FindResult(find(connection, now, tenant, digests) if digests else {}, known)


def find(connection: sqlite3.Connection, now: float, tenant: str, digests: Sequence[str]) -> dict[str, str]:
    # One JSON argument, as the number of arguments of a statement is limited.
    rows = rows_of(
        connection,
        "SELECT digest, session FROM chain"
        " WHERE tenant = ? AND digest IN (SELECT value FROM json_each(?)) AND expires_at > ?",
        *(tenant, dumps(list(digests)), now),
    )
    return dict(rows)


def keys(connection: sqlite3.Connection, now: float, tenant: str | None) -> list[StoreKey]:
    rows = rows_of(
        connection,
        "SELECT tenant, session FROM sessions"
        " WHERE expires_at > ? AND tenant = coalesce(?, tenant) ORDER BY tenant, session",
        *(now, tenant),
    )
    return [StoreKey(*row) for row in rows]


def delete(connection: sqlite3.Connection, now: float, key: StoreKey) -> bool:
    with transaction(connection, "IMMEDIATE"):
        row, revision, _ = find_live_row(connection, key, now)
        if row is not None:
            connection.execute("DELETE FROM sessions WHERE id = ?", (row,))
    # Else the text would stay in the log file until it is written over. It may be busy, and is emptied later then.
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return revision > 0


class Record(NamedTuple):
    name: str
    data: bytes
    ttl: int


# Rows of an entry


class Document(NamedTuple):
    """The document of an entry, and its row id; `has_more` says whether it has records or marks."""

    row: int
    meta: bytes
    revision: int
    has_more: bool


class LiveRow(NamedTuple):
    """Row id and revision of an entry, and the bytes of all but its meta; the default stands for no entry."""

    row: int | None = None
    revision: int = 0
    rest: int = 0


def size_of_others(connection: sqlite3.Connection, key: StoreKey, now: float) -> int:
    select = "SELECT coalesce(sum(bytes), 0) FROM sessions WHERE tenant = ? AND expires_at > ? AND session <> ?"
    size: int = rows_of(connection, select, key.tenant, now, key.name)[0][0]
    return size


def read_document(connection: sqlite3.Connection, key: StoreKey, now: float) -> Document | None:
    """The document of an entry; None where it was never saved, or has expired."""
    found = connection.execute(
        "SELECT id, meta, revision, EXISTS (SELECT 1 FROM records WHERE session_id = id)"
        " OR EXISTS (SELECT 1 FROM standing WHERE session_id = id) FROM sessions"
        " WHERE tenant = ? AND session = ? AND expires_at > ? AND meta IS NOT NULL",
        (key.tenant, key.name, now),
    ).fetchone()
    return Document(*found) if found else None


def find_live_row(connection: sqlite3.Connection, key: StoreKey, now: float) -> LiveRow:
    """The row of an entry that has not expired; one that has is deleted."""
    found = connection.execute(
        "SELECT id, revision, bytes - coalesce(length(meta), 0), expires_at FROM sessions"
        " WHERE tenant = ? AND session = ?",
        key,
    ).fetchone()
    if found is None:
        return LiveRow()
    *row, expires_at = found
    if expires_at <= now:
        connection.execute("DELETE FROM sessions WHERE id = ?", (row[0],))
        return LiveRow()
    return LiveRow(*row)


def insert_row(connection: sqlite3.Connection, key: StoreKey, expires_at: float) -> int:
    """Inserts a row for a new entry. Returns its id."""
    row = connection.execute(
        "INSERT INTO sessions (tenant, session, revision, expires_at) VALUES (?, ?, 0, ?)", (*key, expires_at)
    ).lastrowid
    assert row is not None
    return row


def stay_within(room: int, size: int) -> None:
    """Raises, which rolls the transaction back, if an entry would exceed its quota."""
    if room != UNBOUNDED and size > room:
        raise StoreError("store-quota", f"the session would have {size} bytes of {room}")


# Leases and facts


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


def get_fact(connection: sqlite3.Connection, now: float, name: str) -> bytes | None:
    rows = rows_of(connection, "SELECT fact FROM facts WHERE name = ? AND expires_at > ?", name, now)
    return rows[0][0] if rows else None


def put_fact(connection: sqlite3.Connection, now: float, name: str, fact: bytes, ttl: int) -> None:
    with transaction(connection, "IMMEDIATE"):
        connection.execute("INSERT OR REPLACE INTO facts VALUES (?, ?, ?)", (name, fact, now + ttl))


# All of the database


def ping(connection: sqlite3.Connection, _now: float) -> None:
    rows_of(connection, "SELECT 1 FROM sessions LIMIT 1")


def purge(connection: sqlite3.Connection, now: float) -> None:
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
        # No limit: there are only a few facts for each model of an upstream, and leases live for seconds.
        connection.execute("DELETE FROM facts WHERE expires_at <= ?", (now,))
        connection.execute("DELETE FROM leases WHERE expires_at <= ?", (now,))
