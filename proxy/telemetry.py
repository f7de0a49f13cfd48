"""Telemetry: the Prometheus metrics, and the rows of live conversations.

Metrics carry only counts and names, never content and never a credential. The parts of the proxy report an event by
calling `Telemetry.count`, or a `record_…` method if more than one number changes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from functools import cache, partial
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from proxy.asking import FinishedCall
from proxy.condensing.policy import RATIOS
from proxy.condensing.turn import Decision
from proxy.endpoints.replies import Usage
from proxy.knowledge.figures import Figures
from proxy.quoting import label
from proxy.reasons import Action, Trigger
from proxy.runtime.lru import Lru

MAX_MODELS = 256  # maximum number of models with a label of their own
OTHER = "other"
_OVERHEAD = partial(Histogram, buckets=(0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1, 5, 10))
METRICS: Mapping[str, tuple[Callable[..., Any], str, tuple[str, ...]]] = {
    "requests_total": (Counter, "Requests by what was done with them.", ("action",)),
    "reasons_total": (Counter, "Requests by the reason that was given.", ("reason",)),
    "tokens_total": (Counter, "Prompt tokens before and after, and all of our own calls by role.", ("stage",)),
    "calls_total": (Counter, "Model calls of our own by how they ended.", ("role", "outcome")),
    "condensations_total": (Counter, "New condensations by trigger.", ("trigger",)),
    "overflows_total": (Counter, "Prompts that an upstream refused, by what followed.", ("outcome",)),
    "refusals_total": (Counter, "Requests that were refused, by what ran out.", ("reason",)),
    "store_failed_writes_total": (Counter, "Writes that the store failed.", ("reason",)),
    "store_writable": (Gauge, "Whether the last write to the store worked.", ()),
    "overhead_seconds": (_OVERHEAD, "Time added before a request was forwarded.", ()),
    "calibration_error": (
        Gauge,
        "Mean relative error of the estimated prompt tokens, of requests without and with an anchor.",
        ("model", "kind"),
    ),
    "in_flight": (Gauge, "Requests under way.", ()),
    "queue": (Gauge, "Requests that wait to be served.", ()),
}
"""Each metric, by its name without `condenser_`: its kind, what it counts, its labels."""


class Telemetry:
    """The metrics of one app, with a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        metrics = {
            name: kind(f"condenser_{name}", text, labels, registry=self.registry)
            for name, (kind, text, labels) in METRICS.items()
        }
        # Cached, because every request counts: looking up a labelled counter takes longer than incrementing it.
        self.metric = cache(lambda name, *labels: metrics[name].labels(*labels) if labels else metrics[name])
        """A metric, by its name and the values of its labels."""
        self._models: set[str] = set()
        self.in_flight = 0  # requests under way; `proxy/serving/` counts them
        self.metric("in_flight").set_function(lambda: self.in_flight)
        self.metric("store_writable").set(1)

    def count(self, name: str, *labels: str) -> None:
        self.metric(name, *labels).inc()

    def record_calibration(self, model: str, figures: Figures) -> None:
        for kind, error in (("first", figures.first_error), ("anchored", figures.later_error)):
            if error is not None:
                self.metric("calibration_error", self._label(model), kind).set(error)

    def _label(self, model: str) -> str:
        """The label of a model: its name if that is short and plain and one of the first `MAX_MODELS`, else `OTHER`.

        Clients choose the names of models, and `/metrics` shows them to everyone who can read it.
        """
        if len(self._models) < MAX_MODELS and label(model) == model:
            self._models.add(model)
        return model if model in self._models else OTHER

    def record_call(self, call: FinishedCall) -> None:
        self.count("calls_total", call.role, call.failure or "answered")
        self.metric("tokens_total", call.role).inc(call.tokens)

    def record_decision(self, decision: Decision, milliseconds: float) -> None:
        """Records the decision on a request, and the milliseconds that the proxy added before it was forwarded."""
        self.metric("requests_total", decision.action).inc()
        if decision.reason:
            self.metric("reasons_total", decision.reason).inc()
        self.metric("tokens_total", "before").inc(decision.tokens_before)
        self.metric("tokens_total", "after").inc(decision.forwarded_tokens)
        if decision.action is Action.CONDENSED:
            self.count("condensations_total", decision.trigger)
        self.metric("overhead_seconds").observe(milliseconds / 1000)

    def record_overflow(self, decision: Decision, outcome: str) -> None:
        """Records that the upstream refused a prompt for its length.

        `decision` is the one whose reply the client gets, after a retry if there was one.
        """
        self.count("overflows_total", outcome)
        if decision.trigger is Trigger.OVERFLOW:
            self.count("condensations_total", decision.trigger)

    def record_write(self, failure: str) -> None:
        """Records a write to the store; `failure` is the reason if it failed, else ""."""
        self.metric("store_writable").set(not failure)
        if failure:
            self.count("store_failed_writes_total", failure)

    def exposition(self) -> bytes:
        return generate_latest(self.registry)


MAX_ROWS = 256  # maximum number of conversations; those that were served longest ago are dropped first


@dataclass(slots=True)
class _Conversation:
    tenant: str
    id: str
    model: str = ""
    upstream: str = ""  # its address
    strategy: str = ""
    action: str = ""
    reason: str = ""
    window: int | None = None
    tokens: int = 0  # tokens of the last view, as the upstream counts them
    requests: int = 0
    client_tokens: int = 0
    forwarded_tokens: int = 0
    condensations: list[str] = field(default_factory=list)  # the ids of new condensations, the latest last
    cost: float | None = None  # the cost of the requests, in the currency of the prices; None if there are no prices
    saved_cost: float | None = None
    """The least that the saved tokens would have cost: if all of them had come from the upstream's cache."""
    last_at: float = 0.0


class Live:
    """The live conversations: a row for each that this process has served, for `wrap` and the dashboard.

    The rows are kept in the memory of each worker, and begin with it. They hold no text of messages. `clock` gives
    seconds since the epoch.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._rows: Lru[tuple[str, str], _Conversation] = Lru(MAX_ROWS)
        self._clock = clock

    def record(self, tenant: str, model: str, decision: Decision, usage: Usage | None) -> None:
        """Records a request that the upstream has answered; without a `usage` its prompt counts as uncached."""
        key = tenant, decision.session
        row = self._rows.use(key) or self._rows.put(key, _Conversation(*key))
        policy, counted = decision.policy, usage or Usage(decision.expected_tokens)
        row.model, row.upstream = model, decision.context.request.upstream.base_url
        row.strategy = policy.pipeline.text
        row.action, row.reason, row.window = decision.action, decision.reason, policy.window.tokens
        row.tokens, row.last_at = counted.prompt, self._clock()
        row.requests += 1
        row.client_tokens += decision.tokens_before
        row.forwarded_tokens += decision.forwarded_tokens
        applied = decision.applied
        if applied is not None and decision.action is Action.CONDENSED and applied.id not in row.condensations:
            row.condensations.append(applied.id)
        prices = policy.costs
        if prices is not RATIOS:
            spent = prices.of_call(prompt=counted.prompt, cached=counted.cached, reply=counted.completion)
            row.cost = (row.cost or 0.0) + spent
            saved = decision.tokens_saved
            row.saved_cost = (row.saved_cost or 0.0) + prices.of_call(prompt=saved, cached=saved)

    def sessions_of(self, tenant: str) -> list[str]:
        """The ids of a tenant's conversations, the newest first."""
        return [row.id for row in reversed(self._rows.values()) if row.tenant == tenant]

    def document(self) -> dict[str, Any]:
        return {"object": "live", "data": [asdict(row) for row in reversed(self._rows.values())]}
