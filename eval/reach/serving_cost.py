"""Measure the CPU seconds of a server for 1,000 searches and 1,000 adds, by turns with other servers.

    python eval/reach/serving_cost.py --before ../before --chroma ../chroma/bin/chroma

Each server starts on an empty folder in memory, gets 1,000 entries, and answers in a closed loop: one client, then 16,
each with a connection of its own. CPU seconds are those of the server's process, user and system, so other work on the
machine changes them less than times. `echo` is Starlette on uvicorn, which parses and sends back the same requests:
what no server on them can save. `store` is `MemoryStore` in a process without any server. `before` is this project at
the path of --before, run by its own code. Chroma gets vectors of 256 numbers, and searches no words.
"""

from __future__ import annotations

import json
import os
import random
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
from common import make_parser, opening, save
from serving_load import VECTORS, WORDS, free_port, wait_until_open

REQUESTS, CLIENTS = 1000, (1, 16)
ECHO = """
import sys, uvicorn
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route
async def echo(request):
    return JSONResponse(await request.json())
app = Starlette(routes=[Route("/{path:path}", echo, methods=["POST"])])
uvicorn.run(app, port=int(sys.argv[1]), http="h11", access_log=False, log_config=None)
"""


class Requests:
    """Requests of one kind of server, none twice."""

    def __init__(self, prefix: str = "/v1") -> None:
        self.prefix, self.rng, self.number = prefix, random.Random(1), 0

    def make(self, kind: str) -> tuple[str, Any]:
        """Return path and body of an add or a search."""
        self.number += 1
        words = " ".join(self.rng.sample(WORDS, 8 if kind == "add" else 4))
        if self.prefix == "/v1":
            if kind == "search":
                return "/v1/search", {"query": words}
            return "/v1/entries", {"category": "semantic", "content": f"number {self.number}: {words}"}
        vector = self.rng.choice(VECTORS)[:256]
        if kind == "search":
            return f"{self.prefix}/query", {"query_embeddings": [vector], "n_results": 8}
        text = f"number {self.number}: {words}"
        return f"{self.prefix}/add", {"ids": [text], "documents": [text], "embeddings": [vector]}


class Connection:
    """A connection that sends one request at a time."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(self, path: str, body: Any) -> None:
        data = json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        self.socket.sendall(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)

    def receive(self) -> bytes:
        """Return the body of an answer. Its parts are confirmed at once, so that no server waits for that."""
        received = b""
        while (end := received.find(b"\r\n\r\n")) < 0 or len(received) < end + 4 + self._size(received[:end]):
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
            part = self.socket.recv(1 << 16)
            if not part:
                raise SystemExit(f"the connection was closed after {received!r:.200}")
            received += part
        if received.split()[1] not in (b"200", b"201"):
            raise SystemExit(f"{received!r:.300}")
        return received[end + 4 :]

    def _size(self, head: bytes) -> int:
        match = re.search(rb"content-length: (\d+)", head.lower())
        return int(match[1]) if match else 0


def cpu_seconds(pid: int) -> float:
    """Return user and system seconds of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def serving(system: str, options: Any) -> Iterator[tuple[int, int, Requests]]:
    """Start a server; yield its process id, its port and what one asks of it."""
    port, requests = free_port(), Requests()
    environment, memory = dict(os.environ), "/dev/shm" if Path("/dev/shm").is_dir() else None
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        if system == "echo":
            command = [sys.executable, "-c", ECHO, str(port)]
        elif system == "chroma":
            path = f"{folder}/chroma"
            command = [str(options.chroma), "run", "--path", path, "--host", "127.0.0.1", "--port", str(port)]
        else:
            root = options.before if system == "before" else Path(__file__).parents[2]
            environment["PYTHONPATH"] = str(root.resolve())
            command = [sys.executable, "-m", "memalpha", "serve", f"{folder}/a.db", "--policy", "add_all"]
            command += ["--http", f"127.0.0.1:{port}"]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        server = subprocess.Popen(command, env=environment, cwd=folder, **quiet)
        try:
            wait_until_open(port, server)
            if system == "chroma":
                base = "/api/v2/tenants/default_tenant/databases/default_database/collections"
                connection = Connection(port)
                connection.send(base, {"name": "cost"})
                requests.prefix = f"{base}/{json.loads(connection.receive())['id']}"
            yield server.pid, port, requests
        finally:
            server.terminate()
            server.wait()


def measure(pid: int, port: int, requests: Requests, kind: str, clients: int) -> float:
    """Return the server's CPU milliseconds for one request, that is seconds for 1,000."""
    connections = [Connection(port) for _ in range(clients)]
    begin, rounds = cpu_seconds(pid), REQUESTS // clients
    for _ in range(rounds):
        for connection in connections:
            connection.send(*requests.make(kind))
        for connection in connections:
            connection.receive()
    used = cpu_seconds(pid) - begin
    for connection in connections:
        connection.socket.close()
    return 1000 * used / (rounds * clients)


def measure_store() -> dict[str, float]:
    """Return the CPU milliseconds of a search and an insert of a store in this process."""
    from memalpha import MemoryStore

    requests, figures = Requests(), {}
    with tempfile.TemporaryDirectory() as folder, MemoryStore.open(f"{folder}/a.db", durability="normal") as store:
        store.add_many(requests.make("add")[1]["content"] for _ in range(REQUESTS))
        store.search("ana")
        for kind in ("add", "search"):
            begin = time.process_time()
            for _ in range(REQUESTS):
                body = requests.make(kind)[1]
                if kind == "add":
                    store.insert(body["category"], body["content"])
                else:
                    store.search(body["query"], 8)
            figures[f"{kind}, 1"] = 1000 * (time.process_time() - begin) / REQUESTS
    return figures


def main() -> None:
    """Measure every server by turns, and record the figures."""
    parser = make_parser(__doc__)
    parser.add_argument("--before", type=Path, help="an older checkout of this project")
    parser.add_argument("--chroma", type=Path, help="program `chroma` of an environment that has it")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    systems = ["echo", *(["before"] if options.before else []), "now", *(["chroma"] if options.chroma else [])]
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in [*systems, "store"]}
    loads = []
    for _ in range(options.repeats):
        for system in systems:
            with serving(system, options) as (pid, port, requests):
                for kind in ("add", "search"):
                    measure(pid, port, requests, kind, 1)
                cases = [(kind, clients) for clients in CLIENTS for kind in ("add", "search")]
                figures = {f"{kind}, {clients}": measure(pid, port, requests, kind, clients) for kind, clients in cases}
            runs[system].append(figures)
            loads.append(os.getloadavg()[0])
            print(system, {name: round(value, 2) for name, value in figures.items()}, flush=True)
        runs["store"].append(measure_store())
    columns = list(runs["now"][0])
    lines = opening("The CPU time of a request", ("fastapi", "starlette", "uvicorn", "pydantic", "memalpha"))
    lines += ["", f"CPU seconds of the server for 1,000 requests, by kind and clients; median of {options.repeats}"]
    lines += ["runs by turns, with the least and the most:", "", f"| server | {' | '.join(columns)} |"]
    lines.append("|---" * (len(columns) + 1) + "|")
    for system, results in runs.items():
        cells = []
        for column in columns:
            values = sorted(figures[column] for figures in results if column in figures)
            spread = f"{statistics.median(values):.2f} ({values[0]:.2f} to {values[-1]:.2f})" if values else ""
            cells.append(spread)
        lines.append(f"| {system} | {' | '.join(cells)} |")
    lines += ["", f"Two shared cores; load average {min(loads):.1f} to {max(loads):.1f}.", ""]
    note = Path(__file__).with_name("serving_cost.notes.md")
    save(options.results / "serving-cost", runs, "\n".join(lines) + (note.read_text() if note.exists() else ""))


if __name__ == "__main__":
    main()
