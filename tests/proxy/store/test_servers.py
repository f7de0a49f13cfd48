"""The store on other servers than a plain Redis: by TLS, alone, under a Sentinel and as a cluster; and on Valkey."""

import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path
from urllib.parse import urlencode

import pytest
from redis import Redis
from redis.asyncio import Redis as AsyncRedis

from tests.proxy.store import test_contract
from tests.proxy.store.conftest import Stage, ageing
from tests.proxy.store.on_redis import EVERY_CALL, failure, fill, opened
from tests.support.certificates import make_certificates
from tests.support.ports import free_port
from tests.support.redis_server import VALKEY, RedisServer, await_true
from tests.support.stores import PATIENT, open_patient_store
from tests.support.virtual_time import Clock

CONTRACT = (
    test_contract.test_a_snapshot_has_the_records_and_which_of_them_stand,
    test_contract.test_sums_grow_by_what_each_writer_adds,
    test_contract.test_a_budget_is_spent_by_all_and_fills_up_with_time,
    test_contract.test_each_tenant_has_a_quota_for_all_its_sessions,
)


class Certificates:
    """The options of servers and clients that prove to each other who they are."""

    def __init__(self, folder: Path) -> None:
        make_certificates(folder)
        self._folder = folder

    def of_server(self) -> dict[str, str]:
        names = {"tls-ca-cert-file": "ca.crt", "tls-cert-file": "server.crt", "tls-key-file": "server.key"}
        return {option: str(self._folder / name) for option, name in names.items()} | {"tls-replication": "yes"}

    def of_client(self, *left_out: str) -> str:
        """The query of a URL."""
        names = {"ssl_ca_certs": "ca.crt", "ssl_certfile": "client.crt", "ssl_keyfile": "client.key"}
        return urlencode({option: self._folder / name for option, name in names.items() if option not in left_out})


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


def encrypted(port: int, certificates: Certificates, **more: str) -> RedisServer:
    """A server with a second port that takes TLS alone."""
    options = {"tls-port": str(port), **certificates.of_server(), **more}
    return RedisServer(*(word for name, value in options.items() for word in (f"--{name}", value)))


@pytest.fixture(scope="module", params=["tls", "tls-sentinel", "tls-cluster", "valkey"])
def served(request: pytest.FixtureRequest, certificates: Certificates) -> Iterator[tuple[str, str]]:
    """The URL of a store, and that of the server of its keys in plain."""
    with ExitStack() as stack:
        if request.param == "valkey":
            server = stack.enter_context(RedisServer(program=VALKEY))
            yield server.url, server.url
            return
        port, kind, query = free_port(), request.param.partition("-")[2], certificates.of_client()
        # Its own choice of a port for the cluster, 10,000 above the other, may be taken by any connection.
        as_cluster = {"cluster-enabled": "yes", "tls-cluster": "yes", "cluster-port": str(free_port())}
        more = as_cluster if kind == "cluster" else {}
        server = stack.enter_context(encrypted(port, certificates, **more))
        url = f"rediss://127.0.0.1:{port}?{query}"
        if kind == "cluster":
            with Redis.from_url(server.url) as client:
                client.execute_command("CLUSTER ADDSLOTSRANGE 0 16383")
                await_true(lambda: client.cluster("INFO")["cluster_state"] == "ok", "the cluster serves")
            url = f"rediss+cluster://127.0.0.1:{port}?{query}"
        elif kind == "sentinel":
            own = free_port()
            lines = {"tls-port": str(own), **certificates.of_server(), "sentinel monitor main 127.0.0.1": f"{port} 1"}
            configuration = "".join(f"{name} {value}\n" for name, value in lines.items())
            stack.enter_context(RedisServer(configuration=configuration))
            url = f"rediss+sentinel://127.0.0.1:{own}/main?{query}"
        yield url, server.url


@pytest.fixture
async def stage(served: tuple[str, str]) -> AsyncIterator[Stage]:
    (url, plain), tenant, clock = served, uuid.uuid4().hex, Clock()
    async with AsyncExitStack() as stack:
        store = await open_patient_store(url)
        stack.push_async_callback(store.close)
        client = await stack.enter_async_context(AsyncRedis.from_url(plain))
        yield Stage("redis", url, store, clock, tenant, ageing([client], tenant), stack)


async def test_the_contract_holds_on_it(stage: Stage) -> None:
    await fill(stage.store)
    for call in EVERY_CALL.values():
        await call(stage.store)
    for test in CONTRACT:
        await test(stage)


@pytest.mark.parametrize("left_out", [(), ("ssl_ca_certs",), ("ssl_certfile", "ssl_keyfile")])
async def test_without_the_right_certificates_nothing_is_sent(
    left_out: tuple[str, ...], certificates: Certificates
) -> None:
    port = free_port()
    with encrypted(port, certificates):
        url = f"rediss://127.0.0.1:{port}?{certificates.of_client(*left_out)}"
        async with opened(url, PATIENT) as store:  # a busy machine may take its time for a handshake
            if not left_out:
                await store.ping()
            else:
                refused = await failure(store.ping())
                assert refused.reason == "store-unavailable"
                if "ssl_ca_certs" in left_out:
                    assert "TLS: certificate verify failed" in str(refused)
