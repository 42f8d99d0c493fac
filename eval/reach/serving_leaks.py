"""Serve 10,000 namespaces to 1,000 keys, and try 100,000 random requests for what a key may not see.

    python eval/reach/serving_leaks.py --requests 100000

A store file has 10,000 namespaces with an entry each, whose content is a secret of its own. Each of 1,000 keys has the
right `admin` on its own ten of them, five by name and five by a prefix; every fiftieth is revoked. `memalpha serve` is
started on it: time to the first answer and memory, then again after one request for each of 2,000 namespaces.

Then the application is called in one process, without a network. A random request has a key (valid, revoked, cut,
lengthened, in capitals, the token's, none, or noise), a namespace (its own, another's, a pattern, a path, noise; plain,
encoded once or twice; under right and wrong header names, once or twice), a path (all routes, with ids of its own or of
others, doubled slashes, dots), a method, a query, a body. One in fifty goes to MCP. A leak is an answer with a secret
of a namespace that the request's key does not cover, or with any secret if it has no valid key; ids begin like their
entry's secret, and a refusal that repeats the id of the request is none. Writes that succeed are
checked in the end: no namespace may hold the mark of a key that does not cover it.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import random
import re
import secrets
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any
from urllib.parse import quote

sys.path.insert(0, str(Path(__file__).parents[1]))
from common import make_parser

KEYS, EACH, TOUCHED = 1_000, 10, 2_000
TOKEN = "a-token-of-the-measurement"
HEADERS = ("memalpha-namespace",) * 6 + ("x-namespace", "namespace", "memalpha_namespace")
METHODS = ("GET", "POST", "PATCH", "PUT", "DELETE", "HEAD", "OPTIONS")
ROUTES = (
    *(
        ("POST", "/v1/search"),
        ("POST", "/v1/ask"),
        ("GET", "/v1/entries"),
        ("GET", "/v1/entries/{id}"),
        ("GET", "/v1/log"),
    ),
    *(("GET", "/v1/history/{id}"), ("GET", "/v1/core"), ("GET", "/v1/export"), ("POST", "/v1/entries"), ("GET", "/")),
    *(("PATCH", "/v1/entries/{id}"), ("PUT", "/v1/core"), ("POST", "/v1/read"), ("GET", "/v1/openapi.json")),
    *(("GET", "/metrics"), ("GET", "/health/ready"), ("GET", "/v1/health"), ("GET", "/v1//entries")),
    *(
        ("GET", "/v1/entries/../export"),
        ("GET", "/v1/entries/%2e%2e/log"),
        ("GET", "/V1/entries"),
        ("GET", "/v1/../v1/log"),
    ),
)
SECRET = re.compile(rb"secret-[0-9a-f]{16}")


def name_of(number: int) -> str:
    """Return the name of a namespace: of each ten, five by name and five under a prefix."""
    owner, index = divmod(number, EACH)
    return f"user-{owner}-{index}" if index < EACH // 2 else f"team-{owner}/{index}"


class World:
    """The store, its secrets by namespace, and the keys."""

    def __init__(self, folder: Path, keys: int) -> None:
        from memalpha.integrations.server.keys import KeyFile
        from memalpha.store.store import MemoryStore

        self.path, self.key_path = folder / "many.db", folder / "keys"
        self.secrets = {name_of(number): f"secret-{secrets.token_hex(8)}" for number in range(keys * EACH)}
        self.owners = {secret.encode(): name for name, secret in self.secrets.items()}
        self.ids: dict[str, str] = {}
        with MemoryStore.open(self.path, embedder="hash", durability="normal") as root:
            for name, secret in self.secrets.items():
                self.ids[name] = root.namespace(name).insert("semantic", f"{secret} of somebody").id
        key_file = KeyFile(self.key_path, create=True)
        self.keys: list[str] = []
        for owner in range(keys):
            names = [f"user-{owner}-{index}" for index in range(EACH // 2)] + [f"team-{owner}/*"]
            self.keys.append(key_file.add(f"key-{owner}", ["admin"], names)[1])
        for owner in range(0, keys, 50):
            key_file.revoke(f"key-{owner}")
        key_file.close()

    def covers(self, owner: int | None, name: str) -> bool:
        """Return True if the valid key of `owner` may see a namespace."""
        return owner is not None and name.startswith((f"user-{owner}-", f"team-{owner}/"))


def memory_mb(pid: int) -> float:
    """Return the resident memory of a process in MB."""
    fields = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return round(int(fields["VmRSS"].split()[0]) / 1024, 1)


def measure_server(world: World, folder: Path) -> dict[str, Any]:
    """Start `memalpha serve`; return the time to its first answer, CPU seconds until then, and its memory."""
    import httpx2

    begin = time.monotonic()
    log = folder / "log"
    command = [
        sys.executable,
        "-m",
        "memalpha",
        "serve",
        str(world.path),
        "--policy",
        "add_all",
        "--http",
        "127.0.0.1:0",
    ]
    with log.open("w") as file:
        server = subprocess.Popen([*command, "--keys", str(world.key_path)], stderr=file)
    try:
        while "/v1" not in log.read_text():
            if server.poll() is not None:
                sys.exit(log.read_text())
            time.sleep(0.05)
        address = re.search(r"http://[0-9.:]+", log.read_text())
        assert address is not None
        with httpx2.Client(base_url=address[0], timeout=60) as web:

            def ask(number: int) -> None:
                headers = {"Authorization": f"Bearer {world.keys[number // EACH]}"}
                headers["Memalpha-Namespace"] = quote(name_of(number), safe="")
                answer = web.post("/v1/search", json={"query": "secret", "k": 1}, headers=headers)
                assert world.secrets[name_of(number)] in answer.text, (number, answer.text)

            ask(EACH)
            ticks = Path(f"/proc/{server.pid}/stat").read_text().rpartition(")")[2].split()[11:13]
            figures = {
                "first answer s": round(time.monotonic() - begin, 1),
                "first answer CPU s": sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK"),
                "MB at first": memory_mb(server.pid),
            }
            numbers = [
                n
                for n in random.Random(1).sample(range(len(world.secrets)), min(TOUCHED, len(world.secrets)))
                if n // EACH % 50
            ]
            for number in numbers:
                ask(number)
            return {**figures, "namespaces asked": len(numbers), "MB then": memory_mb(server.pid)}
    finally:
        server.terminate()
        server.wait()


def random_request(world: World, rng: random.Random) -> tuple[dict[str, Any], bytes, int | None]:
    """Return scope and body of a request, and the owner of its key if that is valid."""
    owner = rng.randrange(len(world.keys))
    own = world.keys[owner]
    kind = rng.choices(("valid", "broken", "noise", "none", "token"), (50, 25, 10, 10, 5))[0]
    other = rng.choice(world.keys)
    broken = (own[:-1], own + "x", own.upper(), own.split("_")[1], "mem_", f"{own[:20]}{other[20:]}", f"{own} {other}")
    noise = "".join(chr(rng.randrange(33, 255)) for _ in range(rng.randrange(1, 60)))
    key = {
        "valid": own,
        "broken": rng.choice(broken),
        "noise": noise,
        "none": "",
        "token": TOKEN[: rng.choice((9, 25))],
    }[kind]
    is_valid = kind == "valid" and owner % 50 != 0
    mine, theirs = name_of(owner * EACH + rng.randrange(EACH)), name_of(rng.randrange(len(world.secrets)))
    odd = (
        f"{mine}/../{theirs}",
        "*",
        "team-*",
        f"user-{owner}-*",
        f"{mine}\u0000{theirs}",
        "default",
        mine.upper(),
        noise,
    )
    name = rng.choices((mine, theirs, rng.choice(odd)), (45, 40, 15))[0]
    spelled = rng.choice((quote(name, safe=""), quote(name), quote(quote(name, safe=""), safe=""), name))
    scheme = rng.choices(("Bearer ", "bearer ", "Basic ", ""), (90, 3, 5, 2))[0]
    if scheme == "Basic ":
        key = base64.b64encode(f"{spelled}:{key}".encode()).decode()
    headers = [(b"host", b"localhost"), (b"content-type", b"application/json")]
    if kind != "none":
        headers.append((b"authorization", f"{scheme}{key}".encode("latin-1", "ignore")))
    if rng.random() < 0.9:
        headers.append((rng.choice(HEADERS).encode(), spelled.encode("latin-1", "ignore").replace(b"\0", b"")))
    if rng.random() < 0.05:
        headers.append((rng.choice(HEADERS).encode(), quote(theirs, safe="").encode()))
    if rng.random() < 0.03:
        headers.append((b"authorization", f"Bearer {other}".encode()))
    method, path = rng.choice(ROUTES)
    if rng.random() < 0.1:
        method = rng.choice(METHODS)
    id = rng.choice((world.ids[mine], world.ids[theirs], noise))
    path = path.replace("{id}", quote(id, safe="") if rng.random() < 0.9 else f"..%2f..%2f{quote(theirs, safe='')}")
    query = rng.choice(
        ("", "", "", f"namespace={quote(theirs)}", "limit=1000", f"as_of=1&after={quote(id)}", "q=secret")
    )
    mark = f"mark-of-{owner} {rng.random()}"
    bodies = (
        *(
            {"query": "secret", "k": 100},
            {"query": "secret", "where": {"id": {"$ne": ""}}},
            {"question": "What is the secret?"},
        ),
        *({"category": "semantic", "content": mark}, {"content": mark}, {"text": f"Ana: {mark}"}),
        *({"query": "secret", "namespace": theirs}, {"messages": [{"role": "user", "content": mark}]}, [], None),
    )
    body = b"" if method in ("GET", "HEAD", "OPTIONS") else json.dumps(rng.choice(bodies)).encode()
    if rng.random() < 0.02:
        tool = rng.choice(("memory_search", "memory_list", "memory_insert", "memory_delete", "memory_read"))
        arguments = {"query": "secret", "namespace": theirs} if tool == "memory_search" else {"id": id, "text": mark}
        call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": tool, "arguments": arguments}}
        method, path, query, body = "POST", "/mcp", "", json.dumps(call).encode()
        headers.append((b"accept", b"application/json, text/event-stream"))
    headers.append((b"content-length", str(len(body)).encode()))
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path.replace("%2f", "/").replace("%23", "#").replace("%2e", "."),
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "root_path": "",
        "headers": headers,
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 8765),
        "state": {},
    }
    return scope, body, owner if is_valid else None


async def send(app: Any, scope: dict[str, Any], body: bytes) -> tuple[int, bytes]:
    """Call the application with one request, and return status and body of its answer.

    Args:
        app: The application.
        scope: ASGI scope of the request.
        body: Its whole body.
    """
    parts, status, messages = [], [0], [{"type": "http.request", "body": body, "more_body": False}]
    finished = asyncio.Event()

    async def receive() -> dict[str, Any]:
        if messages:
            return messages.pop()
        await finished.wait()
        return {"type": "http.disconnect"}

    async def answer(message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            status[0] = message["status"]
        else:
            parts.append(message.get("body", b""))

    await app(scope, receive, answer)
    finished.set()
    return status[0], b"".join(parts)


async def attack(world: World, count: int, minutes: float) -> dict[str, Any]:
    """Send random requests to the application; return how they ended.

    Args:
        world: Keys and namespaces.
        count: Number of requests.
        minutes: Time for them at most.
    """
    from memalpha.integrations.server.http import http_app
    from memalpha.integrations.server.keys import KeyFile
    from memalpha.integrations.server.mcp import mcp_server
    from memalpha.integrations.server.service import MemoryService
    from memalpha.policy.load import load_policy
    from memalpha.report.memory_page.page import render_memory_page
    from memalpha.store.store import MemoryStore

    service = MemoryService(MemoryStore.open(world.path, durability="normal"), load_policy("scripted:add-all"))
    app = http_app(service, token=TOKEN, keys=KeyFile(world.key_path), mcp=mcp_server(service), page=render_memory_page)
    rng, statuses, leaks, own, echoes = random.Random(0), Counter[int](), [], 0, 0
    begin = time.process_time()
    async with app.router.lifespan_context(app):
        end = time.monotonic() + 60 * minutes
        for number in range(count):
            if time.monotonic() > end:
                count = number
                break
            scope, body, owner = random_request(world, rng)
            status, answer = await send(app, scope, body)
            statuses[status] += 1
            sent = f"{scope['path']} ".encode() + scope["query_string"]
            for secret in set(SECRET.findall(answer)):
                if status >= 400 and secret in sent:
                    echoes += 1
                elif world.covers(owner, world.owners[secret]):
                    own += 1
                else:
                    leaks.append(f"{scope['method']} {scope['path']} {scope['headers']}: {secret!r}")
            if number % 10_000 == 9_999:
                print(number + 1, dict(statuses), f"leaks {len(leaks)}", flush=True)
    await service.close()
    foreign = 0
    with MemoryStore.open(world.path) as root:
        for name in root.namespaces():
            for _, _, operation in root.namespace(name).log():
                if match := re.search(r"mark-of-(\d+) ", str(operation.content)):
                    foreign += not world.covers(int(match[1]), name)
    for leak in leaks[:5]:
        print(leak, file=sys.stderr)
    return {
        "requests": count,
        "answers with secrets of the key's own": own,
        "refusals that name the id that was asked for": echoes,
        "leaks": len(leaks),
        "writes into another's namespace": foreign,
        "CPU s": round(time.process_time() - begin),
        "statuses": {str(status): number for status, number in sorted(statuses.items())},
    }


def page(record: dict[str, Any]) -> str:
    """Return the page of a record."""
    lines = [
        "# Many keys: memory, first answer, and requests for what is not theirs",
        "",
        "```",
        record["command"],
        "```",
    ]
    lines += ["", "`eval/reach/serving_leaks.py` says what is measured and what a leak is.", "", "| | |", "|---|---|"]
    lines.append(f"| namespaces, keys | {record['keys'] * EACH:,}, {record['keys']:,} |")
    for name, value in {**record["server"], **record["attack"]}.items():
        if name != "statuses":
            lines.append(f"| {name} | {value:,} |")
    statuses = ", ".join(f"{count:,} x {status}" for status, count in record["attack"]["statuses"].items())
    return "\n".join([*lines, "", f"Answers: {statuses}.", "", "Beside other work on two cores.", ""])


def main() -> None:
    """Run, record and print."""
    parser = make_parser(__doc__)
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--keys", type=int, default=KEYS, help=f"keys, of {EACH} namespaces each")
    parser.add_argument("--no-server", action="store_true", help="measure no server")
    parser.add_argument("--minutes", type=float, default=60, help="time for the requests at most")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        world = World(Path(folder), options.keys)
        server = {} if options.no_server else measure_server(world, Path(folder))
        print(server, flush=True)
        figures = asyncio.run(attack(world, options.requests, options.minutes))
    command = " ".join(["python", *sys.argv])
    record = {"command": command, "keys": options.keys, "server": server, "attack": figures}
    (options.results / "serving-leaks.json").write_text(json.dumps(record, indent=1) + "\n")
    (options.results / "serving-leaks.md").write_text(page(record))
    print(figures)


if __name__ == "__main__":
    main()
