"""Random calls on a store in PostgreSQL and on its twin in SQLite, compared after each call."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from memalpha.errors import StoreError
from memalpha.store.embedding import HashEmbedder
from memalpha.store.search.options import ROUTES, Boost
from memalpha.store.state import MemoryState
from memalpha.store.store import MemoryStore
from memalpha.types import Operation

Call = Callable[[MemoryStore], Any]
CATEGORIES = ("semantic", "episodic")
WRITES = {"many": 8, "insert": 6, "update": 6, "delete": 5, "undo": 3, "redo": 2, "restore": 3, "core": 1, "fork": 1}
WRITES |= {"erase": 0.2}
KEPT_FIELDS = ("timestamp", "importance", "metadata", "expires")  # by an update that does not name them
READS = {"search": 6, "list": 3, "get": 1, "history": 1}
NOW = datetime(2026, 1, 1, tzinfo=UTC)
WORDS = [
    "ana",
    "ben",
    "lives",
    "oslo",
    "rome",
    "likes",
    "tea",
    "bike",
    "moved",
    "dog",
    "cat",
    "work",
    "garden",
    "piano",
    "trip",
    "naïve",
    "値",
    "it's",
]
ODD_METADATA = [
    {},
    {"user": "ana"},
    {"user": "ben", "n": 3},
    {"n": 2**53 + 1},
    {"n": float(2**53)},
    {"n": 10**400},
    {"n": 1e23},
]
ODD_METADATA += [
    {"user": "a\0b", "deep": {"nul\0": [1, 0.1, None]}},
    {"user": "\ud800"},
    {"deep": {"x": {"y": 2.5}}},
    {"ok": True},
]
TIMES = [None, "2025-11-30", "20251130", "2025-12-05T23:30-12:00", "2025-12-06T01:00+14:00", "2026-01-01T00:00:00Z"]
FIELDS: dict[str, list[Any]] = {
    "user": ["ana", "ben", "a", None, "\ud800", "a\0b"],
    "n": [3, 2**53, 2**53 + 1, 1e23, 10**400, "3", None],
    "deep.x.y": [2.5, 2, None],
    "ok": [True, 1, None],
    "timestamp": [*TIMES, "2025-12", 5],
    "expires": ["2026-03-01", None],
    "content": [*WORDS[:4], "e", "naïve", "\0"],
    "category": ["semantic", "nine"],
    "importance": [0.1, 1, 3.0, True],
    "source": ["a", None],
    "chunk": [0, 1, 0.5, None],
    "id": ["ana#a", "m"],
    "turn": ["t", None],
}


class Twins:
    """Namespaces of a store on PostgreSQL, opened several times, and the same ones in SQLite, with one clock.

    Every call runs on both and the answers are compared; `states` follows each log by `MemoryState`.
    """

    def __init__(self, url: str, names: Sequence[str], seed: int) -> None:
        self.rng, self.names, self.now = random.Random(seed), names, NOW
        store_options: Any = {"embedder": HashEmbedder(32), "clock": lambda: self.now}
        self.stores = [MemoryStore.open(url, **store_options) for _ in range(3)]
        self.file = MemoryStore.open(":memory:", **store_options)
        self.states = {name: MemoryState.empty(self.file.schema) for name in names}
        self.scopes = {name: [store.namespace(name) for store in (self.file, *self.stores)] for name in names}
        self.differences: list[str] = []
        self.calls: Counter[str] = Counter()
        self.steps = 0

    @property
    def operation_count(self) -> int:
        return sum(state.position for state in self.states.values())

    def close(self) -> None:
        for store in (self.file, *self.stores):
            store.close()

    def step(self) -> None:
        """Run one write and two reads in a namespace."""
        rng, name = self.rng, self.rng.choice(self.names)
        self.now += timedelta(seconds=rng.choice([0, 1, 3600]))
        file, postgres = self.scopes[name][0], rng.choice(self.scopes[name][1:])
        kind = rng.choices(*zip(*WRITES.items(), strict=True))[0]
        self.compare_call(name, kind, file, postgres, self.write(kind, file, name))
        for _ in range(2):
            kind = rng.choices(*zip(*READS.items(), strict=True))[0]
            self.compare_call(name, kind, file, rng.choice(self.scopes[name][1:]), self.read(kind, file))
        self.steps += 1
        if self.steps % 10 == 0:
            self.compare_namespace(name)

    def compare_call(self, name: str, kind: str, file: MemoryStore, postgres: MemoryStore, call: Call) -> None:
        """Run a call on both stores, compare the outcomes, and follow the log.

        Args:
            name: Namespace.
            kind: Kind of call, for counts and messages.
            file: The twin in SQLite.
            postgres: The store in PostgreSQL.
            call: The call.
        """
        self.calls[kind] += 1
        expected, actual = (call_outcome(call, store) for store in (file, postgres))
        if not (results_match(actual, expected) if kind == "search" else actual == expected):
            self.differences.append(
                f"{name} at {self.states[name].position}: {kind}: {actual!r}, not {expected!r}"[:1000]
            )
        self.apply_log(name, anew=kind == "erase")

    def apply_log(self, name: str, *, anew: bool = False) -> None:
        """Apply new operations of the log; with `anew`, which an erasure needs, all of them."""
        file = self.scopes[name][0]
        state = MemoryState.empty(file.schema) if anew else self.states[name]
        for operation in [operation for _, _, operation in file.log(state.position)]:
            state = state.apply(operation)
        self.states[name] = state

    def compare_namespace(self, name: str) -> None:
        """Compare log, state, entries and past of a namespace."""
        self.apply_log(name)  # something may have expired
        file, postgres = self.scopes[name][0], self.rng.choice(self.scopes[name][1:])
        state, past = self.states[name], self.rng.randrange(self.states[name].position + 1)
        checks = {
            "log": list(postgres.log()) == list(file.log()),
            "state": postgres.state == state and postgres.core == state.core and postgres.snapshot() == state.position,
            "entries": postgres.list() == file.list() == state.list(),
            "past": postgres.list(as_of=past) == file.list(as_of=past) and postgres.core_at(past) == file.core_at(past),
        }
        self.differences += [f"{postgres} at {state.position}: {check}" for check, same in checks.items() if not same]

    def write(self, kind: str, file: MemoryStore, name: str) -> Call:
        """Return a random write of a kind.

        Args:
            kind: One of `WRITES`.
            file: The twin in SQLite.
            name: Namespace.
        """
        rng, id = self.rng, self.random_id(file)
        if kind == "insert":
            fact = self.random_fact()
            if rng.random() < 0.1:  # under an id, as what brings an entry back does
                return lambda store: store.change(Operation("insert", id=id, **fact)).entry
            return lambda store: store.insert(**fact)
        if kind == "many":
            facts = [self.random_fact() for _ in range(rng.randrange(1, 160))]
            return lambda store: store.insert_many(facts)
        if kind == "update":
            fact = self.random_fact()
            kept_fields = {key: value for key, value in fact.items() if key in KEPT_FIELDS and rng.random() < 0.6}
            return lambda store: store.update(id, fact["content"], **kept_fields)
        if kind == "restore":
            position = max(0, self.states[name].position - rng.randrange(40))
            return lambda store: store.restore(position)
        if kind == "core":
            text = self.random_text()
            return lambda store: store.core_update(text)
        if kind == "fork":
            fork_name = rng.choice(self.names)
            if self.states[fork_name].position == 0 and fork_name != name:
                self.compare_call(
                    fork_name, "forked", file, self.scopes[name][1], lambda store: len(store.fork(fork_name).list())
                )
            return lambda store: store.snapshot()
        if kind in ("delete", "erase"):
            return lambda store: getattr(store, kind)(id)
        return lambda store: getattr(store, kind)()  # undo, redo

    def read(self, kind: str, file: MemoryStore) -> Call:
        rng, id = self.rng, self.random_id(file)
        arguments: dict[str, Any] = {}
        if rng.random() < 0.5:
            arguments["where"] = self.random_filter()
        if rng.random() < 0.2:
            arguments["category"] = rng.choice(CATEGORIES)
        if rng.random() < 0.2:
            arguments["as_of"] = rng.randrange(file.snapshot() + 1)
        if kind == "search":
            arguments |= {"route": rng.choice(ROUTES), "k": rng.choice([1, 10, 40]), "around": rng.choice([0, 0, 30])}
            if rng.random() < 0.2:
                arguments["boost"] = Boost(0.5, 0.3, now="2026-01-01")
            query = " ".join(rng.choices(WORDS, k=rng.randrange(1, 5)))
            return lambda store: store.search(query, **arguments)
        if kind == "list":
            arguments |= {"limit": rng.choice([None, 3]), "after": rng.choice([None, id])}
            return lambda store: store.list(**arguments)
        if kind == "history":
            return lambda store: store.history(id)
        return lambda store: store.get(id, as_of=arguments.get("as_of"))

    def random_id(self, file: MemoryStore) -> str:
        """Return an entry's id, most of the time a live one's."""
        live = self.states[self.rng.choice(self.names) if self.rng.random() < 0.03 else file._namespace.name].entries
        return self.rng.choice(sorted(live)) if live and self.rng.random() < 0.95 else "nobody#x"

    def random_text(self) -> str:
        rng = self.rng
        words = rng.choices(WORDS, k=rng.randrange(1, 9))
        return " ".join([*words, "\0" if rng.random() < 0.005 else f"{rng.randrange(500)}"])

    def random_fact(self) -> dict[str, Any]:
        rng = self.rng
        fact: dict[str, Any] = {"category": rng.choice(CATEGORIES), "content": self.random_text()}
        if rng.random() < 0.4:
            fact |= {
                "importance": rng.choice([0.0, 0.1, 3.0]),
                "metadata": rng.choice(ODD_METADATA),
                "timestamp": rng.choice(TIMES),
            }
        if rng.random() < 0.3:
            fact |= {"source": rng.choice("ab"), "chunk": rng.choice([None, 0, 1]), "turn": rng.choice([None, "t"])}
        if rng.random() < 0.02:
            fact["expires"] = (self.now + timedelta(hours=rng.randrange(100))).isoformat()
        return fact

    def random_filter(self, depth: int = 0) -> dict[str, Any]:
        rng = self.rng
        if depth < 2 and rng.random() < 0.3:
            word = rng.choice(["$and", "$or", "$not"])
            return {
                word: self.random_filter(depth + 1)
                if word == "$not"
                else [self.random_filter(depth + 1) for _ in range(2)]
            }
        field, operands = rng.choice(list(FIELDS.items()))
        operator = rng.choice(["$eq", "$ne", "$in", "$gt", "$gte", "$lt", "$lte", "$contains"])
        operand = rng.choice(operands)
        return {field: {operator: [operand, rng.choice(operands)] if operator == "$in" else operand}}


def call_outcome(call: Call, store: MemoryStore) -> Any:
    """Return the result of a call, or the type and text of its StoreError."""
    try:
        return call(store)
    except StoreError as error:
        return type(error), str(error)


def results_match(actual: Any, expected: Any) -> bool:
    """Return True if two searches agree; hits with scores equal to 1e-6 may be swapped."""
    if isinstance(actual, tuple) or isinstance(expected, tuple) or len(actual) != len(expected):
        return actual == expected
    expected_by_id = {hit.entry.id: hit for hit in expected}
    for hit, expected_hit in zip(actual, expected, strict=True):
        if abs(hit.score - expected_hit.score) > 1e-6:
            return False
        matching_hit = expected_by_id.get(hit.entry.id)
        if matching_hit is None:  # the last ones may be others that score the same
            if abs(hit.score - expected[-1].score) > 1e-6:
                return False
        elif (
            hit.entry != matching_hit.entry
            or hit.around != matching_hit.around
            or hit.explain.keys() != matching_hit.explain.keys()
            or any(abs(hit.explain[part] - matching_hit.explain[part]) > 1e-6 for part in hit.explain)
        ):
            return False
    return True


def run_random_calls(url: str, number: int, namespaces: int, *, seed: int = 0) -> dict[str, Any]:
    """Run random calls until the logs hold `number` operations.

    Args:
        url: Database URL with its schema.
        number: Operations to reach over all namespaces.
        namespaces: Number of namespaces.
        seed: Seed of the calls.
    """
    twins = Twins(url, [f"n{index}" for index in range(namespaces)], seed)
    try:
        while twins.operation_count < number:
            twins.step()
        for name in twins.names:
            twins.compare_namespace(name)
        if twins.stores[0].namespaces() != sorted(name for name in twins.names if twins.states[name].position):
            twins.differences.append("the list of namespaces")
        calls = {"operations": twins.operation_count, "searches": twins.calls["search"]}
        return {**calls, "differences": twins.differences}
    finally:
        twins.close()
