"""Operations of the programs of `machine.py`: those of `writes.py`, erasing, copying, transactions and reopening."""

from __future__ import annotations

import json
from copy import deepcopy
from dataclasses import replace
from typing import Any

import numpy as np
from brute_force import ExactEmbedder, embed
from naive import Fact, NaiveMemory
from writes import SOURCES, Writes

from memalpha.errors import UnknownEntry
from memalpha.store.open import copy_store
from memalpha.store.store import MemoryStore

OPERATIONS = (
    *("insert",) * 8,
    *("insert_many",) * 3,
    "update",
    "merge",
    "update_many",
    "upsert",
    "delete",
    "delete_many",
    "core_update",
    "undo",
    "undo",
    "redo",
    "restore",
    "revert",
    "quarantine",
    "review",
    "erase",
    "erase",
    "erase_all",
    "erase_core_history",
    "drop",
    "fork",
    "fork_file",
    "round_trip",
    "committed",
    "rolled_back",
    "duplicate",
    "unknown",
    "reopen",
)
_INNER = ("insert", "insert", "update", "merge", "upsert", "delete", "core_update", "undo", "redo", "duplicate", "look")


class Operations(Writes):
    """All operations on `self.handle` and the memory of `self.namespace`."""

    def erase(self) -> None:
        memory = self.memory()
        ids = sorted(memory.ids())
        if not ids:
            return
        id, before = self.pick(ids), memory.texts()
        expected = memory.same_contents(id)
        vectors = self.vectors(memory)
        assert set(self.store.erase(id)) == expected
        memory.erase(id, self.now)
        self.assert_erased((before | {id}) - memory.texts(), vectors - self.vectors(memory))

    def erase_all(self) -> None:
        if self.draw(5):
            return
        memory = self.memory()
        before, vectors, count = memory.texts() | memory.events.keys(), self.vectors(memory), memory.position
        erased = sum(row.kind != "erased" for row in memory.rows)
        assert self.store.erase_all() == erased
        if erased:
            memory.erase_all(self.now)
        assert memory.position in (count, count + 1)
        self.assert_erased(before, vectors)

    def erase_core_history(self) -> None:
        memory = self.memory()
        before = memory.texts()
        assert self.store.erase_core_history() == memory.erase_core_history(self.now)
        self.assert_erased(before - memory.texts(), set())

    def drop(self) -> None:
        if self.draw(5):
            return
        memory = self.memories.setdefault("other", NaiveMemory())  # dropped as it is, without ending what has expired
        before, vectors = memory.texts() | memory.events.keys(), self.vectors(memory)
        if "other" in self.handle.namespaces():
            assert self.handle.drop_namespace("other") == memory.position
            self.assert_erased(before, vectors, without="other")
        del self.memories["other"]
        assert "other" not in self.handle.namespaces()

    @staticmethod
    def vectors(memory: NaiveMemory) -> set[tuple[float, ...]]:
        """Return the vectors that the file may hold."""
        facts = [fact for events in memory.events.values() for _, fact in events if fact is not None]
        return {memory.given.get(fact.content) or embed(fact.content) for fact in facts}

    def assert_erased(self, texts: set[str], vectors: set[tuple[float, ...]], without: str = "") -> None:
        """Assert that no file holds the bytes, unless another memory has them."""
        others = [memory for name, memory in self.memories.items() if name != without]
        kept = set().union(*(memory.texts() | memory.ids() for memory in others))
        secrets = [text for text in texts if text and text != "{}" and text not in SOURCES]
        secrets = [text for text in secrets if not any(text in other for other in kept)]
        blobs = [text.encode() for text in secrets]
        alive = set().union(*map(self.vectors, others))
        blobs += [np.array(vector, "<f4").tobytes() for vector in vectors - alive]
        for file in self.folder.rglob("*"):
            data = file.read_bytes() if file.is_file() else b""
            held = [blob for blob in blobs if blob in data]
            assert not held, (file.name, held[:3])

    def fork(self) -> None:
        memory, name = self.memory(), f"copy {self.number}"
        if not memory.position or name in self.memories:
            return
        position = self.pick((memory.position, memory.position, self.draw(memory.position + 1)))
        if not position:
            return
        copy = self.store.fork(name, as_of=position)
        self.memories[name] = memory.fork(position)
        self.continue_copy(copy, name)
        copy.drop_namespace(name)
        del self.memories[name]

    def continue_copy(self, copy: MemoryStore, name: str) -> None:
        """Compare a copy, and write on in it."""
        twin, before = self.memory(name), self.namespace
        assert {entry.id: self.fact(entry) for entry in copy.list()} == twin.now.facts
        self.note(twin, copy.insert("semantic", content := self.content()), Fact("semantic", content))
        undone = twin.undo(self.now)
        assert copy.undo() is not None and undone
        undone = twin.undo(self.now)
        assert (copy.undo() is not None) == bool(undone)
        twin.expire(self.now)  # an undo may bring back an entry whose time is over: the next read ends it
        assert {entry.id: self.fact(entry) for entry in copy.list()} == twin.now.facts
        self.namespace = before

    def fork_file(self) -> None:
        memory = self.memory()
        target = self.folder / f"copy-{self.number}-{memory.position}.db"
        if not memory.position or target.exists():
            return
        kind = self.draw(3)
        if kind == 0:
            copy = self.store.fork(path=target)
        else:
            if kind == 1:
                self.handle.backup(target)
            else:
                copy_store(self.folder / "a.db", target)
            copy = MemoryStore.open(target, embedder=ExactEmbedder(), namespace=self.namespace, clock=lambda: self.now)
        twin = memory.fork(memory.position)
        self.memories["file"] = twin
        self.continue_copy(copy, "file")
        del self.memories["file"]
        copy.close()
        for file in self.folder.glob(f"{target.name}*"):
            file.unlink()

    def round_trip(self) -> None:
        memory, file = self.memory(), self.folder / f"log-{self.number}.jsonl"
        if not memory.position:
            return
        self.store.export_jsonl(file)
        with MemoryStore.open(":memory:", embedder=ExactEmbedder(), clock=lambda: self.now) as copy:
            copy.import_jsonl(file)
            twin = memory.fork(memory.position)
            twin.given = {}
            assert copy.core == twin.now.core and copy.snapshot() == twin.position
            position = self.draw(memory.position + 1)
            past = {entry.id: self.fact(entry) for entry in copy.list(as_of=position)}
            assert past == twin.states[position].facts
            assert (twin.redo(self.now) != 0) == (copy.redo() is not None)
            self.memories["imported"] = twin
            self.continue_copy(copy, "imported")
            del self.memories["imported"]
        file.unlink()

    def committed(self) -> None:
        self.memory()
        with self.store.transaction():
            for name in [self.pick(_INNER) for _ in range(3)]:
                getattr(self, name)()

    def rolled_back(self) -> None:
        memory, given = deepcopy(self.memory()), dict(self.memory().given)
        used = dict(memory.used)
        try:
            with self.store.transaction():
                for name in [self.pick(_INNER) for _ in range(3)]:
                    getattr(self, name)()
                raise ZeroDivisionError
        except ZeroDivisionError:
            memory.used, memory.given = used, given
            self.memories[self.namespace] = memory

    def look(self) -> None:
        """Search in a transaction."""
        memory, store = self.memory(), self.store
        assert {hit.entry.id for hit in store.search("oslo zoo", 1000)} == memory.now.facts.keys()
        store.search("oslo", as_of=store.snapshot() // 2)

    def duplicate(self) -> None:
        """Write what is there: the store changes nothing. What metadata tells apart is another entry."""
        memory, id = self.memory(), self.some_id()
        if id is None:
            return
        fact, position = memory.now.facts[id], memory.position
        fields: dict[str, Any] = {"source": fact.source, "timestamp": fact.timestamp}
        fields["expires"] = None if fact.expires is None else fact.expires.isoformat()
        metadata = json.loads(fact.metadata)
        assert self.store.insert(fact.category, f"  {fact.content}\n", metadata=metadata, **fields).id == id
        assert self.store.snapshot() == position
        self.number += 1
        metadata["twin"] = self.number
        twin = replace(fact, metadata=json.dumps(metadata, sort_keys=True), importance=1.0, speaker=None)
        self.note(memory, self.store.insert(fact.category, fact.content, metadata=metadata, **fields), twin)

    def unknown(self) -> None:
        """Change what is not there: the store changes nothing."""
        memory = self.memory()
        ended = sorted(memory.used.keys() - memory.now.facts.keys()) or ["nobody#x"]
        id, position = self.pick(ended), memory.position
        for write in (self.store.delete, lambda id: self.store.update(id, "new text"), self.store.get):
            try:
                write(id)
            except UnknownEntry:
                continue
            raise AssertionError(f"{id} is not live")
        assert self.store.snapshot() == position

    def reopen(self) -> None:
        """Close the handle, open another."""
        self.memory()
        self.handles.remove(self.handle)
        self.handle.close()
        self.scopes = {key: scope for key, scope in self.scopes.items() if key[0] != id(self.handle)}
        self.handles.append(self.open())
