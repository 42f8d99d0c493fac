"""Spans of OpenTelemetry: a server sends them to a collector, with routes and keys, and without what is stored."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi")
httpx2 = pytest.importorskip("httpx2")
collector = pytest.importorskip("opentelemetry.proto.collector.trace.v1.trace_service_pb2")

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Collector:
    """An OTLP collector on loopback that keeps the spans it is sent."""

    def __init__(self) -> None:
        self.spans: list[Any] = []
        self.raw = b""

        class Handler(BaseHTTPRequestHandler):
            def do_POST(handler) -> None:
                body = handler.rfile.read(int(handler.headers["Content-Length"]))
                self.raw += body
                request = collector.ExportTraceServiceRequest.FromString(body)
                self.spans += [
                    span
                    for resource in request.resource_spans
                    for scope in resource.scope_spans
                    for span in scope.spans
                ]
                handler.send_response(200)
                handler.send_header("Content-Length", "0")
                handler.end_headers()

            def log_message(self, *arguments: object) -> None:
                pass

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()


@pytest.fixture
def spans() -> Iterator[Collector]:
    server = Collector()
    yield server
    server.server.shutdown()
    server.server.server_close()


def serve(tmp_path: Path, endpoint: str, *options: str) -> tuple[subprocess.Popen[str], str]:
    """Start a server and return it with its address."""
    environment = {**os.environ, "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint, "OTEL_EXPORTER_OTLP_COMPRESSION": "none"}
    command = [sys.executable, "-m", "memalpha", "serve", str(tmp_path / "ana.db"), "--policy", "add_all"]
    server = subprocess.Popen(
        [*command, "--http", "127.0.0.1:0", *options], stderr=subprocess.PIPE, text=True, env=environment
    )
    assert server.stderr is not None
    found = re.search(r"at (http://\S+?)/v1", server.stderr.readline())
    assert found is not None
    return server, found[1]


def test_a_server_sends_spans_of_requests_store_and_model(tmp_path: Path, spans: Collector) -> None:
    server, address = serve(tmp_path, f"http://127.0.0.1:{spans.server.server_port}", "--otel")
    try:
        with httpx2.Client(base_url=address) as web:
            fact = {"category": "semantic", "content": "the secret is Xyzzy"}
            web.post("/v1/entries", json=fact, headers={"traceparent": PARENT, "X-Request-Id": "r1"})
            web.post("/v1/read", json={"text": "Ana: I live in Porto."})
            web.post("/v1/ask", json={"question": "Where does Ana live?"})
            web.get("/v1/entries/nobody")
    finally:
        server.send_signal(signal.SIGTERM)
        assert server.wait(20) == 0
    named = {span.name: span for span in spans.spans}
    assert len(named) == len(spans.spans) == 9, sorted(span.name for span in spans.spans)
    values = {name: {each.key: each.value for each in span.attributes} for name, span in named.items()}
    insert = named["POST /v1/entries"]
    assert insert.trace_id.hex() == PARENT.split("-")[1] and insert.parent_span_id.hex() == PARENT.split("-")[2]
    described = values["POST /v1/entries"]
    assert described["http.response.status_code"].int_value == 201
    assert described["memalpha.namespace"].string_value == "default"
    assert described["memalpha.request_id"].string_value == "r1"
    assert named["store.insert"].parent_span_id == insert.span_id
    read = named["POST /v1/read"]
    assert {named[name].parent_span_id for name in ("model.propose", "store.apply")} == {read.span_id}
    assert named["model.answer"].parent_span_id == named["POST /v1/ask"].span_id
    assert named["store.get"].parent_span_id == named["GET /v1/entries/{id:path}"].span_id
    assert values["store.get"]["error.type"].string_value == "UnknownEntry"
    assert b"Xyzzy" not in spans.raw and b"Porto" not in spans.raw and b"nobody" not in spans.raw


def test_without_its_packages_the_flag_is_refused() -> None:
    code = """
import sys
sys.modules["opentelemetry.sdk"] = None
from memalpha.integrations.server import telemetry
from memalpha.errors import ConfigError
with telemetry.request_span("GET", {}) as span:
    assert not span.is_recording() and telemetry.traced_store(lambda: 3) == 3
try:
    telemetry.start_tracing()
except ConfigError as error:
    print(error)
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr
    assert "otel: tracing needs opentelemetry" in result.stdout and "[otel]" in result.stdout
