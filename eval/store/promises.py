"""Measure what each promise of the store costs on top of bare rows: `python eval/store/promises.py --out OUT`.

20,000 facts with three keys of metadata and vectors of 384 numbers are inserted in batches of 500 into a new file. Each
rung of the ladder writes what the one before it writes, and more; all in the same mode (WAL, `full`). The rungs below
the store are bare SQLite with statements and values prepared, in the store's own tables. They take turns, so that what
else the machine does falls on all of them. The figures are CPU time (`process_time`) in microseconds a fact.
"""

from __future__ import annotations

import argparse
import json
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
from writes import DIM, ChecksumEmbedder

from memalpha.store.backends.sqlite_schema import DDL, split_statements
from memalpha.store.store import MemoryStore

BATCH = 500
RUNGS = {
    "one row: text, metadata, vector": ("texts", "vectors"),
    "+ log": ("texts", "vectors", "operations"),
    "+ versions, with their indexes": ("versions", "vectors", "operations"),
    "+ words (FTS5)": ("versions", "vectors", "operations", "words"),
}


def make_facts(count: int) -> tuple[list[dict], np.ndarray]:
    """Return facts and their vectors."""
    rng = np.random.default_rng(0)
    texts = [" ".join(f"w{word}" for word in words) for words in rng.integers(0, 5000, (count, 12))]
    facts = [
        {"category": "semantic", "content": f"{n}: {text}", "metadata": {"n": n, "user": f"u{n % 50}", "day": n % 1000}}
        for n, text in enumerate(texts)
    ]
    return facts, rng.normal(size=(count, DIM)).astype(np.float32)


def insert_with_store(path: Path, facts: list[dict], vectors: np.ndarray, *, index: bool) -> float:
    """Return the CPU seconds of inserting with the store.

    Args:
        path: New file.
        facts: Facts to insert.
        vectors: Their vectors.
        index: Build the search index, too.
    """
    with MemoryStore.open(path, embedder=ChecksumEmbedder(vectors)) as store:
        start = time.process_time()
        for first in range(0, len(facts), BATCH):
            store.insert_many(facts[first : first + BATCH], vectors[first : first + BATCH])
        if index:
            store.build_index()
        return time.process_time() - start


def read_rows(path: Path) -> dict[str, list[tuple]]:
    """Return the rows that the store wrote by table, in the order of their writing."""
    connection = sqlite3.connect(path)
    orders = {"operations": "seq", "versions": "created", "vectors": "rowid"}
    rows = {
        table: connection.execute(f"SELECT * FROM {table} ORDER BY {order}").fetchall()
        for table, order in orders.items()
    }
    connection.close()
    rows["texts"] = [(row[0], row[1], row[6], row[10]) for row in rows["operations"]]
    rows["words"] = [(row[6],) for row in rows["operations"]]
    return rows


def insert_bare(path: Path, rows: dict[str, list[tuple]]) -> float:
    """Return the CPU seconds of inserting rows by table with bare SQLite."""
    connection = sqlite3.connect(path, isolation_level=None)
    for setting in ("page_size = 8192", "journal_mode = WAL", "synchronous = FULL", "cache_size = -16384"):
        connection.execute(f"PRAGMA {setting}")
    for statement in split_statements(DDL):
        connection.execute(statement)
    connection.execute("CREATE TABLE texts (ns, id INTEGER PRIMARY KEY, content TEXT, metadata TEXT)")
    connection.execute("CREATE VIRTUAL TABLE words USING fts5(content)")
    start = time.process_time()
    for first in range(0, len(rows["vectors"]), BATCH):
        connection.execute("BEGIN IMMEDIATE")
        for table, values in rows.items():
            places = ", ".join("?" * len(values[0]))
            connection.executemany(f"INSERT INTO {table} VALUES ({places})", values[first : first + BATCH])
        connection.execute("COMMIT")
    elapsed = time.process_time() - start
    connection.close()
    return elapsed


def table(times: dict[str, list[float]], command: str) -> str:
    """Return the result page."""
    medians = [statistics.median(values) for values in times.values()]
    above = ["-", *(f"{after - before:+.1f}" for before, after in pairwise(medians))]
    lines = [
        "# What the store's promises cost",
        f"`{command}`",
        "20,000 facts with three keys of metadata and vectors of 384 numbers, in batches of 500, WAL and `full`. CPU\n"
        "microseconds a fact, all rungs by turns; what is measured: `eval/store/promises.py`.",
        "| | median (least to most) | above the last |\n|---|---|---|\n"
        + "\n".join(
            f"| {name} | {median:.1f} ({min(values):.1f} to {max(values):.1f}) | {more} |"
            for (name, values), median, more in zip(times.items(), medians, above, strict=True)
        ),
    ]
    return "\n\n".join(lines) + "\n"


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--facts", type=int, default=20_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path, help="write OUT.json and OUT.md")
    options = parser.parse_args()
    facts, vectors = make_facts(options.facts)
    times: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "a.db"
        insert_with_store(path, facts, vectors, index=False)
        rows = read_rows(path)
        rungs: dict[str, Callable[[], float]] = {
            rung: lambda tables=tables: insert_bare(path, {table: rows[table] for table in tables})
            for rung, tables in RUNGS.items()
        }
        rungs["memalpha: ids, checks, entries (no FTS5)"] = lambda: insert_with_store(path, facts, vectors, index=False)
        rungs["memalpha and its search index"] = lambda: insert_with_store(path, facts, vectors, index=True)
        for _ in range(options.repeats):
            for rung, work in rungs.items():
                for file in Path(name).iterdir():
                    file.unlink()
                times.setdefault(rung, []).append(work() / len(facts) * 1e6)
            print(json.dumps({rung: round(values[-1], 1) for rung, values in times.items()}), flush=True)
    if options.out:
        command = f"OMP_NUM_THREADS=1 python eval/store/promises.py --repeats {options.repeats} --out {options.out}"
        options.out.with_suffix(".json").write_text(json.dumps(times, indent=1) + "\n", encoding="utf-8")
        options.out.with_suffix(".md").write_text(table(times, command), encoding="utf-8")


if __name__ == "__main__":
    main()
