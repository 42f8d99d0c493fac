"""Measure the costs of writing: batches with vectors, one durable add, and a delete, beside bare SQLite.

    python eval/store/writes.py --out eval/results/store-writes.json

The store holds 20,000 facts with vectors of 384 numbers. `bare` is a transaction that inserts, or updates, the same
rows as the store's operation into the same tables and indexes, with prepared statements and values. It alternates
with the store's own transaction, so that both see the same disk. CPU time is `time.process_time`.
Wall time is given too.
"""

from __future__ import annotations

import argparse
import json
import sqlite3
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from zlib import crc32

import numpy as np

from memalpha.store.embedding import HashEmbedder
from memalpha.store.store import MemoryStore

DIM = 384


class ChecksumEmbedder(HashEmbedder):
    """Embedder without cost: it picks one of the vectors by the text's checksum."""

    name = "given"

    def __init__(self, vectors: np.ndarray) -> None:
        super().__init__(DIM)
        self._vectors = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        """Return a vector for each text."""
        if len(texts) == 1:  # no copy, so that what a single add is measured at is the store's own
            index = crc32(texts[0].encode()) % len(self._vectors)
            return self._vectors[index : index + 1]
        return self._vectors[[crc32(text.encode()) % len(self._vectors) for text in texts]]


def time_microseconds(work: Callable[[], object]) -> tuple[float, float]:
    """Return CPU and wall time of a call in microseconds."""
    cpu, wall = time.process_time_ns(), time.perf_counter_ns()
    work()
    return (time.process_time_ns() - cpu) / 1e3, (time.perf_counter_ns() - wall) / 1e3


def insert_many(folder: Path, facts: list[dict], vectors: np.ndarray, repeats: int) -> list[tuple[float, float]]:
    """Return microseconds per fact, for a new store each time.

    Args:
        folder: Folder for the stores.
        facts: Facts to insert.
        vectors: Vectors of the facts.
        repeats: Number of stores.
    """
    times = []
    for number in range(repeats):
        with MemoryStore.open(folder / f"{number}.db", embedder=ChecksumEmbedder(vectors)) as store:
            cpu, wall = time_microseconds(lambda store=store: store.insert_many(facts, vectors))
        times.append((cpu / len(facts), wall / len(facts)))
        (folder / f"{number}.db").unlink()
    return times


class BareSqlite:
    """A copy of a store's file in the same mode, with one transaction for each of the store's."""

    def __init__(self, path: Path, store: MemoryStore, durability: str) -> None:
        self._store_connection = store._database._connection
        self.rows = sqlite3.connect(path, isolation_level=None)
        self._store_connection.backup(self.rows)
        for setting in ("journal_mode = WAL", f"synchronous = {durability}", "cache_size = -16384"):
            self.rows.execute(f"PRAGMA {setting}")

    def insert(self) -> tuple[float, float]:
        """Insert the rows of the store's last insert."""
        last = {
            "operations": "ORDER BY seq DESC",
            "versions": "WHERE valid_from = (SELECT max(seq) FROM operations)",
            "vectors": "ORDER BY rowid DESC",
        }
        statements = []
        for table, clause in last.items():
            row = self._store_connection.execute(f"SELECT * FROM {table} {clause} LIMIT 1").fetchone()
            statements.append((f"INSERT INTO {table} VALUES ({','.join('?' * len(row))})", row))
        return self._timed(statements)

    def delete(self) -> tuple[float, float]:
        """Repeat the store's last delete of an entry."""
        row = self._store_connection.execute("SELECT * FROM operations ORDER BY seq DESC LIMIT 1").fetchone()
        clause = self._store_connection.execute(
            "SELECT ns, id, version FROM versions WHERE valid_to = ?", (row[1],)
        ).fetchone()
        end = "UPDATE versions SET valid_to = ? WHERE ns = ? AND id = ? AND version = ?"
        add = f"INSERT INTO operations VALUES ({','.join('?' * len(row))})"
        return self._timed([(add, row), (end, (row[1], *clause))])

    def _timed(self, statements: list[tuple[str, tuple]]) -> tuple[float, float]:
        def transaction() -> None:
            self.rows.execute("BEGIN IMMEDIATE")
            for statement, values in statements:
                self.rows.execute(statement, values)
            self.rows.execute("COMMIT")

        return time_microseconds(transaction)


def single(folder: Path, facts: list[dict], vectors: np.ndarray, durability: str, count: int) -> dict[str, list]:
    """Return microseconds of single adds and deletes, the store's and bare ones by turns.

    Args:
        folder: Folder for the stores.
        facts: Facts inserted before.
        vectors: Vectors of the facts.
        durability: "full" or "normal".
        count: Number of adds and deletes.
    """
    path = folder / f"single-{durability}.db"
    with MemoryStore.open(path, embedder=ChecksumEmbedder(vectors), durability=durability) as store:  # pyright: ignore
        entries = store.insert_many(facts, vectors)
        bare = BareSqlite(folder / f"bare-{durability}.db", store, durability)
        times: dict[str, list] = {"add": [], "bare add": [], "delete": [], "bare delete": []}
        for number in range(count):
            text = f"one more, {number}: {facts[number]['content'][:60]}"
            times["add"].append(time_microseconds(lambda text=text: store.insert("semantic", text)))
            times["bare add"].append(bare.insert())
            times["delete"].append(time_microseconds(lambda number=number: store.delete(entries[7 * number].id)))
            times["bare delete"].append(bare.delete())
        bare.rows.close()
    return times


def summary(times: list[tuple[float, float]]) -> dict[str, float]:
    """Return median, 10th and 90th percentile of CPU and wall time."""
    metrics = {}
    for name, values in zip(("cpu", "wall"), zip(*times, strict=True), strict=True):
        low, middle, high = np.percentile(values, [10, 50, 90])
        metrics |= {f"{name}_us": round(middle, 1), f"{name}_p10": round(low, 1), f"{name}_p90": round(high, 1)}
    return metrics


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--facts", type=int, default=20_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--singles", type=int, default=400)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    rng = np.random.default_rng(0)
    texts = [" ".join(f"w{word}" for word in words) for words in rng.integers(0, 5000, (options.facts, 12))]
    plain = [{"category": "semantic", "content": text} for text in texts]
    tagged = [{**fact, "metadata": {"user": f"u{number % 50}"}} for number, fact in enumerate(plain)]
    vectors = rng.normal(size=(options.facts, DIM)).astype(np.float32)
    result: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for kind, facts in (("plain", plain), ("with metadata", tagged)):
            result[f"insert_many, {kind}, a fact"] = summary(insert_many(folder, facts, vectors, options.repeats))
        for durability in ("full", "normal"):
            for kind, times in single(folder, plain, vectors, durability, options.singles).items():
                result[f"{kind}, {durability}"] = summary(times)
    print(json.dumps(result, indent=1))
    if options.out:
        options.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
