"""Serve 64 clients for minutes: reads, writes and reads by a model, and the same with the server killed.

    python eval/reach/serving_load.py --store sqlite --seconds 600           # or postgres, chroma
    python eval/reach/serving_load.py --store sqlite --seconds 600 --kill 30  # SIGKILL every 30 s

Each client has a connection of its own and waits up to `THINK` seconds between two requests. Of 100 requests 40 insert
an entry, 40 search, 10 get an entry of the client's own, 8 list 20 and 2 give the writer a text to read; the writer is
an OpenAI-compatible server on this machine that takes .2 s and stores the text. The clients share 16 namespaces, by one
key. Chroma's server gets the same clients and 16 collections, vectors of 384 numbers given, and no reads by a model.

An error is an answer with another status than 200 and 201, or none within a minute. While a killed server is away, a
client that gets no answer asks again; such requests are counted as "cut off". `lost` counts acknowledged entries that
are missing or different after the run, read from the store without the server. `doubled` counts contents that are
there twice. Figures, table and picture are written to --results as serving-load.*; every run adds its own.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import quote

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "support"))
sys.path.insert(0, str(Path(__file__).parents[1]))
from common import make_parser
from serving_load_page import page, picture

THINK, NAMESPACES, MODEL_SECONDS, BIN, TIMEOUT = 2.0, 16, 0.2, 15, 60
KINDS = ("insert", "search", "get", "list", "model read")
WEIGHTS = (40, 40, 10, 8, 2)
WORDS = ["ana", "ben", "cat", "dog", "lisbon", "porto", "oslo", "likes", "moved", "tea", "coffee", "train", "monday"]
WORDS += ["garden", "piano", "river", "book", "letter"]
DURABLE = "max_wal_size = 256MB\n"
VECTORS = [[round(random.Random(n).gauss(0, 1), 3) for _ in range(384)] for n in range(500)]


class Model(BaseHTTPRequestHandler):
    """Chat completions that take `MODEL_SECONDS` and store what the prompt's last line says."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._answer({"data": [{"id": "m"}]})

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["content-length"])))
        text = str(request["messages"][-1]["content"])
        fact = [line for line in text.splitlines() if "model-read" in line][-1]  # earlier ones are the memory's
        time.sleep(MODEL_SECONDS)
        arguments = json.dumps({"category": "semantic", "content": fact[fact.find("model-read") :]})
        call = {"id": "1", "type": "function", "function": {"name": "memory_insert", "arguments": arguments}}
        message = {"role": "assistant", "tool_calls": [call]}
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


class MemalphaServer:
    """`memalpha serve` on a file or a PostgreSQL URL, and what one asks of it."""

    kinds = KINDS

    def __init__(self, folder: Path, store: str, model: str) -> None:
        self.folder, self.store, self.model = folder, store, model
        key = [sys.executable, "-m", "memalpha", "keys", "add", store, "load", "--right", "admin", "--json"]
        made = subprocess.run(
            [*key, "--namespace", "load-*", "--keys", folder / "keys"], check=True, capture_output=True, text=True
        )
        self.secret = json.loads(made.stdout)["secret"]

    def command(self, port: int) -> list[str]:
        serve = [sys.executable, "-m", "memalpha", "serve", self.store, "--policy", self.model]
        return [*serve, "--http", f"127.0.0.1:{port}", "--keys", str(self.folder / "keys")]

    def headers(self, client: int) -> str:
        return f"Authorization: Bearer {self.secret}\r\nMemalpha-Namespace: load-{client % NAMESPACES}\r\n"

    def request(self, kind: str, client: int, text: str, own: list[str], rng: random.Random) -> tuple[str, str, Any]:
        """Return method, path and body of a request."""
        if kind == "insert":
            return "POST", "/v1/entries", {"category": "semantic", "content": text, "metadata": {"client": client}}
        if kind == "search":
            return "POST", "/v1/search", {"query": " ".join(rng.sample(WORDS, 3)), "k": 8}
        if kind == "get":
            return "GET", "/v1/entries/" + quote(rng.choice(own), safe=""), None
        if kind == "list":
            return "GET", "/v1/entries?limit=20", None
        return "POST", "/v1/read", {"text": f"model-read {text}"}

    def acknowledged(self, kind: str, text: str, body: Any) -> dict[str, str]:
        """Return the entries that an answer acknowledges: content by id."""
        if kind == "insert":
            return {body["id"]: text}
        return {result["entry_id"]: result["content"] for result in body["results"] if result["code"] == "inserted"}

    def stored(self) -> tuple[dict[str, dict[str, str]], int]:
        """Return the entries of every namespace, read without the server, and the faults that doctor finds."""
        from memalpha.store.checks.integrity import examine
        from memalpha.store.store import MemoryStore

        with MemoryStore.open(self.store, create=False) as store:
            entries = {
                name: {entry.id: entry.content for entry in store.namespace(name).list()} for name in store.namespaces()
            }
        return entries, len(examine(self.store).problems)


class ChromaServer:
    """Chroma's server, from the environment at --chroma."""

    kinds = KINDS[:-1]

    def __init__(self, folder: Path, program: Path) -> None:
        self.folder, self.program, self.collections = folder, program, []
        self.base = "/api/v2/tenants/default_tenant/databases/default_database/collections"
        self.number = 0

    def command(self, port: int) -> list[str]:
        data = str(self.folder / "chroma")
        return [str(self.program), "run", "--path", data, "--host", "127.0.0.1", "--port", str(port)]

    def headers(self, client: int) -> str:
        return ""

    def prepare(self, port: int) -> None:
        import httpx2

        for number in range(NAMESPACES):
            body = {"name": f"load-{number}", "get_or_create": True}
            made = httpx2.post(f"http://127.0.0.1:{port}{self.base}", json=body, timeout=30)
            self.collections.append(made.json()["id"])

    def request(self, kind: str, client: int, text: str, own: list[str], rng: random.Random) -> tuple[str, str, Any]:
        path = f"{self.base}/{self.collections[client % NAMESPACES]}"
        vector = rng.choice(VECTORS)
        if kind == "insert":
            entry = {"ids": [text], "documents": [text], "embeddings": [vector], "metadatas": [{"client": client}]}
            return "POST", f"{path}/add", entry
        if kind == "search":
            return "POST", f"{path}/query", {"query_embeddings": [vector], "n_results": 8}
        if kind == "get":
            return "POST", f"{path}/get", {"ids": [rng.choice(own)]}
        return "POST", f"{path}/get", {"limit": 20}

    def acknowledged(self, kind: str, text: str, body: Any) -> dict[str, str]:
        return {text: text}

    def stored(self) -> tuple[dict[str, dict[str, str]], int]:
        """Return the entries of every collection, from a new server: the data has no other reader."""
        import httpx2

        port, entries = free_port(), {}
        server = subprocess.Popen(self.command(port), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            wait_until_open(port, server)
            for number, collection in enumerate(self.collections):
                url = f"http://127.0.0.1:{port}{self.base}/{collection}/get"
                rows: dict[str, str] = {}
                while True:
                    page = httpx2.post(url, json={"limit": 500, "offset": len(rows)}, timeout=60).json()
                    rows |= dict(zip(page["ids"], page["documents"], strict=True))
                    if len(page["ids"]) < 500:
                        break
                entries[f"load-{number}"] = rows
        finally:
            server.terminate()
            server.wait()
        return entries, 0


def free_port() -> int:
    """Return a port that nobody uses."""
    import socket

    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return bound.getsockname()[1]


def wait_until_open(port: int, process: subprocess.Popen[bytes]) -> None:
    """Wait until a server takes connections."""
    import socket

    end = time.monotonic() + 400
    while time.monotonic() < end:
        if process.poll() is not None:
            sys.exit(f"the server ended with {process.returncode}")
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(0.1)
    sys.exit("the server did not start")


class Run:
    """One run: the server, its clients, and what they saw."""

    def __init__(self, server: Any, seconds: float, clients: int, kill: float) -> None:
        self.server, self.seconds, self.clients, self.kill = server, seconds, clients, kill
        self.port, self.process = free_port(), None
        self.answers: list[tuple[float, str, float]] = []  # begin, kind, seconds
        self.errors: Counter[str] = Counter()
        self.cut_off, self.kills, self.outages = 0, 0, []
        self.memory: list[tuple[float, float]] = []
        self.acknowledged: dict[str, dict[str, str]] = {f"load-{number}": {} for number in range(NAMESPACES)}
        self.begin, self.is_over, self.is_away = 0.0, False, False
        self.load_before = os.getloadavg()[0]

    def start_server(self) -> None:
        log = self.server.folder / "server.log"
        with log.open("ab") as file:
            self.process = subprocess.Popen(self.server.command(self.port), stdout=file, stderr=file)
        wait_until_open(self.port, self.process)

    async def run(self) -> None:
        """Run all clients for the time given."""
        self.begin = time.monotonic()
        helpers = [asyncio.create_task(self.watch_memory()), asyncio.create_task(self.kill_server())]
        await asyncio.gather(*(self.client(number) for number in range(self.clients)))
        for task in helpers:
            task.cancel()
        await asyncio.gather(*helpers, return_exceptions=True)

    async def watch_memory(self) -> None:
        while True:
            with suppress(OSError, StopIteration):
                lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
                kilobytes = int(next(line for line in lines if line.startswith("VmRSS")).split()[1])
                self.memory.append((time.monotonic() - self.begin, kilobytes / 1024))
            await asyncio.sleep(5)

    async def kill_server(self) -> None:
        while self.kill and time.monotonic() - self.begin < self.seconds - self.kill:
            await asyncio.sleep(self.kill)
            self.is_away, begin = True, time.monotonic()
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()
            await asyncio.to_thread(self.start_server)
            self.is_away = False
            self.kills += 1
            self.outages.append(time.monotonic() - begin)

    async def client(self, number: int) -> None:
        rng, own, count = random.Random(number), [], 0
        reader = writer = None
        namespace, headers = f"load-{number % NAMESPACES}", self.server.headers(number)
        kinds, weights = self.server.kinds, WEIGHTS[: len(self.server.kinds)]
        while time.monotonic() - self.begin < self.seconds:
            await asyncio.sleep(THINK * rng.random())
            kind = rng.choices(kinds, weights)[0]
            if kind == "get" and not own:
                kind = "insert"
            count += 1
            text = f"client {number} number {count}: {' '.join(rng.sample(WORDS, 8))}"
            method, path, body = self.server.request(kind, number, text, own, rng)
            begin, kills = time.monotonic(), self.kills
            try:
                if writer is None:
                    reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
                status, answer = await asyncio.wait_for(ask(reader, writer, method, path, headers, body), TIMEOUT)
            except (TimeoutError, OSError, EOFError) as error:
                if writer is not None:
                    writer.close()
                reader = writer = None
                if self.is_away or self.kills != kills:
                    self.cut_off += 1
                    await asyncio.sleep(0.5)
                elif not isinstance(error, asyncio.IncompleteReadError) or error.partial:
                    self.errors[f"{kind}: {type(error).__name__}"] += 1
                else:  # the server closed a connection that had waited for long, as a client must expect
                    self.cut_off += 1
                continue
            if status not in (200, 201):
                code = answer.get("code") if isinstance(answer, dict) else answer
                self.errors[f"{kind}: {status} {code}"] += 1
                continue
            self.answers.append((begin - self.begin, kind, time.monotonic() - begin))
            if kind in ("insert", "model read"):
                entries = self.server.acknowledged(kind, text, answer)
                self.acknowledged[namespace] |= entries
                own += entries

    def figures(self) -> dict[str, Any]:
        """Stop the server, read what is stored, and return the figures of the run."""
        memory_end = self.memory[-1][1] if self.memory else 0.0
        self.process.terminate()
        self.process.wait()
        stored, faults = self.server.stored()
        lost = [
            (name, id)
            for name, entries in self.acknowledged.items()
            for id, content in entries.items()
            if stored.get(name, {}).get(id) != content
        ]
        contents = [list(entries.values()) for entries in stored.values()]
        times = {kind: sorted(seconds for _, at, seconds in self.answers if at == kind) for kind in self.server.kinds}
        bins = range(0, int(self.seconds), BIN)
        by_time = {start: sorted(s for at, _, s in self.answers if start <= at < start + BIN) for start in bins}
        return {
            "seconds": self.seconds,
            "clients": self.clients,
            "kill every s": self.kill,
            "kills": self.kills,
            "longest outage s": round(max(self.outages, default=0.0), 1),
            "answers": len(self.answers),
            "errors": dict(self.errors),
            "cut off": self.cut_off,
            "acknowledged": sum(map(len, self.acknowledged.values())),
            "stored": sum(map(len, stored.values())),
            "lost": len(lost),
            "doubled": sum(len(texts) - len(set(texts)) for texts in contents),
            "doctor": faults,
            "p50 ms": {kind: percentile(values, 0.5) for kind, values in times.items()},
            "p99 ms": {kind: percentile(values, 0.99) for kind, values in times.items()},
            "memory MB": [round(self.memory[0][1] if self.memory else 0.0), round(memory_end)],
            "over time": [[at, percentile(v, 0.5), percentile(v, 0.99)] for at, v in by_time.items() if v],
            "memory over time": [[round(at), round(size)] for at, size in self.memory],
            "load average": [round(self.load_before, 1), round(os.getloadavg()[0], 1)],
            "date": time.strftime("%Y-%m-%d"),
        }


async def ask(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, method: str, path: str, headers: str, body: Any
) -> tuple[int, Any]:
    """Send a request on an open connection, and return status and body of the answer.

    Args:
        reader: Of the connection.
        writer: Of the connection.
        method: HTTP method.
        path: Path with query.
        headers: Further lines of the head.
        body: JSON value, or None.
    """
    data = b"" if body is None else json.dumps(body).encode()
    head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\n{headers}Content-Type: application/json\r\n"
    writer.write(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
    lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower().split("\r\n")
    size = next((int(line.partition(":")[2]) for line in lines if line.startswith("content-length:")), None)
    if size is not None:
        content = await reader.readexactly(size)
    else:
        content = b""
        while length := int((await reader.readline()).strip() or b"0", 16):
            content += await reader.readexactly(length)
            await reader.readexactly(2)
        await reader.readline()
    return int(lines[0].split()[1]), json.loads(content) if content else None


def percentile(values: list[float], share: float) -> float | None:
    """Return a percentile of sorted seconds, in milliseconds."""
    return round(values[min(len(values) - 1, int(share * len(values)))] * 1000, 1) if values else None


def main() -> None:
    """Run, record and print."""
    parser = make_parser(__doc__)
    parser.add_argument("--store", choices=("sqlite", "postgres", "chroma"), default="sqlite")
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--kill", type=float, default=0, help="seconds between two kills of the server; 0: none")
    parser.add_argument("--chroma", type=Path, help="program `chroma` of an environment that has it")
    options = parser.parse_args()
    name = options.store + (f", killed every {options.kill:g} s" if options.kill else "")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        if options.store == "chroma":
            server: Any = ChromaServer(folder, options.chroma)
        else:
            model = ThreadingHTTPServer(("127.0.0.1", 0), Model)
            Thread(target=model.serve_forever, daemon=True).start()
            store = str(folder / "load.db")
            if options.store == "postgres":
                from postgres_server import server as start_postgres

                store = stack.enter_context(start_postgres(DURABLE)).url()
            server = MemalphaServer(folder, store, f"http://127.0.0.1:{model.server_port}/v1#m")
        run = Run(server, options.seconds, options.clients, options.kill)
        run.start_server()
        if options.store == "chroma":
            server.prepare(run.port)
        try:
            asyncio.run(run.run())
            figures = run.figures()
        finally:
            if run.process.poll() is None:
                run.process.kill()
    record = options.results / "serving-load.json"
    runs = json.loads(record.read_text()) if record.exists() else {}
    runs[name] = figures
    record.write_text(json.dumps(runs, indent=1) + "\n")
    (options.results / "serving-load.md").write_text(page(runs, KINDS, (__doc__ or "").strip().splitlines()[2:4]))
    (options.results / "serving-load.svg").write_text(picture(runs))
    print(json.dumps({key: value for key, value in figures.items() if "over time" not in key}))


if __name__ == "__main__":
    main()
