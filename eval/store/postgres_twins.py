"""Random calls on a store in PostgreSQL and on its twin in SQLite: what each says, and what hostile
sessions see between the calls."""

from __future__ import annotations

import multiprocessing
import random
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from postgres_attacks import SECRET, attempt, settings, statements

from memalpha.errors import StoreError
from memalpha.store.embedding import HashEmbedder
from memalpha.store.search.boost import Boost
from memalpha.store.search.ranking import ROUTES
from memalpha.store.state import MemoryState
from memalpha.store.store import MemoryStore
from memalpha.types import Operation

Call = Callable[[MemoryStore], Any]
CATEGORIES = ("semantic", "episodic")
WRITES = {"many": 8, "insert": 6, "update": 6, "delete": 5, "undo": 3, "redo": 2, "restore": 3, "core": 1, "fork": 1}
WRITES |= {"erase": 0.2}
KEPT = ("timestamp", "importance", "metadata", "expires")  # by an update that does not name them
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
ODD = [{}, {"user": "ana"}, {"user": "ben", "n": 3}, {"n": 2**53 + 1}, {"n": float(2**53)}, {"n": 10**400}, {"n": 1e23}]
ODD += [
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
    """Namespaces of a store on PostgreSQL, opened several times, and the same ones in SQLite, by one clock.

    Every call is made on both, and what they say is compared; `states` follows each log by `MemoryState`. Between calls
    a role, admitted to the first namespace alone, attacks the others, if its URL is given; what it saw is in `leaks`.
    """

    def __init__(self, url: str, names: Sequence[str], seed: int, tenant: str = "") -> None:
        self.rng, self.names, self.now = random.Random(seed), names, NOW
        self.url, self.tenant, self.attempts = url, tenant, 0
        self.leaks: list[str] = []
        given: Any = {"embedder": HashEmbedder(32), "clock": lambda: self.now}
        self.stores = [MemoryStore.open(url, **given) for _ in range(3)]
        self.file = MemoryStore.open(":memory:", **given)
        self.states = {name: MemoryState.empty(self.file.schema) for name in names}
        self.scopes = {name: [store.namespace(name) for store in (self.file, *self.stores)] for name in names}
        self.differences: list[str] = []
        self.calls: Counter[str] = Counter()
        self.steps = 0

    @property
    def done(self) -> int:
        return sum(state.position for state in self.states.values())

    def close(self) -> None:
        for store in (self.file, *self.stores):
            store.close()

    def step(self) -> None:
        """One write and one read in a namespace."""
        rng, name = self.rng, self.rng.choice(self.names)
        self.now += timedelta(seconds=rng.choice([0, 1, 3600]))
        file, there = self.scopes[name][0], rng.choice(self.scopes[name][1:])
        kind = rng.choices(*zip(*WRITES.items(), strict=True))[0]
        self.same(name, kind, file, there, self.write(kind, file, name))
        for _ in range(2):
            kind = rng.choices(*zip(*READS.items(), strict=True))[0]
            self.same(name, kind, file, rng.choice(self.scopes[name][1:]), self.read(kind, file))
        self.steps += 1
        if self.steps % 10 == 0:
            self.whole(name)
        if self.tenant and self.steps % 5 == 0 and name != self.names[0]:
            self.attack(name)

    def attack(self, name: str) -> None:
        """Let the tenant try something of another namespace."""
        scope = self.scopes[name][1]
        with scope._namespace.transaction(write=False):
            number = scope._namespace.namespace_id
        user, schema = self.tenant.partition("//")[2].partition("@")[0], self.url.partition("schema=")[2]
        setting = self.rng.choice(settings(schema, user, number, name))
        statement = self.rng.choice(statements(schema, number, self.names[0], 16))
        self.attempts += 1
        if attempt(self.tenant.partition("&schema")[0], setting, statement):
            self.leaks.append(f"{setting} | {statement}")

    def same(self, name: str, kind: str, file: MemoryStore, there: MemoryStore, call: Call) -> None:
        """Make a call on both, and follow the log."""
        self.calls[kind] += 1
        wanted, said = (outcome(call, store) for store in (file, there))
        if not (alike(said, wanted) if kind == "search" else said == wanted):
            self.differences.append(f"{name} at {self.states[name].position}: {kind}: {said!r}, not {wanted!r}"[:1000])
        self.follow(name, anew=kind == "erase")

    def follow(self, name: str, *, anew: bool = False) -> None:
        """Apply what the log has more; all of it where something was erased."""
        file = self.scopes[name][0]
        state = MemoryState.empty(file.schema) if anew else self.states[name]
        for operation in [operation for _, _, operation in file.log(state.position)]:
            state = state.apply(operation)
        self.states[name] = state

    def whole(self, name: str) -> None:
        """Compare all that a namespace holds."""
        self.follow(name)  # something may have expired
        file, there = self.scopes[name][0], self.rng.choice(self.scopes[name][1:])
        state, past = self.states[name], self.rng.randrange(self.states[name].position + 1)
        checks = {
            "log": list(there.log()) == list(file.log()),
            "state": there.state == state and there.core == state.core and there.snapshot() == state.position,
            "entries": there.list() == file.list() == state.list(),
            "past": there.list(as_of=past) == file.list(as_of=past) and there.core_at(past) == file.core_at(past),
        }
        self.differences += [f"{there} at {state.position}: {what}" for what, same in checks.items() if not same]

    def write(self, kind: str, file: MemoryStore, name: str) -> Call:
        rng, id = self.rng, self.id(file)
        if kind == "insert":
            fact = self.fact(name)
            if rng.random() < 0.1:  # under an id, as what brings an entry back does
                return lambda store: store.change(Operation("insert", id=id, **fact)).entry
            return lambda store: store.insert(**fact)
        if kind == "many":
            facts = [self.fact(name) for _ in range(rng.randrange(1, 160))]
            return lambda store: store.insert_many(facts)
        if kind == "update":
            fact = self.fact(name)
            kept = {key: value for key, value in fact.items() if key in KEPT and rng.random() < 0.6}
            return lambda store: store.update(id, fact["content"], **kept)
        if kind == "restore":
            place = max(0, self.states[name].position - rng.randrange(40))
            return lambda store: store.restore(place)
        if kind == "core":
            text = self.text(name)
            return lambda store: store.core_update(text)
        if kind == "fork":
            other = rng.choice(self.names)
            if self.states[other].position == 0 and other != name:
                self.same(other, "forked", file, self.scopes[name][1], lambda store: len(store.fork(other).list()))
            return lambda store: store.snapshot()
        if kind in ("delete", "erase"):
            return lambda store: getattr(store, kind)(id)
        return lambda store: getattr(store, kind)()  # undo, redo

    def read(self, kind: str, file: MemoryStore) -> Call:
        rng, id = self.rng, self.id(file)
        chosen: dict[str, Any] = {}
        if rng.random() < 0.5:
            chosen["where"] = self.where()
        if rng.random() < 0.2:
            chosen["category"] = rng.choice(CATEGORIES)
        if rng.random() < 0.2:
            chosen["as_of"] = rng.randrange(file.snapshot() + 1)
        if kind == "search":
            chosen |= {"route": rng.choice(ROUTES), "k": rng.choice([1, 10, 40]), "around": rng.choice([0, 0, 30])}
            if rng.random() < 0.2:
                chosen["boost"] = Boost(0.5, 0.3, now="2026-01-01")
            query = " ".join(rng.choices(WORDS, k=rng.randrange(1, 5)))
            return lambda store: store.search(query, **chosen)
        if kind == "list":
            chosen |= {"limit": rng.choice([None, 3]), "after": rng.choice([None, id])}
            return lambda store: store.list(**chosen)
        if kind == "history":
            return lambda store: store.history(id)
        return lambda store: store.get(id, as_of=chosen.get("as_of"))

    def id(self, file: MemoryStore) -> str:
        """An entry's, most of the time a live one's."""
        live = self.states[self.rng.choice(self.names) if self.rng.random() < 0.03 else file._namespace.name].entries
        return self.rng.choice(sorted(live)) if live and self.rng.random() < 0.95 else "nobody#x"

    def text(self, name: str) -> str:
        rng = self.rng
        words = rng.choices(WORDS, k=rng.randrange(1, 9)) + [SECRET] * (name != self.names[0])
        return " ".join([*words, "\0" if rng.random() < 0.005 else f"{rng.randrange(500)}"])

    def fact(self, name: str) -> dict[str, Any]:
        rng = self.rng
        fact: dict[str, Any] = {"category": rng.choice(CATEGORIES), "content": self.text(name)}
        if rng.random() < 0.4:
            fact |= {
                "importance": rng.choice([0.0, 0.1, 3.0]),
                "metadata": rng.choice(ODD),
                "timestamp": rng.choice(TIMES),
            }
        if rng.random() < 0.3:
            fact |= {"source": rng.choice("ab"), "chunk": rng.choice([None, 0, 1]), "turn": rng.choice([None, "t"])}
        if rng.random() < 0.02:
            fact["expires"] = (self.now + timedelta(hours=rng.randrange(100))).isoformat()
        return fact

    def where(self, depth: int = 0) -> dict[str, Any]:
        rng = self.rng
        if depth < 2 and rng.random() < 0.3:
            word = rng.choice(["$and", "$or", "$not"])
            return {word: self.where(depth + 1) if word == "$not" else [self.where(depth + 1) for _ in range(2)]}
        field, operands = rng.choice(list(FIELDS.items()))
        operator = rng.choice(["$eq", "$ne", "$in", "$gt", "$gte", "$lt", "$lte", "$contains"])
        operand = rng.choice(operands)
        return {field: {operator: [operand, rng.choice(operands)] if operator == "$in" else operand}}


def outcome(call: Call, store: MemoryStore) -> Any:
    """What a call says, or how it is refused."""
    try:
        return call(store)
    except StoreError as error:
        return type(error), str(error)


def alike(ours: Any, theirs: Any) -> bool:
    """Whether two searches gave the same: hits with the same score to 1e-3 may change places."""
    if isinstance(ours, tuple) or isinstance(theirs, tuple) or len(ours) != len(theirs):
        return ours == theirs
    placed = {hit.entry.id: hit for hit in theirs}
    for here, there in zip(ours, theirs, strict=True):
        if abs(here.score - there.score) > 1e-3:
            return False
        same = placed.get(here.entry.id)
        if same is None:  # the last ones may be others that score the same
            if abs(here.score - theirs[-1].score) > 1e-3:
                return False
        elif (
            here.entry != same.entry
            or here.around != same.around
            or here.explain.keys() != same.explain.keys()
            or any(abs(here.explain[part] - same.explain[part]) > 1e-3 for part in here.explain)
        ):
            return False
    return True


def operations(url: str, number: int, namespaces: int, *, seed: int = 0, tenant: str = "") -> dict[str, Any]:
    """Random calls until the logs hold `number` operations, in so many namespaces. A `tenant` is the URL of a role that
    was admitted to the first of them, "s<seed> n0"."""
    twins = Twins(url, [f"s{seed} n{place}" for place in range(namespaces)], seed, tenant)
    try:
        while twins.done < number:
            twins.step()
        for name in twins.names:
            twins.whole(name)
        found = [name for name in twins.stores[0].namespaces() if name in twins.states]
        if found != sorted(name for name in twins.names if twins.states[name].position):
            twins.differences.append("the list of namespaces")
        told = {"operations": twins.done, "calls": sum(twins.calls.values()), "searches": twins.calls["search"]}
        told |= {"lists": twins.calls["list"], "namespaces": namespaces, "differences": twins.differences}
        return told | {"attempts": twins.attempts, "leaks": twins.leaks}
    finally:
        twins.close()


def side_by_side(url: str, number: int, namespaces: int, tenants: Sequence[str]) -> dict[str, Any]:
    """`operations` by as many processes as there are tenants, on one schema; together."""
    context = multiprocessing.get_context("spawn")
    share = len(tenants)
    with context.Pool(share) as pool:
        waiting = [
            pool.apply_async(operations, (url, number // share, namespaces // share), {"seed": seed, "tenant": tenant})
            for seed, tenant in enumerate(tenants)
        ]
        found = [one.get() for one in waiting]
    together: dict[str, Any] = {"processes": share}
    for key, value in found[0].items():
        together[key] = sum((one[key] for one in found), [] if isinstance(value, list) else 0)
    return together
