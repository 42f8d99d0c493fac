"""Undo and redo, the difference of two positions."""

from pathlib import Path

import pytest

from memalpha.errors import StoreError
from memalpha.store.store import MemoryStore


def new(path: str | Path = ":memory:") -> MemoryStore:
    return MemoryStore.open(path, embedder="hash")


def contents(store: MemoryStore) -> list[str]:
    return [entry.content for entry in store.list()]


def test_redo_brings_back_what_undo_took(tmp_path: Path) -> None:
    store = new(tmp_path / "a.db")
    a = store.insert("semantic", "city: Oslo", timestamp="2024-05-01")
    store.update(a.id, "city: Rome")
    store.core_update("Ana")
    store.delete(a.id)
    states = [store.state]
    while store.undo():
        states.append(store.state)
    assert contents(store) == [] and len(states) == 5
    store.close()
    store = new(tmp_path / "a.db")
    for state in reversed(states[:-1]):
        redone = store.redo()
        assert redone is not None and store.state == state
    assert store.redo() is None and store.snapshot() == 12
    assert store.undo() == store.redo()  # and so on, as often as one likes
    store.undo()
    store.export_jsonl(tmp_path / "log.jsonl")
    copy = new()
    copy.import_jsonl(tmp_path / "log.jsonl")
    assert copy.redo() == store.redo() and copy.state == store.state
    assert copy.history(a.id) == store.history(a.id)


def test_a_write_ends_what_could_be_brought_back() -> None:
    store = new()
    a, b = store.insert("semantic", "a"), store.insert("semantic", "b")
    store.undo()
    c = store.insert("semantic", "c")
    assert store.redo() is None
    store.undo()
    store.undo()
    assert store.restore(2) == 2  # more than one undo at once: nothing waits any more
    assert store.redo() is None and [entry.id for entry in store.list()] == [a.id, b.id]
    assert store.undo() is not None and contents(store) == ["a"]
    assert store.redo() is not None and contents(store) == ["a", "b"]
    assert c.id not in {entry.id for entry in store.list()}


def test_the_difference_of_two_states() -> None:
    store = new()
    a, b = store.insert("semantic", "a"), store.insert("semantic", "b")
    start = store.snapshot()
    store.core_update("Ana")
    store.update(a.id, "a", importance=0.5, source="elsewhere")
    store.delete(b.id)
    c = store.insert("episodic", "c")
    diff = store.diff(start)
    assert (diff.added, diff.removed, diff.core) == ((c,), (b,), ("", "Ana"))
    assert [(before.importance, after.importance) for before, after in diff.changed] == [(1.0, 0.5)]
    assert store.diff(store.snapshot(), start).removed == (c,)
    assert store.diff("2020-01-01", start).added == (a, b)
    assert store.diff(2, 2) == store.diff(0, 0)
    for wrong in (-1, "soon"):
        with pytest.raises(StoreError, match="as_of"):
            store.diff(wrong)
