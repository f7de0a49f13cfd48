"""The live conversations: a row for each that this process has served, for `wrap` and the dashboard.

The rows are kept in the memory of each worker, and begin with it. They hold no text of messages.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

from proxy.condensing.decision import Decision
from proxy.condensing.policy import RATIOS
from proxy.endpoints.replies import Usage
from proxy.reasons import Action
from proxy.runtime.lru import Lru

MAX_ROWS = 256
"""Maximum number of conversations; those that were served longest ago are dropped first."""


@dataclass(slots=True)
class _Row:
    tenant: str
    id: str
    model: str = ""
    strategy: str = ""
    action: str = ""
    reason: str = ""
    window: int | None = None
    tokens: int = 0
    """Tokens of the last view, as the upstream counts them."""
    requests: int = 0
    client_tokens: int = 0
    forwarded_tokens: int = 0
    condensations: list[str] = field(default_factory=list)
    """The ids of new condensations, the latest last."""
    cost: float | None = None
    """The cost of the requests, in the currency of the prices; None if there are no prices."""
    saved_cost: float | None = None
    """The least that the saved tokens would have cost: if all of them had come from the upstream's cache."""
    last_at: float = 0.0


class Live:
    """The rows of one app; `clock` gives seconds since the epoch."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._rows: Lru[tuple[str, str], _Row] = Lru(MAX_ROWS)
        self._clock = clock

    def record(self, tenant: str, model: str, decision: Decision, usage: Usage | None) -> None:
        """Records a request that the upstream has answered; without a `usage` its prompt counts as uncached."""
        key = tenant, decision.session
        row = self._rows.use(key) or self._rows.put(key, _Row(*key))
        counted = usage or Usage(decision.expected_tokens)
        row.model, row.strategy = model, decision.policy.pipeline.text
        row.action, row.reason, row.window = decision.action, decision.reason, decision.policy.window.tokens
        row.tokens, row.last_at = counted.prompt, self._clock()
        row.requests += 1
        row.client_tokens += decision.tokens_before
        row.forwarded_tokens += decision.forwarded_tokens
        applied = decision.applied
        if applied is not None and decision.action is Action.CONDENSED and applied.id not in row.condensations:
            row.condensations.append(applied.id)
        prices = decision.policy.costs
        if prices is not RATIOS:
            spent = prices.of_call(prompt=counted.prompt, cached=counted.cached, reply=counted.completion)
            row.cost = (row.cost or 0.0) + spent
            saved = decision.tokens_saved
            row.saved_cost = (row.saved_cost or 0.0) + prices.of_call(prompt=saved, cached=saved)

    def document(self) -> dict[str, Any]:
        return {"object": "live", "data": [asdict(row) for row in reversed(self._rows.values())]}
