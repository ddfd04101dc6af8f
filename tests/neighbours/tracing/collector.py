"""What tracing tools talk to, on this machine: it keeps all that it is sent."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import import_module
from threading import Thread
from typing import Any, NamedTuple

# Not installed where types are checked.
msgpack: Any = import_module("msgpack")
traces: Any = import_module("opentelemetry.proto.collector.trace.v1.trace_service_pb2")


class Span(NamedTuple):
    """A piece of work.

    Attributes:
        parent: id of the span that it belongs to; "" for none.
    """

    name: str
    trace: str
    id: str
    parent: str
    attributes: Mapping[str, Any]


class Collector:
    """An OpenTelemetry collector, an agent of Datadog and a Sentry in one.

    Attributes:
        spans: of OpenTelemetry and Datadog.
        items: of Sentry: what each is, and its content.
    """

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.items: list[tuple[str, Any]] = []
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._answer({"endpoints": ["/v0.4/traces"]})

            def do_POST(self) -> None:
                collector._take(self.path, self._body())
                self._answer({})

            do_PUT = do_POST

            def _body(self) -> bytes:
                if self.headers.get("Transfer-Encoding") == "chunked":
                    body = b""
                    while size := int(self.rfile.readline(), 16):
                        body += self.rfile.read(size)
                        self.rfile.readline()
                else:
                    body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                return gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body

            def _answer(self, answer: object) -> None:
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.end_headers()
                self.wfile.write(json.dumps(answer).encode())

            def log_message(self, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        Thread(target=self._server.serve_forever, daemon=True).start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._server.server_port}"

    @property
    def environment(self) -> dict[str, str]:
        """Where the tools find it."""
        return {
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://{self.address}",
            "SENTRY_DSN": f"http://key@{self.address}/1",
            "DD_TRACE_AGENT_URL": f"http://{self.address}",
            "DD_TRACE_API_VERSION": "v0.4",
            "DD_INSTRUMENTATION_TELEMETRY_ENABLED": "false",
            "DD_REMOTE_CONFIGURATION_ENABLED": "false",
        }

    def named(self, name: str) -> list[Span]:
        return [span for span in self.spans if span.name == name]

    def of(self, kind: str) -> list[Any]:
        """The contents of these items of Sentry."""
        return [content for each, content in self.items if each == kind]

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _take(self, path: str, body: bytes) -> None:
        if path == "/v1/traces":
            self._take_opentelemetry(body)
        elif path.endswith("/envelope/"):
            self._take_sentry(body)
        elif path == "/v0.4/traces":
            self._take_datadog(body)

    def _take_opentelemetry(self, body: bytes) -> None:
        for resource in traces.ExportTraceServiceRequest.FromString(body).resource_spans:
            for scope in resource.scope_spans:
                for span in scope.spans:
                    attributes = {
                        each.key: getattr(each.value, each.value.WhichOneof("value"))
                        for each in span.attributes
                    }
                    ids = span.trace_id.hex(), span.span_id.hex(), span.parent_span_id.hex()
                    self.spans.append(Span(span.name, *ids, attributes))

    def _take_sentry(self, body: bytes) -> None:
        _, *lines = body.split(b"\n")
        for header, content in zip(lines[::2], lines[1::2], strict=False):
            self.items.append((json.loads(header)["type"], json.loads(content)))

    def _take_datadog(self, body: bytes) -> None:
        for trace in msgpack.unpackb(body):
            for span in trace:
                trace_id, span_id = (f"{span[name]:x}" for name in ("trace_id", "span_id"))
                parent = f"{span['parent_id']:x}" if span.get("parent_id") else ""
                name = f"{span['name']} {span['resource']}"
                self.spans.append(Span(name, trace_id, span_id, parent, span["meta"]))
