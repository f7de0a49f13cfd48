"""A breaker, which makes calls of the store fail at once while it is out. Without one they would time out one by one.

    closed --- failures in a row, within a window ---> open --- cool-down is over ---> half-open
       ^                                                 ^                                  |
       +-------------- the probe succeeded --------------+-------- the probe failed -------+

Half-open lets one call through, the probe, and refuses all others. Each failed probe doubles the cool-down, up to a
maximum. A call counts only in the state that it began in: one that ends after the state has changed is ignored.

Only whether the store answers in time matters. A stale revision, an unknown session, an exceeded quota, and a full or
read-only server are answers; time-outs, refused connections, no free connection, and unexpected errors are failures. A
caller that gives up changes nothing: its call continues by itself, and is counted when it ends.

In a cluster each node has its own breaker, so that a node that is down does not shut off the others.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum

from proxy.store.base import ANSWERS, StoreError

FAILURES = 3  # in a row
WINDOW = 10.0  # seconds in which they happen
COOL_DOWN = 1.0  # seconds, the first time

_log = logging.getLogger(__name__)


class State(Enum):
    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half-open"


@dataclass(slots=True, eq=False)
class Breaker:
    """Guards calls on a monotonic `clock`, in seconds; errors and the log call what it protects by `name`."""

    name: str
    clock: Callable[[], float]
    longest_cool_down: float = 10.0
    state: State = State.CLOSED
    """The state after the last call; an open breaker whose cool-down is over becomes half-open at the next call."""
    transitions: Counter[State] = field(default_factory=Counter)
    """How often each state was entered."""
    failures: list[float] = field(default_factory=list)
    """The times of the failures that count while it is closed."""
    cool_down: float = 0.0
    """Seconds of the last cool-down; 0 after a success."""
    until: float = 0.0
    """When the cool-down is over, while it is open."""
    _last_error: str = ""

    @contextmanager
    def guard(self) -> Iterator[None]:
        """Counts a call by how it ends; raises StoreError `store-unavailable` while no calls are let through."""
        self._admit()
        age = self.transitions.total()
        try:
            yield
        except BaseException as error:
            if age == self.transitions.total():
                if isinstance(error, StoreError) and error.reason in ANSWERS:
                    self._answered()
                else:
                    self._failed(str(error) or type(error).__name__)
            raise
        if age == self.transitions.total():
            self._answered()

    def _admit(self) -> None:
        now = self.clock()
        if self.state is State.OPEN and now >= self.until:
            self._enter(State.HALF_OPEN)
            _log.debug("one call tries whether %s answers", self.name)
        elif self.state is not State.CLOSED:
            again = f"again in {self.until - now:.1f} s" if self.state is State.OPEN else "by another call now"
            told = f"{self.name} has failed and is asked {again}; {self._last_error}"
            raise StoreError("store-unavailable", told.removesuffix("; "))

    def _answered(self) -> None:
        self.failures.clear()
        if self.state is not State.CLOSED:
            self.cool_down = 0.0
            self._enter(State.CLOSED)
            _log.debug("%s answers again", self.name)

    def _failed(self, why: str) -> None:
        now = self.clock()
        self._last_error = why.removeprefix("store-unavailable").removeprefix(": ")
        self.failures = [*(at for at in self.failures if now - at <= WINDOW), now]
        if self.state is State.HALF_OPEN or len(self.failures) >= FAILURES:
            self.cool_down = min(self.cool_down * 2, self.longest_cool_down) or COOL_DOWN
            self.until = now + self.cool_down
            self._enter(State.OPEN)
            _log.debug("%s is left alone for %.0f s: %s", self.name, self.cool_down, self._last_error)

    def _enter(self, state: State) -> None:
        self.state, self.failures = state, []
        self.transitions[state] += 1
