"""Compare a store with a naive model under random operations: `python eval/store/model.py --operations 20000`.

The model is a dict of live facts, and a list with a copy of it for every log position. It shares no code with the
store. Operations: insert (also with an expiry), insert_many (also with vectors), update, merged metadata, update_many,
delete, delete_many, core_update, undo, restore, erase, transactions that commit or fail, fork, export and import, and
reopening with an index file; by two handles of one file. After each one, what a handle lists, filters, counts and shows
of a past state must be the model's. An id never returns for another fact, log times rise, and after an erasure no file
holds the erased text. Every search is compared with that of a new handle. `undo` is taken from the store, as long as it
touches one entry.
"""

from __future__ import annotations

import argparse
import random
import tempfile
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np

from memalpha.errors import DuplicateContent
from memalpha.store.store import MemoryStore

Facts = dict[str, tuple[str, str, tuple]]  # category, content, metadata by id
WORDS = ("oslo", "rome", "dog", "cat", "ana", "ben", "zoo", "tea", "red", "jazz")
CATEGORIES = ("semantic", "episodic")


class Program:
    """Random program on one store file, and its model."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.random, self.folder = random.Random(seed), folder
        self.path, self.counts, self.number = folder / "a.db", Counter[str](), 0
        self.now = datetime(2026, 11, 1, tzinfo=UTC)
        self.handles = [self.open(), self.open()]
        self.states: list[tuple[Facts, str]] = [({}, "")]  # by log position
        self.unknown: set[int] = set()  # positions inside a restore, whose states the model does not know
        self.erased_ids: set[str] = set()
        self.expiry: dict[str, datetime] = {}

    def open(self) -> MemoryStore:
        """Open another handle of the file."""
        return MemoryStore.open(self.path, embedder="hash", durability="normal", clock=lambda: self.now)

    @property
    def facts(self) -> Facts:
        """Live facts of the model."""
        return self.states[-1][0]

    def record(self, facts: Facts, core: str | None = None) -> None:
        """Append the state after one operation of the log."""
        self.states.append((facts, self.states[-1][1] if core is None else core))

    def content(self) -> str:
        """Return a new content."""
        self.number += 1
        return f"{self.random.choice(WORDS)} {self.random.choice(WORDS)}: secret{self.number}x"

    def step(self) -> None:
        """Run one random operation and compare."""
        self.now += timedelta(seconds=self.random.choice((0, 1, 60)))
        store = self.random.choice(self.handles)
        self.expire()
        operations: list[Callable[[MemoryStore], Any]] = [
            *[self.insert] * 4,
            self.insert_many,
            self.update,
            self.merge,
            self.update_many,
            self.delete,
            self.delete_many,
            self.core,
            self.restore,
            self.undo,
            self.erase,
            self.transaction,
            self.failed_transaction,
            self.fork,
            self.round_trip,
            self.reopen,
        ]
        operation = self.random.choice(operations)
        if len(self.facts) > 40:
            operation = self.delete_many
        operation(store)
        self.counts[operation.__name__] += 1
        self.check(self.random.choice(self.handles))

    def expire(self) -> None:
        """End what has expired, as the store does at its next access."""
        due = [(time, id) for id, time in self.expiry.items() if time <= self.now and id in self.facts]
        for _, id in sorted(due, key=lambda pair: (pair[0], list(self.facts).index(pair[1]))):
            self.record({key: fact for key, fact in self.facts.items() if key != id})

    def insert(self, store: MemoryStore) -> None:
        category, content, n = self.random.choice(CATEGORIES), self.content(), self.random.randrange(4)
        expires = self.now + timedelta(minutes=2) if self.random.random() < 0.1 else None
        entry = store.insert(
            category, content, metadata={"n": n}, expires=None if expires is None else expires.isoformat()
        )
        assert entry.id not in self.erased_ids and entry.id not in {id for facts, _ in self.states for id in facts}
        if expires is not None:
            self.expiry[entry.id] = expires
        self.record(self.facts | {entry.id: (category, content, (("n", n),))})

    def insert_many(self, store: MemoryStore) -> None:
        contents = [self.content() for _ in range(3)]
        vectors = None
        if self.random.random() < 0.5:
            vectors = np.array(store.load_embedder().encode(contents)) * 7.0
        entries = store.insert_many([{"category": "semantic", "content": text} for text in contents], vectors)
        for entry, content in zip(entries, contents, strict=True):
            assert entry.id not in self.erased_ids
            self.record(self.facts | {entry.id: ("semantic", content, ())})

    def some_id(self) -> str | None:
        """Return the id of a live fact without expiry, or None."""
        ids = [id for id in self.facts if id not in self.expiry]
        return self.random.choice(ids) if ids else None

    def update(self, store: MemoryStore) -> None:
        id = self.some_id()
        if id is not None:
            content = self.content()
            store.update(id, content)
            category, _, metadata = self.facts[id]
            self.record(self.facts | {id: (category, content, metadata)})

    def merge(self, store: MemoryStore) -> None:
        id = self.some_id()
        if id is not None:
            self.number += 1
            store.update(id, metadata={"m": self.number, "n": None}, merge_metadata=True)
            category, content, _ = self.facts[id]
            self.record(self.facts | {id: (category, content, (("m", self.number),))})

    def update_many(self, store: MemoryStore) -> None:
        ids = sorted({id for id in (self.some_id(), self.some_id()) if id is not None})
        updates = [{"id": id, "content": self.content()} for id in ids]
        store.update_many(updates)
        for update in updates:
            category, _, metadata = self.facts[update["id"]]
            self.record(self.facts | {update["id"]: (category, update["content"], metadata)})

    def delete(self, store: MemoryStore) -> None:
        id = self.some_id()
        if id is not None:
            store.delete(id)
            self.record({key: fact for key, fact in self.facts.items() if key != id})

    def delete_many(self, store: MemoryStore) -> None:
        n = self.random.randrange(4)
        ended = store.delete_many(where={"n": n})
        assert {entry.id for entry in ended} == {id for id, fact in self.facts.items() if ("n", n) in fact[2]}
        for entry in ended:
            self.record({key: fact for key, fact in self.facts.items() if key != entry.id})

    def core(self, store: MemoryStore) -> None:
        self.number += 1
        store.core_update(f"core {self.number}")
        self.record(self.facts, f"core {self.number}")

    def restore(self, store: MemoryStore) -> None:
        position = self.random.randrange(len(self.states))
        if position in self.unknown or any(id in self.expiry for id in self.states[position][0]):
            return
        count = store.restore(position)
        facts, core = self.states[position]
        for _ in range(count):  # states between are the store's own
            self.states.append((facts, core))
        self.forget_past(count)

    def undo(self, store: MemoryStore) -> None:
        before, position = self.facts, store.snapshot()
        if store.undo() is not None:
            assert store.snapshot() == position + 1
            now = {entry.id: fact(entry) for entry in store.list()}
            assert len({id for id in before.keys() | now.keys() if before.get(id) != now.get(id)}) <= 1
            self.record(now, store.core)

    def forget_past(self, count: int) -> None:
        """Compare no past state of the last operations but the newest."""
        self.unknown |= set(range(len(self.states) - count, len(self.states) - 1))

    def erase(self, store: MemoryStore) -> None:
        id = self.some_id()
        if id is None:
            return
        texts = {facts[id][1] for facts, _ in self.states if id in facts}
        store.erase(id)
        self.erased_ids.add(id)
        self.states = [({key: value for key, value in facts.items() if key != id}, core) for facts, core in self.states]
        self.record(self.facts)
        live = {value[1] for facts, _ in self.states for value in facts.values()}
        for file in self.folder.glob("a.db*"):
            data = file.read_bytes()
            assert not [text for text in texts - live if text.encode() in data], file

    def transaction(self, store: MemoryStore) -> None:
        with store.transaction():
            for operation in self.random.choices([self.insert, self.update, self.merge, self.delete], k=3):
                operation(store)
            store.search("secret oslo")

    def failed_transaction(self, store: MemoryStore) -> None:
        states, expiry = list(self.states), dict(self.expiry)
        try:
            with store.transaction():
                self.transaction_body(store)
                raise ZeroDivisionError
        except ZeroDivisionError:
            self.states, self.expiry = states, expiry

    def transaction_body(self, store: MemoryStore) -> None:
        """Write, search and fail once inside a transaction."""
        self.insert(store)
        store.search("secret rome")
        store.search("secret rome", as_of=store.snapshot())
        duplicate = next((value for value in self.facts.values()), None)
        other = [id for id, value in self.facts.items() if duplicate is not None and value[1] != duplicate[1]]
        same = [id for id in other if self.facts[id][0] == duplicate[0]] if duplicate is not None else []
        if same and duplicate is not None:
            try:
                store.update(same[0], duplicate[1])
            except DuplicateContent:
                return
            raise AssertionError("a duplicate was stored")

    def fork(self, store: MemoryStore) -> None:
        name = f"copy {self.number}"
        copy = store.fork(name)
        assert {entry.id: fact(entry) for entry in copy.list()} == self.facts
        copy.insert("semantic", "of the copy alone")
        store.drop_namespace(name)

    def round_trip(self, store: MemoryStore) -> None:
        file = self.folder / f"log-{self.number}.jsonl"
        store.export_jsonl(file)
        with MemoryStore.open(":memory:", embedder="hash", clock=lambda: self.now) as copy:
            copy.import_jsonl(file)
            assert {entry.id: fact(entry) for entry in copy.list()} == self.facts
        file.unlink()

    def reopen(self, store: MemoryStore) -> None:
        store.build_index()
        self.handles.remove(store)
        store.close()
        self.handles.append(self.open())

    def check(self, store: MemoryStore) -> None:
        """Compare everything that a handle reads with the model, and its search with that of a new index."""
        assert {entry.id: fact(entry) for entry in store.list()} == self.facts
        assert store.core == self.states[-1][1] and store.snapshot() == len(self.states) - 1
        n = self.random.randrange(4)
        passing = {id for id, value in self.facts.items() if ("n", n) in value[2]}
        assert {entry.id for entry in store.list(where={"n": n})} == passing
        assert store.count(where={"n": n}) == len(passing)
        position = self.random.randrange(len(self.states))
        if position not in self.unknown:
            assert {entry.id: fact(entry) for entry in store.list(as_of=position)} == self.states[position][0]
        times = [time for _, time, _ in store.log(max(0, store.snapshot() - 20))]
        assert times == sorted(times)
        query = " ".join(self.random.choices(WORDS, k=2))
        options: dict[str, Any] = self.random.choice(({}, {"where": {"n": n}}, {"as_of": position}, {"route": "flat"}))
        with self.open() as fresh:
            assert _hits(store, query, options) == _hits(fresh, query, options), (query, options)
        self.counts["searches"] += 1

    def close(self) -> None:
        """Close all handles."""
        for handle in self.handles:
            handle.close()


def fact(entry: Any) -> tuple[str, str, tuple]:
    """Return an entry as the model holds it."""
    return entry.category, entry.content, tuple(sorted(entry.metadata.items()))


def _hits(store: MemoryStore, query: str, options: dict[str, Any]) -> list[tuple[str, float]]:
    """Return ids and scores of a search."""
    return [(hit.entry.id, round(hit.score, 6)) for hit in store.search(query, 10, **options)]


def run(seed: int, operations: int) -> Counter[str]:
    """Run one random program and return the number of operations by name."""
    with tempfile.TemporaryDirectory() as folder:
        program = Program(seed, Path(folder))
        try:
            for _ in range(operations):
                program.step()
        finally:
            program.close()
    return program.counts


def main() -> None:
    """Run programs of 200 operations each and print what they did."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--operations", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0, help="seed of the first program")
    options = parser.parse_args()
    counts = Counter[str]()
    for number in range(max(1, options.operations // 200)):
        counts += run(options.seed + number, min(200, options.operations))
    print(dict(counts.most_common()))


if __name__ == "__main__":
    main()
