"""Measure calls whose work should follow the size of a change: `OMP_NUM_THREADS=1 python eval/store/changes.py`.

A store of made-up facts (see `scale.py`; `--size`, 60,000 by default) is filled, searched once, and changed by single
operations. Each figure is CPU time (`process_time`) of one thread, in milliseconds: the median of `REPEATS` calls, for
an erasure and a restore the only one. "search as_of again" is the second search at the same position. The rewriting of
the file that an erasure causes (`VACUUM`) is listed apart. Files lie in a temporary folder.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from scale import World

from memalpha.store.store import MemoryStore

REPEATS = 5
GOALS = {
    "diff of 10 operations": "20",
    "restore of 10 operations": "20",
    "list(where) without a match": "20",
    "search as_of again": "2 x search",
    "erase one": "100 with the search after it",
}


def milliseconds(call: Callable[[], object]) -> float:
    """Return the CPU time of a call."""
    start = time.process_time()
    call()
    return (time.process_time() - start) * 1e3


def median(call: Callable[[int], object], repeats: int = REPEATS) -> float:
    """Return the median CPU time of calls with the numbers from 0."""
    return statistics.median(milliseconds(lambda number=number: call(number)) for number in range(repeats))


def measure(size: int, path: Path) -> dict[str, float]:
    """Return the CPU time in ms of each call, by name."""
    world: Any = World()
    store = MemoryStore.open(path, embedder=world, durability="normal")
    for facts, vectors in world.facts(size):
        store.insert_many([{**fact, "metadata": {"user": f"u{i % 50}"}} for i, fact in enumerate(facts)], vectors)
    questions = world.questions(2 * REPEATS, size)
    results = {"first search": milliseconds(lambda: store.search(questions[0]))}
    results["search of every entry"] = median(lambda number: store.search(questions[number], exact=True))
    results["build_index"] = milliseconds(store.build_index)
    results["search"] = median(lambda number: store.search(questions[number]))
    results["search of a user"] = median(lambda number: store.search(questions[number], where={"user": f"u{number}"}))
    ids = [entry.id for entry in store.list(limit=40)]
    for number in range(20):
        store.update(ids[number], f"changed fact {number}")
    end = store.snapshot()
    results["diff of 10 operations"] = median(lambda number: store.diff(end - 10))
    results["list(where) without a match"] = median(lambda number: store.list(where={"user": f"nobody {number}"}))
    results["list(where) of a user"] = median(lambda number: store.list(where={"user": f"u{number}"}), 2)
    results["count(where)"] = median(lambda number: store.count(where={"user": f"u{number}"}))
    results["search as_of"] = milliseconds(lambda: store.search(questions[0], as_of=end - 30))
    results["search as_of again"] = median(lambda number: store.search(questions[number], as_of=end - 30))
    results["search as_of of a user"] = milliseconds(
        lambda: store.search(questions[0], as_of=end - 30, where={"user": "u1"})
    )
    results["restore of 10 operations"] = milliseconds(lambda: store.restore(end - 10))
    store.search(questions[0])
    scrub = store._database.scrub
    scrubs: list[float] = []
    store._database.scrub = lambda **options: scrubs.append(milliseconds(lambda: scrub(**options)))
    results["erase one"] = milliseconds(lambda: store.erase(ids[30])) - scrubs[0]
    results["scrub after it"] = scrubs[0]
    results["search after it"] = milliseconds(lambda: store.search(questions[1]))
    store.close()
    return {name: round(value, 1) for name, value in results.items()}


def main() -> None:
    """Measure every size and write the record."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--size", type=int, action="append", help="entries; 60,000 by default, may be repeated")
    parser.add_argument("--out", type=Path, help="write OUT.json and OUT.md")
    options = parser.parse_args()
    results = {}
    for size in options.size or [60_000]:
        with tempfile.TemporaryDirectory() as folder:
            results[str(size)] = measure(size, Path(folder) / "a.db")
        print(size, json.dumps(results[str(size)], indent=1), flush=True)
    if options.out:
        setting = {"python": platform.python_version(), "numpy": np.__version__, "repeats": REPEATS}
        record = {"setting": setting, "results": results}
        options.out.with_suffix(".json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        options.out.with_suffix(".md").write_text(table(results), encoding="utf-8")


def table(results: dict[str, dict[str, float]]) -> str:
    """Return the results as a Markdown page."""
    sizes, names = list(results), list(next(iter(results.values())))
    command = "OMP_NUM_THREADS=1 python eval/store/changes.py " + " ".join(f"--size {size}" for size in sizes)
    lines = [
        "# Calls whose work follows the size of a change",
        f"`{command} --out eval/results/store-changes`",
        "CPU milliseconds of one thread (what is measured: `eval/store/changes.py`). Goals are for 200,000 entries.",
        "Above 50,000 entries, `search` uses inverted lists, and a past state those of the present one. Its first\n"
        "search copies the index of the present one and undoes later changes.",
        "| call | " + " | ".join(f"{int(size):,} entries" for size in sizes) + " | goal |",
    ]
    rows = [
        f"| {name} | " + " | ".join(f"{results[size][name]:,.1f}" for size in sizes) + f" | {GOALS.get(name, '')} |"
        for name in names
    ]
    return "\n\n".join(lines) + "\n" + "|---" * (len(sizes) + 2) + "|\n" + "\n".join(rows) + "\n"


if __name__ == "__main__":
    main()
