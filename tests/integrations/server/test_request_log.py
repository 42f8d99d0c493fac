"""Operating a server: hosts behind a proxy, one JSON line a request, /metrics."""

import json
import re
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
from serving import ServerProcess, running

pytest.importorskip("fastapi", reason="the server's packages are not installed")
pytest.importorskip("prometheus_client", reason="the server's packages are not installed")

from memalpha.store.store import MemoryStore

TOKEN = "t0ken" * 8


class Web:
    """Requests to a running server, and the lines of its log."""

    def __init__(self, server: ServerProcess) -> None:
        self.server, self.client = server, httpx2.Client(base_url=server.url)

    def request(self, path: str, body: Any = None, **headers: str) -> httpx2.Response:
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        return self.client.request("POST" if body else "GET", path, json=body, headers=sent)

    def log(self) -> dict[str, Any]:
        """Return the log's next line."""
        return json.loads(self.server.line())


@pytest.fixture(scope="module")
def web(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Web]:
    path = tmp_path_factory.mktemp("served") / "ana.db"
    with MemoryStore.open(str(path), embedder="hash") as store:
        store.add("Ana lives in Porto")
    words = ("--read-only", "--http", "127.0.0.1:0", "--allow-host", "memory.example.org", "--log-requests")
    with running(path, *words, MEMALPHA_TOKEN=TOKEN) as server:
        yield Web(server)
        server.stop()


BEARER = f"Bearer {TOKEN}"


def test_each_request_is_a_json_line_without_its_query(web: Web) -> None:
    response = web.request("/v1/entries?limit=73", Authorization=BEARER, X_Request_Id="job-7")
    assert response.status_code == 200 and response.headers["x-request-id"] == "job-7"
    line = web.log()
    expected = {"id": "job-7", "method": "GET", "path": "/v1/entries", "route": "/v1/entries", "status": 200}
    expected |= {"key": None, "namespace": "default", "received": 0}
    assert line == {**line, **expected} and line.keys() == {*expected, "time", "ms", "sent"}
    assert line["sent"] > 0 and line["ms"] > 0
    assert "limit" not in json.dumps(line) and TOKEN not in json.dumps(line)

    web.request("/v1/entries/semantic%23none", Authorization=BEARER)
    assert web.log()["route"] == "/v1/entries/{id:path}"
    web.request("/v1/search", {"query": "Ana"}, Authorization=BEARER)
    assert web.log()["received"] == len('{"query":"Ana"}')

    response, line = web.request("/v1/search", {"query": "Ana"}, X_Request_Id="two words\x7f"), web.log()
    assert (response.status_code, line["status"], line["route"]) == (401, 401, "(refused)")
    assert line["id"] == response.headers["x-request-id"] != "two words\x7f"

    assert web.request("/no/such%0apath", Authorization=BEARER).status_code == 404
    line = web.log()
    assert (line["path"], line["route"]) == ("/no/such\npath", "(unknown)")


def test_metrics_count_requests_by_route_for_admins(web: Web) -> None:
    def metrics() -> str:
        response = web.request("/metrics", Authorization=BEARER)
        web.log()
        assert response.status_code == 200 and response.headers["content-type"].startswith("text/plain")
        return response.text

    def count() -> float:
        match = re.search(r'_total\{method="POST",route="/v1/search",status="200"\} ([\d.e+]+)', metrics())
        return float(match[1]) if match else 0.0

    assert web.request("/metrics").status_code == 401
    web.log()
    before = count()
    assert web.request("/v1/search", {"query": "Porto"}, Authorization=BEARER).status_code == 200
    web.log()
    assert count() == before + 1
    for number in range(20):
        assert web.request(f"/nowhere/{number}", Authorization=BEARER).status_code == 404
        web.log()
    text = metrics()
    assert "/nowhere" not in text and 'route="(unknown)",status="404"' in text
    assert "memalpha_request_seconds_bucket" in text and "process_resident_memory_bytes" in text


def test_only_named_hosts_are_answered_besides_localhost(web: Web) -> None:
    for headers, status in (
        ({"Host": "memory.example.org"}, 200),
        ({"Host": "Memory.Example.org:8443", "Origin": "https://memory.example.org:8443"}, 200),
        ({"Host": "evil.example.org"}, 421),
        ({"Host": "memory.example.org", "Origin": "https://evil.example.org"}, 403),
        ({}, 200),
    ):
        assert web.request("/v1/search", {"query": "Ana"}, Authorization=BEARER, **headers).status_code == status
        web.log()
