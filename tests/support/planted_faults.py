"""Plant faults into clean memories, for the test of `audit`.

A clean memory applies the gold operations of a synthetic conversation (full world, held-out values) in order. Half of
its facts read as the generator states them (`city: Oslo`), half as the sentence of the conversation. Each fault stands
on facts of its own.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from datetime import date, timedelta
from random import Random
from typing import Any

from memalpha.store.checks.audit import Audit
from memalpha.store.store import MemoryStore
from memalpha.store.values import key_value, slot_value
from memalpha.types import MemoryEntry, Task

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

        sentence, reordered, paraphrased = (self.sentences.pop() for _ in range(3))
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


def as_faults(report: Audit) -> list[Fault]:
    """Return the findings as faults, orphans one by one."""
    faults: list[Fault] = []
    for finding in report.findings:
        ids = [entry.id for entry in finding.entries]
        groups = [[id] for id in ids] if finding.kind == "orphan" else [ids]
        faults += [(finding.kind, finding.reason, frozenset(group)) for group in groups]
    return faults
