"""Telemetry: the log line of each request, and the Prometheus metrics.

Both carry counts and names only, never content and never a credential. The parts of the proxy report an event by
calling one of the `record_*` methods of `Telemetry`.
"""

from __future__ import annotations

import json
import logging
import sys
from contextlib import AbstractContextManager
from functools import cache

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from proxy.asking import Call
from proxy.calibration.calibrator import Progress
from proxy.condensing.decision import Action, Decision, Trigger
from proxy.runtime.shared_context import SharedContext
from proxy.settings import LogFormat

LOGGER = "condenser"
MOST_MODELS = 256
"""The most models with a label of their own."""
OTHER = "other"
"""The label of all other models."""
_log = logging.getLogger(LOGGER)


class Telemetry:
    """Metrics and the log line of each request; one per app, with a registry of its own."""

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
        self._models: set[str] = set()
        self._in_flight = 0
        self._under_way = SharedContext(self._begun, self._ended)
        flights = Gauge("condenser_in_flight", "Requests under way.", registry=self.registry)
        flights.set_function(lambda: self._in_flight)
        self._bypassed: set[tuple[str, str]] = set()

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"condenser_{name}", text, labels, registry=self.registry)

    def under_way(self) -> AbstractContextManager[None]:
        """A context in which one request counts as under way."""
        return self._under_way

    def _begun(self) -> None:
        self._in_flight += 1

    def _ended(self) -> None:
        self._in_flight -= 1

    @property
    def is_quiet(self) -> bool:
        """Whether no request is under way."""
        return self._in_flight == 0

    def record_calibration(self, model: str, progress: Progress) -> None:
        """Records how well the prompt tokens of a model are estimated now."""
        for kind, error in (("first", progress.first), ("anchored", progress.anchored)):
            if error is not None:
                self._calibration(self._label(model), kind).set(error)

    def _label(self, model: str) -> str:
        """The label of a model. Clients choose model names, so all beyond the first `MOST_MODELS` share one label."""
        if len(self._models) < MOST_MODELS:
            self._models.add(model)
        return model if model in self._models else OTHER

    def record_call(self, call: Call) -> None:
        """Records a model call of our own that has ended."""
        self._calls.labels(call.role, call.failure or "answered").inc()
        self._tokens.labels(call.role).inc(call.tokens)

    def record_decision(self, decision: Decision) -> None:
        """Records the decision on a request, and logs its line if the view was changed."""
        self._requests(decision.action).inc()
        if decision.reason:
            self._reasons(decision.reason).inc()
        self._before.inc(decision.tokens_before)
        self._after.inc(decision.tokens_after)
        if decision.action is Action.CONDENSED:
            self._condensations.labels(decision.trigger).inc()
        self._overhead.observe(decision.timing.ours / 1000)
        if decision.is_notable:
            _log.info("%s", decision.log_line(), extra={"decision": decision})

    def record_overflow(self, decision: Decision, outcome: str) -> None:
        """Records that the upstream refused a prompt for its length.

        `decision` is the one whose reply the client gets, after a retry if there was one.
        """
        self._overflows.labels(outcome).inc()
        if decision.trigger is Trigger.OVERFLOW:
            self._condensations.labels(decision.trigger).inc()
            _log.info("%s", decision.log_line(), extra={"decision": decision})

    def record_truncation(self) -> None:
        """Records that a `usage` proves a truncated prompt."""
        self._truncations.inc()

    def record_bypass(self, path: str, reason: str = "") -> None:
        """Records a generation request that is passed on uncondensed; logged once for each endpoint and reason."""
        self._requests(Action.BYPASSED).inc()
        if (path, reason) not in self._bypassed:
            self._bypassed.add((path, reason))
            _log.info("%s is passed on as it is: %s", path, reason or "only /v1/chat/completions is condensed")

    def exposition(self) -> bytes:
        """The metrics in Prometheus' text format."""
        return generate_latest(self.registry)


class JsonLines(logging.Formatter):
    """Formats log records as JSON, one per line."""

    def format(self, record: logging.LogRecord) -> str:
        """The JSON line of a record, with the fields of its decision if it has one."""
        document = {
            "time": self.formatTime(record, "%Y-%m-%dT%H:%M:%S%z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        decision = getattr(record, "decision", None)
        if isinstance(decision, Decision):
            document |= {name.removeprefix("X-Condenser-").lower(): value for name, value in decision.headers()}
        if record.exc_info:
            document["exception"] = self.formatException(record.exc_info)
        return json.dumps(document, ensure_ascii=False)


class TextLines(logging.Formatter):
    """Formats log records for people: the line of a request as it is, and warnings and errors with their level."""

    def format(self, record: logging.LogRecord) -> str:
        """The message of a record, with its level if that is above INFO."""
        text = super().format(record)
        return f"{record.levelname}: {text}" if record.levelno > logging.INFO else text


def _is_worth_a_line(record: logging.LogRecord) -> bool:
    """Whether a record of uvicorn tells something new.

    The relay leaves a reply unfinished when the upstream has, so that the client sees that it was cut, and logs that.
    uvicorn takes it for a defect of the app.
    """
    return record.msg != "ASGI callable returned without completing response."


def configure_logging(form: LogFormat) -> None:
    """Sends our log to standard error. Only the program calls this, never the app."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if form == "json" else TextLines())
    logging.getLogger("uvicorn.error").addFilter(_is_worth_a_line)
    for name in (LOGGER, "proxy"):
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.setLevel(logging.INFO)
        logger.propagate = False
