"""Plant faults into clean memories and score what `audit` reports: `python eval/store/audit.py [--json] [--tasks N]`.

A clean memory applies the gold operations of a synthetic conversation (full world, held-out values) in order. Half of
its facts read as the generator states them (`city: Oslo`), half as the sentence of the conversation. Each memory gets
`EACH` faults of every kind, each on facts of its own. A finding is correct only if its kind, its reason and its ids
equal those of a fault. Orphans are reported together and compared id by id.
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
    """Build the store that a perfect writer makes of a task, in memory, with origins and dates."""
    store = MemoryStore.open(":memory:", embedder=embedder)
    turn_texts = {turn.id: turn.text for chunk in task.chunks for turn in chunk.turns}
    ids: dict[tuple[str, str | None], str] = {}
    for number, gold in enumerate(task.gold_operations):
        content = gold.content if number % 2 else turn_texts.get(gold.turn, gold.content)
        origin_fields = {"source": task.id, "chunk": gold.chunk, "turn": gold.turn}
        timestamp = gold.timestamp or task.chunks[gold.chunk].timestamp
        if gold.kind == "insert":
            id = store.insert(gold.category, content, timestamp=timestamp, **origin_fields).id
            ids[gold.category, gold.content] = id
        elif gold.kind == "update":
            id = ids.pop((gold.category, gold.replaces))
            ids[gold.category, gold.content] = store.update(id, content, timestamp=timestamp, **origin_fields).id
        else:
            store.delete(ids.pop((gold.category, gold.replaces)))
    return store


def origin(entry: MemoryEntry) -> dict[str, Any]:
    """Return an entry's origin as keyword arguments for another entry."""
    return {"source": entry.source, "chunk": entry.chunk, "turn": entry.turn}


@dataclass
class Planter:
    """Put faults into a store and record the findings that an audit should report."""

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
        """Insert an entry with the origin of another and a date `days` after its date.

        Args:
            entry: Entry whose origin is used.
            content: Content of the new entry.
            days: Days between both dates.
        """
        later_date = (
            date.fromisoformat(entry.timestamp[:10]) + timedelta(days) if days is not None and entry.timestamp else None
        )
        origin = {"source": entry.source, "chunk": entry.chunk, "turn": entry.turn}
        inserted = self.store.insert(
            entry.category, content, timestamp=later_date.isoformat() if later_date else None, **origin
        )
        assert inserted.content == content.strip() and inserted.id != entry.id
        return inserted.id

    def plant(self, number: int) -> None:
        """Plant one fault of every kind."""
        name = f"x{self.rng.randrange(10**6)}"
        first, second, third, fourth = (self.slotted.pop() for _ in range(4))
        conflicting = [
            f"{entry.content.partition(':')[0].upper()}: {name} {n}" for n, entry in enumerate((first, second, third))
        ]
        self.expect("contradiction", "values", first.id, self.beside(first, conflicting[0], None))
        self.expect("contradiction", "values", second.id, self.beside(second, conflicting[1], 30))
        self.expect("stale", "later", second.id)
        self.store.delete(self.beside(third, conflicting[2], 30))
        self.expect("stale", "ended", third.id)
        self.expect("duplicate", "text", fourth.id, self.beside(fourth, f"{fourth.content.upper()}!"))

        sentence, reordered, paraphrased, cited = (self.sentences.pop() for _ in range(4))
        self.store.update(
            self.beside(sentence, f" {sentence.content.upper()}"), f"{name} was taken back.", **origin(sentence)
        )
        self.expect("stale", "replaced", sentence.id)
        self.expect("stale", "says", self.beside(reordered, f"[outdated] Locker {number} opens with {name}."))
        reversed_words = " ".join(reversed(reordered.content.rstrip(".").split()))
        self.expect("duplicate", "words", reordered.id, self.beside(reordered, reversed_words))
        paraphrase = ("As far as I know, {}", "{} too", "Well, {}")[number % 3].format(paraphrased.content.rstrip("."))
        self.expect("duplicate", "meaning", paraphrased.id, self.beside(paraphrased, paraphrase))
        self.expect("orphan", "no origin", self.store.insert("semantic", f"Nobody said {name} 1.").id)
        self.expect("orphan", "no source", self.store.insert("semantic", f"Somebody said {name} 2.", chunk=1).id)
        dangling = self.store.insert("semantic", f"Chunk 9999 said {name} 3.", source=cited.source, chunk=9999)
        self.expect("orphan", "dangling", dangling.id)


def as_faults(report: Audit) -> list[Fault]:
    """Return the findings as faults, orphans one by one."""
    faults: list[Fault] = []
    for finding in report.findings:
        ids = [entry.id for entry in finding.entries]
        groups = [[id] for id in ids] if finding.kind == "orphan" else [ids]
        faults += [(finding.kind, finding.reason, frozenset(group)) for group in groups]
    return faults


def measure(tasks: int, seed: int, each: int = EACH, tokens: int = TOKENS) -> dict[str, dict[str, float]]:
    """Count planted, reported and correct faults by kind and reason over several tasks.

    Args:
        tasks: Number of synthetic conversations.
        seed: Seed of the conversations.
        each: Faults of every kind per conversation.
        tokens: Length of a conversation.

    Returns:
        A row per kind and reason with counts, precision and recall, and a row `clean` for the memories before planting.
    """
    planted_counts: Counter[str] = Counter()
    finding_counts: Counter[str] = Counter()
    correct_counts: Counter[str] = Counter()
    entries = false_positives = 0
    for index in range(tasks):
        task = generate(WorldConfig(preset="full", split="test", tokens=tokens), seed, index)
        with clean_store(task) as store:
            source = (task.id, task.chunks)
            entries += len(store.list())
            false_positives += len(audit(store, source=source).findings)
            planter = Planter(store, Random(index))
            for number in range(each):
                planter.plant(number + index)
            findings = as_faults(audit(store, source=source))
        planted_counts.update(f"{kind}/{reason}" for kind, reason, _ in planter.faults)
        finding_counts.update(f"{kind}/{reason}" for kind, reason, _ in findings)
        correct_counts.update(f"{kind}/{reason}" for kind, reason, _ in set(findings) & set(planter.faults))
    rows: dict[str, dict[str, float]] = {"clean": {"memories": tasks, "entries": entries, "findings": false_positives}}
    for name in sorted(planted_counts | finding_counts):
        precision = correct_counts[name] / finding_counts[name] if finding_counts[name] else 0.0
        rows[name] = {
            "planted": planted_counts[name],
            "found": finding_counts[name],
            "right": correct_counts[name],
            "precision": round(precision, 4),
            "recall": round(correct_counts[name] / planted_counts[name], 4) if planted_counts[name] else 0.0,
        }
    return rows


def paraphrases(values: int = 8) -> dict[str, int]:
    """Count the pairs of paraphrases reported as duplicates, with the same fact and with different facts.

    The memory holds every phrasing that the generator has for its facts.
    """
    facts = {
        phrasing.format(v=value, an=f"a {value}"): (attribute.key, value)
        for attribute in ATTRIBUTES
        for value in POOLS[attribute.pool][:values]
        for phrasing in attribute.states
    }
    with MemoryStore.open(":memory:", embedder="static") as store:
        store.insert_many({"category": "semantic", "content": content} for content in facts)
        groups = [f.entries for f in audit(store).findings if f.kind == "duplicate"]
    reported = [facts[a.content] == facts[b.content] for group in groups for a, b in combinations(group, 2)]
    same_fact = [left == right for left, right in combinations(facts.values(), 2)]
    return {
        "sentences": len(facts),
        "same": sum(same_fact),
        "same_reported": sum(reported),
        "different": len(same_fact) - sum(same_fact),
        "different_reported": len(reported) - sum(reported),
    }


def coverage_by_content(tasks: int, seed: int) -> dict[str, float]:
    """Return the share of turns covered by the content of a gold fact (`city: Oslo`).

    `stating` is the share among turns that state a fact, `others` the share among the remaining turns.
    """
    covered: dict[bool, list[bool]] = {True: [], False: []}
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
            covered[turn.id in stating].append(turn.id not in uncovered)
    return {"stating": sum(covered[True]) / len(covered[True]), "others": sum(covered[False]) / len(covered[False])}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tasks", type=int, default=25)
    parser.add_argument("--seed", type=int, default=1, help="of the synthetic conversations; 0: those looked at before")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    result, pairs = measure(options.tasks, options.seed), paraphrases()
    spans = coverage_by_content(options.tasks, options.seed)
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
