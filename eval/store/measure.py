"""Measure one system's costs on one set of entries and print JSON as the last line of stdout.

    ENVIRONMENT/bin/python eval/store/measure.py write SYSTEM DATA FOLDER SIZE BUDGET
    ENVIRONMENT/bin/python eval/store/measure.py reopen SYSTEM DATA FOLDER
    ENVIRONMENT/bin/python eval/store/measure.py adds SYSTEM DATA FOLDER SIZE BUDGET

`bench.py` runs this module in the system's own environment, so it uses the standard library only. A driver is
`peers/SYSTEM.py` with a class `Peer` (see `peers/README.md`). Network connections are blocked.
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
ADD_COUNT = DELETE_COUNT = 100
QUERY_COUNT = 100
OPERATION_SHARE = 0.1  # of the budget: the most that one kind of operation may take, insertion aside


class Data:
    """Entries and queries of the benchmark; `vectors` and `query_vectors` are float32 rows of one buffer."""

    def __init__(self, folder: Path, *, entries: bool) -> None:
        query_data = json.loads((folder / "queries.json").read_text())
        self.queries: list[str] = query_data["texts"]
        self.query_users: list[str] = query_data["users"]
        self.query_days: list[int] = query_data["days"]
        self.days: int = query_data["range"]
        self.query_vectors = _rows(folder / "queries.f32")
        self.texts: list[str] = []
        self.users: list[str] = []
        self.user_days: list[int] = []
        self.vectors: list[memoryview] = []
        if entries:
            entry_data = json.loads((folder / "entries.json").read_text())
            self.texts, self.users, self.user_days = entry_data["texts"], entry_data["users"], entry_data["days"]
            self.vectors = _rows(folder / "entries.f32")
        self._by_text = dict(zip([*self.queries, *self.texts], [*self.query_vectors, *self.vectors], strict=True))

    def vector(self, text: str) -> memoryview:
        """Return the vector of a text, for systems that embed texts; unknown texts get the first query's vector."""
        return self._by_text.get(text, self.query_vectors[0])


def _rows(path: Path) -> list[memoryview]:
    values = array("f")
    with path.open("rb") as file:
        values.fromfile(file, path.stat().st_size // 4)
    view = memoryview(values)
    return [view[start : start + DIM] for start in range(0, len(values), DIM)]


class Clock:
    """CPU and wall seconds since the last restart.

    CPU counts all threads, and the server whose process MEMALPHA_BENCH_POSTMASTER names.
    """

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        self._server = server_cpu()
        self._cpu, self._wall = time.process_time(), time.perf_counter()

    def read(self) -> tuple[float, float]:
        cpu, wall = time.process_time() - self._cpu, time.perf_counter() - self._wall
        return cpu + server_cpu() - self._server, wall


def server_cpu() -> float:
    """Return CPU seconds of a server's first process and its children, in steps of 10 ms."""
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


def time_operation(operation: Callable[[int], Any], count: int, limit: float) -> tuple[dict[str, Any], list[Any]]:
    """Run an operation repeatedly and return (means and medians in ms, results).

    Args:
        operation: Called with the index of the repetition.
        count: Number of repetitions.
        limit: Seconds after which no further repetition begins.
    """
    cpu, wall, results = [], [], []
    clock, deadline = Clock(), time.perf_counter() + limit
    for number in range(count):
        clock.restart()
        results.append(operation(number))
        elapsed = clock.read()
        cpu.append(elapsed[0] * 1e3)
        wall.append(elapsed[1] * 1e3)
        if time.perf_counter() > deadline:
            break
    wall.sort()
    statistics = {"n": len(cpu), "cpu_ms": sum(cpu) / len(cpu), "wall_ms_p50": wall[len(wall) // 2]}
    return statistics | {"wall_ms_p95": wall[math.ceil(len(wall) * 0.95) - 1]}, results


def write(peer: Any, data: Data, size: int, budget: float) -> dict[str, Any]:
    """Insert `size` entries and time every other operation on them.

    Args:
        peer: Driver of the system.
        data: Entries and queries.
        size: Number of entries.
        budget: Seconds for the insertion.
    """
    result: dict[str, Any] = {}
    clock, stored = Clock(), 0
    while stored < size and clock.read()[1] < budget:
        batch = slice(stored, min(stored + BATCH, size))
        peer.insert(
            list(range(batch.start, batch.stop)),
            data.texts[batch],
            data.users[batch],
            data.user_days[batch],
            data.vectors[batch],
        )
        stored = batch.stop
    cpu, wall = clock.read()
    result["insert"] = {"n": stored, "cpu_us": cpu / stored * 1e6, "wall_us": wall / stored * 1e6}
    limit = budget * OPERATION_SHARE

    def search(number: int, **filters: Any) -> list[int]:
        return peer.search(data.queries[number], data.query_vectors[number], K, **filters)

    search(0)  # builds what a first search builds
    result["search"], result["search_ids"] = time_operation(search, QUERY_COUNT, limit)
    for name, make_filter in (
        ("user", lambda number: {"user": data.query_users[number]}),
        ("days", lambda number: {"days": (data.query_days[number], data.query_days[number] + data.days)}),
    ):
        search(0, **make_filter(0))
        result[name], result[f"{name}_ids"] = time_operation(
            lambda n, query_filter=make_filter: search(n, **query_filter(n)), QUERY_COUNT, limit
        )
    if hasattr(peer, "search_default"):
        result["default"], _ = time_operation(lambda n: peer.search_default(data.queries[n]), QUERY_COUNT, limit)
        result["default_user"], _ = time_operation(
            lambda n: peer.search_default(data.queries[n], user=data.query_users[n]), QUERY_COUNT, limit
        )
    if hasattr(peer, "before_adds"):
        peer.before_adds()

    def add(number: int) -> None:
        i = size + number
        peer.add(i, data.texts[i], data.users[i], data.user_days[i], data.vectors[i])

    result["add"], _ = time_operation(add, ADD_COUNT, limit)
    if hasattr(peer, "bare"):
        result["bare"], _ = time_operation(peer.bare(), ADD_COUNT, limit)
    first = [(number * 7919) % stored for number in range(DELETE_COUNT)]  # spread over all of them, none twice
    result["delete"], _ = time_operation(lambda n: peer.delete(first[n]), DELETE_COUNT, limit)
    result["added"] = list(range(size, size + result["add"]["n"]))
    result["deleted"] = first[: result["delete"]["n"]]
    result["rss_mb"] = resident()
    peer.close()
    return result


def traced_adds(peer: Any, data: Data, size: int, budget: float) -> dict[str, Any]:
    """Run 50 single adds between two printed marks, for strace.

    Args:
        peer: Driver of the system.
        data: Entries and queries.
        size: Number of entries inserted before.
        budget: Unused; the phases share their arguments.
    """
    peer.insert(list(range(size)), data.texts[:size], data.users[:size], data.user_days[:size], data.vectors[:size])
    print("bench-mark", flush=True)
    for i in range(size, size + 50):
        peer.add(i, data.texts[i], data.users[i], data.user_days[i], data.vectors[i])
    print("bench-mark", flush=True)
    return {"n": 50}


def reopen(make: Callable[[], Any], data: Data, importing: tuple[float, float]) -> dict[str, Any]:
    """Open the written store and time it up to the first answer.

    Args:
        make: Opens the driver.
        data: Queries.
        importing: CPU and wall seconds of importing the driver.
    """
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
    """Return the resident memory of this process in MB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def _no_network(*args: object, **kwargs: object) -> None:
    raise OSError("no network in this bench")


def main() -> None:
    """Run one phase and print its result."""
    phase, system, data, folder, *rest = sys.argv[1:]
    socket.socket.connect = socket.create_connection = socket.getaddrinfo = _no_network  # pyright: ignore
    for name in ("ANONYMIZED_TELEMETRY", "MEM0_TELEMETRY", "LANGSMITH_TRACING"):
        os.environ[name] = "False"
    data_set = Data(Path(data), entries=phase != "reopen")
    clock = Clock()
    module = importlib.import_module(f"peers.{system}")
    importing = clock.read()

    def make() -> Any:
        return module.Peer(Path(folder), data_set)

    if phase == "reopen":
        result = reopen(make, data_set, importing)
    else:
        result = (write if phase == "write" else traced_adds)(make(), data_set, int(rest[0]), float(rest[1]))
    print("\n" + json.dumps(result), flush=True)
    os._exit(0)  # background threads of some would keep it from ending


if __name__ == "__main__":
    main()
