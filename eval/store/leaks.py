"""Run random operations and queries in random namespaces of one file and count leaks between namespaces.

    python eval/store/leaks.py --steps 100000 --out eval/results/store-leaks.json

Every namespace has a marker word in all of its entries and in no other namespace's, beside words that all share. Each
has a twin: an in-memory store that gets the same operations. Two counts are kept at every step: entries of another
namespace in a result (`leaks`), and results, scores included, that differ from the twin's (`differences`). A twin has
no neighbours, so equal results cannot depend on other namespaces.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from memalpha.errors import StoreError
from memalpha.store.embedding import load_embedder
from memalpha.store.in_memory import WorkingMemory
from memalpha.store.schema import MEM_ALPHA
from memalpha.store.state import MemoryState
from memalpha.store.store import MemoryStore
from memalpha.types import MemoryEntry, Operation

KINDS = (*("search",) * 4, *("insert",) * 4, "filter", "update", "delete", "list", "get", "history", "undo", "past")
SHARED = ["pet", "city", "job", "food", "friend", "lives", "likes", "moved", "bought", "near"]
MAX_ENTRIES = 40  # entries of a namespace: beyond, one goes for each that comes


class NamespacePair:
    """A namespace and its in-memory twin; `mark` is its marker word."""

    def __init__(self, store: MemoryStore, number: int) -> None:
        self.mark = f"mark{number}"
        self.store = store.namespace(f"user {number}")
        self.twin = WorkingMemory(MemoryState.empty(MEM_ALPHA), load_embedder("hash"))
        self.past = [self.twin.state]  # by position
        self.ids: list[str] = []

    def step(self, kind: str, rng: random.Random, pairs: list[NamespacePair]) -> tuple[bool, bool]:
        """Run one operation or query and return (leaked, differs from the twin).

        Args:
            kind: One of `KINDS`.
            rng: Source of texts, ids and positions.
            pairs: All pairs, for ids of other namespaces.
        """
        words = " ".join(rng.sample(SHARED, 3))
        query = f"{words} mark{rng.randrange(len(pairs))}"
        if kind in ("search", "filter"):
            search_arguments = {} if kind == "search" else {"where": {"importance": {"$gte": 0.5}}}
            hits, expected = (
                self.store.search(query, 5, **search_arguments),
                self.twin.search(query, 5, **search_arguments),
            )
            return self.has_foreign_entry([hit.entry for hit in hits]), hits != expected
        if kind == "list":
            entries = self.store.list()
            return self.has_foreign_entry(entries), entries != self.twin.list()
        if kind in ("get", "history"):  # of an id that may be another's
            id = rng.choice(rng.choice(pairs).ids or ["nobody"])
            versions_known = [operation for operation in (self.twin.state.latest_version(id),) if operation]
            outcome = call_outcome(getattr(self.store, kind), id)
            versions = outcome if isinstance(outcome, list) else [outcome] if isinstance(outcome, MemoryEntry) else []
            live = bool(versions_known) and versions_known[0].valid_to is None
            return self.has_foreign_entry(versions), bool(versions) != (
                bool(versions_known) if kind == "history" else live
            )
        if kind == "past":
            position = rng.randrange(len(self.past))
            entries = self.store.list(as_of=position)
            return self.has_foreign_entry(entries), entries != self.past[position].list()
        before, entries = self.store.snapshot(), self.twin.list()
        if kind == "undo":
            self.store.undo()
            for _, _, operation in self.store.log(before):
                self.twin.apply(operation)
        else:
            id = rng.choice(entries).id if entries else "nobody"
            text = f"{words}: {self.mark} {rng.randrange(1000)}"
            operation = Operation("insert", category="semantic", content=text, importance=rng.random())
            if kind == "delete" or (kind == "insert" and len(entries) > MAX_ENTRIES):
                operation = Operation("delete", id=id)
            elif kind == "update":
                operation = Operation("update", id=id, content=text)
            store_outcome, expected = (
                call_outcome(self.store.apply, operation),
                call_outcome(self.twin.apply, operation),
            )
            if store_outcome != expected:
                return False, True
        if self.twin.state.position == len(self.past):
            self.past.append(self.twin.state)
            self.ids += [entry.id for entry in self.twin.list()[-1:]]
        return False, self.store.snapshot() != len(self.past) - 1

    def has_foreign_entry(self, entries: list[MemoryEntry]) -> bool:
        """Return True if an entry belongs to another namespace."""
        return any(self.mark not in entry.content.split() for entry in entries)


def call_outcome(function, *args) -> object:
    """Return the result of a call, or the type and text of its StoreError."""
    try:
        return function(*args)
    except StoreError as error:
        return type(error), str(error)


def run(steps: int, namespaces: int, seed: int) -> dict[str, int | float]:
    """Run the steps and return the counts.

    Args:
        steps: Number of operations and queries.
        namespaces: Number of namespaces in the file.
        seed: Seed of the steps.
    """
    rng, counts, start = random.Random(seed), Counter(), time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "leaks.db"
        with MemoryStore.open(path, embedder="hash", durability="normal") as store:
            pairs = [NamespacePair(store, number) for number in range(namespaces)]
            for _ in range(steps):
                kind = rng.choice(KINDS)
                leaked, differs = rng.choice(pairs).step(kind, rng, pairs)
                counts[kind] += 1
                counts["leaks"] += leaked
                counts["differences"] += differs
            counts["differences"] += sum(scope.store.state != scope.twin.state for scope in pairs)
            operations = sum(scope.store.snapshot() for scope in pairs)
    queries = sum(counts[kind] for kind in ("search", "filter", "list", "get", "history", "past"))
    return {
        "steps": steps,
        "namespaces": namespaces,
        "seed": seed,
        "logged_operations": operations,
        "queries": queries,
        "searches": counts["search"] + counts["filter"],
        "cpu_seconds": round(time.process_time() - start, 1),
        "leaks": counts["leaks"],
        "differences": counts["differences"],
    }


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--namespaces", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    result = run(options.steps, options.namespaces, options.seed)
    print(json.dumps(result))
    if options.out:
        options.out.write_text(json.dumps(result) + "\n", encoding="utf-8")
    sys.exit(bool(result["leaks"] or result["differences"]))


if __name__ == "__main__":
    main()
