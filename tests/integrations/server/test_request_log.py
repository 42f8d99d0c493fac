"""Operating a server: hosts behind a proxy, one JSON line a request, /metrics."""

import json
import os
import re
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="the server's packages are not installed")
pytest.importorskip("prometheus_client", reason="the server's packages are not installed")

from memalpha.store.store import MemoryStore

TOKEN = "t0ken" * 8
COMMAND = [sys.executable, "-m", "memalpha", "serve"]


class Server:
    """A running `memalpha serve` and what it wrote to stderr."""

    def __init__(self, store: Path) -> None:
        command = [*COMMAND, str(store), "--read-only", "--embedder", "hash", "--http", "127.0.0.1:0"]
        command += ["--allow-host", "memory.example.org", "--log-requests"]
        environment = os.environ | {"MEMALPHA_TOKEN": TOKEN}
        self.process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
        self.url = ""
        while not self.url:
            line = self._line()
            assert line, "the server ended before it named its address"
            found = re.search(r"(http://127\.0\.0\.1:\d+)/v1", line)
            self.url = found[1] if found else ""

    def _line(self) -> str:
        assert self.process.stderr is not None
        return self.process.stderr.readline()

    def request(self, path: str, body: Any = None, **headers: str) -> tuple[int, dict[str, str], str]:
        """Ask the server; return status, headers and text."""
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        data = None if body is None else json.dumps(body).encode()
        sent |= {"Content-Type": "application/json"} if data else {}
        asked = urllib.request.Request(self.url + path, data, sent)
        try:
            with urllib.request.urlopen(asked, timeout=30) as answer:
                return answer.status, {k.lower(): v for k, v in answer.headers.items()}, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, {k.lower(): v for k, v in error.headers.items()}, error.read().decode()

    def log(self) -> dict[str, Any]:
        """Return the log's next line."""
        return json.loads(self._line())


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    path = tmp_path_factory.mktemp("served") / "ana.db"
    with MemoryStore.open(str(path), embedder="hash") as store:
        store.add("Ana lives in Porto")
    running = Server(path)
    yield running
    running.process.terminate()
    assert running.process.wait(timeout=30) == 0
    assert running.process.stderr is not None
    running.process.stderr.close()


BEARER = f"Bearer {TOKEN}"


def test_each_request_is_a_json_line_without_its_query(server: Server) -> None:
    status, headers, _ = server.request("/v1/entries?limit=73", Authorization=BEARER, X_Request_Id="job-7")
    assert status == 200 and headers["x-request-id"] == "job-7"
    line = server.log()
    assert {name: line[name] for name in ("id", "method", "path", "route", "status", "key", "namespace")} == {
        "id": "job-7",
        "method": "GET",
        "path": "/v1/entries",
        "route": "/v1/entries",
        "status": 200,
        "key": None,
        "namespace": "default",
    }
    assert line["received"] == 0 and line["sent"] > 0 and line["ms"] > 0
    assert "limit" not in json.dumps(line) and TOKEN not in json.dumps(line)

    server.request("/v1/entries/semantic%23none", Authorization=BEARER)
    assert server.log()["route"] == "/v1/entries/{id:path}"
    server.request("/v1/search", {"query": "Ana"}, Authorization=BEARER)
    assert server.log()["received"] == len(json.dumps({"query": "Ana"}))

    status, headers, _ = server.request("/v1/search", {"query": "Ana"}, X_Request_Id="two words\x7f")
    line = server.log()
    assert (status, line["status"], line["route"]) == (401, 401, "(refused)")
    assert line["id"] == headers["x-request-id"] != "two words\x7f"

    assert server.request("/no/such%0apath", Authorization=BEARER)[0] == 404
    line = server.log()
    assert (line["path"], line["route"]) == ("/no/such\npath", "(unknown)")


def test_metrics_count_requests_by_route_for_admins(server: Server) -> None:
    assert server.request("/metrics")[0] == 401
    server.log()
    before = _count(server)
    assert server.request("/v1/search", {"query": "Porto"}, Authorization=BEARER)[0] == 200
    server.log()
    assert _count(server) == before + 1
    for number in range(20):
        assert server.request(f"/nowhere/{number}", Authorization=BEARER)[0] == 404
        server.log()
    text = server.request("/metrics", Authorization=BEARER)[2]
    server.log()
    assert "/nowhere" not in text and 'route="(unknown)",status="404"' in text
    assert "memalpha_request_seconds_bucket" in text and "process_resident_memory_bytes" in text


def _count(server: Server) -> float:
    status, headers, text = server.request("/metrics", Authorization=BEARER)
    server.log()
    assert status == 200 and headers["content-type"].startswith("text/plain")
    found = re.search(r'memalpha_requests_total\{method="POST",route="/v1/search",status="200"\} ([\d.e+]+)', text)
    return float(found[1]) if found else 0.0


def test_only_named_hosts_are_answered_besides_localhost(server: Server) -> None:
    def search(**headers: str) -> int:
        status = server.request("/v1/search", {"query": "Ana"}, Authorization=BEARER, **headers)[0]
        server.log()
        return status

    assert search(Host="memory.example.org") == 200
    assert search(Host="Memory.Example.org:8443", Origin="https://memory.example.org:8443") == 200
    assert search(Host="evil.example.org") == 421
    assert search(Host="memory.example.org", Origin="https://evil.example.org") == 403
    assert search() == 200


@pytest.mark.parametrize(
    ("arguments", "token", "message"),
    [
        (("--http", "127.0.0.1:0", "--allow-host", "memory.example.org"), "", "allow-host: "),
        (("--http", "127.0.0.1:0", "--allow-host", "https://memory.example.org"), TOKEN, "without scheme and port"),
        (("--mcp", "--allow-host", "memory.example.org"), "", "add --http"),
        (("--mcp", "--log-requests"), "", "add --http"),
    ],
)
def test_what_does_not_fit_is_refused(tmp_path: Path, arguments: tuple[str, ...], token: str, message: str) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "MEMALPHA_TOKEN"}
    environment |= {"MEMALPHA_TOKEN": token} if token else {}
    command = [*COMMAND, str(tmp_path / "ana.db"), "--policy", "add_all", *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 2 and message in done.stderr and "Traceback" not in done.stderr
    assert not list(tmp_path.iterdir())
