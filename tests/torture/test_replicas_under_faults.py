"""Three replicas while their Redis hangs, dies and fails over: every reply comes, every view is right, and all heals.

    pytest tests/torture -m torture -s

prints the figures of docs/internals/reliability.md. What makes a view right is told in `judging`.
"""

import sys
import threading
from collections.abc import Callable, Iterator, Sequence

import pytest

from tests.support.redis_cluster import RedisCluster
from tests.support.redis_sentinel import RedisService
from tests.support.redis_server import RedisServer
from tests.torture.clients import AFTERWARDS, PACE, Fleet, Run, fleet, run_all
from tests.torture.figures import figures
from tests.torture.judging import WRONG, Reference, assert_sound, judged, references
from tests.torture.talks import Talk, talks

pytestmark = [pytest.mark.torture, pytest.mark.timeout(240)]

REPLICAS = 3
CLIENTS = 50
FAULTS = 4
HANG = 1.2  # seconds that Redis hangs: longer than a request waits for it


@pytest.fixture(scope="module")
def many() -> list[Talk]:
    return talks(CLIENTS)


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reference]:
    with references(tmp_path_factory.mktemp("alone")) as reference:
        yield reference


@pytest.fixture(scope="module")
def alone(many: list[Talk], reference: Reference) -> Run:
    """What a single process forwards."""
    return run_all(reference.remembering, many, pace=PACE)


@pytest.fixture
def survives(many: list[Talk], reference: Reference, alone: Run) -> Callable[[str, str, Callable[[int], None]], None]:
    """Runs all conversations on the store of a URL while `hurt` does its work at each of `FAULTS` points."""

    def survives(name: str, url: str, hurt: Callable[[int], None], faults: int = FAULTS) -> None:
        def disturb(several: Fleet, total: int) -> None:
            for part in range(faults):
                several.forwarded.await_requests(total * (part + 1) // (faults + 1))
                hurt(part)

        with fleet(REPLICAS, url) as several:
            run = run_all(several, many, disturb, PACE)
        verdicts = judged(run, alone, many, reference)
        sys.stderr.write(f"\n{figures(name, run, verdicts)}\n")
        assert [turn for turn, verdict in verdicts.items() if verdict == WRONG] == []
        assert_sound(run, many)
        assert_healed(run, many)

    return survives


def assert_healed(run: Run, talks: Sequence[Talk]) -> None:
    """The store was out, and once it was whole again nothing was degraded."""
    assert run.actions["degraded"] > 0
    last = [run.outcomes[talk.index, end] for talk in talks for end in talk.ends[-AFTERWARDS:]]
    reasons = {each.reason for each in last if each.action == "degraded"}
    assert reasons <= ({"store-timeout"} if run.is_starved else set())


def test_a_redis_that_hangs_and_goes_on(survives: Callable[..., None]) -> None:
    def hang(_: int) -> None:
        redis.stop()
        threading.Event().wait(HANG)
        redis.cont()

    with RedisServer() as redis:
        survives(f"Redis hung {FAULTS} times for {HANG} s", redis.url, hang)


def test_a_redis_that_is_killed_and_comes_back_empty(survives: Callable[..., None]) -> None:
    with RedisServer() as redis:
        survives(f"Redis killed {FAULTS} times, back empty", redis.url, lambda _: redis.restart())


def test_a_cluster_of_which_a_master_is_killed(survives: Callable[..., None]) -> None:
    def kill(_: int) -> None:
        cluster.nodes[0].kill()
        cluster.await_whole()

    with RedisCluster() as cluster:
        survives("a master of a cluster killed", cluster.url, kill, 1)


def test_a_cluster_whose_master_hangs_and_comes_back(survives: Callable[..., None]) -> None:
    def hang(_: int) -> None:
        cluster.nodes[0].stop()
        cluster.await_successor(cluster.nodes[0])
        cluster.nodes[0].cont()
        cluster.await_whole()

    with RedisCluster() as cluster:
        survives("a master of a cluster hung", cluster.url, hang, 1)


def test_a_service_of_which_the_master_is_killed(survives: Callable[..., None]) -> None:
    def kill(_: int) -> None:
        service.servers[0].kill()
        service.await_master(service.servers[1])

    with RedisService(sentinels=3) as service:
        survives("the master of a Sentinel service killed", service.url, kill, 1)
