"""A breaker before a store: while it is out, calls fail at once instead of each waiting for its bound.

    closed --- failures in a row, within a window ---> open --- cool-down is over ---> half-open
       ^                                                 ^                                  |
       +-------------- the probe succeeded --------------+-------- the probe failed -------+

Half-open lets one call through, the probe, and refuses all others. Each probe that fails doubles the cool-down, up
to a bound. A call belongs to the state that it began in: one that ends after the state has changed says nothing.

What counts is whether the store answers in time. A stale revision, an unknown session, a quota, a full or read-only
server are answers; time-outs, refused connections, no free connection, and errors nobody expected are failures. A
caller that gives up changes nothing: the call goes on by itself, and its end counts.

`Circuit` is the state and holds no clock, `Breaker` keeps it for something that is asked, and `BreakingStore` is a
store around another. The nodes of a cluster have a breaker each, so that one that is out does not shut off the rest.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, TypeVar

from proxy.store.base import Found, Lease, SessionKey, SessionStore, Snapshot, StoreError, Write

T = TypeVar("T")

# The store answered, though not as one would wish.
ANSWERS = frozenset(
    {"store-closed", "store-contended", "store-corrupt", "store-full", "store-quota", "store-read-only", "store-schema"}
)

CLOSING = 2.0  # seconds in which every call of a store has ended

_log = logging.getLogger(__name__)


class State(Enum):
    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half-open"


@dataclass(frozen=True, slots=True)
class Thresholds:
    """When a breaker opens and for how long; times in seconds."""

    failures: int = 3
    window: float = 10.0
    cool_down: float = 1.0
    longest_cool_down: float = 10.0


@dataclass(frozen=True, slots=True)
class Circuit:
    """The state of a breaker; `age` counts its changes, and a call is known by the age that it began at."""

    thresholds: Thresholds = Thresholds()
    state: State = State.CLOSED
    age: int = 0
    failures: tuple[float, ...] = ()
    cool_down: float = 0.0
    until: float = 0.0

    def asked(self, now: float) -> tuple[Circuit, bool]:
        """A call wants to begin: the circuit after it, and whether it may."""
        if self.state is State.CLOSED:
            return self, True
        if self.state is State.OPEN and now >= self.until:
            return self._in(State.HALF_OPEN), True
        return self, False

    def succeeded(self, began: int) -> Circuit:
        """A call that began at that age was answered."""
        if began != self.age:
            return self
        if self.state is State.CLOSED:
            return replace(self, failures=()) if self.failures else self
        return replace(self._in(State.CLOSED), cool_down=0.0)

    def failed(self, began: int, now: float) -> Circuit:
        """A call that began at that age failed."""
        if began != self.age:
            return self
        recent = (*(at for at in self.failures if now - at <= self.thresholds.window), now)
        if self.state is State.CLOSED and len(recent) < self.thresholds.failures:
            return replace(self, failures=recent)
        longer = min(self.cool_down * 2, self.thresholds.longest_cool_down) or self.thresholds.cool_down
        return replace(self._in(State.OPEN), cool_down=longer, until=now + longer)

    def _in(self, state: State) -> Circuit:
        return replace(self, state=state, age=self.age + 1, failures=())


class Breaker:
    """The circuit of `name`, as errors and the log call it; `clock` is monotonic, in seconds.

    `transitions` counts how often each state was entered.
    """

    def __init__(self, name: str, clock: Callable[[], float], thresholds: Thresholds | None = None) -> None:
        self.transitions: Counter[State] = Counter()
        self._name = name
        self._clock = clock
        self._circuit = Circuit(thresholds or Thresholds())
        self._why = ""

    @property
    def state(self) -> State:
        """The state after the last call; an open breaker whose cool-down is over half-opens by the next one."""
        return self._circuit.state

    def begin(self) -> int:
        """A ticket for a call, to be given to `end` whatever becomes of it; raises StoreError `store-unavailable`."""
        now = self._clock()
        circuit, may = self._circuit.asked(now)
        self._become(circuit)
        if not may:
            wait = f"for {circuit.until - now:.1f} s" if circuit.state is State.OPEN else "until its probe ends"
            raise StoreError("store-unavailable", f"{self._name} is not asked {wait}, since {self._why}")
        return circuit.age

    def end(self, ticket: int, error: BaseException | None) -> None:
        """How a call that has begun ended."""
        if error is None or (isinstance(error, StoreError) and error.reason in ANSWERS):
            self._become(self._circuit.succeeded(ticket))
            return
        if ticket == self._circuit.age:
            self._why = str(error) or type(error).__name__
        self._become(self._circuit.failed(ticket, self._clock()))

    def _become(self, circuit: Circuit) -> None:
        before, self._circuit = self._circuit, circuit
        if circuit.age == before.age:
            return
        self.transitions[circuit.state] += 1
        match circuit.state:
            case State.OPEN:
                _log.warning("%s is not asked for %.0f s: %s", self._name, circuit.cool_down, self._why)
            case State.HALF_OPEN:
                _log.info("%s is asked once", self._name)
            case State.CLOSED:
                _log.warning("%s answers again", self._name)


class BreakingStore:
    """`SessionStore` that asks `inner` unless its breaker is open, and then raises `store-unavailable`."""

    def __init__(self, inner: SessionStore, breaker: Breaker) -> None:
        self._inner = inner
        self._breaker = breaker
        self._running: set[asyncio.Task[Any]] = set()
        self._closed = False

    async def load(self, key: SessionKey) -> Snapshot | None:
        return await self._call(lambda: self._inner.load(key))

    async def save(self, key: SessionKey, write: Write) -> bool:
        return await self._call(lambda: self._inner.save(key, write))

    async def put_record(self, key: SessionKey, name: str, record: bytes, ttl: int) -> bytes:
        return await self._call(lambda: self._inner.put_record(key, name, record, ttl))

    async def stand(self, key: SessionKey, name: str) -> None:
        await self._call(lambda: self._inner.stand(key, name))

    async def blocks(self, key: SessionKey, names: Sequence[str] | None = None) -> dict[str, bytes]:
        return await self._call(lambda: self._inner.blocks(key, names))

    async def find(self, tenant: str, digests: Sequence[str], likely: Sequence[str] = ()) -> Found:
        return await self._call(lambda: self._inner.find(tenant, digests, likely))

    async def lease(self, tenant: str, name: str, holder: str, ttl: float) -> Lease:
        return await self._call(lambda: self._inner.lease(tenant, name, holder, ttl))

    async def leased(self, tenant: str, name: str) -> Lease:
        return await self._call(lambda: self._inner.leased(tenant, name))

    async def release(self, tenant: str, name: str, holder: str, left: bytes, ttl: float) -> None:
        await self._call(lambda: self._inner.release(tenant, name, holder, left, ttl))

    async def recall(self, name: str) -> bytes | None:
        return await self._call(lambda: self._inner.recall(name))

    async def remember(self, name: str, fact: bytes, ttl: int) -> None:
        await self._call(lambda: self._inner.remember(name, fact, ttl))

    async def sessions(self, tenant: str | None = None) -> list[SessionKey]:
        return await self._call(lambda: self._inner.sessions(tenant))

    async def delete(self, key: SessionKey) -> bool:
        return await self._call(lambda: self._inner.delete(key))

    async def ping(self) -> None:
        await self._call(self._inner.ping)

    async def close(self) -> None:
        """Lets the calls that are running end, each within the bounds of the inner store, and closes that."""
        self._closed = True
        if self._running:
            await asyncio.wait(self._running, timeout=CLOSING)
        await self._inner.close()

    async def _call(self, operation: Callable[[], Coroutine[Any, Any, T]]) -> T:
        if self._closed:
            raise StoreError("store-closed")
        ticket = self._breaker.begin()
        task = asyncio.create_task(operation())
        self._running.add(task)
        task.add_done_callback(lambda done: self._ended(done, ticket))
        await asyncio.wait({task})  # cancels nothing when we are cancelled ourselves
        return task.result()

    def _ended(self, task: asyncio.Task[Any], ticket: int) -> None:
        self._running.discard(task)
        self._breaker.end(ticket, asyncio.CancelledError() if task.cancelled() else task.exception())
