"""Sentinels and clusters: which server is asked, redirections, and the cost of a dead or hung server."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pytest
from redis.asyncio import Redis
from redis.crc import key_slot

from proxy.store.base import Snapshot, Store, StoreError, StoreKey
from proxy.store.redis import Cluster, Limits
from tests.proxy.store import on_redis
from tests.proxy.store.on_redis import BOUND
from tests.proxy.store.saving import TTL, write
from tests.support.ports import free_port
from tests.support.redis_cluster import RedisCluster
from tests.support.redis_sentinel import RedisService
from tests.support.redis_server import RedisServer
from tests.support.stores import PATIENT, open_patient_store

PACE = 0.02  # seconds before a store that is down is asked again
opened = partial(on_redis.opened, limits=PATIENT)


def meta_key(key: StoreKey) -> str:
    """The name by which Redis tells the slot of a session."""
    return f"condenser:{{{key.tenant}:{key.name}}}:meta"


async def failure(call: Awaitable[Any]) -> str:
    return (await on_redis.failure(call)).reason


async def fill_and_read(store: Store, key: StoreKey) -> None:
    await store.put_record(key, "r", b"record", TTL)
    assert await store.save(key, write(blocks={"d": b"block"}, index=[key.name]))
    await store.mark(key, "r")
    assert await store.load(key) == Snapshot(b"meta", 1, {"r": b"record"}, frozenset({"r"}))
    assert await store.blocks(key) == {"d": b"block"}
    assert (await store.find(key.tenant, [key.name])).names == {key.name: key.name}


def keys(tenant: str, count: int = 24) -> list[StoreKey]:
    """Sessions enough that each of three masters has some."""
    return [StoreKey(tenant, f"{n:x}") for n in range(count)]


# The short check of each; the contract runs over both in `make torture`


async def test_a_session_is_kept_behind_a_sentinel(service: RedisService) -> None:
    store = await open_patient_store(service.url)
    await store.ping()
    await fill_and_read(store, StoreKey("smoke", "s"))
    await store.close()


async def test_sessions_are_kept_in_a_cluster_wherever_their_slots_are(cluster: RedisCluster) -> None:
    store = await open_patient_store(cluster.url)
    await store.ping()
    for key in keys("smoke"):  # one after the other: seventy connections at once take a busy machine too long
        await fill_and_read(store, key)
    digests = [key.name for key in keys("smoke")]
    assert (await store.find("smoke", digests)).names == dict(zip(digests, digests, strict=True))
    await store.close()


async def test_one_seed_of_a_cluster_that_lives_is_enough(cluster: RedisCluster) -> None:
    url = f"redis+cluster://127.0.0.1:{free_port()},127.0.0.1:{cluster.nodes[4].port}"
    async with opened(url) as store:
        await fill_and_read(store, StoreKey("seed", "s"))


async def test_a_hung_sentinel_costs_no_more_than_one_that_does_not_connect(service: RedisService) -> None:
    with RedisServer() as hung:
        hung.stop()
        url = service.url.replace("://", f"://127.0.0.1:{hung.port},")
        # Who waited for its answer would be out of time before the wait is over.
        async with opened(url, limits=Limits(operation=60, call=5)) as store:
            await store.ping()


@pytest.mark.parametrize("form", ["redis+sentinel://{0},{1}/main", "redis+cluster://{0},{1}"])
async def test_without_a_server_that_answers_every_call_fails_within_its_bound(form: str) -> None:
    url = form.format(f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}")
    async with opened(url) as store:
        for _ in range(2):
            assert await failure(store.load(StoreKey("t", "s"))) == "store-unavailable"


async def test_an_unknown_service_says_what_to_write(
    service: RedisService, redis_url: str, cluster: RedisCluster
) -> None:
    url = service.url.replace("/condenser-test/", "/other/")
    async with opened(url) as store:
        assert await failure(store.ping()) == "store-unavailable"
    async with opened(redis_url.replace("redis://", "redis+cluster://").removesuffix("/0")) as store:
        assert await failure(store.ping()) == "store-unavailable"
    async with opened(cluster.nodes[0].url) as store:
        with pytest.raises(StoreError, match=r"redis\+cluster://"):
            await asyncio.gather(*(store.save(key, write()) for key in keys("plain")))


@dataclass(frozen=True)
class Move:
    """A slot on its way from one master to another."""

    source: RedisServer
    target: RedisServer
    slot: int

    async def tell(self, node: RedisServer, *words: str | int) -> Any:
        async with Redis.from_url(node.url) as client:
            connection: Any = client
            return await connection.execute_command(*words)

    async def begin(self) -> None:
        for node, role, other in ((self.target, "IMPORTING", self.source), (self.source, "MIGRATING", self.target)):
            name = await self.tell(other, "CLUSTER MYID")
            await self.tell(node, "CLUSTER SETSLOT", self.slot, role, name)

    async def give_up(self) -> None:
        for node in (self.source, self.target):
            await self.tell(node, "CLUSTER SETSLOT", self.slot, "STABLE")

    async def carry(self, key: str) -> None:
        await self._carry(self.source, self.target, key)

    async def carry_back(self, key: str) -> None:
        """The move is given up: its source takes the key again."""
        await self.tell(self.source, "CLUSTER SETSLOT", self.slot, "STABLE")
        await self._carry(self.target, self.source, key)

    async def _carry(self, here: RedisServer, there: RedisServer, key: str) -> None:
        assert await self.tell(here, "MIGRATE", "127.0.0.1", there.port, key, 0, 1_000) in (b"OK", True)


@asynccontextmanager
async def migrating(cluster: RedisCluster, key: str, beside: str = "") -> AsyncIterator[Move]:
    """The slot of a key while it moves, to a node without the key `beside`; it stays in the end where it was."""
    source, other = cluster.master_of(key), cluster.master_of(beside)
    target = next(node for node in cluster.nodes[:3] if node is not source and node is not other)
    move = Move(source, target, key_slot(key.encode()))
    await move.begin()
    try:
        yield move
    finally:
        await move.give_up()


async def test_an_index_entry_is_found_while_its_slot_moves(cluster: RedisCluster) -> None:
    key, pointer = StoreKey("moving", "s"), "condenser:{moving:d}:chain:digest"
    # The client sends ASKING and the command over one connection only while the node has no other.
    alone = replace(PATIENT, connections=1)
    async with opened(cluster.url, limits=alone) as store, migrating(cluster, pointer, meta_key(key)) as move:
        assert await store.save(key, write(index=["digest"]))
        assert (await store.find("moving", ["digest"])).names == {"digest": "s"}
        assert await move.tell(move.source, "CLUSTER COUNTKEYSINSLOT", move.slot) == 0
        assert await move.tell(move.target, "CLUSTER COUNTKEYSINSLOT", move.slot) == 1
        await move.carry_back(pointer)


async def test_a_session_whose_keys_are_half_moved_is_unavailable_and_not_torn(cluster: RedisCluster) -> None:
    key = StoreKey("torn", "s")
    async with opened(cluster.url) as store:
        await store.save(key, write(blocks={"d": b"block"}))
        async with migrating(cluster, meta_key(key)) as move:
            await move.carry(meta_key(key))
            assert await failure(store.save(key, write(b"new", 1, blocks={"e": b""}))) == "store-unavailable"
            assert await failure(store.load(key)) == "store-unavailable"
            await move.carry_back(meta_key(key))
        assert await store.load(key) == Snapshot(b"meta", 1)
        assert await store.blocks(key) == {"d": b"block"}


async def test_a_wrong_map_is_corrected_by_the_redirection_and_costs_no_call(cluster: RedisCluster) -> None:
    async with opened(cluster.url) as store:
        await store.ping()
        client = store._client
        assert isinstance(client, Cluster)
        masters = client._client.get_primaries()
        wrong = dict(zip(masters, masters[1:] + masters[:1], strict=True))
        known = client._client.nodes_manager
        known.slots_cache = {slot: [wrong[nodes[0]]] for slot, nodes in known.slots_cache.items()}
        await asyncio.gather(*(fill_and_read(store, key) for key in keys("wrong")))


async def test_a_node_that_forgot_its_scripts_is_taught_again(cluster: RedisCluster) -> None:
    async with opened(cluster.url) as store:
        await asyncio.gather(*(fill_and_read(store, key) for key in keys("scripts")))
        for node in cluster.nodes[:3]:
            async with Redis.from_url(node.url) as client:
                await client.script_flush()
        loaded = await asyncio.gather(*(store.load(key) for key in keys("scripts")))
    assert all(snapshot is not None for snapshot in loaded)


@pytest.fixture
def own_cluster() -> Iterator[RedisCluster]:
    with RedisCluster() as cluster:
        yield cluster


@pytest.mark.torture
@pytest.mark.parametrize("password", ["", "hush"])
async def test_the_first_call_after_a_fail_over_succeeds(password: str) -> None:
    with RedisService(sentinels=3, password=password) as service:
        async with opened(service.url) as store:
            await store.save(StoreKey("t", "s"), write())
            await asyncio.to_thread(_replicated, service.servers[0])
            service.servers[0].kill()
            assert await failure(store.load(StoreKey("t", "s"))) == "store-unavailable"
            await asyncio.to_thread(service.await_master, service.servers[1])
            assert await store.load(StoreKey("t", "s")) == Snapshot(b"meta", 1)
            assert await store.save(StoreKey("t", "s"), write(b"new", 1))


async def is_down(store: Store) -> bool:
    """Whether a master that the store knows does not answer, or is left alone."""
    try:
        await store.ping()
    except StoreError:
        return True
    return False


def _replicated(master: RedisServer) -> None:
    from redis import Redis as Blocking

    with Blocking(port=master.port, password=master.password or None) as client:
        assert client.wait(1, 5_000) == 1


@pytest.mark.torture
@pytest.mark.parametrize("hurt", ["kill", "stop"])
async def test_sessions_of_a_lost_master_come_back(own_cluster: RedisCluster, hurt: str) -> None:
    async with opened(own_cluster.url) as store:
        everything = keys("t")
        await asyncio.gather(*(fill_and_read(store, key) for key in everything))
        lost = own_cluster.master_of(meta_key(everything[0]))
        affected = [key for key in everything if own_cluster.master_of(meta_key(key)) is lost]
        getattr(lost, hurt)()

        for key in set(everything) - set(affected):
            async with asyncio.timeout(BOUND):
                assert await store.load(key) is not None
        for key in affected[:3]:
            assert await failure(store.load(key)) in {"store-unavailable", "store-timeout"}

        if hurt == "stop":
            lost.kill()  # what hangs for good is replaced as well; the test only wants the nodes to agree
        await asyncio.to_thread(own_cluster.await_whole)
        async with asyncio.timeout(BOUND):
            while await is_down(store):  # noqa: ASYNC110
                await asyncio.sleep(PACE)
        for key in affected:
            snapshot = await store.load(key)
            assert snapshot is not None
            assert await store.save(key, write(b"after", snapshot.revision))
