"""Conversations per second of `memalpha read --namespaces task`, and what kills cost.

    OMP_NUM_THREADS=1 python eval/reach/many_conversations.py --count 20000

1. One process reads all conversations without an interruption.
2. Two workers read them into another store. After 20 % a worker is killed with SIGKILL; after 50 % the parent and both
   workers; the command is started again; after 75 % the parent alone is killed; the command is started again.

Both stores must hold the same namespaces with the same logs (times aside), and pass `memalpha doctor`.

The rate is conversations by CPU-seconds of the busiest process, starts included: the rate of a machine with a free
core for each process. A rate by wall time stands beside it; other processes may have shared the cores. Rates without
starts are of the conversations from 5 to 20 %. Resident memory of each process is read from /proc twice a second.

`--rates` reads 20 % both ways, into two stores, and measures nothing but the rates (many-conversations-rates.md).
"""

from __future__ import annotations

import os
import platform
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from common import make_parser, opening, save

from memalpha.store.checks.integrity import examine
from memalpha.store.store import MemoryStore
from memalpha.tasks.formats.jsonl import save_jsonl
from memalpha.tasks.load import load_tasks

TICKS = os.sysconf("SC_CLK_TCK")
PAGE_MB = os.sysconf("SC_PAGE_SIZE") / 2**20
SLEEP = 0.5  # seconds between two looks at the processes


def count_namespaces(store: Path) -> int:
    """Return the number of conversations in a store; 0 before it exists."""
    if not store.exists():
        return 0
    try:
        with closing(sqlite3.connect(store, timeout=30)) as connection:
            return connection.execute("SELECT count(*) FROM namespaces").fetchone()[0]
    except sqlite3.OperationalError:
        return 0


def list_processes(parent: int) -> list[int]:
    """Return a process and its workers, oldest first."""
    try:
        pids = map(int, Path(f"/proc/{parent}/task/{parent}/children").read_text().split())
        return [parent, *(pid for pid in pids if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes())]
    except FileNotFoundError:
        return []


class Reading:
    """One run of the command; CPU-seconds and resident memory of its processes by the conversations read so far."""

    def __init__(self, store: Path, tasks: Path, workers: int) -> None:
        command = [sys.executable, "-m", "memalpha", "read", str(store), str(tasks), "--policy", "add_all"]
        self.store, self.start = store, time.monotonic()
        self.process = subprocess.Popen(
            [*command, "--namespaces", "task", "--workers", str(workers)], stdout=subprocess.DEVNULL
        )
        self.cpu: dict[int, float] = {}
        self.memory: list[dict[str, Any]] = []

    def watch(self, until: Callable[[int], bool]) -> int:
        """Sample the processes until a condition on the number of conversations holds or the command ends."""
        while True:
            count = count_namespaces(self.store)
            sizes = []
            for pid in list_processes(self.process.pid):
                try:
                    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                except (FileNotFoundError, ProcessLookupError):
                    continue
                self.cpu[pid] = (int(fields[11]) + int(fields[12])) / TICKS
                sizes.append(round(int(fields[21]) * PAGE_MB, 1))
            self.memory.append({"conversations": count, "mb": sizes, "cpu": dict(self.cpu)})
            if until(count) or self.process.poll() is not None:
                return count
            time.sleep(SLEEP)

    def rate(self, count: int) -> dict[str, float]:
        """Return conversations by second, and CPU-milliseconds of each."""
        return {
            "conversations": count,
            "by_cpu": count / max(self.cpu.values()),
            "by_wall": count / (time.monotonic() - self.start),
            "cpu_ms": 1000 * sum(self.cpu.values()) / count,
        }

    def steady_rate(self, first: float, last: float) -> dict[str, float]:
        """Return the rates between two numbers of conversations, without starts."""
        start = next(item for item in self.memory if item["conversations"] >= first)
        end = next((item for item in self.memory if item["conversations"] >= last), self.memory[-1])
        count = end["conversations"] - start["conversations"]
        used = [seconds - start["cpu"].get(pid, 0.0) for pid, seconds in end["cpu"].items()]
        return {"conversations": count, "by_cpu": count / max(used), "cpu_ms": 1000 * sum(used) / count}


def kill(pids: list[int]) -> None:
    """Kill processes with SIGKILL."""
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


def memory_at(samples: list[dict[str, Any]], shares: tuple[float, ...], count: int) -> list[dict[str, Any]]:
    """Return the first samples at which some shares of the conversations were read.

    Args:
        samples: Samples of `Reading.memory`.
        shares: Shares between 0 and 1.
        count: Number of all conversations.
    """
    found = (
        next((item for item in samples if item["conversations"] >= share * count), samples[-1]) for share in shares
    )
    return [{name: item[name] for name in ("conversations", "mb")} for item in found]


def differing_namespaces(first: Path, second: Path) -> list[str]:
    """Return the namespaces whose logs differ, times aside, or that only one store has."""
    with MemoryStore.open(first, create=False) as a, MemoryStore.open(second, create=False) as b:
        names, others = a.namespaces(), set(b.namespaces())
        missing = list(others.symmetric_difference(names))

        def log(store: MemoryStore, name: str) -> list[Any]:
            return [(position, operation) for position, _, operation in store.namespace(name).log()]

        return missing + [name for name in names if name in others and log(a, name) != log(b, name)]


def measure(count: int, folder: Path) -> dict[str, Any]:
    """Read `count` conversations both ways and return the figures."""
    tasks, whole, killed = folder / "tasks.jsonl", folder / "whole.db", folder / "killed.db"
    bounds = 0.05 * count, 0.2 * count
    save_jsonl(load_tasks("synthetic", count), tasks)
    single = Reading(whole, tasks, 1)
    single.watch(lambda _: False)
    record: dict[str, Any] = {"count": count, "one": single.rate(count), "steady_one": single.steady_rate(*bounds)}
    record["memory_one"] = memory_at(single.memory, (0.05, 0.25, 0.5, 0.75, 0.99), count)

    double = Reading(killed, tasks, 2)
    double.watch(lambda done: done >= 0.2 * count)
    record |= {"two": double.rate(count_namespaces(killed)), "steady_two": double.steady_rate(*bounds)}
    kill(list_processes(double.process.pid)[-1:])
    double.watch(lambda done: done >= 0.5 * count)
    record["memory_two"] = memory_at(double.memory, (0.05, 0.2, 0.49), count)
    kill(list_processes(double.process.pid))
    double.process.wait()
    record["after_kill_of_all"] = count_namespaces(killed)

    resumed = Reading(killed, tasks, 2)
    resumed.watch(lambda done: done >= 0.75 * count)
    resumed.process.kill()
    resumed.process.wait()
    record["after_kill_of_parent"] = count_namespaces(killed)
    last = Reading(killed, tasks, 2)
    last.watch(lambda _: False)
    record |= {
        "exit_codes": [single.process.returncode, last.process.returncode],
        "conversations": [count_namespaces(whole), count_namespaces(killed)],
        "differing": len(differing_namespaces(whole, killed)),
        "problems": [len(examine(store).problems) for store in (whole, killed)],
        "megabytes": [round(store.stat().st_size / 2**20, 1) for store in (whole, killed)],
    }
    return record


def measure_rates(count: int, folder: Path) -> dict[str, Any]:
    """Read 20 % of `count` conversations in one process and over two workers, and return the rates without starts."""
    tasks = folder / "tasks.jsonl"
    save_jsonl(load_tasks("synthetic", count), tasks)
    record: dict[str, Any] = {"count": count}
    for name, workers in (("steady_one", 1), ("steady_two", 2)):
        reading = Reading(folder / f"{name}.db", tasks, workers)
        reading.watch(lambda done: done >= 0.2 * count)
        reading.process.terminate()
        reading.process.wait()
        record[name] = reading.steady_rate(0.05 * count, 0.2 * count)
    return record


def steady_lines(record: dict[str, Any]) -> list[str]:
    """Return Markdown lines of the rates without starts."""
    one, two = record["steady_one"], record["steady_two"]
    return [
        "| without starts, 5 to 20 % | conversations | per CPU-second of the busiest process | CPU-ms each, all |",
        "|---|---|---|---|",
        *(
            f"| {name} | {rate['conversations']:,} | {rate['by_cpu']:.1f} | {rate['cpu_ms']:.2f} |"
            for name, rate in (("1", one), ("2 workers and their parent", two))
        ),
        "",
        f"Two workers against one process: {two['by_cpu'] / one['by_cpu']:.2f} x by the busiest process; at most",
        f"{2 * one['cpu_ms'] / two['cpu_ms']:.2f} x on two cores, which two workers and their parent share.",
    ]


def format_page(record: dict[str, Any]) -> str:
    """Return the record as Markdown."""
    one, two = record["one"], record["two"]
    lines = opening("Many conversations over worker processes", ("memalpha", "numpy"))
    lines += ["", f"{platform.machine()}, {os.cpu_count()} cores. {record['count']:,} conversations of the demo world."]
    lines += [
        "",
        "| processes | conversations | per CPU-second of the busiest process | per second | CPU-ms each, all |",
    ]
    lines += ["|---|---|---|---|---|"]
    for name, figures in (("1", one), ("2 workers and their parent", two)):
        lines.append(
            f"| {name} | {figures['conversations']:,} | {figures['by_cpu']:.1f} | {figures['by_wall']:.1f} | "
            f"{figures['cpu_ms']:.2f} |"
        )
    two_cores = 2 * one["cpu_ms"] / two["cpu_ms"]
    lines += [
        "",
        f"Two workers against one process: {two['by_cpu'] / one['by_cpu']:.2f} x by the busiest process; at most",
    ]
    lines += [f"{two_cores:.2f} x on two cores, which two workers and their parent share.", ""]
    lines += steady_lines(record) if "steady_one" in record else []
    lines += ["", "| resident memory | conversations read | MB of each process, the parent first |", "|---|---|---|"]
    for name in ("memory_one", "memory_two"):
        for sample in record[name]:
            sizes = ", ".join(map(str, sample["mb"]))
            lines.append(f"| {name.removeprefix('memory_')} | {sample['conversations']:,} | {sizes} |")
    lines += [
        "",
        f"Killed with SIGKILL: a worker at 20 %; parent and workers at {record['after_kill_of_all']:,}; the parent "
        f"at {record['after_kill_of_parent']:,}. Resumed: the store has {record['conversations'][1]:,} conversations, "
        f"{record['differing']} with another log than in the uninterrupted one. `memalpha doctor` finds "
        f"{sum(record['problems'])} problems in the two stores of {record['megabytes']} MiB. Exit codes "
        f"{record['exit_codes']}.",
    ]
    return "\n".join(lines)


def main() -> None:
    """Measure and write the record."""
    parser = make_parser(__doc__)
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--rates", action="store_true", help="only the rates without starts")
    arguments = parser.parse_args()
    if arguments.rates:
        with tempfile.TemporaryDirectory() as folder:
            record = measure_rates(arguments.count, Path(folder))
        lines = opening("Rates of reading over worker processes", ("memalpha", "numpy"))
        page = [*lines, "", f"{record['count']:,} conversations, of which 20 % are read.", "", *steady_lines(record)]
        save(arguments.results / "many-conversations-rates", record, "\n".join(page))
        return
    with tempfile.TemporaryDirectory() as folder:
        record = measure(arguments.count, Path(folder))
    save(arguments.results / "many-conversations", record, format_page(record))


if __name__ == "__main__":
    main()
