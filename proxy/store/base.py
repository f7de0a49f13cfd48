"""The protocol of session stores: a few operations, each of them atomic.

A store keeps bytes and knows nothing of strategies. A session has, under its key:

    meta      one document that changes, guarded by a revision: a writer that has not seen the newest one loses
    records   immutable documents by name; the first writer of a name wins and all others get its bytes
    standing  the names of records that a forwarded view has applied
    blocks    immutable runs of messages by the chain digest that they end with

A tenant has a chain index, which maps a chain digest to the session whose history it is part of. An index entry is a
hint: it is written after the session, may outlive it, and is verified by the reader.

Every key contains the tenant, so no call can reach another tenant's data. Each `save` renews the time to live of all
that a session has.

Facts belong to no session and to no tenant: they hold what was learned of an upstream. A fact has a name and a time to
live, and the last writer wins: a fact that is lost or stale is learned again.

A tenant also has leases, by name and for a number of seconds. The holder of a lease does a piece of work that others
would do too, and may hand its result over to them. Leases only save work: correctness never depends on them.

Quotas bound the bytes of one session, and of all sessions of one tenant. The bytes of a session are those of its meta,
of its blocks with their digests, and of its records with their names, in stored form, which is compressed. Two rules
keep the cost for clients low when a session is full:

- New blocks are refused, and with them the whole `save`: nothing is written, and a StoreError `store-quota` is raised.
  The store cannot know whether a meta is of use without the blocks that came with it (the head of an appended history
  names its newest block), so it does not store a meta whose blocks it refuses. A `save` without new blocks is never
  refused: a writer that can do without its blocks repeats the save without them, and the session stays known.
- A record is worth more than a block: without it every later turn condenses again, pays the model again and misses the
  provider's prompt cache. So records may exceed the quotas of a session and of a tenant by a quarter.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple, Protocol


class StoreError(Exception):
    """The store could not do an operation, or not in time; `reason` is a kebab-case word for a header."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason = reason


# Errors that are answers: the store works, but refuses or cannot do the operation.
ANSWERS = frozenset(
    {"store-closed", "store-contended", "store-corrupt", "store-full", "store-quota", "store-read-only", "store-schema"}
)

REFUSED_WRITES = frozenset(("store-full", "store-read-only"))
"""Answers that last: nothing can be written, while reading goes on."""


class SessionKey(NamedTuple):
    """Tenant and session, both digests or generated ids in [A-Za-z0-9_-]: safe in any key."""

    tenant: str
    session: str


class Snapshot(NamedTuple):
    """A session as one consistent read returns it; `revision` counts its saves, from 1."""

    meta: bytes
    revision: int
    records: Mapping[str, bytes] = MappingProxyType({})
    standing: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Write:
    """One change of a session."""

    meta: bytes
    """The new document."""
    revision: int
    """The revision of the snapshot that the change was made from; 0 for a new session."""
    ttl: int
    """Seconds that the session lives from now on."""
    blocks: Mapping[str, bytes] = field(default_factory=dict)
    """New blocks by name; one that exists already stays as it is."""
    index: Sequence[str] = ()
    """Chain digests under which the session is to be found."""


class FindResult(NamedTuple):
    """The result of `find`: names of sessions by chain digest, and the snapshots that were read with them, by name."""

    sessions: Mapping[str, str] = MappingProxyType({})
    snapshots: Mapping[str, Snapshot] = MappingProxyType({})


class Lease(NamedTuple):
    """The state of a lease.

    As the result of `lease`, `held` says whether the caller holds it; as the result of `read_lease`, whether anybody
    does. `handover` is the result that its last holder handed over; empty for none.
    """

    held: bool
    handover: bytes = b""


class SessionStore(Protocol):
    """The protocol of all stores. Methods raise `StoreError` where they fail, and nothing else."""

    async def load(self, key: SessionKey) -> Snapshot | None:
        """The session; None where it is unknown or has expired."""
        ...

    async def save(self, key: SessionKey, write: Write) -> bool:
        """Writes if the stored revision is `write.revision`; else writes nothing and returns False."""
        ...

    async def put_record(self, key: SessionKey, name: str, record: bytes, ttl: int) -> bytes:
        """Stores `record` unless one of that name exists. Returns the bytes that are stored."""
        ...

    async def mark_standing(self, key: SessionKey, name: str) -> None:
        """Marks a record as applied by a forwarded view. May be repeated."""
        ...

    async def blocks(self, key: SessionKey, names: Sequence[str] | None = None) -> dict[str, bytes]:
        """The blocks of a session by name: all of them, or those of `names` that exist."""
        ...

    async def find(self, tenant: str, digests: Sequence[str], likely: Sequence[str] = ()) -> FindResult:
        """Looks chain digests up in the index; those that it does not have are left out.

        The `likely` sessions are read in the same round trip, each as `load` does.
        """
        ...

    async def lease(self, tenant: str, name: str, holder: str, ttl: float) -> Lease:
        """Takes a lease for `ttl` seconds, unless another holder has it or has handed a result over.

        The holder renews its lease by the same call. `name` and `holder` consist of the same characters as a session
        key; each attempt at a piece of work has a holder of its own.
        """
        ...

    async def read_lease(self, tenant: str, name: str) -> Lease:
        """The state of a lease; changes nothing."""
        ...

    async def release(self, tenant: str, name: str, holder: str, handover: bytes, ttl: float) -> None:
        """Ends a lease if the holder still has it. A `handover` that is not empty can be read for `ttl` seconds."""
        ...

    async def get_fact(self, name: str) -> bytes | None:
        """The fact of that name; None where there is none, or it has expired. Names are as in `lease`."""
        ...

    async def put_fact(self, name: str, fact: bytes, ttl: int) -> None:
        """Stores a fact for `ttl` seconds, in place of the one with its name."""
        ...

    async def sessions(self, tenant: str | None = None) -> list[SessionKey]:
        """All keys of one tenant or of all tenants that have data, in order; also those that were never saved.

        Scans the whole store, so it is for operators and never for a request.
        """
        ...

    async def delete(self, key: SessionKey) -> bool:
        """Deletes all data of a session. Returns whether there was a session."""
        ...

    async def ping(self) -> None:
        """Returns once the store has answered."""
        ...

    async def close(self) -> None:
        """Ends all operations, and closes all connections."""
        ...


UNBOUNDED = -1  # a room without a bound, as the stores are given it


@dataclass(frozen=True, slots=True)
class Quotas:
    """The maximum bytes of one session, and of all sessions of a tenant together; 0 for no quota."""

    session: int = 0
    tenant: int = 0

    def for_blocks(self, others: int) -> int:
        """The maximum bytes of a session with its new blocks; its tenant's other sessions have `others` bytes."""
        return _least(self.session, self.tenant, others)

    def for_records(self, others: int) -> int:
        """The maximum bytes of a session with a new record."""
        return _least(self.session * 5 // 4, self.tenant * 5 // 4, others)


def _least(session: int, tenant: int, others: int) -> int:
    bounds = [session] if session else []
    if tenant:
        bounds.append(max(0, tenant - others))
    return min(bounds, default=UNBOUNDED)
