"""Erasure: no erased content remains in the file, and nothing restores it."""

import json
import sqlite3
from contextlib import suppress
from pathlib import Path

import pytest

from memalpha.errors import StoreError, UnknownEntry
from memalpha.store.backends.sqlite import SQLiteDatabase
from memalpha.store.checks.integrity import examine
from memalpha.store.store import MemoryStore
from memalpha.types import Operation

SECRETS = ["zyxomma", "Größenwahn", "qwobblefrotz", "1899-12-31", "chat-vrumquip", "turn-blixnard", "vorpalgimble"]


def new(path: str | Path = ":memory:", **options) -> MemoryStore:
    return MemoryStore.open(path, embedder="hash", **options)


def bytes_of(path: Path) -> bytes:
    """All that lies on the disk beside the store, case aside."""
    return b"".join(file.read_bytes() for file in path.parent.glob(f"{path.name}*")).lower()


def secrets_in(path: Path) -> list[str]:
    data = bytes_of(path)
    return [secret for secret in SECRETS if secret.lower().encode() in data]


def filled(path: str | Path) -> tuple[MemoryStore, str]:
    """A store where one entry of many holds the secrets, has been changed, deleted, brought back and deleted again."""
    store = new(path, durability="normal")
    if isinstance(store._database, SQLiteDatabase):
        store._database._connection.execute("PRAGMA secure_delete = OFF")  # some builds of SQLite have it on
    for index in range(30):
        store.insert("semantic", f"fact {index}: value {index}")
    long = "zyxomma zyxomma: Größenwahn " + "x" * 9000  # spills into pages of its own
    id = store.insert(
        "semantic",
        long,
        timestamp="1899-12-31",
        source="chat-vrumquip",
        turn="turn-blixnard",
        metadata={"vorpalgimble": 1},
    ).id
    store.insert("semantic", "between: them")
    store.update(id, "qwobblefrotz: was")
    store.delete(id)
    store.undo()
    store.delete(id)
    for index in range(30):
        store.insert("semantic", f"more {index}: value {index}")
    return store, id


@pytest.mark.sqlite
@pytest.mark.parametrize("erase_all", [False, True])
def test_erased_bytes_are_gone_from_the_file(tmp_path: Path, erase_all: bool) -> None:
    path = tmp_path / "a.db"
    store, id = filled(path)
    other = new(path)  # another process that has the file open
    assert other.search("qwobblefrotz was")
    assert secrets_in(path) == SECRETS and id.startswith("zyxomma")
    if erase_all:
        assert store.erase_all() == 66
        assert store.list() == [] and store.state.position == 67 and b"value 29" not in bytes_of(path)
    else:
        assert store.erase(id) == []
        assert len(store.list()) == 61 and store.snapshot() == 67
    assert secrets_in(path) == []
    store.close()
    other.close()
    assert secrets_in(path) == []
    assert examine(path).problems == []


def test_past_states_are_without_the_erased_entry(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    store, id = filled(path)
    store.undo()  # a stub must not be what a later undo or redo meets
    other = new(path)
    assert other.search("more 29: value 29", as_of=35)
    before = [store.list(as_of=position) for position in range(store.snapshot() + 1)]
    assert store.erase(id) == []
    assert store.redo() is not None and store.redo() is None
    for position, entries in enumerate(before):
        remaining = [entry for entry in entries if entry.id != id]
        assert store.list(as_of=position) == remaining and other.list(as_of=position) == remaining
    for use in (store.get, store.history, store.delete, store.erase, lambda id: store.list(after=id)):
        with pytest.raises(UnknownEntry):
            use(id)
    assert all(hit.entry.id != id for hit in other.search("qwobblefrotz was", 100))
    undone = []
    while (operation := store.undo()) is not None:
        undone.append(operation)
    assert len(undone) == 61 and all(operation.kind == "insert" for operation in undone)
    assert store.restore(32) >= 30 and len(store.list()) == 31
    assert [(kind.kind, kind.id) for _, _, kind in store.log() if kind.kind == "erased"] == [
        *[("erased", "erased#31")] * 5,
        ("erased", None),
    ]
    # The log keeps its count, and a file of it says no more.
    store.export_jsonl(tmp_path / "log.jsonl")
    text = (tmp_path / "log.jsonl").read_text()
    assert json.loads(text.split("\n")[31]).keys() == {"seq", "time", "head", "kind", "id"}
    copy = new()
    copy.import_jsonl(tmp_path / "log.jsonl")
    assert list(copy.log()) == list(store.log()) and copy.list() == store.list()
    assert copy.undo() == store.undo()
    mixed = new()
    mixed.insert("semantic", "mine")
    assert mixed.import_jsonl(tmp_path / "log.jsonl") == store.snapshot() - 1 - 6


def test_vectors_of_other_entries_stay() -> None:
    store = new()
    a = store.insert("semantic", "pet: cat")
    b = store.insert("episodic", "pet: cat")
    c = store.insert("semantic", "city: Oslo")
    store.update(c.id, "city: Rome")
    hits = store.search("which pet?", category="episodic")
    assert store.erase(a.id) == [b.id]
    assert store.search("which pet?", category="episodic") == hits
    assert store.erase(c.id, b.id) == [] and store.list() == []
    with store._namespace.transaction(write=False) as rows:
        assert rows.execute("SELECT count(*) FROM vectors").fetchone() == (0,)
    assert store.namespace("other").erase_all() == 0
    assert store.insert("semantic", "pet: cat").content == "pet: cat"
    with pytest.raises(UnknownEntry):
        store.erase(store.list()[0].id, "nobody#x")
    assert len(store.list()) == 1  # all of it or nothing
    store.core_update("Ana")
    store.erase_all()
    assert (store.core, store.core_at(8), store.list(), store.undo()) == ("", "", [], None)


def test_other_namespaces_are_untouched(tmp_path: Path) -> None:
    store, id = filled(tmp_path / "a.db")
    other = store.namespace("other")
    other.insert("semantic", "pet: cat")
    fork = store.fork("fork")
    store.erase_all()
    assert [entry.content for entry in other.list()] == ["pet: cat"]
    assert fork.history(id) and len(fork.list()) == 61
    assert fork.erase(id) == [] and secrets_in(tmp_path / "a.db") == []


@pytest.mark.sqlite
def test_only_erasure_may_change_the_log(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    store, id = filled(path)
    store.erase(id)
    rows = sqlite3.connect(path, isolation_level=None)
    stub = ", ".join(f"{name} = NULL" for name in ("category", "content", "importance", "metadata", "source", "chunk"))
    for change in (
        "kind = 'erased'",
        f"kind = 'erased', {stub}, seq = 900",
        f"kind = 'erased', {stub}, head = 0",
        f"kind = 'erased', {stub}, time = ''",
        f"kind = 'erased', {stub}, source = 'x'",
        f"kind = 'delete', {stub}",
    ):
        with pytest.raises(sqlite3.IntegrityError, match="append-only"):
            rows.execute(f"UPDATE operations SET {change} WHERE seq = 1")
    with pytest.raises(sqlite3.IntegrityError, match="append-only"):
        rows.execute("UPDATE operations SET id = 'x' WHERE kind = 'erased'")
    rows.execute(f"UPDATE operations SET kind = 'erased', {stub} WHERE seq = 1")


@pytest.mark.sqlite
@pytest.mark.parametrize("finish", [lambda path: new(path).erase("nobody#x"), lambda path: examine(path, repair=True)])
def test_an_interrupted_erasure_is_finished_later(tmp_path: Path, finish) -> None:
    path = tmp_path / "a.db"
    store, id = filled(path)
    with store._database.transaction():  # what a kill leaves between the transaction and the rewriting of the file
        store._namespace.erase([id])
    store.close()
    assert secrets_in(path)
    [problem] = examine(path).problems
    assert "erasure was not finished" in problem.message
    with suppress(UnknownEntry):
        finish(path)
    assert examine(path).problems == [] and secrets_in(path) == []


@pytest.mark.sqlite
def test_a_reader_that_blocks_scrubbing_is_named(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("memalpha.store.backends.sqlite._LOCK_TIMEOUT", 0.1)
    path = tmp_path / "a.db"
    store, id = filled(path)
    reader = sqlite3.connect(path, isolation_level=None)
    reader.execute("BEGIN")
    reader.execute("SELECT count(*) FROM operations").fetchone()
    with pytest.raises(StoreError, match=r"other processes read .* `memalpha doctor --repair`"):
        store.erase(id)
    with pytest.raises(UnknownEntry):
        store.get(id)
    reader.close()
    assert examine(path, repair=True).problems == [] and secrets_in(path) == []


def test_erased_operations_change_nothing() -> None:
    store = new()
    store.insert("semantic", "pet: cat")
    before = store.state
    assert store.apply(Operation("erased", id="x", content="gone", category="nine")) == Operation("erased", id="x")
    assert store.state == before and store.state.position == 2


def test_an_erased_write_does_not_clear_redo() -> None:
    store = new()
    store.insert("semantic", "a")
    b = store.insert("semantic", "b")
    store.undo()
    c = store.insert("semantic", "c")
    assert store.redo() is None
    store.erase(c.id)
    redone = store.redo()
    assert redone is not None and redone.id == b.id and store.redo() is None
