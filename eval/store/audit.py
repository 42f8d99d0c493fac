"""Faults planted in clean memories, and what `audit` finds of them: `python eval/store/audit.py [--json] [--tasks N]`.

Clean: the gold operations of synthetic conversations (the full world, held-out values), applied in order; half of the
facts as the generator states them (`city: Oslo`), half as the sentence that was said. Into each, `EACH` faults of every
kind go, each on facts of its own. A finding counts as right only if kind, reason and the ids it names are those of a
fault (orphans, which are reported together, id by id).
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from dataclasses import dataclass, field
from datetime import date, timedelta
from itertools import combinations
from random import Random
from typing import Any

from memalpha.config import WorldConfig
from memalpha.store.checks.audit import audit
from memalpha.store.checks.findings import Audit
from memalpha.store.slots import key_value, slot_value
from memalpha.store.store import MemoryStore
from memalpha.tasks.synthetic.phrases import ATTRIBUTES, POOLS
from memalpha.tasks.synthetic.worlds import generate
from memalpha.types import MemoryEntry, Task

EACH = 2
TOKENS = 16_000
Fault = tuple[str, str, frozenset[str]]


def clean_store(task: Task, embedder: str = "static") -> MemoryStore:
    """What a perfect writer makes of a task, in memory; every entry has its origin and date."""
    store = MemoryStore.open(":memory:", embedder=embedder)
    said = {turn.id: turn.text for chunk in task.chunks for turn in chunk.turns}
    ids: dict[tuple[str, str | None], str] = {}
    for number, gold in enumerate(task.gold_operations):
        content = gold.content if number % 2 else said.get(gold.turn, gold.content)
        where = {"source": task.id, "chunk": gold.chunk, "turn": gold.turn}
        timestamp = gold.timestamp or task.chunks[gold.chunk].timestamp
        if gold.kind == "insert":
            id = store.insert(gold.category, content, timestamp=timestamp, **where).id
            ids[gold.category, gold.content] = id
        elif gold.kind == "update":
            id = ids.pop((gold.category, gold.replaces))
            ids[gold.category, gold.content] = store.update(id, content, timestamp=timestamp, **where).id
        else:
            store.delete(ids.pop((gold.category, gold.replaces)))
    return store


def origin(entry: MemoryEntry) -> dict[str, Any]:
    """Where an entry came from, to be given to another."""
    return {"source": entry.source, "chunk": entry.chunk, "turn": entry.turn}


@dataclass
class Planter:
    """Puts faults into a store and keeps what an audit should say of them."""

    store: MemoryStore
    rng: Random
    faults: list[Fault] = field(default_factory=list)

    def __post_init__(self) -> None:
        entries = self.store.list()
        self.rng.shuffle(entries)
        slots = Counter(pair[0] for entry in entries if (pair := key_value(entry.content)))
        self.slotted = [e for e in entries if (pair := slot_value(e)) and slots[pair[0]] == 1]
        self.sentences = [e for e in entries if not key_value(e.content) and len(e.content.split()) > 3]

    def expect(self, kind: str, reason: str, *ids: str) -> None:
        self.faults.append((kind, reason, frozenset(ids)))

    def beside(self, entry: MemoryEntry, content: str, days: int | None = 0) -> str:
        """A new entry with the origin of another and a date some days after its."""
        later = (
            date.fromisoformat(entry.timestamp[:10]) + timedelta(days) if days is not None and entry.timestamp else None
        )
        origin = {"source": entry.source, "chunk": entry.chunk, "turn": entry.turn}
        made = self.store.insert(entry.category, content, timestamp=later.isoformat() if later else None, **origin)
        assert made.content == content.strip() and made.id != entry.id
        return made.id

    def plant(self, number: int) -> None:
        """One fault of every kind."""
        name = f"x{self.rng.randrange(10**6)}"
        one, two, three, four = (self.slotted.pop() for _ in range(4))
        other = [f"{entry.content.partition(':')[0].upper()}: {name} {n}" for n, entry in enumerate((one, two, three))]
        self.expect("contradiction", "values", one.id, self.beside(one, other[0], None))
        self.expect("contradiction", "values", two.id, self.beside(two, other[1], 30))
        self.expect("stale", "later", two.id)
        self.store.delete(self.beside(three, other[2], 30))
        self.expect("stale", "ended", three.id)
        self.expect("duplicate", "text", four.id, self.beside(four, f"{four.content.upper()}!"))

        five, six, seven, eight = (self.sentences.pop() for _ in range(4))
        self.store.update(self.beside(five, f" {five.content.upper()}"), f"{name} was taken back.", **origin(five))
        self.expect("stale", "replaced", five.id)
        self.expect("stale", "says", self.beside(six, f"[outdated] Locker {number} opens with {name}."))
        turned = " ".join(reversed(six.content.rstrip(".").split()))
        self.expect("duplicate", "words", six.id, self.beside(six, turned))
        longer = ("As far as I know, {}", "{} too", "Well, {}")[number % 3].format(seven.content.rstrip("."))
        self.expect("duplicate", "meaning", seven.id, self.beside(seven, longer))
        self.expect("orphan", "no origin", self.store.insert("semantic", f"Nobody said {name} 1.").id)
        self.expect("orphan", "no source", self.store.insert("semantic", f"Somebody said {name} 2.", chunk=1).id)
        lost = self.store.insert("semantic", f"Chunk 9999 said {name} 3.", source=eight.source, chunk=9999)
        self.expect("orphan", "dangling", lost.id)


def named(found: Audit) -> list[Fault]:
    """The findings as faults; orphans one by one."""
    faults: list[Fault] = []
    for finding in found.findings:
        ids = [entry.id for entry in finding.entries]
        groups = [[id] for id in ids] if finding.kind == "orphan" else [ids]
        faults += [(finding.kind, finding.reason, frozenset(group)) for group in groups]
    return faults


def measure(tasks: int, seed: int, each: int = EACH, tokens: int = TOKENS) -> dict[str, dict[str, float]]:
    """Faults planted, found and right, precision and recall by kind and reason, over some tasks."""
    planted: Counter[str] = Counter()
    found: Counter[str] = Counter()
    right: Counter[str] = Counter()
    entries = false_in_clean = 0
    for index in range(tasks):
        task = generate(WorldConfig(preset="full", split="test", tokens=tokens), seed, index)
        with clean_store(task) as store:
            source = (task.id, task.chunks)
            entries += len(store.list())
            false_in_clean += len(audit(store, source=source).findings)
            planter = Planter(store, Random(index))
            for number in range(each):
                planter.plant(number + index)
            says = named(audit(store, source=source))
        planted.update(f"{kind}/{reason}" for kind, reason, _ in planter.faults)
        found.update(f"{kind}/{reason}" for kind, reason, _ in says)
        right.update(f"{kind}/{reason}" for kind, reason, _ in set(says) & set(planter.faults))
    rows: dict[str, dict[str, float]] = {"clean": {"memories": tasks, "entries": entries, "findings": false_in_clean}}
    for name in sorted(planted | found):
        precision = right[name] / found[name] if found[name] else 0.0
        rows[name] = {
            "planted": planted[name],
            "found": found[name],
            "right": right[name],
            "precision": round(precision, 4),
            "recall": round(right[name] / planted[name], 4) if planted[name] else 0.0,
        }
    return rows


def paraphrases(values: int = 8) -> dict[str, int]:
    """Of one memory with every way in which the generator states its facts: pairs that state the same fact and those
    that do not, and how many of either are reported as duplicates."""
    facts = {
        way.format(v=value, an=f"a {value}"): (attribute.key, value)
        for attribute in ATTRIBUTES
        for value in POOLS[attribute.pool][:values]
        for way in attribute.states
    }
    with MemoryStore.open(":memory:", embedder="static") as store:
        store.insert_many({"category": "semantic", "content": content} for content in facts)
        groups = [f.entries for f in audit(store).findings if f.kind == "duplicate"]
    reported = [facts[a.content] == facts[b.content] for group in groups for a, b in combinations(group, 2)]
    same = [one == two for one, two in combinations(facts.values(), 2)]
    return {
        "sentences": len(facts),
        "same": sum(same),
        "same_reported": sum(reported),
        "different": len(same) - sum(same),
        "different_reported": len(reported) - sum(reported),
    }


def support(tasks: int, seed: int) -> dict[str, float]:
    """The share of turns that some gold fact (`city: Oslo`) is near enough to cover by content: of the turns that state
    a fact, and of the others."""
    near: dict[bool, list[bool]] = {True: [], False: []}
    for index in range(tasks):
        task = generate(WorldConfig(preset="full", split="test", tokens=TOKENS), seed, index)
        with MemoryStore.open(":memory:", embedder="static") as store:
            gold = [operation for operation in task.gold_operations if operation.kind != "delete"]
            store.insert_many({"category": gold.category, "content": gold.content} for gold in gold)
            coverage = audit(store, source=("", task.chunks)).coverage
        assert coverage is not None
        uncovered = {span.turn for span in coverage.uncovered}
        stating = {operation.turn for operation in gold}
        for turn in (turn for chunk in task.chunks for turn in chunk.turns):
            near[turn.id in stating].append(turn.id not in uncovered)
    return {"stating": sum(near[True]) / len(near[True]), "others": sum(near[False]) / len(near[False])}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tasks", type=int, default=25)
    parser.add_argument("--seed", type=int, default=1, help="of the synthetic conversations; 0: those looked at before")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    result, pairs = measure(options.tasks, options.seed), paraphrases()
    spans = support(options.tasks, options.seed)
    if options.json:
        print(json.dumps({"planted": result, "paraphrases": pairs, "support": spans}, indent=1))
    else:
        print("| fault | planted | found | right | precision | recall |\n|---|---|---|---|---|---|")
        for name, row in result.items():
            if name != "clean":
                print(f"| {name} | {' | '.join(f'{value:g}' for value in row.values())} |")
        print("\nclean: {memories} memories, {entries} entries, {findings} findings".format(**result["clean"]))
        print("paraphrases: " + ", ".join(f"{name} {count}" for name, count in pairs.items()))
        print(
            "covered by content: {stating:.3f} of the turns that state a fact, {others:.3f} of the others".format(
                **spans
            )
        )
