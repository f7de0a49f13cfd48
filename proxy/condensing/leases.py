"""Leases: a piece of work that several replicas want is done by one of them.

Who gets the lease of a work does it, and renews the lease meanwhile. When the work is over, what came of it is left
under the same name for a moment, as flights keep their results for those who come a moment later. The others ask again
and again until something is left for them, or the lease is free because its holder had nothing to leave, or was killed.
Who would only like to have what comes of a work, and does not do it himself, looks at its lease and takes none.

Nobody depends on it. Where the store fails, or the time is over, everyone does the work himself: what is kept of it is
decided by the first writer of its record, so a lease that is lost costs model calls and nothing else.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

from proxy.condensing.single_flight import LINGER
from proxy.runtime.owned_tasks import OwnedTasks
from proxy.sessions.stored import Patience, StoredSessions
from proxy.store.base import Lease, StoreError

TTL = 3.0  # seconds by which a holder that was killed delays the others at most
RENEWAL = 1.0  # seconds between two renewals: one may fail
SHORTEST_PAUSE, LONGEST_PAUSE, GROWTH = 0.05, 0.25, 1.5  # seconds between two questions

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class LeaseTurn:
    """A place in the queue for a work, when its time has come.

    Either `left` is what another has made of it, or the work is ours, with the lease `held` or, where it could not be
    got, without. `leaves` is set by who does the work to what others may have of it.
    """

    held: bool
    left: bytes
    leaves: bytes = b""
    over: asyncio.Event = field(default_factory=asyncio.Event)


class Leases:
    """The leases of one app; `stored` bounds each call that nobody waits for."""

    def __init__(self, stored: StoredSessions, tasks: OwnedTasks[Any]) -> None:
        self._stored = stored
        self._tasks = tasks

    @asynccontextmanager
    async def turn(self, tenant: str, work: str, until: float, patience: Patience) -> AsyncIterator[LeaseTurn]:
        """Waits for the turn of this caller, at most until that time on the loop's clock.

        What others' work takes is not the store's time: only the answer that ends the waiting costs patience. A lease
        that is held is renewed inside, and ends with what the turn then leaves; nobody waits for that.
        """
        holder = uuid4().hex
        lease = await self._asked(
            lambda: self._answered(tenant, work, holder, patience),
            lambda lease: lease.held or bool(lease.left),
            until,
            patience,
        )
        turn = LeaseTurn(lease.held, lease.left)
        if turn.held:
            # An app that closes ends its leases too: the work is over by then, and others need not wait for it.
            self._tasks.own(self._hold(tenant, work, holder, turn), to_its_end=True)
        try:
            yield turn
        finally:
            turn.over.set()

    async def left(self, tenant: str, work: str, until: float, patience: Patience) -> bytes:
        """What comes of a work that somebody has the lease of, at most until that time on the loop's clock.

        Empty where nobody does it, where it comes to nothing, or where the store fails.
        """
        lease = await self._asked(
            lambda: patience.read(self._stored.store.leased(tenant, work)),
            lambda lease: not lease.held or bool(lease.left),
            until,
            patience,
        )
        return lease.left

    async def _asked(
        self,
        ask: Callable[[], Awaitable[Lease]],
        is_answer: Callable[[Lease], bool],
        until: float,
        patience: Patience,
    ) -> Lease:
        """The lease as it is when that `is_answer`, or the time is over; one that nobody has where the store fails."""
        now = asyncio.get_running_loop().time
        pause = SHORTEST_PAUSE
        while patience.left > 0:
            left = patience.left
            try:
                lease = await ask()
            except StoreError as error:
                _log.warning("no lease, so others may do the same work: %s", error)
                return Lease(held=False)
            if is_answer(lease) or now() >= until:
                return lease
            patience.left = left
            await asyncio.sleep(min(pause, until - now()))
            pause = min(pause * GROWTH, LONGEST_PAUSE)
        return Lease(held=False)

    async def _answered(self, tenant: str, work: str, holder: str, patience: Patience) -> Lease:
        """An answer of the store. A lease that comes when nobody waits for it is given back: others would, in vain."""
        store, given_up = self._stored.store, asyncio.Event()

        async def asking() -> Lease:
            lease = await store.lease(tenant, work, holder, TTL)
            if lease.held and given_up.is_set():
                await store.release(tenant, work, holder, b"", LINGER)
            return lease

        try:
            return await self._stored.write(asking(), patience)
        except (StoreError, asyncio.CancelledError):
            given_up.set()
            raise

    async def _hold(self, tenant: str, work: str, holder: str, turn: LeaseTurn) -> None:
        """Renews the lease until the work is over, then ends it. One task does both: no renewal comes after the end."""
        store = self._stored.store
        while not await _within(turn.over, RENEWAL):
            await self._tried(store.lease(tenant, work, holder, TTL))
        await self._tried(store.release(tenant, work, holder, turn.leaves, LINGER))

    async def _tried(self, call: Coroutine[Any, Any, object]) -> None:
        """A call of which only others have the use: the lease ends by itself in `TTL` seconds."""
        try:
            await self._stored.in_time(call)
        except StoreError as error:
            _log.warning("a lease was not renewed or ended: %s", error)


async def _within(event: asyncio.Event, seconds: float) -> bool:
    """Whether it happens in so many seconds."""
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return False
    return True
