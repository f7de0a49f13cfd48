"""What the rows of the ladder have in common."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from time import perf_counter
from typing import NamedTuple

from proxy.condensing.account import Timing
from proxy.condensing.attempt import Attempt, Attempts, Step
from proxy.condensing.policy import Policies
from proxy.condensing.turn import Decision, RequestContext
from proxy.protocols.opening import OpenedReply
from proxy.servers.known import Servers
from proxy.settings.profile import Restriction
from strategies.core.budget import Budget

Named = tuple[Restriction, ...]


@dataclass(frozen=True, slots=True)
class Parts:
    """What rungs work with; one per app. `pause` is the wait before a request is sent a second time as it is."""

    servers: Servers
    policies: Policies
    attempts: Attempts
    shrink: Callable[[Decision, Budget, float], Awaitable[Decision]]  # `Decider.smaller`
    counted: Callable[[RequestContext], Awaitable[RequestContext]]  # `Completer.with_counts`
    timeout: float  # seconds that a request waits for models
    pause: Callable[[], Awaitable[object]]

    def following(self, refused: Attempt, decision: Decision, *steps: Step, named: Named = ()) -> Attempt:
        """The attempt to send a decision by these steps, for the restrictions that a refusal has `named`."""
        tried, restrictions = refused.tried.union(steps), (*refused.restrictions, *named)
        return self.attempts.of(decision)._replace(tried=tried, restrictions=restrictions)

    async def shrunk(self, decision: Decision, aim: Budget, timing: Timing) -> Decision:
        """A smaller view, made in what is left of the time that a request waits for models; raises `ProxyError`."""
        started, left = perf_counter(), max(self.timeout - timing.condense / 1000, 0.0)
        try:
            return await self.shrink(decision, aim, left)
        finally:
            timing.condense += (perf_counter() - started) * 1000


class Next(NamedTuple):
    """The refused attempt with what its answer has taught, and the one that follows it; None if none does."""

    refused: Attempt
    following: Attempt | None = None
    goes_on: bool = False  # whether the rows below are tried, because nothing follows here


class Rung(NamedTuple):
    """One row of the ladder."""

    recognises: Callable[[Attempt, OpenedReply], bool]
    next: Callable[[Parts, Attempt, OpenedReply, Timing], Awaitable[Next]]
    """What is sent next; raises `ProxyError` if nothing fits."""
