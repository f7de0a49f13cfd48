"""Limits of tokens per minute, for each tenant, counted in the store for all replicas together.

A tenant has a budget of a minute's tokens, which fills up all the time. A request is admitted if any are left, and may
take more than that: who comes next waits until the debt is paid off. What a request takes is first an estimate by the
length of its body, then the tokens of its view, and at last what the upstream has reported.

A store that fails, or does not answer in time, refuses nothing; what it was not told is not counted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from proxy.errors import TokensSpent
from proxy.runtime.owned_tasks import OwnedTasks
from proxy.store.access import Outage, Patience
from proxy.store.base import UNBOUNDED, Store, StoreError

BYTES_PER_TOKEN = 4  # roughly, of a request that nobody has counted yet
MINUTE = 60_000  # milliseconds that a budget takes to fill up, which is its unit in the store


@dataclass(frozen=True, slots=True)
class TokenBudget:
    """The budgets of one kind; `timeout` is how many seconds a request may wait for the store."""

    name: str
    per_minute: int
    store: Store
    outage: Outage
    tasks: OwnedTasks
    timeout: float
    report: Callable[[str], None]  # is called with the name for each request that is not admitted

    async def admit(self, tenant: str, size: int) -> Spending:
        """What a request with a body of this size takes; raises `TokensSpent` if the tenant has no tokens left."""
        spending = Spending(self, tenant)
        if wait := await spending.begin(size):
            self.report(self.name)
            raise TokensSpent(wait)
        return spending

    async def take(self, tenant: str, tokens: int) -> float:
        """Takes tokens if any are left, and returns 0; else takes none, and returns the seconds until some are left."""
        return await self._spend(tenant, tokens, MINUTE) / 1000

    def correct(self, tenant: str, tokens: int) -> None:
        """Takes more tokens, or gives some back, in the background and whatever is left."""
        if tokens:
            self.tasks.own(self._spend(tenant, tokens, UNBOUNDED), to_its_end=True)

    async def _spend(self, tenant: str, tokens: int, most: int) -> int:
        spending = self.store.spend(f"{self.name}-{tenant}", round(tokens * MINUTE / self.per_minute), most)
        try:
            return await Patience(self.timeout).read(spending)
        except StoreError as error:
            self.outage.failed("tokens were not counted", error)
            return 0


@dataclass(slots=True)
class Spending:
    """What one piece of work takes from a budget, as far as that is known."""

    budget: TokenBudget
    tenant: str
    tokens: int = 0
    estimate: int = 0

    async def begin(self, size: int) -> float:
        """Takes at most a minute's tokens, by the bytes of a body; returns the seconds to wait, 0 if it took them."""
        self.estimate = size // BYTES_PER_TOKEN
        taken = min(self.estimate, self.budget.per_minute)
        wait = await self.budget.take(self.tenant, taken)
        self.tokens = 0 if wait else taken
        return wait

    def update(self, tokens: int) -> None:
        """Replaces what was counted so far by these tokens."""
        self.budget.correct(self.tenant, tokens - self.tokens)
        self.tokens = tokens

    def end(self, reported: int, *, is_refused: bool) -> None:
        """Counts what the upstream has reported, and nothing if it refused the work; else the whole estimate."""
        self.update(reported if reported or is_refused else self.estimate)
