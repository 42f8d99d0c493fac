"""Measure the CPU of single calls of a store in memory, in a file and on PostgreSQL, and of LangGraph's memory store.

    python eval/store/calls.py [--stores memory file postgres langgraph] [--size 20000] [--rounds 7]

Facts are seeded: 14 random words and three keys of metadata each. Vectors are given (256 numbers); the store "static"
embeds by the default embedder instead. A round fills a new store and makes each call some hundred times. Figures are µs
of CPU a call (of insert_many: a fact), of the process and the server: median of the rounds, least and most. To compare
two checkouts, run it in both by turns. The server runs without fsync, which is no CPU of its.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from langgraph.store.memory import InMemoryStore

from memalpha.store.store import MemoryStore

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "support"))
from postgres_server import server

DIM, CALLS = 256, 300
WORDS = [f"word{number}" for number in range(3000)]
Calls = dict[str, tuple[int, Callable[[int], object]]]


class Embedder:
    """Embedder whose vectors are given."""

    name, dim = "given", DIM

    def __init__(self, texts: list[str]) -> None:
        self._rows = {text: row for row, text in enumerate(texts)}
        vectors = np.random.default_rng(0).standard_normal((len(texts), DIM)).astype(np.float32)
        self._vectors = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        """Return the vectors of the texts."""
        return self._vectors[[self._rows.get(text, 0) for text in texts]]


def cpu_seconds(postmaster: psutil.Process | None) -> float:
    """Return the seconds of CPU that this process and the server's have used, those that ended included."""
    seconds = time.process_time()
    for process in [*postmaster.children(), postmaster] if postmaster else []:
        with suppress(psutil.NoSuchProcess):  # ended meanwhile: its parent has its time
            seconds += sum(process.cpu_times()[: 4 if process == postmaster else 2])
    return seconds


def store_calls(store: MemoryStore, facts: list[dict[str, Any]], texts: list[str], vectors: Any) -> Calls:
    """Return the calls of a store: how often each is made, and the call by its number."""
    ids: list[str] = []
    metadata = {"n": 1, "user": "u1", "day": 3}
    return {
        "insert_many": (1, lambda _: ids.extend(entry.id for entry in store.insert_many(facts, vectors))),
        "get": (10 * CALLS, lambda n: store.get(ids[n % len(ids)])),
        "list(limit=10)": (3 * CALLS, lambda _: store.list(limit=10)),
        "list(limit=50)": (CALLS, lambda _: store.list(limit=50)),
        "insert": (CALLS, lambda n: store.insert("semantic", texts[n], metadata=metadata)),
        "add": (CALLS, lambda n: store.add(texts[CALLS + n])),
        "update": (CALLS, lambda n: store.update(ids[n], texts[2 * CALLS + n])),
        "delete": (CALLS, lambda n: store.delete(ids[n])),
    }


def langgraph_calls(facts: list[dict[str, Any]]) -> Calls:
    """Return the calls of LangGraph's memory store, without an index; its `search` without a query lists."""
    store = InMemoryStore()
    return {
        "insert": (len(facts), lambda n: store.put(("facts",), str(n), facts[n])),
        "get": (10 * CALLS, lambda n: store.get(("facts",), str(n % len(facts)))),
        "list(limit=10)": (3 * CALLS, lambda _: store.search(("facts",), limit=10)),
        "list(limit=50)": (CALLS, lambda _: store.search(("facts",), limit=50)),
        "delete": (CALLS, lambda n: store.delete(("facts",), str(n))),
    }


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--stores", nargs="+", default=["memory", "static", "file", "postgres", "langgraph"])
    parser.add_argument("--size", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    rng = random.Random(0)
    texts = [f"{n}: {' '.join(rng.choices(WORDS, k=14))}" for n in range(options.size + 3 * CALLS)]
    facts = [
        {
            "category": "semantic" if n % 2 else "episodic",
            "content": text,
            "metadata": {"n": n, "user": f"u{n % 50}", "day": n % 1000},
        }
        for n, text in enumerate(texts[: options.size])
    ]
    embedder = Embedder(texts)
    for name in options.stores:
        costs: dict[str, list[float]] = {}
        with ExitStack() as stack:
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            running = stack.enter_context(server()) if name == "postgres" else None
            postmaster = psutil.Process(running.pid) if running else None

            for number in range(options.rounds):
                if name == "langgraph":
                    calls = langgraph_calls(facts)
                else:
                    path = running.url(f"calls_{number}") if running else f"{folder}/{number}.db"
                    is_given = name != "static"
                    store = MemoryStore.open(
                        path if name in ("file", "postgres") else ":memory:", embedder=embedder if is_given else None
                    )
                    store.load_embedder().encode(["a"])
                    vectors = embedder.encode(texts[: options.size]) if is_given else None
                    calls = store_calls(store, facts, texts[options.size :], vectors)
                for title, (count, call) in calls.items():
                    start = cpu_seconds(postmaster)
                    for index in range(count):
                        call(index)
                    per_fact = options.size if title == "insert_many" else 1
                    costs.setdefault(title, []).append((cpu_seconds(postmaster) - start) / count / per_fact * 1e6)
        print(f"\n{name}, {options.size:,} facts\n")
        for title, values in costs.items():
            print(f"| {title} | {statistics.median(values):.1f} ({min(values):.1f}-{max(values):.1f}) |", flush=True)


if __name__ == "__main__":
    main()
