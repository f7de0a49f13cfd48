"""A breaker, which makes calls of the store fail at once while it is out. Without one they would time out one by one.

    closed --- failures in a row, within a window ---> open --- cool-down is over ---> half-open
       ^                                                 ^                                  |
       +-------------- the probe succeeded --------------+-------- the probe failed -------+

Half-open lets one call through, the probe, and refuses all others. Each failed probe doubles the cool-down, up to a
maximum. A call counts only in the state that it began in: one that ends after the state has changed is ignored.

Only whether the store answers in time matters. A stale revision, an unknown session, an exceeded quota, and a full or
read-only server are answers; time-outs, refused connections, no free connection, and unexpected errors are failures. A
caller that gives up changes nothing: its call goes on by itself, and is counted when it ends.

`Circuit` is the state machine and has no clock, `Breaker` runs one on a clock and guards calls. In a cluster each
node has its own breaker, so that a node that is down does not shut off the others.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import Enum

from proxy.store.base import ANSWERS, StoreError

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
    """The state of a breaker, immutable. A call remembers the `age` that it began at; times are in seconds."""

    thresholds: Thresholds = Thresholds()
    state: State = State.CLOSED
    age: int = 0
    """How many changes of state there were."""
    failures: tuple[float, ...] = ()
    """The times of the failures that count while it is closed."""
    cool_down: float = 0.0
    """Seconds of the last cool-down; 0 after a success."""
    until: float = 0.0
    """When the cool-down is over, while it is open."""

    def admit(self, now: float) -> tuple[Circuit, bool]:
        """The circuit after a call wants to begin, and whether it may."""
        if self.state is State.CLOSED:
            return self, True
        if self.state is State.OPEN and now >= self.until:
            return self._changed_to(State.HALF_OPEN), True
        return self, False

    def after_success(self, began: int) -> Circuit:
        """The circuit after a call that began at this age was answered."""
        if began != self.age:
            return self
        if self.state is State.CLOSED:
            return replace(self, failures=()) if self.failures else self
        return replace(self._changed_to(State.CLOSED), cool_down=0.0)

    def after_failure(self, began: int, now: float) -> Circuit:
        """The circuit after a call that began at this age failed."""
        if began != self.age:
            return self
        recent = (*(at for at in self.failures if now - at <= self.thresholds.window), now)
        if self.state is State.CLOSED and len(recent) < self.thresholds.failures:
            return replace(self, failures=recent)
        longer = min(self.cool_down * 2, self.thresholds.longest_cool_down) or self.thresholds.cool_down
        return replace(self._changed_to(State.OPEN), cool_down=longer, until=now + longer)

    def _changed_to(self, state: State) -> Circuit:
        return replace(self, state=state, age=self.age + 1, failures=())


class Breaker:
    """A circuit on a monotonic `clock`, in seconds; errors and the log call what it protects by `name`.

    `transitions` counts how often each state was entered.
    """

    def __init__(self, name: str, clock: Callable[[], float], thresholds: Thresholds | None = None) -> None:
        self.transitions: Counter[State] = Counter()
        self._name = name
        self._clock = clock
        self._circuit = Circuit(thresholds or Thresholds())
        self._last_error = ""

    @property
    def state(self) -> State:
        """The state after the last call; an open breaker whose cool-down is over becomes half-open at the next call."""
        return self._circuit.state

    @contextmanager
    def guard(self) -> Iterator[None]:
        """Counts a call by how it ends; raises StoreError `store-unavailable` while no calls are let through."""
        ticket = self.begin()
        failed: BaseException | None = None
        try:
            yield
        except BaseException as error:
            failed = error
            raise
        finally:
            self.end(ticket, failed)

    def begin(self) -> int:
        """A ticket for a call, which must be given to `end` in any case; raises StoreError `store-unavailable`."""
        now = self._clock()
        circuit, admitted = self._circuit.admit(now)
        self._enter(circuit)
        if not admitted:
            again = f"again in {circuit.until - now:.1f} s" if circuit.state is State.OPEN else "by another call now"
            said = f"{self._name} has failed and is asked {again}; {self._last_error}"
            raise StoreError("store-unavailable", said.removesuffix("; "))
        return circuit.age

    def end(self, ticket: int, error: BaseException | None) -> None:
        """Counts the end of a call that has begun: `error` is what it raised, None for success."""
        if error is None or (isinstance(error, StoreError) and error.reason in ANSWERS):
            self._enter(self._circuit.after_success(ticket))
            return
        if ticket == self._circuit.age:
            said = str(error) or type(error).__name__
            self._last_error = said.removeprefix("store-unavailable").removeprefix(": ")
        self._enter(self._circuit.after_failure(ticket, self._clock()))

    def _enter(self, circuit: Circuit) -> None:
        before, self._circuit = self._circuit, circuit
        if circuit.age == before.age:
            return
        self.transitions[circuit.state] += 1
        match circuit.state:
            case State.OPEN:
                _log.debug("%s is left alone for %.0f s: %s", self._name, circuit.cool_down, self._last_error)
            case State.HALF_OPEN:
                _log.debug("one call tries whether %s answers", self._name)
            case State.CLOSED:
                _log.debug("%s answers again", self._name)
