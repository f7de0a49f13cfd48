"""Telemetry: the Prometheus metrics.

They carry counts and names only, never content and never a credential. The parts of the proxy report an event by
calling one of the `record_*` methods of `Telemetry`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from proxy.asking import FinishedCall
from proxy.condensing.decision import Decision
from proxy.http.admission import Refusal
from proxy.knowledge.calibrator import Progress
from proxy.quoting import label
from proxy.reasons import Action, Trigger

MAX_MODELS = 256
"""Maximum number of models with a label of their own."""
OTHER = "other"
"""The label of all other models."""


class Telemetry:
    """The metrics; one per app, with a registry of its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        # Cached, because every request counts: looking up a labelled counter takes longer than incrementing it.
        self._requests = cache(self._counter("requests_total", "Requests by what was done with them.", "action").labels)
        self._reasons = cache(self._counter("reasons_total", "Requests by the reason that was given.", "reason").labels)
        self._tokens = self._counter(
            "tokens_total", "Prompt tokens before and after, and all of our own calls by role.", "stage"
        )
        self._before, self._after = self._tokens.labels("before"), self._tokens.labels("after")
        self._calls = self._counter("calls_total", "Model calls of our own by how they ended.", "role", "outcome")
        self._condensations = self._counter("condensations_total", "New condensations by trigger.", "trigger")
        self._overflows = self._counter(
            "overflows_total", "Prompts that an upstream refused, by what followed.", "outcome"
        )
        self._truncations = self._counter("truncations_total", "Prompts that were not read whole.")
        self._overhead = Histogram(
            "condenser_overhead_seconds",
            "Time added before a request was forwarded.",
            buckets=(0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1, 5, 10),
            registry=self.registry,
        )
        calibration = Gauge(
            "condenser_calibration_error",
            "Mean relative error of the estimated prompt tokens, of requests without and with an anchor.",
            ("model", "kind"),
            registry=self.registry,
        )
        self._calibration = cache(calibration.labels)
        self._failed_writes = self._counter("store_failed_writes_total", "Writes that the store failed.", "reason")
        self._writable = Gauge(
            "condenser_store_writable", "Whether the last write to the store worked.", registry=self.registry
        )
        self._writable.set(1)
        self._models: set[str] = set()
        self.in_flight = 0
        """Requests under way; who serves one counts it."""
        flights = Gauge("condenser_in_flight", "Requests under way.", registry=self.registry)
        flights.set_function(lambda: self.in_flight)

        self._refusals = self._counter("refusals_total", "Requests that were refused, by what ran out.", "reason")
        self._queue = Gauge("condenser_queue", "Requests that wait to be served.", registry=self.registry)

    def watch_queue(self, waiting: Callable[[], float]) -> None:
        """Has the number of waiting requests read from `waiting`."""
        self._queue.set_function(waiting)

    def record_refusal(self, reason: Refusal) -> None:
        """Records a request that was not served."""
        self._refusals.labels(reason).inc()

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"condenser_{name}", text, labels, registry=self.registry)

    def record_calibration(self, model: str, progress: Progress) -> None:
        """Records how well the prompt tokens of a model are estimated now."""
        for kind, error in (("first", progress.first), ("anchored", progress.anchored)):
            if error is not None:
                self._calibration(self._label(model), kind).set(error)

    def _label(self, model: str) -> str:
        """The label of a model: its name, if that is a short plain one among the first `MAX_MODELS`; else `OTHER`.

        Clients choose model names, and `/metrics` shows them to everyone who can read it.
        """
        if len(self._models) < MAX_MODELS and label(model) == model:
            self._models.add(model)
        return model if model in self._models else OTHER

    def record_call(self, call: FinishedCall) -> None:
        """Records a model call of our own that has ended."""
        self._calls.labels(call.role, call.failure or "answered").inc()
        self._tokens.labels(call.role).inc(call.tokens)

    def record_decision(self, decision: Decision, milliseconds: float) -> None:
        """Records the decision on a request, and the milliseconds that the proxy added before it was forwarded."""
        self._requests(decision.action).inc()
        if decision.reason:
            self._reasons(decision.reason).inc()
        self._before.inc(decision.tokens_before)
        self._after.inc(decision.forwarded_tokens)
        if decision.action is Action.CONDENSED:
            self._condensations.labels(decision.trigger).inc()
        self._overhead.observe(milliseconds / 1000)

    def record_overflow(self, decision: Decision, outcome: str) -> None:
        """Records that the upstream refused a prompt for its length.

        `decision` is the one whose reply the client gets, after a retry if there was one.
        """
        self._overflows.labels(outcome).inc()
        if decision.trigger is Trigger.OVERFLOW:
            self._condensations.labels(decision.trigger).inc()

    def record_write(self, failure: str) -> None:
        """Records a write to the store; `failure` is the reason why it failed, "" if it did not."""
        self._writable.set(not failure)
        if failure:
            self._failed_writes.labels(failure).inc()

    def record_truncation(self) -> None:
        """Records that a `usage` proves a truncated prompt."""
        self._truncations.inc()

    def record_bypass(self) -> None:
        """Records a generation request that is passed on uncondensed."""
        self._requests(Action.BYPASSED).inc()

    def exposition(self) -> bytes:
        """The metrics in Prometheus' text format."""
        return generate_latest(self.registry)
