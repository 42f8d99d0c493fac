"""Writes of the programs of `machine.py`, and what they draw: each one runs on the store and on the naive memory."""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
from brute_force import embed
from naive import Fact, NaiveMemory, Pending, Row

from memalpha.errors import StoreError
from memalpha.store.quarantine import quarantine_operation
from memalpha.store.store import MemoryStore
from memalpha.types import MemoryEntry, Operation

_SPEAKERS, SOURCES, _KEYS = ("ana", "ben"), ("chat-1", "chat-2"), ("user:city", "user:pet", "user:job")
_TIMES = ("2024-05-01", "2025-06-01T12:00:00+00:00", None)


class Writes:
    """Writes on `self.handle` and the memory of `self.namespace`."""

    WORDS = ("oslo", "zoo", "dog", "ana", "ben", "kix", "tok", "jaz")

    draw: Callable[[int], int]
    handle: MemoryStore
    handles: list[MemoryStore]
    scopes: dict[tuple[int, str], MemoryStore]
    namespace: str
    memories: dict[str, NaiveMemory]
    now: datetime
    number: int
    folder: Path

    @abstractmethod
    def open(self) -> MemoryStore:
        """Open another handle of the file."""

    def pick(self, items: Sequence[Any]) -> Any:
        """Draw one of the items."""
        return items[self.draw(len(items))]

    def memory(self, namespace: str | None = None) -> NaiveMemory:
        """Return the naive memory of a namespace, after what has expired."""
        memory = self.memories.setdefault(namespace or self.namespace, NaiveMemory())
        memory.expire(self.now)
        return memory

    @property
    def store(self) -> MemoryStore:
        """The namespace of the handle."""
        return self.scope(self.handle, self.namespace)

    def scope(self, handle: MemoryStore, namespace: str) -> MemoryStore:
        """Return a namespace of a handle: the same object each time, so that its index follows the log."""
        key = (id(handle), namespace)
        if key not in self.scopes:
            self.scopes[key] = handle.namespace(namespace)
        return self.scopes[key]

    def content(self) -> str:
        """Return a content that no other entry ever had."""
        self.number += 1
        return f"{self.pick(self.WORDS)} {self.pick(self.WORDS)} k{self.number}x"

    @staticmethod
    def fact(entry: MemoryEntry) -> Fact:
        """Return an entry as the naive memory holds it."""
        expires = None if entry.expires is None else datetime.fromisoformat(entry.expires)
        metadata = json.dumps(dict(entry.metadata), sort_keys=True)
        return Fact(
            entry.category,
            entry.content,
            entry.timestamp,
            entry.importance,
            metadata,
            expires,
            entry.source,
            entry.speaker,
        )

    @staticmethod
    def essence(fact: Fact) -> tuple[Any, ...]:
        """Return what a difference compares."""
        return (fact.category, fact.content, fact.timestamp, fact.importance, fact.metadata, fact.expires)

    def where(self) -> tuple[dict[str, Any], Callable[[Fact], bool]]:
        """Draw a filter, and what it means."""
        n = self.draw(4)

        def number(fact: Fact) -> Any:
            return json.loads(fact.metadata).get("n")

        filters: list[tuple[dict[str, Any], Callable[[Fact], bool]]] = [
            ({"n": n}, lambda fact: number(fact) == n),
            ({"n": {"$ne": n}}, lambda fact: number(fact) != n),
            ({"n": {"$gt": n}}, lambda fact: number(fact) is not None and number(fact) > n),
            ({"n": {"$in": [n, None]}}, lambda fact: number(fact) in (n, None)),
            ({"n": {"$exists": True}}, lambda fact: number(fact) is not None),
            ({"$not": {"n": n, "category": "semantic"}}, lambda f: not (number(f) == n and f.category == "semantic")),
            ({"$or": [{"n": n}, {"importance": {"$gte": 2}}]}, lambda f: number(f) == n or f.importance >= 2),
            ({"source": "chat-1"}, lambda fact: fact.source == "chat-1"),
            (
                {"timestamp": {"$lt": "2025-01-01"}},
                lambda f: f.timestamp is not None and f.timestamp < "2025-01-01",
            ),
            ({"content": {"$contains": "oslo"}}, lambda fact: "oslo" in fact.content),
        ]
        return self.pick(filters)

    def some_id(self) -> str | None:
        """Draw a live id; None if there is none."""
        facts = self.memory().now.facts
        return self.pick(sorted(facts, key=self.memory().created.__getitem__)) if facts else None

    def note(self, memory: NaiveMemory, entry: MemoryEntry, expected: Fact) -> None:
        """Record an inserted entry with an id that the store chose."""
        assert entry.id not in memory.used, "an id was given again"
        assert self.fact(entry) == expected
        memory.write("insert", entry.id, self.now, expected)

    def insert(self) -> None:
        memory, content, n = self.memory(), self.content(), self.draw(4)
        expires = self.now + timedelta(minutes=self.pick((-1, 2, 2, 5))) if self.draw(5) == 0 else None
        speaker, source, timestamp = self.pick((None, *_SPEAKERS)), self.pick((None, *SOURCES)), self.pick(_TIMES)
        category, importance = self.pick(("semantic", "episodic")), float(self.pick((1, 2)))
        with self.store.writing_as(speaker=speaker):
            entry = self.store.insert(
                category,
                content,
                metadata={"n": n},
                expires=None if expires is None else expires.isoformat(),
                source=source,
                timestamp=timestamp,
                importance=importance,
            )
        metadata = json.dumps({"n": n})
        self.note(memory, entry, Fact(category, content, timestamp, importance, metadata, expires, source, speaker))

    def insert_many(self) -> None:
        memory, contents = self.memory(), [self.content() for _ in range(3)]
        vectors = None
        if self.draw(2):
            rows = [embed(content + " elsewhere") for content in contents]
            vectors = np.array(rows) * self.pick((1.0, 4.0, 1e200))
            memory.given |= dict(zip(contents, rows, strict=True))
        entries = self.store.insert_many(
            [{"category": "semantic", "content": content} for content in contents], vectors
        )
        for entry, content in zip(entries, contents, strict=True):
            self.note(memory, entry, Fact("semantic", content))

    def update(self) -> None:
        id = self.some_id()
        if id is not None:
            memory, content, speaker = self.memory(), self.content(), self.pick((None, *_SPEAKERS))
            with self.store.writing_as(speaker=speaker):
                self.store.update(id, content, source="chat-2")
            self.rewrite(memory, id, content=content, timestamp=None, source="chat-2", speaker=speaker)

    def rewrite(self, memory: NaiveMemory, id: str, **fields: Any) -> None:
        """Record an update: its origin is its own."""
        old = memory.now.facts[id]
        values: dict[str, Any] = {name: getattr(old, name) for name in Fact.__dataclass_fields__} | {
            "source": None,
            "speaker": None,
        }
        memory.write("update", id, self.now, Fact(**(values | fields)))

    def merge(self) -> None:
        id = self.some_id()
        if id is not None:
            memory, self.number = self.memory(), self.number + 1
            self.store.update(id, metadata={"m": f"m{self.number}", "n": None}, merge_metadata=True)
            merged = json.loads(memory.now.facts[id].metadata) | {"m": f"m{self.number}"}
            merged.pop("n", None)
            self.rewrite(memory, id, metadata=json.dumps(merged, sort_keys=True))

    def update_many(self) -> None:
        memory, ids = self.memory(), sorted({id for id in (self.some_id(), self.some_id()) if id is not None})
        updates = [{"id": id, "content": self.content(), "importance": 2.0} for id in ids]
        self.store.update_many(updates)
        for update in updates:
            self.rewrite(memory, update["id"], content=update["content"], timestamp=None, importance=2.0)

    def upsert(self) -> None:
        memory, key, content = self.memory(), self.pick(_KEYS), self.content()
        self.store.upsert(key, content)
        if key in memory.now.facts:
            self.rewrite(memory, key, content=content, timestamp=None)
        else:
            memory.write("insert", key, self.now, Fact("semantic", content))

    def delete(self) -> None:
        id = self.some_id()
        if id is not None:
            memory, source = self.memory(), self.pick((None, *SOURCES))
            self.store.delete(id, source=source)
            memory.write("delete", id, self.now, source=source)

    def delete_many(self) -> None:
        memory = self.memory()
        if self.draw(3):
            return
        where, passes = self.where()
        order = sorted(memory.now.facts, key=memory.created.__getitem__)
        expected = [id for id in order if passes(memory.now.facts[id])]
        assert [entry.id for entry in self.store.delete_many(where=where)] == expected
        for id in expected:
            memory.write("delete", id, self.now)

    def core_update(self) -> None:
        memory, self.number = self.memory(), self.number + 1
        self.store.core_update(f"core c{self.number}x", source="chat-1")
        memory.write("core_update", None, self.now, core=f"core c{self.number}x", source="chat-1")

    def undo(self) -> None:
        memory = self.memory()
        kinds = [row.kind for row in memory.rows]
        undone = memory.undo(self.now)
        operation = self.store.undo()
        assert (operation is None) == (undone == 0), (operation, undone)
        assert operation is None or operation.kind == kinds[undone - 1]

    def redo(self) -> None:
        memory = self.memory()
        again = memory.redo(self.now)
        assert (self.store.redo() is None) == (again == 0)

    def restore(self) -> None:
        memory = self.memory()
        before = memory.position
        position = self.draw(before + 1) if self.draw(3) == 0 else max(0, before - self.draw(6))
        count = self.store.restore(position)
        operations = [(operation.kind, operation.id) for _, _, operation in self.store.log(before)][:count]
        if operations:
            memory.restore(position, operations, self.now)

    def revert(self) -> None:
        memory, speaker, source = self.memory(), self.pick((None, *_SPEAKERS)), self.pick((None, *SOURCES))
        since = self.draw(memory.position + 1) if self.draw(2) or (speaker, source) == (None, None) else None
        criteria = {name: value for name, value in (("speaker", speaker), ("source", source)) if value is not None}

        def is_selected(row: Row) -> bool:
            return all(getattr(row, name) == value for name, value in criteria.items())

        plans, conflicts = memory.plan_revert(is_selected, since or 0, self.now)
        expected = {id for _, id, _ in plans}
        if self.draw(3) == 0:
            report = self.store.revert(**criteria, since=since, dry_run=True)
            assert {item.id for item in report.changes} == expected
            assert {item.id for item in report.conflicts} == conflicts
            return
        conflicts = memory.revert(plans, conflicts, self.now)
        report = self.store.revert(**criteria, since=since)
        assert {item.id for item in report.changes} == expected - conflicts
        assert {item.id for item in report.conflicts} == conflicts

    def quarantine(self) -> None:
        memory, id = self.memory(), self.some_id()
        kind = self.pick(("insert", "update", "delete", "core_update"))
        if id is None and kind in ("update", "delete"):
            return
        content = None if kind == "delete" else self.content()
        id = id if kind in ("update", "delete") else None
        category = "episodic" if kind == "insert" else None
        before = memory.now.core if kind == "core_update" else None if id is None else memory.now.facts[id].content
        operation = Operation(kind, id=id, category=category, content=content)
        self.store.apply(quarantine_operation(operation, before, "nobody asked"))
        position = memory.position + 1
        row = id or f"quarantined#{position}"
        memory.write("quarantined", row, self.now)
        memory.queue[position] = Pending(kind, id, content, category, before, row)

    def review(self) -> None:
        memory = self.memory()
        if not memory.queue:
            return
        position, accept = self.pick(sorted(memory.queue)), bool(self.draw(4))
        item, facts = memory.queue[position], memory.now.facts
        current = None
        if item.kind == "core_update":
            current = memory.now.core
        elif item.id is not None and item.id in facts:
            current = facts[item.id].content
        if accept and current != item.before:
            try:
                self.store.review(position, accept=True)
            except StoreError:
                return
            raise AssertionError("what was changed since was accepted")
        self.store.review(position, accept=accept)
        if accept and item.kind == "insert":
            new = self.store.log(memory.position).__next__()[2].id
            assert new is not None and new not in memory.used
            memory.write("insert", new, self.now, Fact("episodic", item.content or ""))
            item.accepted = new
        elif accept and item.kind == "core_update":
            memory.write("core_update", None, self.now, core=item.content)
        elif accept and item.kind == "delete":
            memory.write("delete", item.id, self.now)
        elif accept and item.id is not None:
            self.rewrite(memory, item.id, content=item.content)
        memory.write("reviewed", f"reviewed#{memory.position + 1}", self.now)
        item.decided_at = memory.position
        memory.reviewed[position] = memory.queue.pop(position)
