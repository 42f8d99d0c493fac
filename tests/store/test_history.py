"""Undo, redo, diff and fork."""

from pathlib import Path

import pytest

from memalpha.errors import StoreError
from memalpha.store.backends.sqlite import SQLiteDatabase
from memalpha.store.store import MemoryStore


def new(path: str | Path = ":memory:") -> MemoryStore:
    return MemoryStore.open(path, embedder="hash")


def contents(store: MemoryStore) -> list[str]:
    return [entry.content for entry in store.list()]


def test_redo_reverts_undo(tmp_path: Path) -> None:
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


def test_a_write_clears_redo() -> None:
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


def test_diff_of_two_states() -> None:
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


def test_a_fork_continues_independently(tmp_path: Path) -> None:
    store = new(tmp_path / "a.db")
    a = store.insert("semantic", "city: Oslo", timestamp="2024-05-01")
    store.update(a.id, "city: Rome")
    store.core_update("Ana")
    for fork in (store.fork("other", as_of=2), store.fork(path=tmp_path / "b.db", as_of=2)):
        assert list(fork.log()) == list(store.log())[:2]
        assert fork.list() == store.list(as_of=2) and fork.core == ""
        assert fork.search("city") == store.search("city", as_of=2)
        undone = fork.undo()
        assert undone is not None and undone.content == "city: Rome"
        fork.update(a.id, "city: Bonn")
        assert [entry.content for entry in store.history(a.id)] == ["city: Oslo", "city: Rome"]
    if isinstance(store._database, SQLiteDatabase):
        assert sorted(path.name for path in tmp_path.iterdir() if path.suffix == ".db") == ["a.db", "b.db"]
    with store.fork("mine", path=tmp_path / "c.db") as fork:
        assert fork.namespaces() == ["mine"] and fork.diff(0) == store.diff(0)
    for wrong, message in [
        ({}, "a namespace"),
        ({"namespace": "other"}, "has a log already"),
        ({"namespace": "default"}, "has a log already"),
        ({"path": tmp_path / "b.db"}, "already( exists)?: give another"),
        *(
            [({"path": tmp_path / "none" / "b.db"}, "does not exist")]
            if isinstance(store._database, SQLiteDatabase)
            else []
        ),
        ({"namespace": "new", "as_of": "soon"}, "as_of"),
        ({"path": tmp_path / "d.db", "as_of": -1}, "as_of"),
    ]:
        with pytest.raises(StoreError, match=message):
            store.fork(**wrong)
    assert store.namespaces() == ["default", "other"]
    assert not [path for path in tmp_path.iterdir() if "d.db" in path.name]
