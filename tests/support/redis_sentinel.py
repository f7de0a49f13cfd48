"""A Redis service of real processes on free ports: a master, its replica, and Sentinels that watch them.

with RedisService() as service:
    ... service.url ...
    service.servers[0].kill()
    service.await_master(service.servers[1])
"""

from typing import Any

from tests.support.redis_server import RedisServer, RedisServers, answer_of, asking, await_true

NAME = "condenser-test"
DOWN_AFTER = 500  # milliseconds after which a master that says nothing is down


class RedisService(RedisServers):
    """`servers` are the master of the beginning and its replica; `sentinels` agree when most of them say so."""

    def __init__(self, sentinels: int = 1, password: str = "") -> None:
        super().__init__()
        self.servers: list[RedisServer] = []
        self.sentinels: list[RedisServer] = []
        self._password = password
        self._count = sentinels

    @property
    def url(self) -> str:
        places = ",".join(f"127.0.0.1:{each.port}" for each in self.sentinels)
        credentials = f":{self._password}@" if self._password else ""
        return f"redis+sentinel://{credentials}{places}/{NAME}/0"

    def _start(self) -> None:
        master = RedisServer(*self._replication(), password=self._password)
        replica = RedisServer(*self._replication(), "--replicaof", f"127.0.0.1 {master.port}", password=self._password)
        self.servers = [master, replica]
        for server in self.servers:
            self._stack.enter_context(server)
        for _ in range(self._count):
            sentinel = RedisServer(configuration=self._watching(master.port))
            self.sentinels.append(self._stack.enter_context(sentinel))
        await_true(self._is_complete, "the Sentinels know master, replica and each other")

    def _replication(self) -> tuple[str, ...]:
        return ("--masterauth", self._password, "--repl-diskless-sync-delay", "0")

    def _watching(self, port: int) -> str:
        lines = [
            f"sentinel monitor {NAME} 127.0.0.1 {port} {self._count // 2 + 1}",
            f"sentinel down-after-milliseconds {NAME} {DOWN_AFTER}",
            f"sentinel failover-timeout {NAME} 3000",
            *([f"sentinel auth-pass {NAME} {self._password}"] if self._password else []),
        ]
        return "\n".join((*lines, ""))

    def await_master(self, server: RedisServer) -> None:
        """Returns when every Sentinel names this server."""
        await_true(lambda: all(_named(each) == server.port for each in self.sentinels), "the fail-over has happened")

    def _is_complete(self) -> bool:
        return all(self._knows_all(each) for each in self.sentinels)

    def _knows_all(self, sentinel: RedisServer) -> bool:
        with asking(sentinel.port) as client:
            state: dict[str, Any] = client.sentinel_master(NAME)
            replicas: list[dict[str, Any]] = client.sentinel_slaves(NAME)
        linked = [each for each in replicas if each["master-link-status"] == "ok"]
        return len(linked) == 1 and state["num-other-sentinels"] == self._count - 1


def _named(sentinel: RedisServer) -> int | None:
    found: Any = answer_of(sentinel, lambda client: client.execute_command("SENTINEL GET-MASTER-ADDR-BY-NAME", NAME))
    return int(found[1]) if found else None
