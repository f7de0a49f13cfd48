"""OpenTelemetry: a span for each request and each model call of our own, and the metrics of the conventions for GenAI.

Spans carry counts and names, as the log does, never content and never a credential. The client's `traceparent` is the
parent of a request's span, and the upstream gets one that names this span. Exporters, sampling and the resource are
those of OpenTelemetry's SDK, by its own environment variables.

Only imported where `OTEL_EXPORTER_OTLP_ENDPOINT` is set; needs the extra `otel`.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from opentelemetry import context
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Span, SpanKind, StatusCode, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from starlette.types import Scope

from proxy import VERSION
from proxy.asking import FinishedCall
from proxy.condensing import account
from proxy.errors import CLIENT_CLOSED_REQUEST
from proxy.quoting import label
from strategies.dialects.messages import MESSAGES

if TYPE_CHECKING:
    from proxy.log import RequestLine

_HTTP, _PROTOCOL = "http/protobuf", "OTEL_EXPORTER_OTLP_PROTOCOL"
CLOSING = 3.0  # seconds for what waits to be sent when the proxy stops
_TRACE = b"traceparent"
_SECONDS = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
_TOKENS = (1, 4, 16, 64, 256, 1024, 4096, 16384, 65536, 262144, 1048576, 4194304, 16777216, 67108864)
_NANO = 1_000_000_000
_OPERATION = {"gen_ai.operation.name": "chat"}
_log = logging.getLogger(__name__)
_SHOWN = ("session", "strategy", "action", "reason", "trigger", "tokens_before", "tokens_after")


class Tracing:
    """The spans and metrics of one app; `close` sends what waits."""

    def __init__(self) -> None:
        if os.environ.get(_PROTOCOL, _HTTP) != _HTTP:
            _log.warning("%s is %s, but all is sent by %s", _PROTOCOL, label(os.environ[_PROTOCOL]), _HTTP)
        own = Resource({"service.name": "condenser", "service.version": VERSION})
        resource = Resource.create().merge(own).merge(OTELResourceDetector().detect())
        self._spans = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._exporters = OTLPSpanExporter(), OTLPMetricExporter()
        self._spans.add_span_processor(BatchSpanProcessor(self._exporters[0]))
        reader = PeriodicExportingMetricReader(self._exporters[1])
        self._meters = MeterProvider([reader], resource, shutdown_on_exit=False)
        self._tracer, meter = self._spans.get_tracer("condenser", VERSION), self._meters.get_meter("condenser", VERSION)
        self._durations = meter.create_histogram(
            "gen_ai.client.operation.duration", "s", explicit_bucket_boundaries_advisory=_SECONDS
        )
        self._tokens = meter.create_histogram(
            "gen_ai.client.token.usage", "{token}", explicit_bucket_boundaries_advisory=_TOKENS
        )
        self._w3c = TraceContextTextMapPropagator()

    def begin(self, scope: Scope, line: RequestLine) -> None:
        """Begins the span of a request, and puts it in place of the client's into its headers."""
        headers = scope["headers"]
        traced = [pair for pair in headers if pair[0].startswith(b"trace")]
        given = {name.decode("latin-1"): value.decode("latin-1") for name, value in traced}
        attributes = {"http.request.method": line.method, "condenser.request_id": line.id}
        parent = self._w3c.extract(given, context.Context())
        line.span = self._tracer.start_span(line.method, parent, SpanKind.SERVER, attributes)
        # Tasks that the request starts have it too, and so have our own calls in them.
        context.attach(set_span_in_context(line.span))
        carried: dict[str, str] = {}
        self._w3c.inject(carried)
        line.trace = carried.get("traceparent", "").encode()
        kept = [pair for pair in headers if pair[0] != _TRACE]
        scope["headers"] = [*kept, (_TRACE, line.trace)] if line.trace else kept

    def end(self, line: RequestLine, model: str) -> None:
        """Ends the span of a request; `model` is the label of its model for metrics."""
        span: Span | None = line.span
        if span is None:
            return
        status = line.status or CLIENT_CLOSED_REQUEST
        span.set_attribute("http.response.status_code", status)
        failure = {"error.type": line.error or str(status)} if status >= HTTPStatus.BAD_REQUEST else {}
        span.set_attributes(failure | {"condenser.upstream": line.upstream, "condenser.tenant": line.tenant})
        if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            span.set_status(StatusCode.ERROR)
        if line.turn is not None and line.turn.record is not None:
            self._describe(span, line, model, failure)
        span.end()

    def _describe(self, span: Span, line: RequestLine, model: str, failure: dict[str, str]) -> None:
        """Says what was asked of a model, and what for."""
        turn = line.turn
        assert turn is not None
        assert turn.record is not None
        record = turn.record
        provider = {"gen_ai.provider.name": "anthropic" if line.protocol == MESSAGES.name else "openai"}
        span.update_name(f"chat {model}")
        span.set_attributes({**_OPERATION, **provider, "gen_ai.request.model": line.model or ""})
        said = account.fields(turn.sent.decision, turn.timing)
        span.set_attributes({f"condenser.{name}": said[name] for name in _SHOWN if said[name] is not None})
        measured: dict[str, Any] = {**_OPERATION, **provider, "gen_ai.request.model": model}
        self._durations.record(line.seconds, measured | failure)
        if record.prompt:
            span.set_attribute("gen_ai.usage.input_tokens", record.prompt)
            span.set_attribute("gen_ai.usage.cache_read.input_tokens", record.cached)
            span.set_attribute("gen_ai.usage.output_tokens", record.reply)
            self._tokens.record(record.prompt, measured | {"gen_ai.token.type": "input"})
            self._tokens.record(record.reply, measured | {"gen_ai.token.type": "output"})

    def record_call(self, call: FinishedCall) -> None:
        """Records a call of our own that has just ended, below the request for which it was made."""
        attributes = _OPERATION | {"gen_ai.request.model": call.model, "condenser.role": call.role}
        now = time.time_ns()
        began = now - int(call.seconds * _NANO)
        span = self._tracer.start_span(f"chat {call.role}", None, SpanKind.CLIENT, attributes, start_time=began)
        span.set_attribute("condenser.tokens", call.tokens)
        if call.failure:
            span.set_attribute("error.type", call.failure)
            span.set_status(StatusCode.ERROR)
        span.end(now)

    def close(self) -> None:
        """Sends what waits, and gives up after `CLOSING` seconds."""
        closing = threading.Thread(target=self._shut_down, daemon=True)
        closing.start()
        closing.join(CLOSING)
        if closing.is_alive():
            for exporter in self._exporters:
                exporter.shutdown()

    def _shut_down(self) -> None:
        self._spans.shutdown()
        self._meters.shutdown()
