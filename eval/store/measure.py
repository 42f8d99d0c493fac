"""One system's costs on one set of entries, as JSON on the last line of stdout. `bench.py` runs it, in the system's own
environment: nothing but the standard library is used here.

    ENVIRONMENT/bin/python eval/store/measure.py write SYSTEM DATA FOLDER SIZE BUDGET
    ENVIRONMENT/bin/python eval/store/measure.py reopen SYSTEM DATA FOLDER
    ENVIRONMENT/bin/python eval/store/measure.py adds SYSTEM DATA FOLDER SIZE BUDGET

A driver is `peers/SYSTEM.py` with a class `Peer` (see `peers/README.md`). Nobody reaches a network from here.
"""

from __future__ import annotations

import importlib
import json
import math
import os
import socket
import sys
import time
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

DIM, K, BATCH = 384, 10, 500
ADDED = DELETED = 100
QUERIES = 100
SLICE = 0.1  # of the budget: the most that one kind of operation may take, insertion aside


class Data:
    """What everybody stores and asks. `vectors` and `query_vectors`: float32 rows of one buffer."""

    def __init__(self, folder: Path, *, entries: bool) -> None:
        told = json.loads((folder / "queries.json").read_text())
        self.queries: list[str] = told["texts"]
        self.query_users: list[str] = told["users"]
        self.query_days: list[int] = told["days"]
        self.days: int = told["range"]
        self.query_vectors = _rows(folder / "queries.f32")
        self.texts: list[str] = []
        self.users: list[str] = []
        self.user_days: list[int] = []
        self.vectors: list[memoryview] = []
        if entries:
            held = json.loads((folder / "entries.json").read_text())
            self.texts, self.users, self.user_days = held["texts"], held["users"], held["days"]
            self.vectors = _rows(folder / "entries.f32")
        self._by_text = dict(zip([*self.queries, *self.texts], [*self.query_vectors, *self.vectors], strict=True))

    def vector(self, text: str) -> memoryview:
        """The vector of a text, for those who take none; of an unknown one, a vector all the same."""
        return self._by_text.get(text, self.query_vectors[0])


def _rows(path: Path) -> list[memoryview]:
    values = array("f")
    with path.open("rb") as file:
        values.fromfile(file, path.stat().st_size // 4)
    view = memoryview(values)
    return [view[start : start + DIM] for start in range(0, len(values), DIM)]


class Clock:
    """CPU seconds of all threads, with those of the server whose process MEMALPHA_BENCH_POSTMASTER names, and wall
    seconds."""

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        self._server = server_cpu()
        self._cpu, self._wall = time.process_time(), time.perf_counter()

    def read(self) -> tuple[float, float]:
        cpu, wall = time.process_time() - self._cpu, time.perf_counter() - self._wall
        return cpu + server_cpu() - self._server, wall


def server_cpu() -> float:
    """CPU seconds that a server's first process and its children have taken, in steps of 10 ms."""
    first = os.environ.get("MEMALPHA_BENCH_POSTMASTER")
    if first is None:
        return 0.0
    ticks = 0
    for pid in [first, *Path(f"/proc/{first}/task/{first}/children").read_text().split()]:
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:  # ended meanwhile: its parent has its time
            continue
        ticks += sum(map(int, fields[11:15] if pid == first else fields[11:13]))
    return ticks / os.sysconf("SC_CLK_TCK")


def several(operation: Callable[[int], Any], count: int, limit: float) -> tuple[dict[str, Any], list[Any]]:
    """Do an operation `count` times, or until `limit` seconds have gone: means and medians in ms, and what it gave."""
    cpu, wall, given = [], [], []
    clock, end = Clock(), time.perf_counter() + limit
    for number in range(count):
        clock.restart()
        given.append(operation(number))
        used = clock.read()
        cpu.append(used[0] * 1e3)
        wall.append(used[1] * 1e3)
        if time.perf_counter() > end:
            break
    wall.sort()
    found = {"n": len(cpu), "cpu_ms": sum(cpu) / len(cpu), "wall_ms_p50": wall[len(wall) // 2]}
    return found | {"wall_ms_p95": wall[math.ceil(len(wall) * 0.95) - 1]}, given


def write(peer: Any, data: Data, size: int, budget: float) -> dict[str, Any]:
    """Insert `size` entries and do everything else to them."""
    result: dict[str, Any] = {}
    clock, done = Clock(), 0
    while done < size and clock.read()[1] < budget:
        some = slice(done, min(done + BATCH, size))
        peer.insert(
            list(range(some.start, some.stop)),
            data.texts[some],
            data.users[some],
            data.user_days[some],
            data.vectors[some],
        )
        done = some.stop
    cpu, wall = clock.read()
    result["insert"] = {"n": done, "cpu_us": cpu / done * 1e6, "wall_us": wall / done * 1e6}
    limit = budget * SLICE

    def search(number: int, **chosen: Any) -> list[int]:
        return peer.search(data.queries[number], data.query_vectors[number], K, **chosen)

    search(0)  # whatever is made at the first search
    result["search"], result["search_ids"] = several(search, QUERIES, limit)
    for name, chosen in (
        ("user", lambda number: {"user": data.query_users[number]}),
        ("days", lambda number: {"days": (data.query_days[number], data.query_days[number] + data.days)}),
    ):
        try:
            search(0, **chosen(0))
            result[name], result[f"{name}_ids"] = several(lambda n, of=chosen: search(n, **of(n)), QUERIES, limit)
        except NotImplementedError as error:
            result[name] = {"cannot": str(error)}
    if hasattr(peer, "search_default"):
        result["default"], _ = several(lambda n: peer.search_default(data.queries[n]), QUERIES, limit)
        result["default_user"], _ = several(
            lambda n: peer.search_default(data.queries[n], user=data.query_users[n]), QUERIES, limit
        )
    if hasattr(peer, "before_adds"):
        peer.before_adds()

    def add(number: int) -> None:
        i = size + number
        peer.add(i, data.texts[i], data.users[i], data.user_days[i], data.vectors[i])

    result["add"], _ = several(add, ADDED, limit)
    if hasattr(peer, "bare"):
        result["bare"], _ = several(peer.bare(), ADDED, limit)
    first = [(number * 7919) % done for number in range(DELETED)]  # spread over all of them, none twice
    result["delete"], _ = several(lambda n: peer.delete(first[n]), DELETED, limit)
    result["added"] = list(range(size, size + result["add"]["n"]))
    result["deleted"] = first[: result["delete"]["n"]]
    result["rss_mb"] = resident()
    peer.close()
    return result


def adds(peer: Any, data: Data, size: int, budget: float) -> dict[str, Any]:
    """50 single adds between two marks, for one who watches the system calls."""
    peer.insert(list(range(size)), data.texts[:size], data.users[:size], data.user_days[:size], data.vectors[:size])
    print("bench-mark", flush=True)
    for i in range(size, size + 50):
        peer.add(i, data.texts[i], data.users[i], data.user_days[i], data.vectors[i])
    print("bench-mark", flush=True)
    return {"n": 50}


def reopen(make: Callable[[], Any], data: Data, importing: tuple[float, float]) -> dict[str, Any]:
    """Open what was written, up to the first answer."""
    clock = Clock()
    peer = make()
    ids = [peer.search(data.queries[0], data.query_vectors[0], K)]
    cpu, wall = clock.read()
    ids += [peer.search(data.queries[n], data.query_vectors[n], K) for n in range(1, 20)]
    result = {"cpu_s": cpu, "wall_s": wall, "import_cpu_s": importing[0], "import_wall_s": importing[1], "ids": ids}
    result["rss_mb"] = resident()
    peer.close()
    return result


def resident() -> float:
    """MB of memory in use by this process now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def _no_network(*args: object, **kwargs: object) -> None:
    raise OSError("no network in this bench")


def main() -> None:
    phase, system, data, folder, *rest = sys.argv[1:]
    socket.socket.connect = socket.create_connection = socket.getaddrinfo = _no_network  # pyright: ignore
    for name in ("ANONYMIZED_TELEMETRY", "MEM0_TELEMETRY", "LANGSMITH_TRACING"):
        os.environ[name] = "False"
    held = Data(Path(data), entries=phase != "reopen")
    clock = Clock()
    module = importlib.import_module(f"peers.{system}")
    importing = clock.read()

    def make() -> Any:
        return module.Peer(Path(folder), held)

    if phase == "reopen":
        result = reopen(make, held, importing)
    else:
        result = (write if phase == "write" else adds)(make(), held, int(rest[0]), float(rest[1]))
    print("\n" + json.dumps(result), flush=True)
    os._exit(0)  # background threads of some would keep it from ending


if __name__ == "__main__":
    main()
