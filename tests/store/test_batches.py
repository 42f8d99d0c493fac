"""Transactions, and calls on many entries."""

import sqlite3
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import pytest

from memalpha.errors import (
    DataError,
    DuplicateContent,
    InvalidContent,
    MemalphaError,
    StoreError,
    UnknownEntry,
    UnknownFieldWarning,
)
from memalpha.store.backends import sqlite
from memalpha.store.io.markdown import import_markdown
from memalpha.store.open import open_database, open_namespace
from memalpha.store.state import MemoryState
from memalpha.store.store import MemoryStore
from memalpha.types import MemoryEntry


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MemoryStore]:
    with MemoryStore.open(tmp_path / "a.db", embedder="hash") as store:
        for name in ("Ana", "Ben", "Cleo"):
            store.insert("semantic", f"{name}: lives in Oslo", metadata={"user": name.lower(), "n": len(name)})
        yield store


def ids(store: MemoryStore) -> list[str]:
    return [entry.id for entry in store.list()]


def found(store: MemoryStore, query: str) -> list[str]:
    return [hit.entry.content for hit in store.search(query, 10)]


def test_a_read_transaction_sees_one_moment_and_writes_nothing(store: MemoryStore, tmp_path: Path) -> None:
    with MemoryStore.open(tmp_path / "a.db", embedder="hash") as reader:
        before = reader.list()
        with reader.read_transaction():
            assert reader.list() == before
            store.insert("semantic", "written meanwhile")
            assert reader.list() == before and "written meanwhile" not in found(reader, "written meanwhile")
            with pytest.raises(StoreError, match="a reading transaction cannot write"):
                reader.insert("semantic", "inside")
        assert found(reader, "written meanwhile")[0] == "written meanwhile" and len(reader.list()) == len(before) + 1


def test_a_failed_transaction_leaves_nothing_in_store_or_index(store: MemoryStore) -> None:
    state, before = store.state, found(store, "Dora Rome")
    new = store.namespace("new")
    with pytest.raises(ZeroDivisionError), new.transaction():
        new.insert("semantic", "never")
        raise ZeroDivisionError
    assert store.namespaces() == ["default"] and new.list() == []
    with pytest.raises(ZeroDivisionError), store.transaction():
        store.insert("semantic", "Dora: lives in Rome")
        store.update(ids(store)[1], "Ben: lives in Rome")
        assert "Dora: lives in Rome" in found(store, "Dora Rome")
        raise ZeroDivisionError
    assert store.state == state and found(store, "Dora Rome") == before
    store.insert("semantic", "Emil: lives in Bonn")  # at a position that the index had seen
    assert "Dora: lives in Rome" not in found(store, "Dora Rome") and "Emil: lives in Bonn" in found(store, "Emil")


def test_an_operation_that_fails_inside_is_undone_alone(store: MemoryStore, tmp_path: Path) -> None:
    (tmp_path / "facts.jsonl").write_text(
        '{"category": "semantic", "content": "first line"}\n{"kind": "delete", "id": "nobody"}\n'
    )
    with store.transaction():
        store.insert("semantic", "Dora: lives in Rome")
        for wrong in (
            lambda: store.delete("nobody"),
            lambda: store.import_jsonl(tmp_path / "facts.jsonl"),
            lambda: store.update_many([{"id": ids(store)[0], "content": "x"}, {"id": "nobody", "content": "y"}]),
        ):
            with pytest.raises(MemalphaError, match=r"nobody|line 2"):
                wrong()
        store.insert("semantic", "Emil: lives in Bonn")
    assert [entry.content[:4] for entry in store.list()] == ["Ana:", "Ben:", "Cleo", "Dora", "Emil"]
    assert store.snapshot() == 5 and len(found(store, "lives")) == 5


CANNOT: dict[str, Callable[[MemoryStore, Path], Any]] = {
    "transaction": lambda store, _: store.transaction().__enter__(),
    "erase": lambda store, _: store.erase(ids(store)[0]),
    "erase_all": lambda store, _: store.erase_all(),
    "erase_core_history": lambda store, _: store.erase_core_history(),
    "drop_namespace": lambda store, _: store.drop_namespace("default"),
    "fork": lambda store, _: store.fork("copy"),
    "backup": lambda store, folder: store.backup(folder / "b.db"),
    "close": lambda store, _: store.close(),
    "namespace": lambda store, _: store.namespace("other").insert("semantic", "x"),
}


@pytest.mark.parametrize("call", CANNOT)
def test_what_cannot_be_undone_is_refused_inside(call: str, store: MemoryStore, tmp_path: Path) -> None:
    with store.transaction():
        store.core_update("Ana")
        with pytest.raises(StoreError, match=call):
            CANNOT[call](store, tmp_path)
    assert store.core == "Ana" and len(ids(store)) == 3 and not (tmp_path / "b.db").exists()


@pytest.mark.sqlite
@pytest.mark.parametrize("is_caught", [True, False])
def test_a_transaction_that_sqlite_has_rolled_back_stores_nothing(is_caught: bool, store: MemoryStore) -> None:
    with pytest.raises(StoreError, match="rolled the transaction back"), store.transaction():
        store.insert("semantic", "before")
        store.database.connection.execute("ROLLBACK")  # as SQLite does by itself when the disk is full
        with suppress(StoreError) if is_caught else nullcontext():
            store.insert("semantic", "after")
    assert len(store.list()) == 3 and store.insert("semantic", "later")


def test_many_are_updated_or_none(store: MemoryStore) -> None:
    first, second, third = ids(store)
    updates = [
        {"id": first, "content": " Ana: lives in Rome ", "timestamp": "2024-05-01"},
        {"id": second, "metadata": {"n": 9, "user": None, "new": [1]}, "merge_metadata": True},
        {"id": third, "importance": 0.5},
    ]
    one, two, three = store.update_many(updates)
    assert (one.content, one.timestamp, one.metadata) == ("Ana: lives in Rome", "2024-05-01", {"user": "ana", "n": 3})
    assert (two.content, two.metadata, two.version) == ("Ben: lives in Oslo", {"n": 9, "new": [1]}, 2)
    assert (three.importance, three.metadata["user"]) == (0.5, "cleo") and found(store, "Rome")[0] == one.content
    before = store.snapshot()
    for wrong, error, message in (
        ({"id": "nobody", "content": "x"}, UnknownEntry, "update 1: no live entry"),
        ({"id": first, "content": "Ana: lives in Rome"}, DuplicateContent, "update 1: .*already holds"),
        ({"id": first, "content": " "}, InvalidContent, "update 1: content is empty"),
        ({"id": first, "contents": "x"}, StoreError, "update 1: a mapping with id"),
        ({"id": first, "metadata": {"n": 1}, "merge_metadata": 1}, StoreError, "update 1: merge_metadata 1: True"),
        ({"id": first, "metadata": [1], "merge_metadata": True}, InvalidContent, "update 1: metadata"),
    ):
        with pytest.raises(error, match=message):
            store.update_many([{"id": third, "content": "Cleo: lives in Bonn"}, wrong])
    assert store.snapshot() == before


def test_many_are_deleted_read_and_counted(store: MemoryStore) -> None:
    first, second, third = ids(store)
    start = store.snapshot()
    assert store.count() == store.count("semantic") == 3 and store.count("episodic") == 0
    assert list(store.get_many([third, "nobody", first, third])) == [third, first]
    with pytest.raises(UnknownEntry, match="delete 1: "):
        store.delete_many([first, "nobody"])
    wrong: tuple[dict[str, Any], ...] = ({}, {"ids": [first], "where": {}}, {"ids": first})
    for arguments in wrong:
        with pytest.raises(StoreError, match="either a list of ids"):
            store.delete_many(**arguments)
    with pytest.raises(StoreError, match="holds for everything"):
        store.delete_many(where={"$or": [{}, {"user": "ana"}]})
    ended = store.delete_many(where={"user": {"$in": ["ana", "ben"]}}, source="chat-7")
    assert [entry.id for entry in ended] == [first, second] and all(entry.valid_to for entry in ended)
    assert store.count() == 1 and store.count(as_of=start) == 3 and store.count(where={"user": "ana"}, as_of=start) == 1
    assert list(store.get_many([first, third])) == [third]
    assert store.get_many([first], as_of=start)[first].content == "Ana: lives in Oslo"
    assert store.delete_many([third, third])[0].id == third and store.count() == 0


def test_a_filter_on_a_field_that_no_entry_has_is_named(store: MemoryStore) -> None:
    for read in (store.list, store.count, lambda where: store.search("Ana", where=where)):
        with pytest.warns(UnknownFieldWarning, match="'usr'"):
            assert not MemoryStore.list(store, where={"usr": "ana"})
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            read(where={"user": "nobody"})
            read(where={"n": 3})
            store.namespace("empty").list(where={"usr": "ana"})
        store.known_fields.clear()


def test_contents_have_a_limit(tmp_path: Path) -> None:
    long = "ä" * 11
    (tmp_path / "facts.jsonl").write_text(f'{{"category": "semantic", "content": "{long}"}}\n')
    with MemoryStore.open(tmp_path / "a.db", embedder="hash", max_content=20) as store:
        id = store.insert("semantic", "short").id
        for write in (
            lambda: store.insert("semantic", long),
            lambda: store.update(id, long),
            lambda: store.insert_many([{"category": "semantic", "content": long}]),
            lambda: store.update_many([{"id": id, "content": long}]),
            lambda: store.namespace("other").insert("semantic", long),
        ):
            with pytest.raises(InvalidContent, match="content of 22 bytes is over the limit of 20"):
                write()
        (tmp_path / "facts.md").write_text(f"## semantic\n\n- {long}\n")
        for write in (store.import_jsonl, lambda path: import_markdown(store, path.with_suffix(".md"))):
            with pytest.raises(DataError, match=r"facts\.\w+:\d: content of 22 bytes is over the limit of 20"):
                write(tmp_path / "facts.jsonl")
        assert store.snapshot() == 1
    with MemoryStore.open(tmp_path / "a.db") as store:
        assert store.import_jsonl(tmp_path / "facts.jsonl") == 1
        with pytest.raises(InvalidContent, match="over the limit of 1,000,000"):
            store.insert("semantic", "x" * 1_000_001)


@pytest.mark.sqlite
def test_an_entry_too_large_for_the_file_is_named(monkeypatch) -> None:
    monkeypatch.setitem(sqlite._LIMITS, sqlite3.SQLITE_LIMIT_LENGTH, 100_000)
    with MemoryStore.open(":memory:", embedder="hash") as store, pytest.raises(StoreError, match="metadata is over"):
        store.insert("semantic", "city: Oslo", metadata={"a": "x" * 200_000})


@pytest.mark.parametrize("kind", ["file", "memory"])
def test_a_backup_holds_every_namespace(kind: str, tmp_path: Path) -> None:
    with MemoryStore.open(tmp_path / "a.db" if kind == "file" else ":memory:", embedder="hash") as store:
        entry = store.insert("semantic", "Ana: lives in Oslo")
        store.namespace("other").insert("semantic", "Ben: lives in Rome")
        store.delete(entry.id)
        assert store.backup(tmp_path / "b.db") == {"default": 2, "other": 1}
        with pytest.raises(StoreError, match="already exists"):
            store.backup(tmp_path / "b.db")
        with pytest.raises(StoreError, match="a file path is needed"):
            store.backup("postgresql://host/database")
        state = store.state
    database, schema, _ = open_database(tmp_path / "b.db")
    with database.transaction("default", write=False):
        copy = open_namespace(database, "default", schema)
        assert MemoryState.from_entries(schema, "", 2, copy.entries.latest_versions()) == state
    database.close()


def test_a_backup_is_of_the_open_file_after_a_change_of_the_folder(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "other").mkdir()
    MemoryStore.open(tmp_path / "other" / "a.db", embedder="hash").close()
    monkeypatch.chdir(tmp_path)
    with MemoryStore.open("a.db", embedder="hash") as store:
        store.insert("semantic", "Ana: lives in Oslo")
        monkeypatch.chdir("other")
        assert store.backup("b.db") == {"default": 1}


def test_entries_and_hits_become_mappings_and_tables(store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pandas")
    [hit] = store.search("Ana", 1)
    assert hit.to_dict()["entry"] == hit.entry.to_dict() == store.list()[0].to_dict()
    assert MemoryEntry(**hit.entry.to_dict()) == hit.entry
    table = store.to_pandas(where={"n": {"$gte": 3}})
    assert list(table["id"]) == ids(store) and list(table.columns) == list(hit.entry.to_dict())
    assert list(store.to_pandas("episodic").columns) == list(table.columns)
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(StoreError, match="pip install pandas"):
        store.to_pandas()
