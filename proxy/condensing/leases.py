"""Leases: if several replicas want the same piece of work, one of them does it.

The replica that gets the lease does the work, and renews the lease meanwhile. When it is done, it hands over the result
under the same id for a moment, as a flight keeps its result for requests that come a moment later. The other replicas
poll the store until the result is there, or until the lease is free because its holder had nothing to hand over or was
killed. A caller that wants a result but would not do the work itself reads the lease without taking it.

Nothing depends on a lease. If the store fails or the time is over, every replica does the work itself: the first writer
of a record decides what is kept, so a lost lease costs model calls and nothing else.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

from proxy.request.callers import ALWAYS, Trust
from proxy.runtime.owned_tasks import LINGER, OwnedTasks
from proxy.sessions.stored import StoredSessions
from proxy.store.access import Patience
from proxy.store.base import Lease, StoreError

TTL = 3.0  # seconds; a killed holder delays the others by that much at most
RENEWAL = 1.0  # seconds between two renewals: one may fail
SHORTEST_PAUSE, LONGEST_PAUSE, GROWTH = 0.05, 0.25, 1.5  # seconds between two polls


@dataclass(slots=True)
class SharedWork:
    """A piece of work as one caller has it: another replica's result is there, or the caller does the work itself."""

    held: bool
    """Whether the caller has the lease. Without the lease it does the work too if there is no result."""
    received: bytes
    """The result that another replica handed over; empty if there is none."""
    handover: bytes = b""
    """The result for other replicas, set by the caller that did the work."""
    done: asyncio.Event = field(default_factory=asyncio.Event)


class Leases:
    """The leases of one app; `stored` bounds the store calls for which no request waits."""

    def __init__(self, stored: StoredSessions, tasks: OwnedTasks) -> None:
        self._stored = stored
        self._tasks = tasks

    @asynccontextmanager
    async def share(
        self, tenant: str, work: str, until: float, patience: Patience, trust: Trust = ALWAYS
    ) -> AsyncIterator[SharedWork]:
        """Waits for the lease or for another replica's result until `until`, a time of the event loop's clock.

        The time of others' work does not count as waiting for the store: only the answer that ends the wait costs
        `patience`. A held lease is renewed in the background while the context is open, and released with the
        `handover` when it closes. A caller that is not trusted yet does the work without a lease.
        """
        if not trust.accepted:
            yield SharedWork(held=True, received=b"")
            return
        holder = uuid4().hex
        lease = await self._poll(
            lambda: self._acquire(tenant, work, holder, patience),
            lambda lease: lease.held or bool(lease.handover),
            until,
            patience,
        )
        shared = SharedWork(lease.held, lease.handover)
        if shared.held:
            # `to_its_end`: an app that closes releases its leases, so that no other replica waits for them.
            self._tasks.own(self._renew_until_done(tenant, work, holder, shared), to_its_end=True)
        try:
            yield shared
        finally:
            shared.done.set()

    async def result(self, tenant: str, work: str, until: float, patience: Patience) -> bytes:
        """The result of work that another caller holds the lease of, waiting until `until` on the event loop's clock.

        Empty if nobody is doing the work, if it has no result, or if the store fails.
        """
        lease = await self._poll(
            lambda: patience.read(self._stored.store.read_lease(tenant, work)),
            lambda lease: not lease.held or bool(lease.handover),
            until,
            patience,
        )
        return lease.handover

    async def _poll(
        self, ask: Callable[[], Awaitable[Lease]], is_answer: Callable[[Lease], bool], until: float, patience: Patience
    ) -> Lease:
        """Asks until `is_answer` accepts the lease or the time is over; a free lease if the store fails."""
        now = asyncio.get_running_loop().time
        pause = SHORTEST_PAUSE
        while patience.remaining > 0:
            left = patience.remaining
            try:
                lease = await ask()
            except StoreError as error:
                self._stored.outage.failed("no lease, so others may do the same work", error)
                return Lease(held=False)
            if is_answer(lease) or now() >= until:
                return lease
            patience.remaining = left
            await asyncio.sleep(min(pause, until - now()))
            pause = min(pause * GROWTH, LONGEST_PAUSE)
        return Lease(held=False)

    async def _acquire(self, tenant: str, work: str, holder: str, patience: Patience) -> Lease:
        """Tries to take the lease.

        A lease that arrives after its caller has stopped waiting is given back; otherwise the others would wait for
        nothing.
        """
        store, abandoned = self._stored.store, asyncio.Event()

        async def acquire() -> Lease:
            lease = await store.lease(tenant, work, holder, TTL)
            if lease.held and abandoned.is_set():
                await store.release(tenant, work, holder, b"", LINGER)
            return lease

        try:
            return await self._stored.write(acquire(), patience)
        except (StoreError, asyncio.CancelledError):
            abandoned.set()
            raise

    async def _renew_until_done(self, tenant: str, work: str, holder: str, shared: SharedWork) -> None:
        """Renews the lease, then releases it; one task does both, so no renewal follows the release."""
        store = self._stored.store
        while not shared.done.is_set():
            try:
                await asyncio.wait_for(shared.done.wait(), RENEWAL)
            except TimeoutError:
                await self._best_effort(store.lease(tenant, work, holder, TTL))
        await self._best_effort(store.release(tenant, work, holder, shared.handover, LINGER))

    async def _best_effort(self, call: Coroutine[Any, Any, object]) -> None:
        """Makes a call that only helps others, and logs its failure: the lease ends by itself after `TTL` seconds."""
        try:
            await self._stored.in_time(call)
        except StoreError as error:
            self._stored.outage.failed("a lease was not renewed or ended", error)
