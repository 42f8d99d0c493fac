"""Read conversations on a local Ray and kill a worker: `scripts/check-cluster`.

The store of two workers of Ray, one of which is killed with SIGKILL, must hold the same logs as that of one process.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parent))
from common import make_parser, opening, save

from memalpha.agent.conversations import ConversationResult, read_conversations
from memalpha.store.store import MemoryStore
from memalpha.tasks.formats.jsonl import save_jsonl
from memalpha.tasks.load import load_tasks
from memalpha.workers import RayPool


def find_workers() -> list[int]:
    """Return this user's processes of Ray that read a conversation."""
    pids = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = path.read_bytes()
        except OSError:
            continue
        if command.startswith(b"ray::_do") and path.stat().st_uid == os.getuid():
            pids.append(int(path.parent.name))
    return pids


def check_ray(count: int, folder: Path) -> dict[str, Any]:
    """Read conversations with one process and on Ray, killing a worker at a third; return the figures."""
    tasks, whole, on_ray = folder / "tasks.jsonl", folder / "whole.db", folder / "ray.db"
    save_jsonl(load_tasks("synthetic", count), tasks)
    start = time.monotonic()
    read_conversations(whole, tasks, "add_all")
    seconds = time.monotonic() - start
    ended, killed = 0, 0

    def kill_one(_: ConversationResult) -> None:
        nonlocal ended, killed
        ended += 1
        if ended == count // 3:
            killed = find_workers()[0]
            os.kill(killed, signal.SIGKILL)

    start = time.monotonic()
    summary = read_conversations(on_ray, tasks, "add_all", pool=RayPool(workers=2), progress=kill_one)
    return {
        "count": count,
        "killed": killed > 0,
        "read": summary.read,
        "present": summary.present,
        "failed": [result.error for result in summary.failed],
        "differing": len(differing_namespaces(whole, on_ray)),
        "seconds": {"one process": seconds, "Ray, start included": time.monotonic() - start},
    }


def differing_namespaces(first: Path, second: Path) -> list[str]:
    """Return the namespaces whose logs differ, times aside, or that only one store has."""
    logs: list[dict[str, Any]] = []
    for path in (first, second):
        with MemoryStore.open(path, create=False) as store:
            logs.append({name: [line[::2] for line in store.namespace(name).log()] for name in store.namespaces()})
    return [name for name in logs[0] | logs[1] if logs[0].get(name) != logs[1].get(name)]


def main() -> None:
    """Check reading on Ray and write the record."""
    parser = make_parser(__doc__)
    parser.add_argument("--count", type=int, default=400)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        record: dict[str, Any] = check_ray(arguments.count, Path(folder))
    lines = opening("Reading on a cluster", ("memalpha", "ray"), started_by="scripts/check-cluster")
    times = ", ".join(f"{seconds:.1f} s with {name}" for name, seconds in record["seconds"].items())
    lines += [
        "",
        f"{record['count']} conversations of the demo world, a local Ray with two workers, one killed with SIGKILL at "
        f"a third: {record['read']} read, {record['present']} found written by the killed worker, "
        f"{len(record['failed'])} failed, {record['differing']} with another log than in the store of one "
        f"process. {times}; other processes shared the cores.",
    ]
    save(arguments.results / "cluster-check", record, "\n".join(lines))
    if record["differing"] or record["failed"] or record["read"] + record["present"] != record["count"]:
        raise SystemExit("the store read on Ray is not that of one process")


if __name__ == "__main__":
    main()
