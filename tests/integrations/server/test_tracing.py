"""Spans of OpenTelemetry: a server sends them to a collector, with routes and keys, and without what is stored."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from serving import running
from standin import Answer, HttpStandIn

pytest.importorskip("fastapi")
httpx2 = pytest.importorskip("httpx2")
collector = pytest.importorskip("opentelemetry.proto.collector.trace.v1.trace_service_pb2")

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def test_a_server_sends_spans_of_requests_store_and_model(tmp_path: Path) -> None:
    bodies: list[bytes] = []

    def collect(method: str, path: str, body: bytes) -> Answer:
        bodies.append(body)
        return 200, {}, b""

    words = ("--policy", "add_all", "--http", "127.0.0.1:0", "--otel")
    with HttpStandIn(collect) as otlp:
        environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": otlp.url, "OTEL_EXPORTER_OTLP_COMPRESSION": "none"}
        with running(tmp_path / "ana.db", *words, **environment) as server, httpx2.Client(base_url=server.url) as web:
            fact = {"category": "semantic", "content": "the secret is Xyzzy"}
            web.post("/v1/entries", json=fact, headers={"traceparent": PARENT, "X-Request-Id": "r1"})
            web.post("/v1/read", json={"text": "Ana: I live in Porto."})
            web.post("/v1/ask", json={"question": "Where does Ana live?"})
            web.get("/v1/entries/nobody")
            server.stop()
    spans = [
        span
        for body in bodies
        for resource in collector.ExportTraceServiceRequest.FromString(body).resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]
    named = {span.name: span for span in spans}
    assert len(named) == len(spans) == 9, sorted(span.name for span in spans)
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
    assert not any(word in body for word in (b"Xyzzy", b"Porto", b"nobody") for body in bodies)


def test_without_its_packages_the_flag_is_refused() -> None:
    code = """
import sys
sys.modules["opentelemetry.sdk"] = None
from memalpha.integrations.server import telemetry
from memalpha.errors import ConfigError
with telemetry.Telemetry(log=False).observe("GET", "/", {}):
    assert telemetry.traced_store(lambda: 3) == 3
try:
    telemetry.start_tracing()
except ConfigError as error:
    print(error)
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr
    assert "otel: tracing needs opentelemetry" in result.stdout and "[otel]" in result.stdout
