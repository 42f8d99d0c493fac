"""Work of public calls at n and 4n entries: database steps, decoded rows, embedded texts; no clock.

Arithmetic on the arrays of a search index is not counted.

`TABLE` says how the work of a call may grow. "flat" is the same work whatever the store holds beside what is asked for;
"grows" is work in the number of entries. A call that becomes slower fails, and so does one that "grows" no longer: its
row is then out of date. Rows marked `# should be flat` grow today although what they return does not.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from stores import CountingEmbedder, quarantine

from memalpha.errors import UnknownEntry
from memalpha.store.backends import namespace
from memalpha.store.store import MemoryStore
from memalpha.types import Operation

pytestmark = pytest.mark.sqlite
SIZE = 150
NOBODY = {"n": -1}


class Work(NamedTuple):
    """Work of a call: steps of SQLite's virtual machine, entries and operations made from rows, embedded texts."""

    steps: int
    rows: int
    texts: int


class Sample(NamedTuple):
    """Store of `size` entries, an entry with three versions, and the embedder."""

    store: MemoryStore
    size: int
    id: str
    embedder: CountingEmbedder

    @classmethod
    def open(cls, path: Path, size: int) -> Sample:
        embedder = CountingEmbedder(8)
        store = MemoryStore.open(path, embedder=embedder, durability="normal")
        store.search("Oslo", where=NOBODY)  # makes the index and the columns of filters
        return cls(store, size, store.list(limit=size // 2)[-1].id, embedder)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """Return the file of a sample by its size."""
    paths = {size: tmp_path_factory.mktemp("costs") / "a.db" for size in (SIZE, 4 * SIZE)}
    for size, path in paths.items():
        with MemoryStore.open(path, embedder=CountingEmbedder(8)) as store:
            origin = [{"source": f"chat-{number // 10}", "chunk": number % 10, "turn": "1"} for number in range(size)]
            store.insert_many(
                {"category": "semantic", "content": f"fact {number}: value {number}", "metadata": {"n": number}}
                | origin[number]
                for number in range(size)
            )
            id = store.list(limit=size // 2)[-1].id
            store.update(id, "city: Rome", source="chat-1", chunk=3, turn="1")
            store.update(id, "city: Oslo", source="chat-1", chunk=3, turn="1")
            store.core_update("Ana")
    return paths


@contextmanager
def counted(sample: Sample, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Work]]:
    """Append the work of the block to the list."""
    ticks, rows, texts, work = [0], [0], sample.embedder.texts, []

    def tick() -> None:
        ticks[0] += 1

    def count(decode: Callable) -> Callable:
        def decoded(*values: Any) -> Any:
            rows[0] += 1
            return decode(*values)

        return decoded

    connection = sample.store.database.connection
    with monkeypatch.context() as patch:
        patch.setattr(namespace, "decode_entry", count(namespace.decode_entry))
        patch.setattr(namespace, "decode_entries", lambda page: list(map(namespace.decode_entry, page)))
        patch.setattr(namespace, "decode_log_row", count(namespace.decode_log_row))
        connection.set_progress_handler(tick, 1)
        yield work
        connection.set_progress_handler(None, 0)
    work.append(Work(ticks[0], rows[0], sample.embedder.texts - texts))


def erase_entries(store: MemoryStore) -> None:
    store.erase(*(entry.id for entry in store.list()))


def erase_unknown(store: MemoryStore) -> None:
    with pytest.raises(UnknownEntry):
        store.erase("nobody")


def write_two(store: MemoryStore) -> None:
    with store.transaction():
        store.insert("semantic", "pet: cat")
        store.search("pet", 5)


def read_two(store: MemoryStore, id: str) -> None:
    with store.read_transaction():
        assert store.get(id) == store.get(id)


CAT = Operation("insert", None, "semantic", "pet: cat")
Call = Callable[[MemoryStore, str], object]
TABLE: dict[str, tuple[str, Call]] = {
    "get": ("flat", lambda store, id: store.get(id)),
    "get as_of position": ("flat", lambda store, id: store.get(id, as_of=store.snapshot() - 1)),
    "find": ("flat", lambda store, id: store.find("semantic", "city: Oslo")),
    "history_many": ("flat", lambda store, id: store.history_many([id, "nobody"])),
    "recent": ("flat", lambda store, id: store.recent(5)),
    "list limit": ("flat", lambda store, id: store.list(limit=5)),
    "list after": ("flat", lambda store, id: store.list(limit=5, after=id)),
    "list category limit": ("grows", lambda store, id: store.list("episodic", limit=5)),  # should be flat
    "list": ("grows", lambda store, id: store.list()),
    "list where": ("flat", lambda store, id: store.list(where=NOBODY)),
    "list where limit": ("flat", lambda store, id: store.list(where={"n": {"$gte": 0}}, limit=5)),
    "list where after": ("flat", lambda store, id: store.list(where={"n": {"$gte": 0}}, limit=5, after=id)),
    "list as_of limit": ("grows", lambda store, id: store.list(limit=5, as_of=store.snapshot() - 1)),  # should be flat
    "core_at": ("flat", lambda store, id: store.core_at(store.snapshot() - 1)),
    "snapshot": ("flat", lambda store, id: store.snapshot()),
    "state": ("grows", lambda store, id: store.state),
    "count": ("grows", lambda store, id: store.count()),  # rows of an index, of which none is decoded
    "log": ("flat", lambda store, id: list(store.log(store.snapshot() - 3))),
    "search": ("flat", lambda store, id: store.search("Oslo", 5)),
    "search where": ("flat", lambda store, id: store.search("Oslo", 5, where={"n": {"$gte": 10}})),
    "search around": ("flat", lambda store, id: store.search("Oslo", 5, around=20)),
    "search after a write": ("flat", lambda store, id: (store.insert("semantic", "x"), store.search("Oslo", 5))),
    "search as_of": ("flat", lambda store, id: store.search("Oslo", 5, as_of=store.snapshot() - 1)),
    "search as_of where": (
        "flat",
        lambda store, id: store.search("Oslo", 5, where={"n": {"$gte": 10}}, as_of=store.snapshot() - 1),
    ),
    "search of a fresh handle": ("flat", lambda store, id: store.namespace("default").search("Oslo", 5)),
    "around": ("flat", lambda store, id: store.around(id, 20)),
    "insert": ("flat", lambda store, id: store.insert("semantic", "pet: cat", metadata={"n": 1})),
    "insert a duplicate": ("flat", lambda store, id: store.insert("semantic", "city: Oslo")),
    "apply_each": ("flat", lambda store, id: store.apply_each([CAT])),
    "insert_many": ("flat", lambda store, id: store.insert_many([{"category": "semantic", "content": "pet: cat"}])),
    "upsert": ("flat", lambda store, id: store.upsert("ana:pet", "pet: cat")),
    "update": ("flat", lambda store, id: store.update(id, "city: Bergen")),
    "delete": ("flat", lambda store, id: store.delete(id)),
    "transaction": ("flat", lambda store, id: write_two(store)),
    "read_transaction": ("flat", read_two),
    "expiry": ("flat", lambda store, id: (store.insert("semantic", "y", expires="2020-01-01"), store.list(limit=1))),
    "undo": ("flat", lambda store, id: (store.delete(id), store.undo())),
    "redo": ("flat", lambda store, id: (store.delete(id), store.undo(), store.redo())),
    "redo of nothing": ("grows", lambda store, id: (erase_entries(store), store.redo())),  # but no faster than n
    "restore": ("flat", lambda store, id: (store.delete(id), store.restore(store.snapshot() - 1))),
    "revert": ("grows", lambda store, id: store.revert(source="nobody")),  # it reads the log
    "revert since": ("flat", lambda store, id: (store.delete(id), store.revert(since=store.snapshot() - 1))),
    "review": ("flat", lambda store, id: store.review(quarantine(store, CAT), accept=True)),
    "diff": ("flat", lambda store, id: store.diff(store.snapshot() - 1)),
    "erase": ("grows", lambda store, id: store.erase(id)),  # should be flat, but for rewriting the file
    "erase an unknown id": ("flat", lambda store, id: erase_unknown(store)),
    "drop_namespace": ("grows", lambda store, id: store.drop_namespace("default")),
    "fork": ("grows", lambda store, id: store.fork("copy")),
    "export_jsonl": ("grows", lambda store, id: store.export_jsonl(Path(store.path).with_name("log.jsonl"))),
    "import_jsonl": ("flat", lambda store, id: store.import_jsonl(Path(store.path).with_name("facts.jsonl"))),
}


def work_of(name: str, size: int, file: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Work:
    folder.mkdir()
    (folder / "facts.jsonl").write_text('{"category": "semantic", "content": "pet: cat"}\n')
    sample = Sample.open(Path(shutil.copy(file, folder)), size)
    with counted(sample, monkeypatch) as work:
        TABLE[name][1](sample.store, sample.id)
    sample.store.close()
    return work[0]


@pytest.mark.parametrize("name", TABLE)
def test_work_grows_as_the_table_says(name: str, files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few, many = (work_of(name, size, file, tmp_path / str(size), monkeypatch) for size, file in files.items())
    assert many.texts == few.texts <= 2, (few, many)  # what is stored is never embedded again
    flat = many.steps <= 1.25 * few.steps + 40 and many.rows <= few.rows + 1
    assert ("flat" if flat else "grows") == TABLE[name][0], (few, many)
    assert many.steps <= 5 * few.steps + 40 and many.rows <= 5 * few.rows + 1, (few, many)  # and no faster than n
