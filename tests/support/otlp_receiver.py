"""A receiver of OTLP over HTTP: it reads the spans and metrics that it gets."""

import gzip
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


class Receiver:
    """What came, as long as the context lasts."""

    def __init__(self) -> None:
        self.bodies: dict[str, list[bytes]] = {}
        bodies = self.bodies

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                is_packed = self.headers.get("content-encoding") == "gzip"
                bodies.setdefault(self.path, []).append(gzip.decompress(body) if is_packed else body)
                self.send_response(200)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Says nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def spans(self) -> list[Any]:
        """All spans, in the order of their ends."""
        found = map(ExportTraceServiceRequest.FromString, self.bodies.get("/v1/traces", []))
        return [
            span for each in found for one in each.resource_spans for scope in one.scope_spans for span in scope.spans
        ]

    def metrics(self) -> dict[str, Any]:
        """The newest data of each metric."""
        found = map(ExportMetricsServiceRequest.FromString, self.bodies.get("/v1/metrics", []))
        every = (one for each in found for one in each.resource_metrics)
        return {metric.name: metric for one in every for scope in one.scope_metrics for metric in scope.metrics}


def attributes(of: Any) -> dict[str, Any]:
    """The attributes of a span or a data point."""
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in of.attributes}
