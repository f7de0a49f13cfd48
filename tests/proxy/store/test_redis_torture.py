"""Redis that dies or hangs under load: two replicas race for the same sessions, and nothing is wrong afterwards.

What is held whatever happens: a call ends within its bound; what is read was written, whole, under that revision or
name; the stores heal by themselves. Without a fail-over also: of all savers of a revision one wins, all writers of a
record get the same bytes, and nothing that was acknowledged is lost. A fail-over may forget the last acknowledged
writes; the run prints how many.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import TypeVar

import pytest

from proxy.store import open_store
from proxy.store.base import Store, StoreError, StoreKey, Write
from tests.support.redis_cluster import RedisCluster
from tests.support.redis_sentinel import RedisService
from tests.support.redis_server import RedisServer

pytestmark = [pytest.mark.torture, pytest.mark.anyio]

T = TypeVar("T")

TTL = 600
BOUND = 1.5  # seconds within which every call answers or fails
SESSIONS = 16
PACE = 0.02  # seconds before a client whose call failed asks again
FILLER = b" and what was said" * 100


@dataclass
class Load:
    """Replicas that work on the same sessions, and all that they were told."""

    replicas: list[Store]
    tried: defaultdict[tuple[str, int], set[bytes]] = field(default_factory=lambda: defaultdict(set))
    saved: defaultdict[tuple[str, int], set[bytes]] = field(default_factory=lambda: defaultdict(set))
    offered: defaultdict[tuple[str, str], set[bytes]] = field(default_factory=lambda: defaultdict(set))
    kept: defaultdict[tuple[str, str], set[bytes]] = field(default_factory=lambda: defaultdict(set))
    ends: Counter[str] = field(default_factory=Counter)
    slowest: float = 0.0
    stopped: asyncio.Event = field(default_factory=asyncio.Event)
    served: Counter[str] = field(default_factory=Counter)
    changed: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for n in range(SESSIONS):
                for replica in range(len(self.replicas)):
                    group.create_task(self._work(f"s{n}", replica))

    async def _work(self, session: str, replica: int) -> None:
        turn = 0
        while not self.stopped.is_set():
            turn += 1
            try:
                await self._turn(StoreKey("tenant", session), replica, turn)
            except StoreError:
                with suppress(TimeoutError):
                    await asyncio.wait_for(self.stopped.wait(), PACE)
            else:
                self.served[session] += 1
            async with self.changed:
                self.changed.notify_all()

    async def _turn(self, key: StoreKey, replica: int, turn: int) -> None:
        store = self.replicas[replica]
        snapshot = await self._timed(store.load(key))
        revision = snapshot.revision if snapshot else 0
        if snapshot:
            assert snapshot.meta in self.tried[key.name, revision]
            for name, record in snapshot.records.items():
                assert record in self.offered[key.name, name]
        mine = b"%d of %d" % (turn, replica) + FILLER
        name = f"r{turn % 50}"
        self.offered[key.name, name].add(mine)
        self.kept[key.name, name].add(await self._timed(store.put_record(key, name, mine, TTL)))
        self.tried[key.name, revision + 1].add(mine)
        if await self._timed(store.save(key, Write(mine, revision, TTL, index=[f"{turn % 16:x}"]))):
            self.saved[key.name, revision + 1].add(mine)

    async def _timed(self, call: Awaitable[T]) -> T:
        begun = time.monotonic()
        try:
            async with asyncio.timeout(BOUND):
                answer = await call
        except StoreError as error:
            self.ends[error.reason] += 1
            raise
        finally:
            self.slowest = max(self.slowest, time.monotonic() - begun)
        self.ends["answered"] += 1
        return answer

    async def all_served(self, times: int = 3) -> None:
        """Returns when every session was served so often from now on."""
        goal = {f"s{n}": self.served[f"s{n}"] + times for n in range(SESSIONS)}
        async with asyncio.timeout(30), self.changed:
            await self.changed.wait_for(lambda: all(self.served[name] >= count for name, count in goal.items()))

    async def failures(self, count: int) -> None:
        """Returns when so many more calls have failed."""
        goal = self._failed() + count
        async with asyncio.timeout(30), self.changed:
            await self.changed.wait_for(lambda: self._failed() >= goal)

    def _failed(self) -> int:
        return self.ends.total() - self.ends["answered"]

    def forgotten(self) -> int:
        """How many revisions were given twice, and records kept twice."""
        return sum(len(each) - 1 for table in (self.saved, self.kept) for each in table.values() if each)


def assert_forgotten_at_most_once(load: Load) -> None:
    """One fail-over gives a revision or a name once more, and no more than that; prints how often."""
    tables = (load.saved, load.kept)
    assert all(len(each) <= 2 for table in tables for each in table.values())
    given = sum(len(each) for table in tables for each in table.values())
    sys.stdout.write(f"{load.forgotten()} of {given} acknowledged writes were forgotten\n")


@asynccontextmanager
async def under_load(url: str) -> AsyncIterator[Load]:
    load = Load([await open_store(url) for _ in range(2)])
    running = asyncio.create_task(load.run())
    try:
        await load.all_served()
        yield load
    finally:
        load.stopped.set()
        await running
        for store in load.replicas:
            await store.close()
        sys.stdout.write(f"\n{url.partition('://')[0]}: {dict(load.ends)}, slowest {load.slowest:.2f} s\n")


async def newest_is_not_lost(load: Load) -> None:
    """What is stored is at least as new as what any replica was told."""
    for n in range(SESSIONS):
        newest = max(revision for session, revision in load.saved if session == f"s{n}")
        snapshot = await load.replicas[0].load(StoreKey("tenant", f"s{n}"))
        assert snapshot is not None
        assert snapshot.revision >= newest


async def test_a_plain_server_that_hangs_and_goes_on_loses_and_doubles_nothing(own_redis: RedisServer) -> None:
    async with under_load(own_redis.url) as load:
        for _ in range(3):
            own_redis.stop()
            await load.failures(200)
            own_redis.cont()
            await load.all_served()
        await newest_is_not_lost(load)

    assert load.forgotten() == 0


async def test_a_killed_server_with_its_file_doubles_nothing() -> None:
    with RedisServer("--appendonly", "yes", "--appendfsync", "always") as server:
        async with under_load(server.url) as load:
            for _ in range(3):
                server.kill()
                await load.failures(200)
                await asyncio.to_thread(server.restart)
                await load.all_served()
            await newest_is_not_lost(load)

        assert load.forgotten() == 0


async def test_a_cluster_heals_when_a_master_is_killed() -> None:
    with RedisCluster() as cluster:
        async with under_load(cluster.url) as load:
            cluster.master_of("condenser:{tenant:s0}:meta").kill()
            await load.failures(50)
            await load.all_served()
            assert await asyncio.to_thread(cluster.is_whole)
        assert_forgotten_at_most_once(load)


async def test_a_cluster_heals_when_a_master_hangs() -> None:
    with RedisCluster() as cluster:
        async with under_load(cluster.url) as load:
            hung = cluster.master_of("condenser:{tenant:s0}:meta")
            hung.stop()
            await load.failures(50)
            await load.all_served()
            hung.cont()
            await asyncio.to_thread(cluster.await_whole)
            await load.all_served()
        assert_forgotten_at_most_once(load)


async def test_a_service_heals_when_its_master_is_killed() -> None:
    with RedisService(sentinels=3) as service:
        async with under_load(service.url) as load:
            service.servers[0].kill()
            await load.failures(50)
            await load.all_served()
        assert_forgotten_at_most_once(load)
