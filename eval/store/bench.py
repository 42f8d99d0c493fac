"""Compare the costs of memalpha and of the embedded memory stores available in Python on the same work.

    python eval/store/bench.py --out eval/results/store-bench --envs DIR [--only memalpha qdrant] [--sizes 2000 20000]

Each system runs in its own environment (created in DIR from `peers/NAME.txt` if missing), in fresh processes and
folders, `--repeats` times, all systems by turns. Tables show the median and, in brackets, minimum and maximum. Every
system gets the same seeded texts, vectors (384 dimensions, clustered), users (50, so that a filter keeps 2 %), days (a
range of 20 in 1,000) and queries. "floor" is no store: it says what the rows cost alone (`peers/floor.py`). Results are
kept by system in OUT.json, so that systems can be run one at a time. OUT.md is made from OUT.json (`--only` without a
system does nothing else).

A system has `--budget` seconds to insert the entries. Later entries are left out, and the rest of the work is measured
on the inserted ones. Memory is that of a process that has opened the store and answered. CPU is that of all threads.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import statistics
import subprocess
import tempfile
import venv
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent
DIM, K = 384, 10
MAX_ENTRIES, QUERIES, USERS, DAYS, RANGE = 20_200, 100, 50, 1000, 20
SYSTEMS = {  # in the table's order, and what an acknowledged single add is worth
    "memalpha": ('memalpha, "full"', "on disk"),
    "memalpha_normal": ('memalpha, "normal"', "survives a kill"),
    "floor": ("floor: bare SQLite and numpy", "on disk"),
    "sqlite_vec": ("sqlite-vec, partition key", "on disk (WAL, FULL, set by the bench)"),
    "sqlite_vec_plain": ("sqlite-vec, plain column", "on disk (WAL, FULL, set by the bench)"),
    "langgraph_sqlite": ("LangGraph SqliteStore", "on disk"),
    "langgraph_memory": ("LangGraph InMemoryStore", "nothing"),
    "lancedb": ("LanceDB", "survives a kill"),
    "chromadb": ("Chroma", "on disk"),
    "qdrant": ("Qdrant, local", "on disk"),
    "mem0_qdrant": ("mem0 on Qdrant", "on disk"),
    "mem0_faiss": ("mem0 on FAISS", "may be lost or mixed up by a kill"),
}


ENVIRONMENTS = {"memalpha_normal": "memalpha", "floor": "memalpha", "sqlite_vec_plain": "sqlite_vec"}  # shared ones


def make_data(folder: Path, seed: int) -> dict[str, np.ndarray]:
    """Write the files that `measure.Data` reads and return the arrays for exact answers."""
    rng = np.random.default_rng(seed)
    topics = rng.standard_normal((400, DIM)) * 0.8 + rng.standard_normal(DIM) * 0.4
    weights = 1 / (np.arange(400) + 10)
    entry_topics = rng.choice(400, MAX_ENTRIES, p=weights / weights.sum())
    entries = _unit(topics[entry_topics] + rng.standard_normal((MAX_ENTRIES, DIM)) * 0.8)
    source_entries = rng.choice(2000, QUERIES, replace=False)
    queries = _unit(entries[source_entries] * np.sqrt(DIM) + rng.standard_normal((QUERIES, DIM)) * 0.6)
    letters = np.array(list("abdefgiklmnoprstuv"))
    words = sorted({"".join(rng.choice(letters, rng.integers(3, 10))) for _ in range(20_000)})
    rng.shuffle(words)
    word_weights = 1 / (np.arange(len(words)) + 20)
    lengths = rng.integers(8, 20, MAX_ENTRIES + QUERIES)
    word_ids = rng.choice(len(words), lengths.sum(), p=word_weights / word_weights.sum())
    texts = [" ".join(words[w] for w in text_word_ids) for text_word_ids in np.split(word_ids, np.cumsum(lengths)[:-1])]
    users, days = rng.integers(0, USERS, MAX_ENTRIES), rng.integers(0, DAYS, MAX_ENTRIES)
    query_users, query_days = users[source_entries], rng.integers(0, DAYS - RANGE, QUERIES)
    entry_data = {
        "texts": [f"{n}: {text}" for n, text in enumerate(texts[:MAX_ENTRIES])],
        "users": [f"u{u}" for u in users],
        "days": days.tolist(),
    }
    (folder / "entries.json").write_text(json.dumps(entry_data))
    query_data = {
        "texts": texts[MAX_ENTRIES:],
        "users": [f"u{u}" for u in query_users],
        "days": query_days.tolist(),
        "range": RANGE,
    }
    (folder / "queries.json").write_text(json.dumps(query_data))
    (folder / "entries.f32").write_bytes(entries.tobytes())
    (folder / "queries.f32").write_bytes(queries.tobytes())
    return {
        "entries": entries, "queries": queries, "users": users, "days": days,
        "asked_users": query_users, "asked_days": query_days,
    }  # fmt: skip


def _unit(vectors: np.ndarray) -> np.ndarray:
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


def recall(
    data: dict[str, np.ndarray], results: list[list[int]], eligible_ids: list[np.ndarray]
) -> tuple[float, float]:
    """Return recall@10 against exact search to 5 decimals, and the mean number of returned ids.

    Args:
        data: Arrays of `make_data`.
        results: Returned ids, one list per query.
        eligible_ids: Ids of the entries that pass the filter, one array per query.
    """
    correct = expected_count = 0
    for query, (ids, eligible) in enumerate(zip(results, eligible_ids, strict=False)):
        scores = data["entries"][eligible].astype(np.float64) @ data["queries"][query].astype(np.float64)
        best = np.sort(scores)[::-1][:K]
        expected_count += len(best)
        score_by_id = dict(zip(eligible.tolist(), scores, strict=True))
        correct += sum(score_by_id.get(id, -2) > best[-1] - 1e-5 for id in set(ids))  # one that is as near is as right
    return correct / max(expected_count, 1), sum(map(len, results)) / max(len(results), 1)


def environment(name: str, envs: Path) -> Path:
    """Return the Python of a system's environment, creating the environment if it is missing."""
    folder = envs / ENVIRONMENTS.get(name, name)
    python = folder / "bin" / "python"
    if not (folder / "made").exists():
        shutil.rmtree(folder, ignore_errors=True)
        venv.create(folder, with_pip=True)
        requirements = HERE / "peers" / f"{folder.name}.txt"
        pip_arguments = ["-r", str(requirements)] if requirements.exists() else [str(HERE.parent.parent)]
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", *pip_arguments], check=True)
        (folder / "made").touch()
    return python


def packages(python: Path) -> dict[str, Any]:
    """Return the number of packages in an environment, without pip, and their size in MB."""
    listing = subprocess.run(
        [str(python), "-m", "pip", "list", "--format", "json"], capture_output=True, text=True, check=True
    )
    installed = [item["name"] for item in json.loads(listing.stdout) if item["name"] not in ("pip", "setuptools")]
    site = next((python.parent.parent / "lib").glob("python*/site-packages"))
    package_paths = [
        path for path in site.iterdir() if not re.match(r"(pip|setuptools|pkg_resources|_distutils)", path.name)
    ]
    return {"packages": len(installed), "installed_mb": sum(map(size_of, package_paths)) / 1e6}


def size_of(path: Path) -> int:
    """Return the size in bytes of a file or of all files in a folder."""
    files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
    return sum(file.stat().st_size for file in files)


def call(python: Path, *arguments: object, prefix: tuple[str, ...] = ()) -> dict[str, Any]:
    """Run `measure.py` and return its result, or {"failed": reason}."""
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    environ.pop("PYTHONPATH", None)
    command = [*prefix, str(python), str(HERE / "measure.py"), *map(str, arguments)]
    completed = subprocess.run(command, capture_output=True, text=True, env=environ)
    lines = completed.stdout.strip().splitlines()
    if completed.returncode or not lines:
        return {"failed": (completed.stderr.strip().splitlines() or ["no output"])[-1][:300]}
    return json.loads(lines[-1])


def run(name: str, python: Path, size: int, budget: float, folder: Path, data: dict[str, np.ndarray]) -> dict[str, Any]:
    """Run one repetition: write, then reopen.

    Args:
        name: Module in `peers/`.
        python: Interpreter of the system's environment.
        size: Number of entries.
        budget: Seconds for the insertion.
        folder: Folder of the data, where the store is made too.
        data: Arrays of `make_data`.
    """
    store_folder = folder / f"{name}-{size}"
    shutil.rmtree(store_folder, ignore_errors=True)
    result = call(python, "write", name, folder, store_folder, size, budget)
    if "failed" in result:
        return result
    entry_ids = np.arange(result["insert"]["n"])
    result["load"] = os.getloadavg()[0]
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
    result["disk_mb"] = size_of(store_folder) / 1e6
    if name != "langgraph_memory":
        reopened = call(python, "reopen", name, folder, store_folder)
        remaining_ids = np.setdiff1d(np.append(entry_ids, result["added"]), result["deleted"])
        if "ids" in reopened:
            reopened["recall"] = recall(data, reopened.pop("ids"), [remaining_ids] * QUERIES)[0]
        result["reopen"] = reopened
    shutil.rmtree(store_folder, ignore_errors=True)
    return {key: value for key, value in result.items() if key not in ("added", "deleted")}


def fsyncs(name: str, python: Path, folder: Path) -> float | None:
    """Count the disk syncs of a single add with strace; None without strace.

    Args:
        name: Module in `peers/`.
        python: Interpreter of the system's environment.
        folder: Folder of the data, where the store is made too.
    """
    if shutil.which("strace") is None:
        return None
    store_folder, trace = folder / "traced", folder / "trace.txt"
    shutil.rmtree(store_folder, ignore_errors=True)
    prefix = ("strace", "-f", "-o", str(trace), "-e", "trace=fsync,fdatasync,msync,write")
    result = call(python, "adds", name, folder, store_folder, 500, 60, prefix=prefix)
    shutil.rmtree(store_folder, ignore_errors=True)
    if "failed" in result:
        return None
    sections = trace.read_text(errors="replace").split("bench-mark")
    return len(re.findall(r"\b(?:fsync|fdatasync|msync)\(", sections[1])) / result["n"] if len(sections) == 3 else None


def cell(runs: list[dict[str, Any]], *path: str, digits: int = 2) -> str:
    """Format the median (minimum to maximum) of a metric over repetitions, "-" where there is none."""
    values = []
    for repetition in runs:
        value: Any = repetition
        for key in path:
            value = value.get(key) if isinstance(value, dict) else None
        if value is not None:
            values.append(value)
    if not values:
        return "-"
    median = statistics.median(values)
    low, high = min(values), max(values)
    return f"{median:,.{digits}f}" + (f" ({low:,.{digits}f}-{high:,.{digits}f})" if len(values) > 1 else "")


DISADVANTAGE_REASONS = {  # where somebody needs less
    "insert": "they write a row each; memalpha a row of its log, a version that keeps its past, and a vector",
    "single add": "they write one row, or none; memalpha three, after a look for the same content",
    "search": "a graph of neighbours looks at a part of the entries; memalpha at all of them up to 50,000",
    "filtered": "sqlite-vec keeps each user's rows together",
    "delete": "they forget; memalpha keeps the entry's past and logs that it ended",
    "reopen": "they load nothing and read the file at every search",
    "disk": "memalpha keeps log, versions, vectors, and the search index once more beside them",
    "memory": "they read the file at every search; memalpha holds vectors and words",
}

COLUMNS = [
    ("insert, µs CPU each", ("insert", "cpu_us"), 1),
    ("single add, ms CPU", ("add", "cpu_ms"), 3),
    ("single add, ms wall", ("add", "wall_ms_p50"), 2),
    ("search, ms CPU", ("search", "cpu_ms"), 2),
    ("recall@10", ("search", "recall"), 3),
    ("filtered, ms CPU", ("user", "cpu_ms"), 2),
    ("recall@10", ("user", "recall"), 3),
    ("range, ms CPU", ("days", "cpu_ms"), 2),
    ("recall@10", ("days", "recall"), 3),
    ("delete, ms CPU", ("delete", "cpu_ms"), 3),
    ("reopen to answer, s CPU", ("reopen", "cpu_s"), 3),
    ("disk, MB", ("disk_mb",), 1),
    ("memory, MB", ("reopen", "rss_mb"), 0),
]


def table(results: dict[str, Any], size: int) -> list[str]:
    """Return the table of all systems at one size."""
    lines = ["| | " + " | ".join(head for head, _, _ in COLUMNS) + " |", "|---" * (len(COLUMNS) + 1) + "|"]
    for name, (title, _) in SYSTEMS.items():
        runs = results.get(name, {}).get("runs", {}).get(str(size), [])
        if not runs:
            continue
        completed_runs = [repetition for repetition in runs if "failed" not in repetition]
        if not completed_runs:
            lines.append(f"| {title} | failed: {runs[0]['failed']} |" + " |" * (len(COLUMNS) - 1))
            continue
        min_entries = min(repetition["insert"]["n"] for repetition in completed_runs)
        note = "" if min_entries == size else f", stopped at {min_entries:,}"
        cells = [cell(completed_runs, *path, digits=digits) for _, path, digits in COLUMNS]
        lines.append(f"| {title}{note} | " + " | ".join(cells) + " |")
    return lines


def verdicts(results: dict[str, Any], size: int) -> list[str]:
    """List for each metric the peers that need less than memalpha, with the reason."""
    lines = []
    own_runs = results.get("memalpha", {}).get("runs", {}).get(str(size), [])
    for head, path, _ in [*COLUMNS, ("single add, ms wall, p95", ("add", "wall_ms_p95"), 2)]:

        def median_value(runs: list[dict[str, Any]], path: tuple[str, ...] = path) -> float | None:
            values = [value for value in runs if "failed" not in value and value["insert"]["n"] == size]
            for key in path:
                values = [value[key] for value in values if isinstance(value, dict) and value.get(key) is not None]
            return statistics.median(values) if values else None

        own_median = median_value(own_runs)
        if own_median is None or head == "recall@10":
            continue
        peer_medians = {
            SYSTEMS[name][0]: median_value(peer_results["runs"].get(str(size), []))
            for name, peer_results in results.items() if not name.startswith("memalpha")
        }  # fmt: skip
        lower_peers = sorted(
            (value, name) for name, value in peer_medians.items() if value is not None and value < own_median
        )
        peers_below = "; ".join(f"{name} {value:,.3g}" for value, name in lower_peers)
        why = next((f" ({why})" for name, why in DISADVANTAGE_REASONS.items() if head.startswith(name)), "")
        lines.append(
            f"- {head}: "
            + (f"{own_median:,.3g}; less: {peers_below}{why}" if lower_peers else f"{own_median:,.3g}, ahead of all")
        )
    return lines


def goals(results: dict[str, Any], size: int) -> list[str]:
    """List the store's goals at a size with the measured values, at durability "full"."""
    runs = [
        repetition
        for repetition in results.get("memalpha", {}).get("runs", {}).get(str(size), [])
        if "failed" not in repetition
    ]
    if not runs:
        return []
    ratios = [{"ratio": repetition["add"]["cpu_ms"] / repetition["bare"]["cpu_ms"]} for repetition in runs]
    return [
        f"- insert, 30 µs CPU each: {cell(runs, 'insert', 'cpu_us', digits=1)}, in batches of 500 with three keys of "
        "metadata each",
        f"- single durable add, 1.3 times a bare transaction (CPU): {cell(ratios, 'ratio')} times",
        f"- filtered search, 2 %, recall 1.0 at 0.9 ms CPU: {cell(runs, 'user', 'cpu_ms')} at recall "
        f"{cell(runs, 'user', 'recall', digits=3)}; the default search, with words and categories as well: "
        f"{cell(runs, 'default_user', 'cpu_ms')}",
        f"- reopen to the first answer, 0.3 s CPU: {cell(runs, 'reopen', 'cpu_s', digits=3)}",
    ]


def write_results(out: Path, results: dict[str, Any], meta: dict[str, Any]) -> None:
    """Write OUT.json and OUT.md.

    Args:
        out: Path of both files without suffix.
        results: Runs and installation metrics by system.
        meta: Command, seed and budget.
    """
    out.parent.mkdir(parents=True, exist_ok=True)
    out.with_suffix(".json").write_text(json.dumps({"meta": meta, "results": results}, indent=1) + "\n")
    lines = ["# The store beside its peers", "", "```", meta["command"], "```", ""]
    memory = cell(results.get("langgraph_memory", {}).get("runs", {}).get("20000", []), "rss_mb", digits=0)
    lines += METHOD_TEXT.format(memory=memory).splitlines()
    sizes = sorted({int(size) for system_results in results.values() for size in system_results["runs"]})
    lines += ["", "## The goals, at 20,000 entries", "", *goals(results, 20_000)]
    for size in sizes:
        lines += ["", f"## {size:,} entries", "", *table(results, size), ""]
        lines += ["Where memalpha (`full`) stands, medians, against peers that took all entries in:", ""]
        lines += verdicts(results, size)
    lines += ["", "## Default search of memalpha, and its single add beside bare SQLite", ""]
    lines += [
        "| | entries | default search, ms CPU | filtered | add, ms CPU | bare SQLite | ratio | add, ms wall | bare |"
    ]
    lines += ["|---|---|---|---|---|---|---|---|---|"]
    for name in ("memalpha", "memalpha_normal"):
        for size, runs in results.get(name, {}).get("runs", {}).items():
            runs = [repetition for repetition in runs if "failed" not in repetition]
            if not runs:  # its turn has not come yet
                continue
            cells = [
                cell(runs, *path, digits=3)
                for path in (("default", "cpu_ms"), ("default_user", "cpu_ms"), ("add", "cpu_ms"), ("bare", "cpu_ms"))
            ]
            ratios = [repetition["add"]["cpu_ms"] / repetition["bare"]["cpu_ms"] for repetition in runs]
            cells.append(f"{statistics.median(ratios):.2f}")
            cells += [cell(runs, "add", "wall_ms_p50", digits=2), cell(runs, "bare", "wall_ms_p50", digits=2)]
            lines.append(f"| {SYSTEMS[name][0]} | {int(size):,} | " + " | ".join(cells) + " |")
    lines += ["", "## What a single add is worth, and what an installation brings", ""]
    lines += ["| | an acknowledged add | fsyncs each | packages | MB | import, s CPU | load |"]
    lines += ["|---|---|---|---|---|---|---|"]
    for name, (title, worth) in SYSTEMS.items():
        if name in results:
            system_results = results[name]
            syncs = "-" if system_results.get("fsyncs") is None else f"{system_results['fsyncs']:.1f}"
            all_runs = [repetition for runs in system_results["runs"].values() for repetition in runs]
            imports, load = cell(all_runs, "reopen", "import_cpu_s"), cell(all_runs, "load", digits=1)
            lines.append(
                f"| {title} | {worth} | {syncs} | {system_results['packages']} | "
                f"{system_results['installed_mb']:,.0f} | {imports} | {load} |"
            )
    out.with_suffix(".md").write_text("\n".join(lines) + "\n", encoding="utf-8")


METHOD_TEXT = """\
What is measured and how: the head of the script. Medians (least to most) of the repetitions; µs and ms are means
over the operations of a repetition, wall times medians. memalpha searches with `route="dense"` in the first tables,
as its peers do; its default search (words, meaning, categories) stands by itself. "Filtered": one of 50 users,
which sqlite-vec has as partitions in one row and as a plain column in the other, LangGraph as namespaces, mem0 as its
own scope and the others as a field; "range": a new range of days with every query; each keeps 2 %. A row that says
where it stopped was measured there.
Recall is against exact search, to 5 decimals, over what was in. LangGraph's InMemoryStore keeps nothing, so it has
no reopening; it takes {memory} MB with the bench's own data. mem0 was given vectors in the place of its embedder,
and an agent as the scope of everything in unfiltered searches. The machine has two cores. The last table says how many
processes wanted them while a system was measured ("load"): CPU times grow with it, and wall times say little above 2.
Compare systems of a like load."""


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="OUT.json and OUT.md are written")
    parser.add_argument("--envs", type=Path, required=True, help="a folder for the environments")
    parser.add_argument("--only", nargs="*", choices=SYSTEMS, default=list(SYSTEMS))
    parser.add_argument("--sizes", nargs="+", type=int, default=[2000, 20_000])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--budget", type=float, default=240.0, help="seconds to take the entries in")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    results_path = options.out.with_suffix(".json")
    results = json.loads(results_path.read_text())["results"] if results_path.exists() else {}
    command = f"python eval/store/bench.py --out {options.out} --envs DIR"
    meta = {"command": command, "seed": options.seed, "budget": options.budget}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        data = make_data(folder, options.seed)
        for name in options.only:
            python = environment(name, options.envs)
            system_results = results.setdefault(name, {"runs": {}})
            system_results |= packages(python) | {"fsyncs": fsyncs(name, python, folder)}
            system_results["runs"] |= {str(size): [] for size in options.sizes}
        # By turns, so that what else the machine does falls on all systems alike.
        for size, number, name in product(options.sizes, range(options.repeats), options.only):
            python = environment(name, options.envs)
            runs = results[name]["runs"][str(size)]
            runs.append(run(name, python, size, options.budget, folder, data))
            print(name, size, number, json.dumps(runs[-1]), flush=True)
            write_results(options.out, results, meta)


if __name__ == "__main__":
    main()
