"""Compare a store with a naive memory under programs that hypothesis makes, over all operations.

    python eval/store/model/machine.py --operations 100000 --seed 0 --out eval/results/store-model.json

Three handles of one file and two namespaces: insert (with expiry, speaker, source), insert_many (with and without
vectors), update, merged metadata, update_many, upsert, delete, delete_many, core_update, undo, redo, restore, revert,
quarantine and review, erase, erase_all, erase_core_history, drop_namespace, fork (into a namespace, into a file),
backup, export and import, transactions that commit or are rolled back, reopening, a clock that is
set back.
After each one, a handle must list, count, page, filter, show of a past position or time, and find by search what the
naive memory (`naive.py`) and a search by brute force (`brute_force.py`) say. Neither imports anything of memalpha.

Invariants: an id is never given again; log times never go back; after an erasure no file below the store's folder holds
a text, an id or a vector that only erased entries had; `doctor` finds nothing at the end.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import warnings
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from brute_force import Doc, ExactEmbedder, compare_hits, embed
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test
from naive import Fact, NaiveMemory
from operations import OPERATIONS, Operations

from memalpha.store.checks.integrity import examine
from memalpha.store.store import MemoryStore

STEPS = 100  # operations of a program
_ROUTES = ("soft", "flat", "dense", "bm25", "hard")
COUNTS = Counter[str]()


class StoreMachine(RuleBasedStateMachine, Operations):
    """A store file with its handles, and a naive memory for each of its namespaces."""

    @initialize()
    def start(self) -> None:
        """Create the store."""
        self.temporary = tempfile.TemporaryDirectory()
        self.folder = Path(self.temporary.name)
        self.now = datetime(2026, 11, 1, tzinfo=UTC)
        self.number = 0
        self.memories: dict[str, NaiveMemory] = {}
        self.scopes: dict[tuple[int, str], MemoryStore] = {}
        self.handles = [self.open(), self.open(), self.open()]

    def open(self) -> MemoryStore:
        """Open another handle of the file."""
        return MemoryStore.open(
            self.folder / "a.db", embedder=ExactEmbedder(), durability="normal", clock=lambda: self.now
        )

    @rule(name=st.sampled_from(OPERATIONS), choices=st.integers(0, 2**32))
    def operate(self, name: str, choices: int) -> None:
        """Run one operation, whose arguments follow from `choices`, and compare everything."""
        self.draw = random.Random(choices).randrange
        self.now += timedelta(seconds=self.pick((0, 1, 60, 60, 200, -3600)))
        self.namespace = self.pick(("default", "other"))
        self.handle = self.pick(self.handles)
        getattr(self, name)()
        COUNTS[name] += 1
        COUNTS["operations"] += 1
        for namespace in [self.namespace] if self.draw(4) else list(self.memories):
            self.check(self.scope(self.pick(self.handles), namespace), self.memory(namespace))

    def check(self, store: MemoryStore, memory: NaiveMemory) -> None:
        """Compare what a handle reads with the naive memory."""
        memory.expire(self.now)
        live = {entry.id: self.fact(entry) for entry in store.list()}
        order = sorted(memory.now.facts, key=memory.created.__getitem__)
        assert list(live) == order and live == memory.now.facts
        assert store.core == memory.now.core and store.snapshot() == memory.position
        self.check_log(store, memory)
        self.check_reads(store, memory, order)
        self.check_search(store, memory)

    def check_log(self, store: MemoryStore, memory: NaiveMemory) -> None:
        """Compare the log and one past state."""
        start = max(0, memory.position - 30)
        log = list(store.log(start))
        assert [datetime.fromisoformat(time) for _, time, _ in log] == [row.time for row in memory.rows[start:]]
        assert [operation.kind for _, _, operation in log] == [row.kind for row in memory.rows[start:]]
        position = self.draw(memory.position + 1)
        state = memory.states[position]
        assert {entry.id: self.fact(entry) for entry in store.list(as_of=position)} == state.facts
        assert store.core_at(position) == state.core
        moment = self.now - timedelta(seconds=self.pick((0, 61, 500)))
        by_time = sum(row.time <= moment for row in memory.rows)
        assert {entry.id for entry in store.list(as_of=moment.isoformat())} == memory.states[by_time].facts.keys()
        diff, old, new = store.diff(position), state.facts, memory.now.facts
        assert {entry.id for entry in diff.added} == new.keys() - old.keys()
        assert {entry.id for entry in diff.removed} == old.keys() - new.keys()
        changed = {id for id in old.keys() & new.keys() if self.essence(old[id]) != self.essence(new[id])}
        assert {entry.id for _, entry in diff.changed} == changed

    def check_reads(self, store: MemoryStore, memory: NaiveMemory, order: list[str]) -> None:
        """Compare a filter, a page, one entry with its history, the queue of reviews."""
        where, passes = self.where()
        facts = memory.now.facts
        passing = [id for id in order if passes(facts[id])]
        assert [entry.id for entry in store.list(where=where)] == passing, where
        assert store.count(where=where) == len(passing)
        category = self.pick(("semantic", "episodic"))
        assert store.count(category) == sum(fact.category == category for fact in facts.values())
        if order:
            id = self.pick(order)
            assert [e.id for e in store.list(limit=2, after=id)] == order[order.index(id) + 1 :][:2]
            history = [self.fact(entry) for entry in store.history(id)]
            assert history == [fact for _, fact in memory.events[id] if fact is not None]
            holders = [other for other in order if _text(facts[other]) == _text(facts[id])]
            assert store.find(*_text(facts[id])) == store.get(holders[0])
        newest = sorted(facts, key=lambda id: -memory.events[id][-1][0])[:3]
        assert [entry.id for entry in store.recent(3)] == newest
        pending = {item.position: item.before for item in store.quarantined()}
        assert pending == {position: item.before for position, item in memory.queue.items()}

    def check_search(self, store: MemoryStore, memory: NaiveMemory) -> None:
        """Compare a search with brute force."""
        query = " ".join(self.pick(self.WORDS) for _ in range(2))
        k, route = self.pick((1, 3, 50)), self.pick(_ROUTES)
        where, passes = self.where() if self.draw(2) else (None, lambda _: True)
        position = self.draw(memory.position + 1) if self.draw(3) == 0 else None
        state = memory.now if position is None else memory.states[position]
        end = memory.position if position is None else position
        docs = [
            Doc(
                id,
                fact.category,
                fact.content,
                max(at for at, event in memory.events[id] if at <= end and event is not None),
                memory.given.get(fact.content) or embed(fact.content),
            )
            for id, fact in state.facts.items()
            if passes(fact)
        ]
        hits = store.search(query, k, route=route, where=where, as_of=position)
        compare_hits([(hit.entry.id, hit.score) for hit in hits], docs, query, route, k)
        for hit in hits:
            assert self.fact(hit.entry) == state.facts[hit.entry.id]
        COUNTS["searches"] += 1
        COUNTS["searches with hits"] += bool(hits)
        COUNTS["facts searched"] += len(docs)

    def teardown(self) -> None:
        """Close everything and look at the file once more."""
        if not hasattr(self, "handles"):
            return
        for handle in self.handles:
            handle.close()
        problems = examine(self.folder / "a.db").problems
        self.temporary.cleanup()
        assert problems == [], [str(problem) for problem in problems]
        COUNTS["programs"] += 1


def run(operations: int, seed_number: int, *, shrink: bool = True, steps: int = STEPS) -> Counter[str]:
    """Run programs of `steps` operations each and return what they did.

    Args:
        operations: Operations of all programs together, about.
        seed_number: Seed of hypothesis.
        shrink: Look for a shorter program that fails, too.
        steps: Operations of a program at most.
    """
    COUNTS.clear()
    phases = (Phase.generate, Phase.shrink) if shrink else (Phase.generate,)
    options = settings(
        max_examples=max(1, operations // steps),
        stateful_step_count=steps,
        deadline=None,
        database=None,
        phases=phases,
        suppress_health_check=list(HealthCheck),  # pyright: ignore[reportArgumentType]: pyright lacks its metaclass
        print_blob=False,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run_state_machine_as_test(seed(seed_number)(StoreMachine), settings=options)
    return COUNTS


def _text(fact: Fact) -> tuple[str, str]:
    return fact.category, fact.content


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--operations", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--shrink", action="store_true", help="shorten a program that fails")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    total, number, text = Counter[str](), options.seed, ""
    while total["operations"] < options.operations:
        total += run(min(500, options.operations - total["operations"] + STEPS), number, shrink=options.shrink)
        number += 1
        text = json.dumps({"seed": options.seed, **dict(total.most_common())})
        if options.out:
            options.out.write_text(text + "\n", encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
