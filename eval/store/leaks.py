"""Random operations and queries in random namespaces of one file: does anything of one show in another?

    python eval/store/leaks.py --steps 100000 --out eval/results/store-leaks.json

Every namespace has a word that is in all of its entries and in no other's, beside words that all share. Each has a
twin: a memory of its own, in no file, that is given the same operations. Counted at every step: what a namespace gives
that is another's (`leaks`), and answers, scores included, that are not the twin's (`differences`). A twin has no
neighbours, so what equals it cannot depend on what other namespaces hold.
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
MOST = 40  # entries of a namespace: beyond, one goes for each that comes


class Scope:
    """A namespace and its twin; `mark` is the word that only it has."""

    def __init__(self, store: MemoryStore, number: int) -> None:
        self.mark = f"mark{number}"
        self.store = store.namespace(f"user {number}")
        self.twin = WorkingMemory(MemoryState.empty(MEM_ALPHA), load_embedder("hash"))
        self.past = [self.twin.state]  # by position
        self.ids: list[str] = []

    def step(self, kind: str, rng: random.Random, everyone: list[Scope]) -> tuple[bool, bool]:
        """Do something; whether it leaked and whether the twin does otherwise."""
        words = " ".join(rng.sample(SHARED, 3))
        query = f"{words} mark{rng.randrange(len(everyone))}"
        if kind in ("search", "filter"):
            asked = {} if kind == "search" else {"where": {"importance": {"$gte": 0.5}}}
            hits, right = self.store.search(query, 5, **asked), self.twin.search(query, 5, **asked)
            return self.leaks([hit.entry for hit in hits]), hits != right
        if kind == "list":
            entries = self.store.list()
            return self.leaks(entries), entries != self.twin.list()
        if kind in ("get", "history"):  # of an id that may be another's
            id = rng.choice(rng.choice(everyone).ids or ["nobody"])
            known = [done for done in (self.twin.state.latest_version(id),) if done]
            found = answer(getattr(self.store, kind), id)
            versions = found if isinstance(found, list) else [found] if isinstance(found, MemoryEntry) else []
            live = bool(known) and known[0].valid_to is None
            return self.leaks(versions), bool(versions) != (bool(known) if kind == "history" else live)
        if kind == "past":
            place = rng.randrange(len(self.past))
            entries = self.store.list(as_of=place)
            return self.leaks(entries), entries != self.past[place].list()
        before, entries = self.store.snapshot(), self.twin.list()
        if kind == "undo":
            self.store.undo()
            for _, _, done in self.store.log(before):
                self.twin.apply(done)
        else:
            id = rng.choice(entries).id if entries else "nobody"
            text = f"{words}: {self.mark} {rng.randrange(1000)}"
            done = Operation("insert", category="semantic", content=text, importance=rng.random())
            if kind == "delete" or (kind == "insert" and len(entries) > MOST):
                done = Operation("delete", id=id)
            elif kind == "update":
                done = Operation("update", id=id, content=text)
            given, right = answer(self.store.apply, done), answer(self.twin.apply, done)
            if given != right:
                return False, True
        if self.twin.state.position == len(self.past):
            self.past.append(self.twin.state)
            self.ids += [entry.id for entry in self.twin.list()[-1:]]
        return False, self.store.snapshot() != len(self.past) - 1

    def leaks(self, entries: list[MemoryEntry]) -> bool:
        """Whether there is an entry of another namespace."""
        return any(self.mark not in entry.content.split() for entry in entries)


def answer(ask, *args) -> object:
    """What a call gives, or how it refuses."""
    try:
        return ask(*args)
    except StoreError as error:
        return type(error), str(error)


def run(steps: int, namespaces: int, seed: int) -> dict[str, int | float]:
    """Do the steps; the counts."""
    rng, counts, start = random.Random(seed), Counter(), time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "leaks.db"
        with MemoryStore.open(path, embedder="hash", durability="normal") as store:
            scopes = [Scope(store, number) for number in range(namespaces)]
            for _ in range(steps):
                kind = rng.choice(KINDS)
                leaked, differs = rng.choice(scopes).step(kind, rng, scopes)
                counts[kind] += 1
                counts["leaks"] += leaked
                counts["differences"] += differs
            counts["differences"] += sum(scope.store.state != scope.twin.state for scope in scopes)
            operations = sum(scope.store.snapshot() for scope in scopes)
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
    """Read the command line."""
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
