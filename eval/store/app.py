"""Measure the store the way an application uses it, beside another checkout: `python eval/store/app.py --against DIR`.

- reading: `MemoryAgent("add_all")` reads the turns of LoCoMo (`--locomo`), repeated with another name in front, in
  chunks of 20 lines, up to `--tokens` tokens (characters / 4). Milliseconds per chunk, of the first and the last tenth.
- namespaces: a search through `store.namespace(name)`, made anew for each request, in a namespace of 10,000 entries.
- calls: get, list(where, limit=100), add and update of a store of 20,000 entries with three keys of metadata, beside
  LangGraph's InMemoryStore with the same entries, a namespace for each user and no index.

All are CPU milliseconds (`process_time`) of one thread, medians. The two checkouts take turns, each in a process of its
own, `--repeats` times. The table shows the median of the repetitions (least to most).
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
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from common import make_parser, opening, save

LINES, ENTRIES, USERS, IN_NAMESPACE = 20, 20_000, 200, 10_000
ROWS = {
    "reading, ms a chunk of 20 lines": "read",
    "of the first tenth": "first",
    "of the last tenth": "last",
    "first search of a namespace object, ms": "namespace",
    "get, ms": "get",
    "list(where, limit=100), ms": "list",
    "add, ms": "add",
    "update, ms": "update",
    "LangGraph in memory: get, ms": "peer_get",
    "LangGraph in memory: search(namespace, limit=100), ms": "peer_list",
    "LangGraph in memory: put, ms": "peer_add",
}


PAGE = """
What is measured: the head of the script. Milliseconds of CPU time of one thread: medians of the repetitions (least to
most), the two checkouts by turns on the same machine. The database lies on disk, durability "full".
"""


def median_ms(work: Callable[[int], object], count: int) -> float:
    """Return the median CPU milliseconds of `work(0)`, `work(1)` and so on."""
    times = []
    for number in range(count):
        start = time.process_time()
        work(number)
        times.append(1000 * (time.process_time() - start))
    return statistics.median(times)


def chunks(path: Path, tokens: int) -> Iterator[str]:
    """Yield chunks of `LINES` turns, the conversations over and over with a name of the round in front."""
    lines = [
        f"{turn['speaker']}: {turn['text']}"
        for task in json.loads(path.read_text(encoding="utf-8"))
        for name, turns in task["conversation"].items()
        if isinstance(turns, list)
        for turn in turns
    ]
    read, round = 0, 0
    while True:
        for start in range(0, len(lines), LINES):
            chunk = "\n".join(
                line if not round else line.replace(": ", f": (round {round}) ", 1)
                for line in lines[start : start + LINES]
            )
            yield chunk
            read += len(chunk) // 4
            if read >= tokens:
                return
        round += 1


def read(folder: Path, path: Path, tokens: int) -> dict[str, float]:
    """Return milliseconds per chunk of reading: mean of all, of the first and of the last tenth."""
    from memalpha import MemoryAgent, MemoryStore

    times = []
    with MemoryStore.open(folder / "read.db") as store:
        agent = MemoryAgent("add_all", store)
        agent.read("Ana: hello")  # loads the embedder
        for number, chunk in enumerate(chunks(path, tokens)):
            start = time.process_time()
            agent.read(chunk, timestamp="2024-05-01", source=f"chat-{number // 20}")
            times.append(1000 * (time.process_time() - start))
        tenth = len(times) // 10
        return {
            "read": statistics.mean(times),
            "first": statistics.mean(times[:tenth]),
            "last": statistics.mean(times[-tenth:]),
            "chunks": len(times),
            "entries": store.count(),
        }


def facts(count: int) -> list[dict[str, Any]]:
    """Return facts of several users."""
    return [
        {
            "category": "semantic",
            "content": f"fact {number}: user {number % USERS} likes thing {number * 7919 % 10007}",
            "metadata": {"user": f"u{number % USERS}", "n": number, "day": number % 365},
        }
        for number in range(count)
    ]


def namespaces(folder: Path) -> dict[str, float]:
    """Return the milliseconds of the first search of a namespace object."""
    from memalpha import MemoryStore

    with MemoryStore.open(folder / "namespaces.db") as store:
        store.namespace("ana").insert_many(facts(IN_NAMESPACE))

        def request(number: int) -> None:
            with store.namespace("ana") as memory:
                memory.search(f"what does user {number} like?")

        request(0)
        return {"namespace": median_ms(request, 15)}


def calls(folder: Path) -> dict[str, float]:
    """Return the milliseconds of get, list, add and update, and of the same calls of LangGraph's InMemoryStore."""
    from langgraph.store.memory import InMemoryStore

    from memalpha import MemoryStore

    peer = InMemoryStore()
    entries = facts(ENTRIES)
    for number, fact in enumerate(entries):
        peer.put((fact["metadata"]["user"],), str(number), {"text": fact["content"], **fact["metadata"]})
    with MemoryStore.open(folder / "calls.db") as store:
        ids = [entry.id for entry in store.insert_many(entries)]
        store.search("thing", where={"user": "u1"})  # makes the index and the columns of filters

        def spread(number: int) -> int:
            return number * 7919 % ENTRIES

        return {
            "get": median_ms(lambda n: store.get(ids[spread(n)]), 500),
            "list": median_ms(lambda n: store.list(where={"user": f"u{n}"}, limit=100), 100),
            "add": median_ms(lambda n: store.add(f"new {n}: thing", metadata={"user": "u1"}), 200),
            "update": median_ms(lambda n: store.update(ids[spread(n)], f"fact {n}: other"), 200),
            "peer_get": median_ms(lambda n: peer.get((f"u{spread(n) % USERS}",), str(spread(n))), 500),
            "peer_list": median_ms(lambda n: peer.search((f"u{n}",), limit=100), 100),
            "peer_add": median_ms(lambda n: peer.put(("u1",), f"new {n}", {"text": "thing", "user": "u1"}), 200),
        }


def measure(checkout: Path, arguments: Any) -> dict[str, float]:
    """Return the figures of a checkout, measured in a process of its own."""
    words = ["--only", "--locomo", str(arguments.locomo), "--tokens", str(arguments.tokens)]
    environ = {**os.environ, "PYTHONPATH": str(checkout.resolve()), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(Path(__file__).resolve()), *words]
    return json.loads(subprocess.run(command, env=environ, check=True, capture_output=True, text=True).stdout)


def cell(runs: list[dict[str, float]], name: str) -> str:
    """Format the median of a figure, least to most."""
    values = [run[name] for run in runs]
    low, high = min(values), max(values)
    return f"{statistics.median(values):.3g} ({low:.3g} to {high:.3g})"


def main() -> None:
    """Measure by turns and write the page."""
    parser = make_parser(__doc__)
    parser.add_argument("--against", type=Path, help="folder of another checkout")
    parser.add_argument("--locomo", type=Path, required=True, help="path of locomo10.json")
    parser.add_argument("--tokens", type=int, default=400_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", action="store_true", help="measure the importable memalpha and print its figures")
    arguments = parser.parse_args()
    if arguments.only:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            figures = read(folder, arguments.locomo, arguments.tokens) | namespaces(folder) | calls(folder)
        print(json.dumps(figures))
        return
    checkouts = {"before": arguments.against, "now": Path.cwd()}
    runs: dict[str, list[dict[str, float]]] = {name: [] for name, path in checkouts.items() if path is not None}
    for _ in range(arguments.repeats):
        for name in runs:
            runs[name].append(measure(checkouts[name], arguments))
            print(name, runs[name][-1], file=sys.stderr, flush=True)
    lines = [f"| CPU | {' | '.join(runs)} |", "|---" * (1 + len(runs)) + "|"]
    lines += [f"| {title} | {' | '.join(cell(runs[name], key) for name in runs)} |" for title, key in ROWS.items()]
    started_by = "python eval/store/app.py --against DIR --locomo data/locomo10.json"
    packages = ("numpy", "faiss-cpu", "langgraph")
    head = opening("The store as an application uses it", packages, started_by=started_by)
    save(arguments.results / "store-app", runs, "\n".join([*head, PAGE, *lines]))


if __name__ == "__main__":
    main()
