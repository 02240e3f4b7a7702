"""A fake OpenTelemetry collector that receives OTLP over HTTP as protobuf, decodes it, and stores the spans."""

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


@dataclass
class ReceivedSpan:
    """A received span."""

    name: str
    trace: str
    ident: str
    above: str
    kind: int
    attributes: dict[str, Any]
    failed: bool


@dataclass
class Collector:
    """The received spans. ``refusing`` is an HTTP status to send for every request."""

    url: str = ""
    refusing: int = 0
    spans: list[ReceivedSpan] = field(default_factory=list)
    has_request: threading.Event = field(default_factory=threading.Event)

    def find_span(self, name: str) -> ReceivedSpan:
        (match,) = [span for span in self.spans if span.name == name]
        return match

    def find_parent_name(self, span: ReceivedSpan) -> str:
        """Return the name of a span's parent, or an empty string if the parent was not received."""
        return next((candidate.name for candidate in self.spans if candidate.ident == span.above), "")


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(item) for item in value.array_value.values]
    return getattr(value, kind)


@contextmanager
def run_collector() -> Iterator[Collector]:
    """Serve a collector on loopback."""
    collector = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            if self.headers.get("content-encoding") == "gzip":
                body = gzip.decompress(body)
            assert (self.path, self.headers["content-type"]) == ("/v1/traces", "application/x-protobuf")
            if not collector.refusing:
                request = ExportTraceServiceRequest.FromString(body)
                for resource in request.resource_spans:
                    for scope in resource.scope_spans:
                        for span in scope.spans:
                            collector.spans.append(
                                ReceivedSpan(
                                    span.name,
                                    span.trace_id.hex(),
                                    span.span_id.hex(),
                                    span.parent_span_id.hex(),
                                    span.kind,
                                    {attribute.key: _value(attribute.value) for attribute in span.attributes},
                                    span.status.code == 2,
                                )
                            )
            self.send_response(collector.refusing or 200)
            self.send_header("content-length", "0")
            self.end_headers()
            collector.has_request.set()

        def log_message(self, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        collector.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield collector
        finally:
            server.shutdown()
            thread.join()
