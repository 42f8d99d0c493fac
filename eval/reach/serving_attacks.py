"""Attack `memalpha serve` and time an honest client beside it: `python eval/reach/serving_attacks.py`.

Five attacks, one after the other, on a server of its own with at most 1,024 open files: 1,100 connections with half a
request each; 200 bodies that stop short of their end; filters of 5,000 conditions; a policy that takes 4 seconds, with
six texts to read; clients that leave before that policy answers. The policy is a local OpenAI-compatible server.
Writes serving-attacks.json and serving-attacks.md to --results.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx2

sys.path.insert(0, str(Path(__file__).parents[1]))
from common import make_parser, opening, save

FILES, CONNECTIONS, BODIES, CONDITIONS, READS, SECONDS = 1024, 1100, 200, 5000, 6, 4.0
ENTRIES = 1000


class SlowModel(BaseHTTPRequestHandler):
    """Chat completions that take `SECONDS` and insert a fact."""

    calls = 0

    def do_GET(self) -> None:
        self._answer({"data": [{"id": "m"}]})

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        type(self).calls += 1
        time.sleep(SECONDS)
        arguments = {"category": "semantic", "content": f"fact {time.time()}"}
        call = {"name": "memory_insert", "arguments": json.dumps(arguments)}
        message = {"role": "assistant", "tool_calls": [{"id": "1", "type": "function", "function": call}]}
        usage = {"prompt_tokens": 1, "completion_tokens": 1}
        self._answer({"choices": [{"message": message, "finish_reason": "tool_calls"}], "usage": usage})

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""

    def _answer(self, value: dict[str, Any]) -> None:
        body = json.dumps(value).encode()
        with suppress(ConnectionError):
            self.send_response(200)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)


@contextmanager
def serving(folder: Path, model: str) -> Iterator[tuple[int, int, Path]]:
    """Serve a store of `ENTRIES` facts; yield port, process id and the file of its standard error."""
    lines = "".join(f"user: I have {number} cats.\n" for number in range(ENTRIES))
    (folder / "facts.txt").write_text(lines)
    memalpha = [sys.executable, "-m", "memalpha"]
    read = [*memalpha, "read", "a.db", "facts.txt", "--policy", "add_all"]
    subprocess.run(read, cwd=folder, check=True, capture_output=True)
    errors = folder / "stderr.txt"
    serve = [*memalpha, "serve", "a.db", "--policy", model, "--http", "127.0.0.1:0"]
    limited = ["bash", "-c", f'ulimit -n {FILES}; exec "$@"', "bash", *serve]
    with errors.open("w") as stream:
        process = subprocess.Popen(limited, cwd=folder, stderr=stream)
    try:
        while "/v1" not in errors.read_text():
            if process.poll() is not None:
                sys.exit(f"the server did not start: {errors.read_text()}")
            time.sleep(0.1)
        yield int(errors.read_text().rpartition("/v1")[0].rpartition(":")[2]), process.pid, errors
    finally:
        process.terminate()
        process.wait()


class Honest:
    """A client that asks one thing again and again, and keeps how long each answer took."""

    def __init__(self, port: int) -> None:
        self.base, self.seconds, self.failures = f"http://127.0.0.1:{port}/v1", [], 0

    def ask(self, path: str = "/health", body: dict[str, Any] | None = None) -> None:
        """Ask once."""
        started = time.monotonic()
        try:
            url = self.base + path
            answer = httpx2.get(url, timeout=60) if body is None else httpx2.post(url, json=body, timeout=60)
            self.failures += not answer.is_success
        except httpx2.HTTPError:
            self.failures += 1
        self.seconds.append(time.monotonic() - started)

    def figures(self) -> dict[str, Any]:
        """Return the number of answers, failures, and the longest and the middle time."""
        middle = sorted(self.seconds)[len(self.seconds) // 2]
        return {"asked": len(self.seconds), "failed": self.failures, "median s": middle, "longest s": max(self.seconds)}


def request(path: str, size: int, body: bytes) -> bytes:
    """Return the bytes of a request.

    Args:
        path: Path of the URL.
        size: Bytes that its head promises.
        body: What it has.
    """
    head = f"POST {path} HTTP/1.1", "Host: localhost", "Content-Type: application/json", f"Content-Length: {size}"
    return "\r\n".join((*head, "", "")).encode() + body


def hold(port: int, count: int, sent: bytes, work: Callable[[], None]) -> None:
    """Do `work` while connections are held open.

    Args:
        port: Port of the server.
        count: Number of connections.
        sent: What each sends before it waits.
        work: Called once all are open.
    """
    with ExitStack() as stack:
        for _ in range(count):
            with suppress(OSError):
                client = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=5))
                client.sendall(sent)
        work()


def in_threads(count: int, work: Callable[[], Any]) -> list[threading.Thread]:
    """Start `count` threads."""
    threads = [threading.Thread(target=work) for _ in range(count)]
    for thread in threads:
        thread.start()
    return threads


def memory_mb(pid: int) -> float:
    """Return the resident memory of a process in MB."""
    fields = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return int(fields["VmRSS"].split()[0]) / 1024


def attack(port: int, pid: int) -> dict[str, dict[str, Any]]:
    """Return the honest client's figures beside each attack."""
    rows: dict[str, dict[str, Any]] = {}

    def beside(name: str, path: str = "/health", body: dict[str, Any] | None = None, times: int = 20) -> Honest:
        client = Honest(port)
        for _ in range(times):
            client.ask(path, body)
        rows[name] = client.figures() | {"server MB": memory_mb(pid)}
        return client

    def search(conditions: int) -> httpx2.Response:
        where = {"$or": [{"by": number} for number in range(conditions)]}
        return httpx2.post(f"http://127.0.0.1:{port}/v1/search", json={"query": "cats", "where": where}, timeout=120)

    def read(timeout: float) -> None:
        with suppress(httpx2.TimeoutException):
            httpx2.post(f"http://127.0.0.1:{port}/v1/read", json={"text": "Ana: I have a cat."}, timeout=timeout)

    fact = {"category": "semantic", "content": "quick"}
    beside("none: health")
    beside("none: list", "/entries?limit=100")
    half = b"GET /v1/entries HTTP/1.1\r\nHost: localhost\r\nX-Half: "
    hold(port, CONNECTIONS, half, lambda: beside(f"{CONNECTIONS} half requests: health") and None)
    stalled = request("/v1/search", 1_000_000, b'{"query": "' + b"q" * 990_000)
    hold(port, BODIES, stalled, lambda: beside(f"{BODIES} stalled bodies: health") and None)
    started = time.monotonic()
    wide = in_threads(4, lambda: search(CONDITIONS))
    beside(f"4 filters of {CONDITIONS} conditions: list", "/entries?limit=100")
    for thread in wide:
        thread.join()
    rows[f"4 filters of {CONDITIONS} conditions: list"]["attack s"] = time.monotonic() - started
    reading = in_threads(READS, lambda: read(60))
    time.sleep(0.5)
    beside(f"{READS} reads of {SECONDS:g} s: insert", "/entries", fact, times=5)
    for thread in reading:
        thread.join()
    SlowModel.calls = 0
    leaving = in_threads(2 * READS, lambda: read(1))
    for thread in leaving:
        thread.join()
    time.sleep(3 * SECONDS)
    rows[f"{2 * READS} clients that leave after 1 s"] = {"model calls": SlowModel.calls}
    return rows


def table(rows: dict[str, dict[str, Any]]) -> str:
    """Return the figures as a Markdown table."""
    columns = ["asked", "failed", "median s", "longest s", "server MB", "attack s", "model calls"]
    lines = [f"| attack: what the honest client asks | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|"]
    for name, row in rows.items():
        cells = [row.get(column, "") for column in columns]
        cells = [f"{cell:.2f}" if isinstance(cell, float) else str(cell) for cell in cells]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Run the attacks and write the record."""
    options = make_parser(__doc__).parse_args()
    model = ThreadingHTTPServer(("127.0.0.1", 0), SlowModel)
    threading.Thread(target=model.serve_forever, daemon=True).start()
    os.environ["no_proxy"] = "127.0.0.1"
    name = f"http://127.0.0.1:{model.server_port}/v1#m"
    with tempfile.TemporaryDirectory() as folder, serving(Path(folder), name) as (port, pid, errors):
        rows = attack(port, pid)
        log_bytes = errors.stat().st_size
    lines = opening("An honest client beside attacks on the server", ("fastapi", "uvicorn", "memalpha"))
    lines += ["", table(rows), "", f"Bytes written to the server's standard error: {log_bytes}."]
    save(options.results / "serving-attacks", {"rows": rows, "log_bytes": log_bytes}, "\n".join(lines))


if __name__ == "__main__":
    main()
