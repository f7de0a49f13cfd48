"""Many clients at once before several replicas: each turn goes to a replica at random, and what became of it is kept.

    with fleet(3, redis.url) as running:
        run = run_all(running, talks(50), disturb)

`disturb` hurts the store while the clients talk. The last turns of every client wait until the store is whole and all
replicas say that they are: from then on nothing may be degraded.
"""

import hashlib
import json
import random
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field

from tests.support import replies, wire
from tests.support.recording import CHAT, Exchange
from tests.support.redis_server import await_true
from tests.support.replicas import replicas
from tests.support.server import serve
from tests.support.stage import MORE, is_summary_call, summary
from tests.support.upstream import ScriptedUpstream
from tests.torture.talks import MARK, WINDOW, Message, Talk

STRATEGY = "mask+half-window"
AFTERWARDS = 2  # turns of each client that wait until all is whole again
PACE = 1.0  # at this pace fifty clients keep two cores busy and do not swamp them
STORE_WAIT = 500.0  # milliseconds that the proxy waits for an operation of Redis
KEEP_ALIVE = 120  # seconds: an upstream that closes a connection while a request is on its way is another matter
BOUND = 60.0  # seconds after which nothing is waited for any more
_PART = re.compile(r"(\w+);dur=([\d.]+)")

Turn = tuple[int, int]
Disturb = Callable[["Fleet", int], None]


@dataclass
class Forwarded:
    """What the upstream was sent, by the name that the client gave each request; it also plays the summarizer."""

    bodies: dict[str, bytes] = field(default_factory=dict)
    changed: threading.Condition = field(default_factory=threading.Condition)

    def __call__(self, exchange: Exchange) -> replies.Reply:
        name = exchange.header("x-turn")
        if name is None:
            assert is_summary_call(exchange)
            return _summarized(exchange.json()["messages"][1]["content"])
        with self.changed:
            self.bodies[name] = exchange.body
            self.changed.notify_all()
        return replies.completion(_reply_to(name))

    def await_requests(self, count: int) -> None:
        """Returns when so many have arrived."""
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.bodies) >= count, BOUND)


def _summarized(prompt: str) -> replies.Reply:
    """The same for the same history, another for any other, and with the marks of all that it was made from."""
    marks = " ".join(sorted(set(MARK.findall(prompt))))
    return summary(f"Goal: as the user said.\nDone: {hashlib.sha256(prompt.encode()).hexdigest()[:16]} {MORE}{marks}")


def _reply_to(name: str) -> str:
    return f"the reply to {name}"


@dataclass(frozen=True)
class Fleet:
    """Replicas and the upstream behind them."""

    urls: Sequence[str]
    forwarded: Forwarded

    def await_ready(self) -> None:
        """Returns when the store answers every replica."""
        await_true(lambda: all(_ready(url) for url in self.urls), "all replicas are ready", BOUND, poll=0.1)


def _ready(url: str) -> bool:
    return bool(wire.request(url, "GET", "/readyz").json()["status"] == "ok")


@contextmanager
def fleet(number: int, store: str) -> Iterator[Fleet]:
    """Real processes of the proxy before one upstream and on one store."""
    forwarded, upstream = Forwarded(), ScriptedUpstream()
    upstream.answer(lambda exchange: forwarded(exchange) if exchange.path == CHAT else None)
    with (
        serve(upstream, lifespan="off", timeout_keep_alive=KEEP_ALIVE) as url,
        replicas(number, url, store, strategy=STRATEGY, window=WINDOW, CONDENSER_MEMORY__DEFAULT="off") as urls,
    ):
        yield Fleet(urls, forwarded)


@dataclass(frozen=True)
class Outcome:
    """One request: what was forwarded for it and what came back; times in milliseconds.

    `recognising` and `recording` are `session` and `condense` of `Server-Timing`; `settling` is what passed between
    head and end of the reply, before which the session is stored. `wall` is all of it; the upstream answers at once.
    """

    status: int
    action: str
    reason: str
    condensation: str
    depth: int
    body: bytes
    recognising: float
    recording: float
    settling: float
    wall: float

    @property
    def store(self) -> float:
        """What the store may have cost: recording is ours and the summarizer's time too, unless the store failed."""
        recording = self.recording if self.reason.startswith("store-") else 0.0
        return self.recognising + recording + self.settling

    @property
    def elsewhere(self) -> float:
        """What passed where the store had no part."""
        return self.wall - self.recognising - self.recording - self.settling

    @property
    def view(self) -> list[Message]:
        """The forwarded messages."""
        messages: list[Message] = json.loads(self.body)["messages"]
        return messages


@dataclass
class Run:
    """The outcomes of one run by conversation and turn, and the seconds from the last fault to readiness."""

    outcomes: dict[Turn, Outcome] = field(default_factory=dict)
    healing: float = 0.0

    @property
    def actions(self) -> Counter[str]:
        return Counter(each.action for each in self.outcomes.values())

    @property
    def is_starved(self) -> bool:
        """Whether other work on the machine held up some request for as long as a store is waited for: then a store
        that is well seems to hang."""
        return self.most(1, lambda each: each.elsewhere) > STORE_WAIT

    def most(self, share: float, of: Callable[[Outcome], float]) -> float:
        """The figure that this share of the requests does not exceed."""
        ordered = sorted(of(each) for each in self.outcomes.values())
        return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def ask(url: str, talk: Talk, end: int, name: str, credential: str) -> tuple[wire.Answer, float, float]:
    """One turn: the answer, and the milliseconds until its head and until its end."""
    body = json.dumps({"model": "gpt-4o", "messages": talk.messages[:end]}).encode()
    headers = [*wire.JSON, ("Authorization", f"Bearer {credential}"), ("X-Turn", name), *talk.naming]
    begun = time.perf_counter()
    with wire.opened(url, "POST", CHAT, body, headers) as response:
        head = time.perf_counter()
        answer = wire.Answer(response.status, response.getheaders(), response.read())
    ended = time.perf_counter()
    return answer, (head - begun) * 1000, (ended - begun) * 1000


def run_all(fleet: Fleet, talks: Sequence[Talk], disturb: Disturb | None = None, pace: float = 0.0) -> Run:
    """All conversations at once, each turn after the reply to the one before; `disturb` is told the number to come.

    A client takes up to `pace` seconds for a turn of its own.
    """
    run, healed = Run(), threading.Event()
    with ThreadPoolExecutor(len(talks) + 1) as pool:
        work = [pool.submit(_converse, fleet, talk, run, healed, pace) for talk in talks]
        work.append(pool.submit(_disturbed, fleet, talks, run, healed, disturb))
        wait(work, return_when=FIRST_EXCEPTION)
        healed.set()
        for each in work:
            each.result()
    return run


def _disturbed(fleet: Fleet, talks: Sequence[Talk], run: Run, healed: threading.Event, disturb: Disturb | None) -> None:
    if disturb is not None:
        disturb(fleet, sum(len(talk.ends) - AFTERWARDS for talk in talks))
        begun = time.perf_counter()
        fleet.await_ready()
        run.healing = time.perf_counter() - begun
    healed.set()


def _converse(fleet: Fleet, talk: Talk, run: Run, healed: threading.Event, pace: float) -> None:
    chance, nothing = random.Random(talk.index), threading.Event()
    for number, end in enumerate(talk.ends):
        if number == len(talk.ends) - AFTERWARDS:
            assert healed.wait(BOUND)
        nothing.wait(chance.uniform(0, pace))
        name = f"{talk.index}/{end}"
        answer, head, wall = ask(chance.choice(fleet.urls), talk, end, name, "all")
        assert answer.status == 200, answer.body
        run.outcomes[talk.index, end] = _outcome(answer, fleet.forwarded.bodies[name], head, wall)
        assert answer.json()["choices"][0]["message"]["content"] == _reply_to(name), answer.body


def _outcome(answer: wire.Answer, body: bytes, head: float, wall: float) -> Outcome:
    parts = {part: float(ms) for part, ms in _PART.findall(answer.header("server-timing") or "")}
    return Outcome(
        status=answer.status,
        action=answer.action or "",
        reason=answer.reason or "",
        condensation=answer.condensation or "",
        depth=_depth(answer.branch or ""),
        body=body,
        recognising=parts["session"],
        recording=parts["condense"],
        settling=wall - head,
        wall=wall,
    )


def _depth(branch: str) -> int:
    """The number of condensations in a view, by the name of its branch: `main++`, `main+4`."""
    number = branch.rpartition("+")[2]
    return int(number) if number.isdigit() else branch.count("+")
