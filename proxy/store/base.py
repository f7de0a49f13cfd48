"""What a session store does: little, and that atomically.

A store keeps bytes and knows nothing of strategies. One session has, under its key:

    meta      one document that changes, guarded by a revision: a writer that has not seen the newest one loses
    records   immutable documents by name; the first writer of a name wins and all others get its bytes
    standing  the names of records that a forwarded view has applied
    blocks    immutable runs of messages by the chain digest that they end with

and the tenant has a chain index: from a chain digest to the session whose history it is part of. An index
entry is a hint: it is written after the session, may outlive it, and is verified by the reader.

Every key holds the tenant, so no call can reach another tenant's data. All of a session's time to live is
renewed by each `save`.

Facts belong to no session and to no tenant: what was learned of an upstream. They are found by a name, each for a
time, and the last writer wins: a fact that is lost or stale is learned again.

A tenant has leases besides, each by its name and for seconds: who holds one does a piece of work that others would do
too, and may leave them what came of it. They save work and decide nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple, Protocol


class StoreError(Exception):
    """The store did not do what was asked, or not in time; `reason` is a kebab-case word for a header."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason = reason


class SessionKey(NamedTuple):
    """Tenant and session, both digests or generated ids in [A-Za-z0-9_-]: safe in any key."""

    tenant: str
    session: str


class Snapshot(NamedTuple):
    """A session as one consistent read gave it; `revision` counts its saves, from 1."""

    meta: bytes
    revision: int
    records: Mapping[str, bytes] = MappingProxyType({})
    standing: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Write:
    """One change of a session: `revision` is that of the snapshot it was made from, 0 for a new session.

    `blocks` are added where absent. `index` lists chain digests that shall lead to this session. `ttl` is in
    seconds.
    """

    meta: bytes
    revision: int
    ttl: int
    blocks: Mapping[str, bytes] = field(default_factory=dict)
    index: Sequence[str] = ()


class Found(NamedTuple):
    """What the index was asked for: `sessions` by digest, and of those that were read with it what there is."""

    sessions: Mapping[str, str] = MappingProxyType({})
    read: Mapping[str, Snapshot] = MappingProxyType({})


class Lease(NamedTuple):
    """What came of asking for a lease: it is `held` by who asked, or another's, or over and something was `left`.

    Where nobody asks for it, but looks at it only, it is `held` by anybody.
    """

    held: bool
    left: bytes = b""


class SessionStore(Protocol):
    """The protocol of all stores. Every method raises `StoreError`, and nothing else, when it cannot."""

    async def load(self, key: SessionKey) -> Snapshot | None:
        """The session, or None where it is unknown or has expired."""
        ...

    async def save(self, key: SessionKey, write: Write) -> bool:
        """Writes if the stored revision is `write.revision`; False, and nothing written, if it is not."""
        ...

    async def put_record(self, key: SessionKey, name: str, record: bytes, ttl: int) -> bytes:
        """Keeps `record` unless one of that name exists; the bytes that are kept."""
        ...

    async def stand(self, key: SessionKey, name: str) -> None:
        """Marks a record as applied by a forwarded view; again is harmless."""
        ...

    async def blocks(self, key: SessionKey, names: Sequence[str] | None = None) -> dict[str, bytes]:
        """The blocks of a session by their names: all of them, or those of `names` that there are."""
        ...

    async def find(self, tenant: str, digests: Sequence[str], likely: Sequence[str] = ()) -> Found:
        """The sessions that the chain index names, by digest; digests that lead nowhere are left out.

        Sessions that are `likely` to be among them are read in the same step, each as `load` does.
        """
        ...

    async def lease(self, tenant: str, name: str, holder: str, ttl: float) -> Lease:
        """Takes a lease for `ttl` seconds unless another has it or has left something; its holder renews it so.

        `name` and `holder` are as safe in a key as a session's, and each attempt at a work has a holder of its own.
        """
        ...

    async def leased(self, tenant: str, name: str) -> Lease:
        """How a lease stands now; takes and changes nothing."""
        ...

    async def release(self, tenant: str, name: str, holder: str, left: bytes, ttl: float) -> None:
        """Ends a lease that the holder still has. Unless `left` is empty, whoever asks in `ttl` seconds is given it."""
        ...

    async def recall(self, name: str) -> bytes | None:
        """The fact of that name, as safe in a key as a session's; None where there is none, or its time is over."""
        ...

    async def remember(self, name: str, fact: bytes, ttl: int) -> None:
        """Keeps a fact for `ttl` seconds from now, in place of the one that has its name."""
        ...

    async def sessions(self, tenant: str | None = None) -> list[SessionKey]:
        """All keys, of one tenant or of all, under which something lives, in order; also one that was never saved.

        It looks at the whole store: for operators, never for a request.
        """
        ...

    async def delete(self, key: SessionKey) -> bool:
        """Removes all of a session; whether there was one."""
        ...

    async def ping(self) -> None:
        """Returns when the store answers."""
        ...

    async def close(self) -> None:
        """Ends all work and connections."""
        ...
