"""Three replicas on one Redis serve what one process serves, also while Redis hangs, dies and comes back.

Recorded conversations run at the same time; each turn goes to a replica at random. Every message ends with a mark of
its conversation, so that a text in the wrong view is seen. The figures of a run are printed, for docs/reliability.md.
"""

from __future__ import annotations

import json
import random
import re
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.http.recorded import LONG, SHORT, Conversation, conversations
from tests.http.strict import assert_stands
from tests.support import redis_server, wire
from tests.support.recording import CHAT
from tests.support.redis_server import RedisServer
from tests.support.replicas import replicas
from tests.support.upstream import ScriptedUpstream

pytestmark = [pytest.mark.torture, pytest.mark.timeout(900)]

REPLICAS = 3
CLIENTS = 40
WINDOW = 8_000
MOST_REQUESTS = 110
STORE_BOUND = 1_500.0  # milliseconds that the store may hold up one request
HANG = 1.2  # seconds that Redis hangs: longer than a request waits for it
FAULTS = 4
MARK = re.compile(r"<<c\d\d>>")

Message = dict[str, Any]
Turn = tuple[int, int]


@dataclass
class Run:
    """What one run forwarded, by conversation and turn, and how the replies were."""

    bodies: dict[Turn, bytes] = field(default_factory=dict)
    actions: Counter[str] = field(default_factory=Counter)
    statuses: Counter[int] = field(default_factory=Counter)
    store_ms: list[float] = field(default_factory=list)

    def figures(self, name: str) -> str:
        slow = sorted(self.store_ms)
        share = f"p50 {slow[len(slow) // 2]:.1f}, p99 {slow[len(slow) * 99 // 100]:.1f}, most {slow[-1]:.1f} ms"
        return f"{name}: {len(slow)} replies {dict(self.statuses)}; {dict(self.actions)}; store {share}"


@pytest.fixture(scope="module")
def talks() -> list[list[Message]]:
    """Recorded conversations that outgrow the window, cut to the same number of requests, with their marks."""
    if not redis_server.available():
        pytest.skip(redis_server.HOW_TO_GET_IT)
    known = [*conversations(SHORT).values(), *conversations(LONG).values()]
    large = sorted((each for each in known if _size(each) > 9_000), key=_size)
    cut = [each.messages[: each.requests()[:MOST_REQUESTS][-1]] for each in large[:CLIENTS]]
    return [[_marked(message, index) for message in messages] for index, messages in enumerate(cut)]


def _size(conversation: Conversation) -> int:
    return len(json.dumps(conversation.messages)) // 4


def _marked(message: Message, index: int) -> Message:
    text = message.get("content")
    return {**message, "content": f"{text} <<c{index:02d}>>"} if isinstance(text, str) and text else message


@pytest.fixture(scope="module", params=["extract", "mask+extract"])
def strategy(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def alone(talks: list[list[Message]], strategy: str, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """What one process with an embedded store forwards."""
    store = tmp_path_factory.mktemp("alone") / "store.db"
    with upstream_and_replicas(1, f"sqlite:///{store}", strategy) as (upstream, urls):
        return told(f"one process, {strategy}", run(talks, urls, upstream))


@contextmanager
def upstream_and_replicas(number: int, store: str, strategy: str) -> Iterator[tuple[ScriptedUpstream, list[str]]]:
    with (
        ScriptedUpstream() as upstream,
        replicas(number, upstream.url, store, strategy=strategy, window=WINDOW) as urls,
    ):
        yield upstream, urls


def run(
    talks: Sequence[list[Message]],
    urls: Sequence[str],
    upstream: ScriptedUpstream,
    disturb: Callable[[Run, int], None] | None = None,
) -> Run:
    """All conversations at once, each turn after the reply to the one before; `disturb` runs beside them."""
    done = Run()
    total = sum(len(_requests(talk)) for talk in talks)
    with ThreadPoolExecutor(len(talks) + 1) as pool:
        clients = [pool.submit(_converse, index, talk, urls, done) for index, talk in enumerate(talks)]
        disturbing = pool.submit(disturb, done, total) if disturb else None
        for each in clients:
            each.result()
        if disturbing:
            disturbing.result()
    for exchange in upstream.journal.to():
        conversation, _, turn = (exchange.header("x-turn") or "").partition("/")
        done.bodies[int(conversation), int(turn)] = exchange.body
    assert len(done.bodies) == total
    return done


def _requests(talk: list[Message]) -> list[int]:
    return Conversation("", "", talk, []).requests()


def _converse(index: int, talk: list[Message], urls: Sequence[str], done: Run) -> None:
    """One client; every second one names its session."""
    chance = random.Random(index)
    names = [("X-Condenser-Session", f"talk-{index}")] if index % 2 else []
    for end in _requests(talk):
        headers = [("Authorization", "Bearer all"), ("X-Turn", f"{index}/{end}"), *names]
        answer = wire.post_json(chance.choice(urls), CHAT, {"model": "gpt-4o", "messages": talk[:end]}, headers)
        timing = re.search(r"session;dur=([\d.]+)", answer.header("server-timing") or "")
        assert timing is not None, f"{answer.status} {answer.body[:500]!r}"
        done.statuses[answer.status] += 1
        done.store_ms.append(float(timing[1]))
        done.actions[answer.header("x-condenser-action") or ""] += 1


def told(name: str, done: Run) -> Run:
    sys.stderr.write(f"\n{done.figures(name)}\n")
    return done


def assert_right(done: Run, talks: Sequence[list[Message]]) -> None:
    """Every reply came, every list is valid and holds its own conversation only, and no request waited long."""
    assert set(done.statuses) == {200}
    for (index, end), body in done.bodies.items():
        assert set(MARK.findall(body.decode())) <= {f"<<c{index:02d}>>"}
        assert_stands(json.loads(body)["messages"], talks[index][:end])
    assert max(done.store_ms) <= STORE_BOUND


def tell_share(done: Run, alone: Run) -> None:
    same = sum(body == alone.bodies[turn] for turn, body in done.bodies.items())
    sys.stderr.write(f"{same} of {len(alone.bodies)} forwarded bodies as from one process\n")


def test_replicas_forward_the_bytes_of_a_single_process(talks: list[list[Message]], strategy: str, alone: Run) -> None:
    with RedisServer() as redis, upstream_and_replicas(REPLICAS, redis.url, strategy) as (upstream, urls):
        done = told(f"three replicas, {strategy}", run(talks, urls, upstream))
    tell_share(done, alone)
    assert_right(done, talks)
    different = sorted(turn for turn, body in done.bodies.items() if body != alone.bodies[turn])
    assert different == []
    assert alone.actions["condensed"] >= CLIENTS // 2


def test_a_redis_that_hangs_costs_no_reply_and_no_wrong_view(
    talks: list[list[Message]], strategy: str, alone: Run
) -> None:
    def hang(redis: RedisServer) -> None:
        redis.stop()
        threading.Event().wait(HANG)
        redis.cont()

    _disturbed(f"Redis hung {FAULTS} times, {strategy}", talks, strategy, alone, hang)


def test_a_redis_that_is_killed_costs_no_reply_and_no_wrong_view(
    talks: list[list[Message]], strategy: str, alone: Run
) -> None:
    """It comes back without anything: it keeps nothing on disk here."""
    _disturbed(f"Redis killed {FAULTS} times, {strategy}", talks, strategy, alone, RedisServer.restart)


def _disturbed(
    name: str, talks: list[list[Message]], strategy: str, alone: Run, fault: Callable[[RedisServer], None]
) -> None:
    with RedisServer() as redis, upstream_and_replicas(REPLICAS, redis.url, strategy) as (upstream, urls):

        def disturb(done: Run, total: int) -> None:
            for part in range(1, FAULTS + 1):
                upstream.journal.await_arrival(total * part // (FAULTS + 1), bound=300)
                fault(redis)

        done = told(name, run(talks, urls, upstream, disturb))
    tell_share(done, alone)
    assert_right(done, talks)
