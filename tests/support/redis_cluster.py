"""A Redis Cluster of real processes on free ports: three masters, a replica of each, any of them to be hurt.

    with RedisCluster() as cluster:
        ... cluster.url ...
        cluster.master_of("a key").kill()
        cluster.await_whole()

The nodes are told of each other by the files that they would write themselves, so none has to be met. With
`cluster-require-full-coverage no` the other masters keep answering while one is down, as a deployment should have it.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.support.ports import free_port
from tests.support.redis_server import RedisServer, RedisServers, answer_of, await_true

SLOTS = 16_384
MASTERS = 3
NODE_TIMEOUT = 1_000  # milliseconds after which a node that says nothing is suspected


class RedisCluster(RedisServers):
    """`nodes` are the masters of the beginning and then their replicas in the same order."""

    def __init__(self) -> None:
        super().__init__()
        self.nodes: list[RedisServer] = []
        self._buses: list[int] = []

    @property
    def url(self) -> str:
        places = ",".join(f"127.0.0.1:{node.port}" for node in self.nodes)
        return f"redis+cluster://{places}"

    def _start(self) -> None:
        for _ in range(2 * MASTERS):
            bus = free_port()
            self._buses.append(bus)
            self.nodes.append(RedisServer(*_options(bus)))
        for n, node in enumerate(self.nodes):
            Path(node.folder, "nodes.conf").write_text(self._known_to(n))
            node.start()
            self._stack.push(node)
        for node in self.nodes:
            node.await_answer()
        self.await_whole()

    def _known_to(self, me: int) -> str:
        lines = []
        for n, node in enumerate(self.nodes):
            master = n % MASTERS
            flags = ("myself," if n == me else "") + ("master" if n == master else "slave")
            of, slots = ("-", _share(n)) if n == master else (_id(master), "")
            place = f"127.0.0.1:{node.port}@{self._buses[n]}"
            lines.append(f"{_id(n)} {place} {flags} {of} 0 0 {master + 1} connected {slots}".strip())
        return "\n".join((*lines, f"vars currentEpoch {MASTERS} lastVoteEpoch 0", ""))

    def master_of(self, key: str) -> RedisServer:
        """The node that now serves the slot of `key`."""
        slot = self._ask(lambda client: client.execute_command("CLUSTER KEYSLOT", key))
        for first, last, master, *_ in self._ask(_slots):
            if first <= slot <= last:
                return next(node for node in self.nodes if node.port == master[1])
        raise AssertionError(f"nobody serves slot {slot}")

    def await_successor(self, node: RedisServer) -> None:
        """Returns when the others know of no slot that this node serves."""
        others = [each for each in self.nodes if each is not node and each.is_running]
        await_true(lambda: all(_serves_nothing(node, answer_of(each, _slots)) for each in others), "it is replaced")

    def await_whole(self) -> None:
        """Returns when every slot is served, by a master that every node knows and whose replicas follow it."""
        await_true(self.is_whole, "the cluster is whole")

    def is_whole(self) -> bool:
        """Whether all nodes that run say so now."""
        return all(_healthy(node) for node in self.nodes if node.is_running)

    def _ask(self, question: Callable[[Any], Any]) -> Any:
        """What the first node says that answers."""
        answers = (answer_of(node, question) for node in self.nodes)
        answer = next((each for each in answers if each is not None), None)
        assert answer is not None, "no node answers"
        return answer


def _slots(client: Any) -> Any:
    return client.execute_command("CLUSTER SLOTS")


def _serves_nothing(node: RedisServer, slots: Any) -> bool:
    return slots is not None and all(master[1] != node.port for _, _, master, *_ in slots)


def _healthy(node: RedisServer) -> bool:
    return answer_of(node, _says_it_is_healthy) or False


def _says_it_is_healthy(client: Any) -> bool:
    cluster: Any = client.execute_command("CLUSTER INFO")
    replication: Any = client.info("replication")
    follows = replication["role"] == "master" or replication["master_link_status"] == "up"
    return bool(follows and cluster["cluster_state"] == "ok" and int(cluster["cluster_slots_ok"]) == SLOTS)


def _options(bus: int) -> tuple[str, ...]:
    words = {
        "cluster-enabled": "yes",
        "cluster-config-file": "nodes.conf",
        "cluster-port": str(bus),
        "cluster-node-timeout": str(NODE_TIMEOUT),
        "cluster-require-full-coverage": "no",
        "cluster-replica-validity-factor": "0",
        "repl-diskless-sync-delay": "0",
    }
    return tuple(word for key, value in words.items() for word in (f"--{key}", value))


def _id(n: int) -> str:
    return f"{n + 1:040x}"


def _share(n: int) -> str:
    return f"{n * SLOTS // MASTERS}-{(n + 1) * SLOTS // MASTERS - 1}"
