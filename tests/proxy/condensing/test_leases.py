"""Leases: one replica does the work; the others get its result, or do the work themselves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from typing import Any

import pytest

from proxy.condensing.leases import TTL, Leases, SharedWork
from proxy.runtime.owned_tasks import OwnedTasks
from proxy.sessions.stored import StoredSessions
from proxy.store.access import Patience
from proxy.store.base import Lease
from proxy.store.sqlite import SqliteStore
from tests.support.signals import BOUND

pytestmark = pytest.mark.anyio
TENANT, WORK = "tenant", "work"


class Clock:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.now = 1_700_000_000.0

    def __call__(self) -> float:
        return self.now


class Watched(SqliteStore):
    """The store in memory; it tells when somebody has asked for a lease, and when one has ended."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.asked: asyncio.Queue[Lease] = asyncio.Queue()
        self.looked: asyncio.Queue[Lease] = asyncio.Queue()
        self.ended: asyncio.Queue[bytes] = asyncio.Queue()

    async def lease(self, tenant: str, name: str, holder: str, ttl: float) -> Lease:
        """As it is, and told."""
        lease = await super().lease(tenant, name, holder, ttl)
        self.asked.put_nowait(lease)
        return lease

    async def read_lease(self, tenant: str, name: str) -> Lease:
        """As it is, and told."""
        lease = await super().read_lease(tenant, name)
        self.looked.put_nowait(lease)
        return lease

    async def release(self, tenant: str, name: str, holder: str, left: bytes, ttl: float) -> None:
        """As it is, and told."""
        await super().release(tenant, name, holder, left, ttl)
        self.ended.put_nowait(left)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def store(clock: Clock) -> AsyncIterator[Watched]:
    store = await Watched.open(None, clock=clock)
    assert isinstance(store, Watched)
    yield store
    await store.close()


def replica(store: SqliteStore, tasks: OwnedTasks | None = None) -> Leases:
    return Leases(StoredSessions(store, BOUND), tasks or OwnedTasks())


async def shared_by(leases: Leases, *, seconds: float = BOUND, handover: bytes = b"") -> SharedWork:
    """Work that was shared, once its lease is over."""
    until = asyncio.get_running_loop().time() + seconds
    async with leases.share(TENANT, WORK, until, Patience(BOUND)) as shared:
        shared.handover = handover
    return shared


async def soon(awaited: Awaitable[object]) -> None:
    async with asyncio.timeout(BOUND):
        await awaited


async def test_one_does_the_work_and_the_others_are_given_what_it_leaves(store: Watched) -> None:
    until = asyncio.get_running_loop().time() + BOUND
    async with replica(store).share(TENANT, WORK, until, Patience(BOUND)) as first:
        others = [asyncio.create_task(shared_by(replica(store))) for _ in range(3)]
        for _ in range(1 + 2 * len(others)):
            await soon(store.asked.get())
        first.handover = b"a record"

    assert first.held
    for shared in await asyncio.gather(*others):
        assert (shared.held, shared.received) == (False, b"a record")


async def test_who_comes_a_moment_later_is_given_it_too(store: Watched) -> None:
    await shared_by(replica(store), handover=b"a record")
    await soon(store.ended.get())

    assert (await shared_by(replica(store))).received == b"a record"


async def test_where_nothing_is_left_the_next_one_does_the_work(store: Watched) -> None:
    until = asyncio.get_running_loop().time() + BOUND
    async with replica(store).share(TENANT, WORK, until, Patience(BOUND)):
        second = asyncio.create_task(shared_by(replica(store), handover=b"of the second"))
        third = asyncio.create_task(shared_by(replica(store), handover=b"of the third"))
        for _ in range(3):
            await soon(store.asked.get())

    all_shared = await asyncio.gather(second, third)
    assert sorted(shared.held for shared in all_shared) == [False, True]
    worked, given = sorted(all_shared, key=lambda shared: not shared.held)
    assert given.received == worked.handover


async def test_a_work_that_fails_ends_its_lease(store: Watched) -> None:
    with pytest.raises(ZeroDivisionError):
        async with replica(store).share(TENANT, WORK, 0.0, Patience(BOUND)):
            raise ZeroDivisionError
    await soon(store.ended.get())

    assert (await shared_by(replica(store))).held


async def test_the_lease_of_a_holder_that_was_killed_goes_to_the_next_one(store: Watched, clock: Clock) -> None:
    await store.lease(TENANT, WORK, "killed", TTL)
    waiting = asyncio.create_task(shared_by(replica(store)))
    for _ in range(3):
        await soon(store.asked.get())
    assert not waiting.done()

    clock.now += TTL
    assert (await waiting).held


async def test_a_lease_is_renewed_while_the_work_lasts(store: Watched, clock: Clock) -> None:
    until = asyncio.get_running_loop().time() + BOUND
    async with replica(store).share(TENANT, WORK, until, Patience(BOUND)):
        await soon(store.asked.get())
        for _ in range(2):
            clock.now += TTL * 2 / 3
            await soon(store.asked.get())
        assert not (await store.lease(TENANT, WORK, "another", TTL)).held


async def test_who_has_waited_as_long_as_he_may_goes_on_without_a_lease(store: Watched) -> None:
    await store.lease(TENANT, WORK, "another", 60)

    shared = await shared_by(replica(store), seconds=0.2, handover=b"not to be had")

    assert (shared.held, shared.received) == (False, b"")
    assert await store.lease(TENANT, WORK, "a third", 60) == Lease(held=False)


async def test_a_store_that_fails_holds_nobody_up(store: Watched) -> None:
    await store.close()

    shared = await shared_by(replica(store), handover=b"not to be had")

    assert (shared.held, shared.received) == (False, b"")


async def test_a_lease_that_cannot_be_ended_costs_nothing(store: Watched, caplog: pytest.LogCaptureFixture) -> None:
    tasks: OwnedTasks = OwnedTasks()
    async with replica(store, tasks).share(TENANT, WORK, 0.0, Patience(BOUND)) as shared:
        await store.close()
    await soon(tasks.idle())

    assert shared.held
    assert "store-closed" in caplog.text


# Looks


async def left(leases: Leases, *, seconds: float = BOUND) -> bytes:
    until = asyncio.get_running_loop().time() + seconds
    return await leases.result(TENANT, WORK, until, Patience(BOUND))


async def test_who_only_looks_is_given_what_another_leaves(store: Watched) -> None:
    until = asyncio.get_running_loop().time() + BOUND
    async with replica(store).share(TENANT, WORK, until, Patience(BOUND)) as shared:
        looking = asyncio.create_task(left(replica(store)))
        for _ in range(2):
            assert (await asyncio.wait_for(store.looked.get(), BOUND)).held
        shared.handover = b"a record"

    assert await looking == b"a record"


async def test_who_looks_at_a_work_that_nobody_does_goes_on_at_once_and_has_taken_nothing(store: Watched) -> None:
    tasks: OwnedTasks = OwnedTasks()

    assert await left(replica(store, tasks)) == b""

    assert store.asked.empty()
    assert (await shared_by(replica(store))).held
    await soon(tasks.idle())


async def test_who_looks_waits_no_longer_than_he_may(store: Watched) -> None:
    await store.lease(TENANT, WORK, "another", 60)

    assert await left(replica(store), seconds=0.1) == b""


async def test_an_app_that_closes_ends_its_leases_so_that_no_other_waits_for_them(store: Watched) -> None:
    tasks: OwnedTasks = OwnedTasks()
    under_way = asyncio.Event()

    async def work() -> None:
        async with replica(store, tasks).share(TENANT, WORK, 0.0, Patience(BOUND)):
            under_way.set()
            await asyncio.Event().wait()

    tasks.start(work())
    await soon(under_way.wait())
    await soon(tasks.close())

    assert (await shared_by(replica(store), seconds=0.0)).held
