"""Leases in SQLite, for several processes on one file. Each call is one transaction.

A row that has expired is replaced by the next holder of its name, or removed by the store's purge.
"""

from __future__ import annotations

import sqlite3
from typing import NamedTuple

from proxy.store.base import Lease
from proxy.store.sqlite_file import rows_of, transaction


class Claim(NamedTuple):
    """Which lease a holder asks for or ends; `ttl` are the seconds that the lease, or its handover, lives."""

    tenant: str
    name: str
    holder: str
    ttl: float


def lease(connection: sqlite3.Connection, claim: Claim, now: float) -> Lease:
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


def read_lease(connection: sqlite3.Connection, tenant: str, name: str, now: float) -> Lease:
    """The state of a lease; changes nothing."""
    select = "SELECT holder, left_behind FROM leases WHERE tenant = ? AND name = ? AND expires_at > ?"
    rows = rows_of(connection, select, tenant, name, now)
    return Lease(rows[0][0] is not None, rows[0][1]) if rows else Lease(held=False)


def release(connection: sqlite3.Connection, claim: Claim, handover: bytes, now: float) -> None:
    """Ends a lease if the holder still has it."""
    # Without a handover the row expires now, which is as good as deleting it.
    ends = now + claim.ttl if handover else now
    with transaction(connection, "IMMEDIATE"):
        connection.execute(
            "UPDATE leases SET holder = NULL, expires_at = ?, left_behind = ?"
            " WHERE tenant = ? AND name = ? AND holder = ? AND expires_at > ?",
            (ends, handover, claim.tenant, claim.name, claim.holder, now),
        )


def purge(connection: sqlite3.Connection, now: float) -> None:
    """Removes expired leases, in its caller's transaction; they are few, since leases live for seconds."""
    connection.execute("DELETE FROM leases WHERE expires_at <= ?", (now,))
