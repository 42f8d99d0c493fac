"""Every line of speed beside its peers and floors, in one run: `python eval/speed.py --envs DIR --locomo FILE`.

    python eval/speed.py --envs ../envs --locomo locomo10.json --model "$(memalpha fetch smol)" --chroma BIN/chroma
    python eval/speed.py --growth --locomo locomo10.json

It runs the measurements of the folders beside it one after another, each with its systems by turns: `store/bench.py`,
`store/app.py`, `reach/serving_cost.py`, `learning/update_bench.py`, `learning/sampling_speed.py`. What needs an option
that is not given is left out and named. The table has our figure, each peer's and the ratio, with the load of the
machine. All are CPU times of one thread, so lower is better, but for learning and sampling in tokens a CPU-second.
`--before DIR`, another checkout, adds its figures where a measurement takes one.

`--growth` measures instead how costs grow: reading 8k to 400k tokens, a search and an insert with 1 to 10,000
namespaces. By entries `store/scale.py` has them, by clients `reach/serving_load.py`.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from common import make_parser, opening, save

sys.path.insert(0, str(Path(__file__).parent / "store"))
import app

HERE = Path(__file__).parent
PEERS = ("memalpha", "floor", "sqlite_vec", "sqlite_vec_plain", "lancedb", "langgraph_memory", "chromadb")
TOKENS, NAMESPACES, IN_EACH = (8_000, 40_000, 400_000), (1, 100, 10_000), 10


class Line(NamedTuple):
    """One row: what was measured, our figure, the peers' by name, and if more is better."""

    title: str
    ours: float
    peers: dict[str, float]
    is_rate: bool = False


def run(script: str, *words: object) -> None:
    """Run a script of this folder in a process of its own."""
    print(f"{time.strftime('%H:%M')} {script}", file=sys.stderr, flush=True)
    subprocess.run([sys.executable, HERE / script, *map(str, words)], stdout=subprocess.DEVNULL, check=True)


def store_lines(folder: Path, envs: Path) -> Iterator[Line]:
    """Yield the lines of the store beside other stores (`store/bench.py`, 2,000 entries)."""
    run("store/bench.py", "--out", folder / "bench", "--envs", envs, "--sizes", 2000, "--only", *PEERS)
    results = json.loads((folder / "bench.json").read_text(encoding="utf-8"))["results"]
    for title, part, figure in (
        ("insert, µs a fact", "insert", "cpu_us"),
        ("single add, ms", "add", "cpu_ms"),
        ("dense search, ms", "search", "cpu_ms"),
        ("search filtered by user, ms", "user", "cpu_ms"),
        ("delete, ms", "delete", "cpu_ms"),
    ):
        medians = {
            name: statistics.median(one[part][figure] for one in result["runs"]["2000"])
            for name, result in results.items()
        }
        yield Line(title, medians.pop("memalpha"), medians)
    sizes = {name: result["runs"]["2000"][0]["disk_mb"] / 2 for name, result in results.items()}  # kB an entry
    yield Line("on disk, kB an entry", sizes.pop("memalpha"), {name: size for name, size in sizes.items() if size})


def app_lines(folder: Path, locomo: Path, before: Path | None) -> Iterator[Line]:
    """Yield the lines of an application (`store/app.py`)."""
    against = () if before is None else ("--against", before)
    run("store/app.py", "--results", folder, "--locomo", locomo, "--repeats", 1, *against)
    runs = json.loads((folder / "store-app.json").read_text(encoding="utf-8"))
    medians = {name: {key: statistics.median(one[key] for one in of) for key in of[0]} for name, of in runs.items()}
    now, earlier = medians["now"], medians.get("before", {})
    for title, key in app.ROWS.items():
        if not key.startswith("peer_"):
            peers = {"before": earlier[key]} if key in earlier else {}
            peers |= {"LangGraph": now[f"peer_{key}"]} if f"peer_{key}" in now else {}
            yield Line(title, now[key], peers)


def server_lines(folder: Path, chroma: Path | None, before: Path | None) -> Iterator[Line]:
    """Yield the CPU seconds of 1,000 requests (`reach/serving_cost.py`)."""
    options = [word for name, path in (("chroma", chroma), ("before", before)) if path for word in (f"--{name}", path)]
    run("reach/serving_cost.py", "--results", folder, "--repeats", 1, *options)
    runs = json.loads((folder / "serving-cost.json").read_text(encoding="utf-8"))
    for kind in runs["now"][0]:
        figures = {name: statistics.median(one[kind] for one in of) for name, of in runs.items() if kind in of[0]}
        yield Line(f"server, CPU-s of 1,000: {kind} clients", figures.pop("now"), figures)


def learning_lines(folder: Path) -> Iterator[Line]:
    """Yield tokens of an update in a CPU-second (`learning/update_bench.py`, 0.8 million weights)."""
    run("learning/update_bench.py", "--sizes", "0.8M", "--repeats", 1, "--results", folder)
    rows = json.loads((folder / "update-bench.json").read_text(encoding="utf-8"))["summary"]
    rates = {row["system"]: row["tokens_per_cpu_second"]["median"] for row in rows if not row["checkpointing"]}
    yield Line("learning, tokens a CPU-s", rates.pop("memalpha"), rates, is_rate=True)


def sampling_lines(folder: Path, model: str, vllm: Path | None) -> Iterator[Line]:
    """Yield tokens in a CPU-second of SmolLM2 (`learning/sampling_speed.py`)."""
    options = () if vllm is None else ("--vllm", vllm)
    run("learning/sampling_speed.py", model, "--repeats", 1, "--results", folder, *options)
    rates: dict[tuple[str, str], dict[str, float]] = {}
    for row in json.loads((folder / "sampling-speed.json").read_text(encoding="utf-8")):
        rate = row["tokens"] / statistics.median(row["cpu_seconds"])
        rates.setdefault((row["kind"], row["shape"]), {})[row["system"]] = rate
    for (kind, shape), systems in rates.items():
        yield Line(f"{kind} {shape}, tokens a CPU-s", systems.pop("memalpha"), systems, is_rate=True)


def starts() -> Iterator[Line]:
    """Yield the CPU seconds of starting: of the package, of an agent, of a search from the command line."""
    with tempfile.TemporaryDirectory() as folder:
        program, path = [sys.executable, "-m", "memalpha"], f"{folder}/start.db"
        subprocess.run([*program, "add", path, "Ana's city: Porto"], check=True, capture_output=True)
        for title, command in (
            ("import memalpha, CPU-s", [sys.executable, "-c", "import memalpha"]),
            ("from memalpha import MemoryAgent, CPU-s", [sys.executable, "-c", "from memalpha import MemoryAgent"]),
            ("memalpha search, cold, CPU-s", [*program, "search", path, "Where does Ana live?"]),
        ):
            bare, seconds = (
                min(cpu_seconds(one) for _ in range(3)) for one in ([sys.executable, "-c", "pass"], command)
            )
            yield Line(title, seconds, {"python alone": bare})


def cpu_seconds(command: list[str]) -> float:
    """Return the CPU seconds of a command."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"{command} ended with {os.waitstatus_to_exitcode(status)}")
    return usage.ru_utime + usage.ru_stime


def growth(locomo: Path) -> tuple[list[dict[str, Any]], list[str]]:
    """Measure reading by tokens and calls by namespaces; return the figures and the tables."""
    from memalpha import MemoryStore

    reads, spaces = [], []
    with tempfile.TemporaryDirectory() as name:
        for tokens in TOKENS:
            (folder := Path(name) / str(tokens)).mkdir()
            reads.append({"tokens": tokens, **app.read(folder, locomo, tokens)})
        for count in NAMESPACES:
            with MemoryStore.open(Path(name) / f"{count}.db") as store:
                start = time.process_time()
                for number in range(count):
                    with store.namespace(f"user-{number}") as memory:
                        memory.insert_many(app.facts(IN_EACH))
                filled = 1000 * (time.process_time() - start) / count

                def searched(number: int, store: MemoryStore = store, count: int = count) -> None:
                    with store.namespace(f"user-{number * 7919 % count}") as memory:
                        memory.search(f"what does user {number} like?")

                def inserted(number: int, store: MemoryStore = store, count: int = count) -> None:
                    with store.namespace(f"user-{number * 7919 % count}") as memory:
                        memory.insert("semantic", f"new fact {number}")

                figures = {
                    "filled": filled,
                    "search": app.median_ms(searched, 100),
                    "insert": app.median_ms(inserted, 100),
                }
            spaces.append({"namespaces": count, **figures})
    tables = ["| tokens read | ms a chunk of 20 lines | first tenth | last tenth | entries |", "|---|---|---|---|---|"]
    tables += [
        f"| {row['tokens']:,} | {row['read']:.2f} | {row['first']:.2f} | {row['last']:.2f} | {row['entries']:,} |"
        for row in reads
    ]
    tables += [
        "",
        f"| namespaces of {IN_EACH} entries | ms to fill one | search, ms | insert, ms |",
        "|---|---|---|---|",
    ]
    tables += [
        f"| {row['namespaces']:,} | {row['filled']:.2f} | {row['search']:.2f} | {row['insert']:.2f} |" for row in spaces
    ]
    return [*reads, *spaces], tables


def as_row(line: Line, load: float) -> str:
    """Format a line: ratios say how many times better memalpha is."""
    cells = []
    for name, value in line.peers.items():
        ratio = line.ours / value if line.is_rate else value / line.ours
        cells.append(f"{name} {value:.3g} ({ratio:.2f})")
    return f"| {line.title} | {line.ours:.3g} | {', '.join(cells)} | {load:.1f} |"


def main() -> None:
    """Measure and write the record."""
    parser = make_parser(__doc__)
    parser.add_argument("--envs", type=Path, help="folder for the environments of other stores")
    parser.add_argument("--locomo", type=Path, help="path of locomo10.json")
    parser.add_argument("--model", help="transformers directory to sample and learn with")
    parser.add_argument("--chroma", type=Path, help="program `chroma` of an environment that has it")
    parser.add_argument("--vllm", type=Path, help="folder of scripts/check-vllm")
    parser.add_argument("--before", type=Path, help="another checkout of this project")
    parser.add_argument("--growth", action="store_true", help="how costs grow, in the place of peers")
    options = parser.parse_args()
    if options.growth:
        if options.locomo is None:
            parser.error("--growth needs --locomo")
        figures, tables = growth(options.locomo)
        save(
            options.results / "growth",
            figures,
            "\n".join(
                [*opening("How costs grow", started_by="python eval/speed.py --growth --locomo FILE"), "", *tables]
            ),
        )
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        parts: list[tuple[str | None, object, Callable[[], Iterator[Line]]]] = [
            ("--envs", options.envs, lambda: store_lines(folder, options.envs)),
            ("--locomo", options.locomo, lambda: app_lines(folder, options.locomo, options.before)),
            (None, None, lambda: server_lines(folder, options.chroma, options.before)),
            (None, None, lambda: learning_lines(folder)),
            ("--model", options.model, lambda: sampling_lines(folder, options.model, options.vllm)),
            (None, None, starts),
        ]
        table = ["| | memalpha | peers (how many times better memalpha is) | load |", "|---|---|---|---|"]
        records: list[dict[str, Any]] = []
        for option, value, measure in parts:
            if option is not None and value is None:
                table.append(f"| not measured: {option} was not given | | | |")
                continue
            for line in list(measure()):
                table.append(as_row(line, load := os.getloadavg()[0]))
                records.append({**line._asdict(), "load": load})
                print(table[-1], file=sys.stderr, flush=True)
    given = [
        name for name in ("envs", "locomo", "model", "chroma", "vllm", "before") if getattr(options, name) is not None
    ]
    started_by = " ".join(["python eval/speed.py", *(f"--{name} {name.upper()}" for name in given)])
    save(
        options.results / "speed",
        records,
        "\n".join([*opening("Every line of speed", started_by=started_by), "", *table]),
    )


if __name__ == "__main__":
    main()
