"""The protocol of stores: a few operations on bytes, each of them atomic.

A tenant has entries. Each has a key, and under it:

    meta      one document that changes, guarded by a revision: a writer that has not seen the newest one loses
    records   immutable documents by name; the first writer of a name wins and all others get its bytes
    marks     names that were marked, mostly of records; a mark is never removed
    blocks    immutable documents by name, read apart from the rest
    journal   small items in the order they came, numbered from 1, of which the newest `JOURNAL` are kept

A tenant also has an index, which maps digests to the names of entries. An item of the index is a hint: it may be
written after the entry and outlive it, so the reader verifies it.

Every key contains the tenant, so no call can reach another tenant's data. Each `save` renews the time to live of all
that an entry has. Only their writers know the meaning of entries (here, sessions); in the keys of Redis, the SQL
and error messages, which are older than this distinction, an entry is called a session.

A ring belongs to none either: it keeps the newest `RING` of the items that were appended to it, for a time.

Facts belong to no entry and to no tenant. A fact has a name and a time to live, and the last writer wins. A fact may be
lost, so it must be something that can be learned again.

Sums belong to no entry either. A sum has a name and a time to live, and holds whole numbers by name. Writers only add
to them, so replicas never undo each other's work. A budget has a name too, and fills up with time.

A tenant also has claims, each with a name and for a number of seconds. The holder of a claim does a piece of work that
others would do too. Claims only save work: correctness never depends on them.

Quotas bound the bytes of one entry, and of all entries of one tenant. The bytes of an entry are those of its meta, and
of its blocks and records with their names, in stored form; a journal is bounded by itself. Two rules hold when an
entry is full:

- New blocks are refused, and with them the whole `save`: nothing is written, and a StoreError `store-quota` is raised.
  The store cannot know whether a meta is useful without the blocks that came with it, so it does not store a meta whose
  blocks it refuses. A `save` without new blocks is never refused.
- Records may exceed the quotas by a quarter, because losing one costs more: without its condensation, every later turn
  of a conversation condenses again, pays the model again and misses the provider's prompt cache.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal, NamedTuple, Protocol


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
"""Answers that last: nothing can be written, but reading works."""


EVICTS = "store-evicts"
WEAKNESSES = {
    EVICTS: "the Redis evicts: when its memory is full, parts of sessions are gone without a word, so append mode is"
    " refused; set its maxmemory-policy to noeviction",
    "store-unkept": "the Redis keeps nothing on disk: all sessions are gone when it starts again; turn on appendonly,"
    " or save snapshots",
    "store-read-only": "the Redis is a replica that takes no writes: no session is kept; name its master",
}
"""What keeps a store from keeping what it is given, by name, and what to do."""


class StoreKey(NamedTuple):
    """Tenant and name of an entry, both digests or generated ids in [A-Za-z0-9_-]: safe in any key."""

    tenant: str
    name: str


CHECK = StoreKey("encryption", "check")
"""The entry of an encrypted store that tells whether a key is the right one."""
SECRET = StoreKey("compactions", "secret")
"""The entry of a record with its name, which signs what clients hold for the proxy. It is never saved, so not shown."""
FOR_GOOD = 100 * 365 * 24 * 3600  # seconds
MOST_SUMMED = 2**53
"""A sum stays at this, below 0 too: what is larger is no integer in JSON or in a script of Redis."""
MOST_MISSING = 600_000
"""Milliseconds after which a budget is full again at the latest, whatever was taken: one absurd amount locks nobody."""


class Snapshot(NamedTuple):
    """An entry as one consistent read returns it, without its blocks; `revision` counts its saves, from 1."""

    meta: bytes
    revision: int
    records: Mapping[str, bytes] = MappingProxyType({})
    marks: frozenset[str] = frozenset()


Part = Literal["meta", "records", "blocks"]


@dataclass(frozen=True, slots=True)
class Write:
    meta: bytes  # the new document
    revision: int  # the revision of the snapshot that the change was made from; 0 for a new entry
    ttl: int  # seconds that the entry lives from now on
    blocks: Mapping[str, bytes] = field(default_factory=dict)
    """New blocks by name; one that exists already stays as it is."""
    index: Sequence[str] = ()  # digests under which the entry is to be found
    journal: bytes = b""  # a new item of the journal; none if it is empty


class FindResult(NamedTuple):
    """The result of `find`: names of entries by digest, and the snapshots that were read with them, by name."""

    names: Mapping[str, str] = MappingProxyType({})
    snapshots: Mapping[str, Snapshot] = MappingProxyType({})


class Store(Protocol):
    """The protocol of all stores. Methods raise `StoreError` if they fail, and nothing else."""

    async def load(self, key: StoreKey) -> Snapshot | None:
        """The entry; None if it is unknown or has expired."""

    async def save(self, key: StoreKey, write: Write) -> bool:
        """Writes if the stored revision is `write.revision`; else writes nothing and returns False."""

    async def put_record(self, key: StoreKey, name: str, record: bytes, ttl: int) -> bytes:
        """Stores `record` unless one of that name exists. Returns the bytes that are stored."""

    async def mark(self, key: StoreKey, name: str) -> None:
        """Marks a name. May be repeated."""

    async def blocks(self, key: StoreKey, names: Sequence[str] | None = None) -> dict[str, bytes]:
        """The blocks of an entry by name: all of them, or those of `names` that exist."""

    async def journal(self, key: StoreKey) -> list[tuple[int, bytes]]:
        """The items of an entry's journal with their numbers, oldest first."""

    async def find(self, tenant: str, digests: Sequence[str], likely: Sequence[str] = ()) -> FindResult:
        """Looks digests up in the index; those that it does not have are left out.

        The entries with the `likely` names are read in the same round trip, each as by `load`.
        """

    async def claim(self, tenant: str, name: str, holder: str, ttl: float) -> bool:
        """Claims a piece of work for `ttl` seconds, unless another holder has; returns whether the holder has it.

        The holder renews its claim by the same call. `name` and `holder` consist of the same characters as a key.
        """

    async def get_fact(self, name: str) -> bytes | None:
        """The fact of that name; None if there is none, or it has expired. Names are as in `claim`."""

    async def put_fact(self, name: str, fact: bytes, ttl: int) -> None:
        """Stores a fact for `ttl` seconds, in place of the one with its name."""

    async def add(self, name: str, amounts: Mapping[str, int], ttl: int) -> None:
        """Adds amounts to those of a sum, which lives for `ttl` seconds from now on. Names are as in `claim`.

        None grows beyond `MOST_SUMMED`.
        """

    async def sums(self, names: Sequence[str]) -> list[dict[str, int]]:
        """The amounts of these sums, in order; no amounts for one that does not exist, and none that is no number."""

    async def push(self, name: str, items: Sequence[bytes], ttl: int) -> None:
        """Appends items to a ring, of which the newest `RING` are kept for `ttl` seconds. Names are as in `claim`."""

    async def ring(self, name: str) -> list[bytes]:
        """The items of a ring, oldest first."""

    async def spend(self, name: str, amount: int, most: int) -> int:
        """Takes milliseconds from a budget of `most`, which gets one back in each; returns 0, or how long it is empty.

        If anything is left, the whole amount is taken, even if that is more; if nothing is, nothing is taken. With
        `UNBOUNDED` it always is. No more than `MOST_MISSING` is ever gone. An amount below 0 is given
        back. Names are as in `claim`.
        """

    async def keys(self, tenant: str | None = None) -> list[StoreKey]:
        """All keys of one tenant or of all tenants that have data, in order, including those that were never saved.

        Scans the whole store, so it is for operators and never for a request.
        """

    async def newest(self, count: int, tenant: str = "") -> list[StoreKey]:
        """At most `count` of the entries saved last, the newest first: of one tenant, or of all ("").

        Some of them may be gone. Reads no entry.
        """

    async def delete(self, key: StoreKey) -> bool:
        """Deletes an entry and everything in it. Returns whether it was ever saved."""

    async def ping(self) -> None:
        """Returns once the store has answered."""

    async def weaknesses(self) -> set[str]:
        """What keeps it from keeping what it is given, of `WEAKNESSES`, as far as it tells."""
        return set()

    async def reseal(self) -> None:
        """Puts all sessions under the first of its keys; a store without keys has nothing to do."""
        return

    async def close(self) -> None:
        """Ends all operations, and closes all connections."""


class KeptBytes(Store, Protocol):
    """A store that keeps the bytes as they are given, so that they can be compared."""

    async def swap(self, key: StoreKey, part: Part, name: str, before: bytes, after: bytes) -> bool:
        """Puts other bytes in the place of a meta, a record or a block that is `before`; returns whether it still was.

        They mean the same and have as many bytes, so nothing else of the entry changes. The name of a meta is "".
        """


JOURNAL = 2_000  # maximum number of items in a journal
RING = 5_000  # maximum number of items in a ring
UNBOUNDED = -1  # the value of `room` that stands for no bound


@dataclass(frozen=True, slots=True)
class Quotas:
    """The maximum bytes of one entry, and of all entries of a tenant together; 0 for no quota."""

    entry: int = 0
    tenant: int = 0

    def for_blocks(self, others: int, quarters: int = 4) -> int:
        """The maximum bytes of an entry with its new blocks; its tenant's other entries have `others` bytes."""
        bounds = [self.entry * quarters // 4] if self.entry else []
        if self.tenant:
            bounds.append(max(0, self.tenant * quarters // 4 - others))
        return min(bounds, default=UNBOUNDED)

    def for_records(self, others: int) -> int:
        """The maximum bytes of an entry with a new record."""
        return self.for_blocks(others, quarters=5)
