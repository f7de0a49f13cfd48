"""Leases in SQLite: rows with an end, for several processes on one file. Each call is one transaction.

Rows that have expired are replaced by the next holder of their name; the others are removed by the store's purge.
"""

from __future__ import annotations

import sqlite3
from typing import NamedTuple

from proxy.store.base import Lease
from proxy.store.sqlite_file import rows_of, transaction


class Claim(NamedTuple):
    """Who asks for which lease; `ttl` is in seconds, of the lease or of what it leaves."""

    tenant: str
    name: str
    holder: str
    ttl: float


def lease(connection: sqlite3.Connection, claim: Claim, now: float) -> Lease:
    """Takes or renews a lease where it is free."""
    with transaction(connection, "IMMEDIATE"):
        connection.execute(
            "INSERT INTO leases VALUES (?1, ?2, ?3, ?4, x'') ON CONFLICT (tenant, name) DO UPDATE"
            " SET holder = ?3, expires_at = ?4, left_behind = x'' WHERE holder = ?3 OR expires_at <= ?5",
            (claim.tenant, claim.name, claim.holder, now + claim.ttl, now),
        )
        select = "SELECT holder, left_behind FROM leases WHERE tenant = ? AND name = ?"
        ((holder, left),) = rows_of(connection, select, claim.tenant, claim.name)
    return Lease(holder == claim.holder, left)


def leased(connection: sqlite3.Connection, tenant: str, name: str, now: float) -> Lease:
    """How a lease stands."""
    select = "SELECT holder, left_behind FROM leases WHERE tenant = ? AND name = ? AND expires_at > ?"
    rows = rows_of(connection, select, tenant, name, now)
    return Lease(rows[0][0] is not None, rows[0][1]) if rows else Lease(held=False)


def release(connection: sqlite3.Connection, claim: Claim, left: bytes, now: float) -> None:
    """Ends a lease that the holder still has."""
    # Without anything left it is over now, and so as good as gone.
    ends = now + claim.ttl if left else now
    with transaction(connection, "IMMEDIATE"):
        connection.execute(
            "UPDATE leases SET holder = NULL, expires_at = ?, left_behind = ?"
            " WHERE tenant = ? AND name = ? AND holder = ? AND expires_at > ?",
            (ends, left, claim.tenant, claim.name, claim.holder, now),
        )


def purge(connection: sqlite3.Connection, now: float) -> None:
    """Removes, in the transaction of its caller, what has expired: no more than was asked for in some seconds."""
    connection.execute("DELETE FROM leases WHERE expires_at <= ?", (now,))
