"""Telemetry: the Prometheus metrics, and the sums that pages and receipts are made of.

Metrics carry only counts and names, never content and never a credential. The parts of the proxy report an event by
calling `Telemetry.count`, or a `record_…` method if more than one number changes.
"""

from __future__ import annotations

import asyncio
from collections import Counter as Tally
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any, NamedTuple

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from proxy.asking import FinishedCall
from proxy.condensing.policy import Policy, Window
from proxy.condensing.turn import Decision
from proxy.knowledge.figures import Figures
from proxy.quoting import label
from proxy.reasons import Action, Trigger
from proxy.runtime.owned_tasks import OwnedTasks
from proxy.sessions.requests import in_millionths
from proxy.sessions.stored import StoredSessions
from proxy.store.base import StoreError
from strategies.core.economics import Advice, Prices

MAX_MODELS = 256  # maximum number of models with a label of their own
_MAX_SOURCES = 16
OTHER = "other"
_OVERHEAD = partial(Histogram, buckets=(0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1, 5, 10))
METRICS: Mapping[str, tuple[Callable[..., Any], str, tuple[str, ...]]] = {
    "requests_total": (Counter, "Requests by what was done with them, and by tenant.", ("action", "tenant")),
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


class ArrivalKind(NamedTuple):
    """Requests that are alike: `strategy` is the text of a pipeline, `upstream` an address."""

    protocol: str
    model: str
    upstream: str
    window: Window
    strategy: str


@dataclass(slots=True)
class Arrivals:
    """The requests of one kind, with the policy and the advice of the newest one."""

    policy: Policy
    advice: Advice | None = None
    actions: Tally[str] = field(default_factory=Tally)
    fullest: int = 0  # tokens of the largest view
    sources: set[str] = field(default_factory=set)  # the headers and members that named their sessions


class Telemetry:
    """The metrics of one app, with a registry of their own; `name_of` gives the name of a tenant that has one."""

    def __init__(self, name_of: Callable[[str], str | None] = lambda _: None) -> None:
        self._name_of = name_of
        self.registry = CollectorRegistry()
        metrics = {
            name: kind(f"condenser_{name}", text, labels, registry=self.registry)
            for name, (kind, text, labels) in METRICS.items()
        }
        # Cached, because every request counts: looking up a labelled counter takes longer than incrementing it.
        self.metric = cache(lambda name, *labels: metrics[name].labels(*labels) if labels else metrics[name])
        """A metric, by its name and the values of its labels."""
        self._models: set[str] = set()
        self.arrived: dict[ArrivalKind, Arrivals] = {}
        """What this process was asked for since it started, by kind; at most `MAX_MODELS` kinds."""
        self.in_flight = 0  # requests under way; `proxy/serving/` counts them
        self.metric("in_flight").set_function(lambda: self.in_flight)
        self.metric("store_writable").set(1)

    def count(self, name: str, *labels: str) -> None:
        self.metric(name, *labels).inc()

    def count_request(self, action: str, tenant: str) -> None:
        """Counts a request; all tenants without a name are one, since anybody may make up any number of those."""
        self.count("requests_total", action, self._name_of(tenant) or OTHER)

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
        self._note_arrival(decision)
        self.count_request(decision.action, decision.context.request.tenant)
        if decision.reason:
            self.metric("reasons_total", decision.reason).inc()
        self.metric("tokens_total", "before").inc(decision.tokens_before)
        self.metric("tokens_total", "after").inc(decision.forwarded_tokens)
        if decision.action is Action.CONDENSED:
            self.count("condensations_total", decision.trigger)
        self.metric("overhead_seconds").observe(milliseconds / 1000)

    def _note_arrival(self, decision: Decision) -> None:
        request, policy = decision.context.request, decision.policy
        protocol, upstream = request.body.endpoint.dialect.name, request.upstream.base_url
        kind = ArrivalKind(protocol, request.model, upstream, policy.window, policy.pipeline.text)
        found = self.arrived.get(kind)
        if found is None:
            if len(self.arrived) == MAX_MODELS:
                return
            found = self.arrived[kind] = Arrivals(policy)
        found.policy, found.advice = policy, decision.economy
        found.actions[decision.action] += 1
        found.fullest = max(found.fullest, decision.tokens_after)
        if len(found.sources) < _MAX_SOURCES:
            found.sources.add(decision.context.recognised.identity.source)

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


# -- sums ----------------------------------------------------------------------------------------------------------

SLOT = 300  # seconds that one sum is over
KEPT = 8 * 24 * 3600  # seconds
_HOUR = 3600
_PAUSE = 1.0  # seconds between a request and the write of its sums, which are those of many then


class Sums:
    """What all requests have amounted to, stored or not, by the time at which they ended.

    Each replica adds to the sums in the store, and has its own since it started (`total`). `prices` are those of a
    model, None if they are not known; `clock` gives seconds since the epoch. What the store does not take is kept
    until it does.
    """

    def __init__(
        self,
        stored: StoredSessions,
        tasks: OwnedTasks,
        clock: Callable[[], float],
        prices: Callable[[str], Prices | None],
    ) -> None:
        self._stored, self._tasks, self._clock, self._prices = stored, tasks, clock, prices
        self.started = clock()
        self.total: Tally[str] = Tally()
        self._waiting: dict[int, Tally[str]] = {}
        self._timer: asyncio.TimerHandle | None = None

    def note_call(self, call: FinishedCall) -> None:
        """Adds a call of our own; its cost is that of a prompt, because it is not known how much was its answer."""
        prices = self._prices(call.model)
        cost = in_millionths(prices.of_call(prompt=call.tokens)) if prices else 0
        self.note({"own_calls": 1, "own_failed": int(bool(call.failure)), "own_tokens": call.tokens, "own_cost": cost})

    def note(self, found: Mapping[str, int]) -> None:
        """Adds what has just ended; nothing if that is empty."""
        if not found:
            return
        self.total.update(found)
        self._waiting.setdefault(int(self._clock() // SLOT), Tally()).update(found)
        if self._timer is None:
            # A timer, not a task that sleeps: the app is idle meanwhile.
            self._timer = asyncio.get_running_loop().call_later(_PAUSE, self._write_in_background)

    def _write_in_background(self) -> None:
        self._tasks.own(self.write(), to_its_end=True)

    async def write(self) -> None:
        """Writes what waits; a failure is logged."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        waiting, self._waiting = self._waiting, {}
        for slot, found in waiting.items():
            hour, place = divmod(slot * SLOT, _HOUR)
            named = {f"{place // SLOT}:{name}": amount for name, amount in found.items() if amount}
            try:
                await self._stored.in_time(self._stored.store.add(_sum_of(hour), named, KEPT))
            except StoreError as error:
                self._stored.outage.failed("sums were not written", error)
                if slot * SLOT > self._clock() - KEPT:
                    self._waiting.setdefault(slot, Tally()).update(found)

    async def since(self, seconds: int) -> list[tuple[int, Tally[str]]]:
        """For each slot of the last `seconds` that has requests: when it began, and its sums. Raises `StoreError`."""
        await self.write()
        now = self._clock()
        first = int((now - min(seconds, KEPT)) // SLOT)
        hours = range(first * SLOT // _HOUR, int(now // _HOUR) + 1)
        slots: dict[int, Tally[str]] = {}
        for hour, found in zip(
            hours, await self._stored.in_time(self._stored.store.sums(list(map(_sum_of, hours)))), strict=True
        ):
            for named, amount in found.items():
                place, _, name = named.partition(":")
                slot = hour * _HOUR // SLOT + int(place)
                if slot >= first:
                    slots.setdefault(slot, Tally())[name] += amount
        return [(slot * SLOT, slots[slot]) for slot in sorted(slots)]


def _sum_of(hour: int) -> str:
    return f"hour-{hour}"
