"""Erasure: no erased content remains in the file, and nothing restores it."""

import resource
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from stores import facts, new, quarantine

from memalpha.errors import InvalidArgument, ScrubPending, StoreError, UnknownEntry, UnknownFieldWarning
from memalpha.store.backends.sqlite import SQLiteDatabase
from memalpha.store.checks.integrity import examine
from memalpha.store.store import MemoryStore
from memalpha.types import Operation

SECRETS = ["zyxomma", "Größenwahn", "qwobblefrotz", "1899-12-31", "chat-vrumquip", "turn-blixnard", "vorpalgimble"]


def bytes_of(path: Path) -> bytes:
    """All that lies on the disk beside the store, case aside."""
    return b"".join(file.read_bytes() for file in path.parent.glob(f"{path.name}*")).lower()


def secrets_in(path: Path) -> list[str]:
    data = bytes_of(path)
    return [secret for secret in SECRETS if secret.lower().encode() in data]


def filled(path: str | Path) -> tuple[MemoryStore, str]:
    """A store where one entry of many holds the secrets, has been changed, deleted, brought back and deleted again."""
    store = new(path, durability="normal")
    if isinstance(store.database, SQLiteDatabase):
        store.database.connection.execute("PRAGMA secure_delete = OFF")  # some builds of SQLite have it on
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


def add(store: MemoryStore, content: str = "zyxomma", **fields) -> str:
    return store.add(content, metadata={"user": "ana"}, **fields).id


def delete_and_restore(store: MemoryStore) -> None:
    position = store.snapshot()
    add(store)
    store.restore(position)


def review(store: MemoryStore, *, accept: bool) -> None:
    store.review(quarantine(store, insert_of_ana()), accept=accept)


def insert_of_ana() -> Operation:
    return Operation("insert", category="semantic", content="zyxomma", metadata={"user": "ana"})


ENDS = {  # each way in which an entry of ana can be live, have ended, or never have been
    "live": add,
    "a version of the past": lambda store: store.update(add(store), "other", metadata={"user": "ben"}),
    "one update by her": lambda store: store.update(store.add("pet").id, "zyxomma", metadata={"user": "ana"}),
    "deleted": lambda store: store.delete(add(store)),
    "deleted and back": lambda store: (store.delete(add(store)), store.undo()),
    "expired": lambda store: add(store, expires="2024-05-10"),
    "expires later": lambda store: add(store, expires="2999-05-10"),
    "undone": lambda store: (add(store), store.undo()),
    "undone, done again and deleted": lambda store: (add(store), store.undo(), store.delete(store.redo().id)),
    "restored away": delete_and_restore,
    "reverted": lambda store: (add(store, source="chat"), store.revert(source="chat")),
    "under a key": lambda store: store.delete(store.upsert("qwobblefrotz", "x", metadata={"user": "ana"}).id),
    "quarantined": lambda store: quarantine(store, insert_of_ana()),
    "rejected": lambda store: review(store, accept=False),
    "accepted": lambda store: review(store, accept=True),
    "a quarantined change of somebody else's": lambda store: quarantine(
        store, replace(insert_of_ana(), kind="update", id=store.list()[0].id)
    ),
}


def test_an_erasure_by_a_field_that_filters_do_not_read_is_said(tmp_path: Path) -> None:
    with new(tmp_path / "a.db") as store:
        with store.writing_as(speaker="Ben"):
            store.add("Ben has a dog.")
        with pytest.warns(UnknownFieldWarning, match="not read an entry's speaker: write it with metadata=") as caught:
            assert store.erase(where={"speaker": "Ben"}).ids == ()
        with pytest.warns(UnknownFieldWarning, match="is it spelt right"):
            assert store.erase(where={"usr": "ben"}).ids == ()
        assert caught[0].filename == __file__ and store.count() == 1


@pytest.mark.sqlite
@pytest.mark.parametrize("end", ENDS)
def test_erase_where_leaves_no_byte_of_a_person(tmp_path: Path, end: str) -> None:
    path = tmp_path / "a.db"
    with new(path) as store:
        other = store.add("Ben has a dog.", metadata={"user": "ben"})
        before = store.count()
        ENDS[end](store)
        other_position = store.snapshot()
        assert secrets_in(path)
        erasure = store.erase(where={"user": "ana"})
        assert erasure == [] and erasure.forks == ()
        assert len(erasure.ids) == (0 if "somebody else's" in end else 2 if end == "accepted" else 1)
        assert secrets_in(path) == [] and store.get(other.id) == other and store.count() == before
        assert store.snapshot() == other_position + 1 and store.quarantined() == []
        while store.undo():
            assert "ana" not in str(store.list())
    assert secrets_in(path) == [] and examine(path).problems == []


@pytest.mark.sqlite
def test_the_guide_leaves_nothing_of_the_user(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    guide = Path(__file__, "../../../docs/guides/store/erase.md").resolve().read_text()
    exec(guide.split("```python\n")[1].split("```")[0])
    assert not {word for word in (b"holiday", b"555 0100", b'"ana"') if word in bytes_of(tmp_path / "users.db")}


def test_erase_where_names_forks_and_refuses_what_holds_for_everything(monkeypatch) -> None:
    monkeypatch.setattr("memalpha.store.store._SHOWN_NAMESPACES", 1)
    store = new()
    add(store)
    store.fork("before")
    add(store, "qwobblefrotz")
    store.fork("copy")
    store.namespace("x").add("zyxomma")
    for where in ({}, {"user": {"$like": 1}}, {"$and": [{}]}, {"$or": [{"user": "ana"}, {}]}, {"user": {"$nin": []}}):
        with pytest.raises(StoreError, match="where"):
            store.erase(where=where)
    assert store.erase(where={"user": "nobody"}).ids == ()
    erasure = store.erase(where={"$or": [{"user": "ana"}, {"content": "none"}]})
    assert erasure.forks == ("before", "copy") and len(erasure.ids) == 2
    assert store.namespace("copy").erase(*erasure.ids).forks == ("before",)


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ({"user": None}, r'user is None: use \{"user": \{"\$exists": false\}\} to erase what lacks it'),
        ({"user": {"$eq": None}, "source": "test"}, "user is None"),
        ({"$and": [{"source": "test"}, {"user": None}]}, "user is None"),
        ({"$not": {"user": {"$in": ["ana", None]}}}, "user is None"),
        ({"$not": {"user": {"$ne": None}}}, "user is None"),
        ({"user": {"$not": {"$ne": None}}}, "user is None"),
        ({"user": {"$not": {"$not": {"$in": [None]}}}}, "user is None"),
        ({"user": {"$not": {"$nin": [None, "ana"]}, "$ne": "bo"}}, "user is None"),
        ({"user": {"$eq": None, "$not": {"$eq": "bo"}}}, "user is None"),
        ({"usr": {"$ne": "ana"}}, "no live entry has the field 'usr'"),
        ({"usr": {"$nin": ["ana"]}}, "no live entry has the field 'usr'"),
        ({"$not": {"usr": "ana"}, "source": "test"}, "no live entry has the field 'usr'"),
    ],
)
def test_an_erasure_by_what_entries_lack_is_refused(where: dict[str, Any], message: str) -> None:
    store = new()
    facts(store, 2)
    store.add("Ana lives in Porto.", metadata={"user": "ana"})
    with pytest.raises(InvalidArgument, match=message):
        store.erase(where=where)
    assert len(store.list()) == 3
    assert len(store.erase(where={"user": {"$ne": "ana"}}).ids) == 2
    assert store.erase(where={"user": {"$exists": False}}).ids == ()


@pytest.mark.parametrize(
    "where",
    [
        {"category": {"$not": {"$in": []}}},
        {"$not": {"user": {"$in": []}}},
        {"$not": {"$not": {}}},
        {"$not": {"$or": [{"user": {"$in": []}}, {"$not": {}}]}},
        {"user": {"$not": {}}},
    ],
)
def test_negations_that_hold_for_everything_are_refused(where: dict[str, Any]) -> None:
    store = new()
    store.add("Ana lives in Porto.", metadata={"user": "ana"})
    for end in (store.erase, store.delete_many):
        with pytest.raises(StoreError, match="where"):
            end(where=where)
    assert len(store.list()) == 1
    assert store.erase(where={"$not": {}}).ids == () and len(store.erase(where={"user": {"$ne": None}}).ids) == 1


@pytest.mark.sqlite
def test_only_erasure_may_change_the_log(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    store, id = filled(path)
    store.erase(id)
    rows = sqlite3.connect(path, isolation_level=None)
    stub = ", ".join(f"{name} = NULL" for name in ("category", "content", "importance", "metadata", "source", "chunk"))
    for change in (
        "content = 'x'",
        "kind = 'erased'",
        f"kind = 'erased', {stub}, seq = 900",
        f"kind = 'erased', {stub}, head = 0",
        f"kind = 'erased', {stub}, time = ''",
        f"kind = 'erased', {stub}, source = 'x'",
        f"kind = 'delete', {stub}",
    ):
        with pytest.raises(sqlite3.IntegrityError, match="append-only"):
            rows.execute(f"UPDATE operations SET {change} WHERE seq = 1")
    for statement in ("UPDATE operations SET id = 'x' WHERE kind = 'erased'", "DELETE FROM operations"):
        with pytest.raises(sqlite3.IntegrityError, match="append-only"):
            rows.execute(statement)
    rows.execute(f"UPDATE operations SET kind = 'erased', {stub} WHERE seq = 1")


@pytest.mark.sqlite
@pytest.mark.parametrize("finish", [lambda path: new(path).erase("nobody#x"), lambda path: examine(path, repair=True)])
def test_an_interrupted_erasure_is_finished_later(tmp_path: Path, finish) -> None:
    path = tmp_path / "a.db"
    store, id = filled(path)
    with store.database.transaction():  # what a kill leaves between the transaction and the rewriting of the file
        store.rows.erase([id])
    store.close()
    assert secrets_in(path)
    [problem] = examine(path).problems
    assert "erasure was not finished" in problem.message
    with suppress(UnknownEntry):
        finish(path)
    assert examine(path).problems == [] and secrets_in(path) == []


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Let another process read the file in the block."""
    with closing(sqlite3.connect(path, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM operations").fetchone()
        yield


@pytest.mark.sqlite
def test_a_reader_that_blocks_scrubbing_is_named(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("memalpha.store.backends.sqlite.LOCK_TIMEOUT", 0.1)
    path = tmp_path / "a.db"
    store, id = filled(path)
    with reading(path):
        with pytest.raises(StoreError, match=r"other processes read .* `memalpha doctor --repair`"):
            store.erase(id)
        with pytest.raises(UnknownEntry):
            store.get(id)
    assert examine(path, repair=True).problems == [] and secrets_in(path) == []


@pytest.mark.sqlite
def test_an_erasure_without_room_is_pending_and_the_next_opening_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    store, id = filled(path)
    twin = store.insert("episodic", "qwobblefrotz: was").id
    store.close()
    store, limits = new(path), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size // 2, limits[1]))
    try:
        with pytest.raises(ScrubPending, match=r"erased, but there is no room .* MB .* goes on") as caught:
            store.erase(id)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert caught.value.erasure == [twin]
    for read in (store.get, store.history):
        with pytest.raises(UnknownEntry):
            read(id)
    assert store.pending_scrub and all(hit.entry.id != id for hit in store.search("zyxomma", 100))
    [problem] = examine(path).problems
    assert "erasure was not finished" in problem.message
    new(path).erase(twin)  # opening has finished the first one
    assert secrets_in(path) == [] and not store.pending_scrub and examine(path).problems == []


@pytest.mark.sqlite
def test_opening_does_not_wait_for_a_reader(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    store, id = filled(path)
    with store.database.transaction():
        store.rows.erase([id])
    with reading(path), pytest.warns(UserWarning, match="other processes read the file"):
        assert new(path).pending_scrub
    assert not new(path).pending_scrub and secrets_in(path) == []


def test_the_past_of_the_core_memory_can_be_erased(tmp_path: Path) -> None:
    store, _ = filled(tmp_path / "a.db")
    for text in ("qwobblefrotz Ana", "zyxomma Ben"):
        store.core_update(text)
    store.undo()
    store.core_update("Cleo")
    position, entries = store.snapshot(), store.list()
    assert store.erase_core_history() == 3 and store.erase_core_history() == 0
    assert store.core == "Cleo" == store.core_at(position) and store.core_at(position - 1) == ""
    assert store.list() == entries and store.history(entries[0].id)
    assert [op.content for _, _, op in store.log() if op.kind == "core_update"] == ["Cleo"]
    undone = store.undo()
    assert undone is not None and undone.content == "Cleo" and store.core == ""
    store.redo()
    assert store.core == "Cleo"


def test_a_namespace_is_dropped_with_its_name(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    store = new(path)
    store.add("city: Oslo")
    ana, other = store.namespace("ana-zyxomma@example.org"), new(path, namespace="ana-zyxomma@example.org")
    ana.add_many(["pet: cat", "pet: qwobblefrotz"])
    assert len(other.search("pet")) == 2 and len(ana.search("pet")) == 2
    with pytest.raises(StoreError, match="no namespace 'nobody'"):
        store.drop_namespace("nobody")
    assert store.drop_namespace("ana-zyxomma@example.org") == 2
    assert store.namespaces() == ["default"] and not store.pending_scrub
    assert secrets_in(path) == []
    for handle in (ana, other):
        assert handle.list() == [] == handle.search("pet") and handle.snapshot() == 0
    store.namespace("ben").add_many(["pet: dog", "pet: hen"])  # must not take the old one's place
    assert other.list() == [] == other.search("pet")
    assert other.add("pet: bee").content == "pet: bee" and other.add("pet: ant")
    for handle in (ana, other):
        assert {hit.entry.content for hit in handle.search("pet")} == {"pet: bee", "pet: ant"}
    assert [entry.content for entry in store.list()] == ["city: Oslo"]
    assert len(store.namespace("ben").search("pet")) == 2


def test_an_erased_undone_write_does_not_clear_redo() -> None:
    store = new()
    store.core_update("name: Ana")
    city = store.insert("semantic", "city: Porto")
    store.undo()
    store.undo()
    store.erase_core_history()
    redone = store.redo()
    assert redone is not None and redone.id == city.id and store.redo() is None
    assert [entry.content for entry in store.list()] == ["city: Porto"] and not store.core


def test_erased_rows_of_a_log_are_not_imported_beside_other_entries(tmp_path: Path) -> None:
    store, mixed = new(), new()
    store.erase(store.insert("semantic", "pet: cat").id)
    store.insert("semantic", "city: Porto")
    store.export_jsonl(tmp_path / "log.jsonl")
    mixed.insert("semantic", "mine")
    assert mixed.import_jsonl(tmp_path / "log.jsonl") == 1
    assert [entry.content for entry in mixed.list()] == ["mine", "city: Porto"]


@pytest.mark.sqlite
def test_an_export_holds_the_log_of_its_start_or_says_that_it_was_erased(tmp_path: Path, monkeypatch) -> None:
    store = new(tmp_path / "a.db")
    ids = [store.insert("semantic", f"fact {number}").id for number in range(4)]
    page = store.rows.log.page

    def write_between(write):
        """Call `write` with another connection before the second page is read."""

        def second_page(self, after, limit):
            if after == 2:
                with suppress(ScrubPending), MemoryStore.open(tmp_path / "a.db") as other:
                    write(other)
            return page(after, limit)

        monkeypatch.setattr(type(store.rows.log), "page", second_page)

    monkeypatch.setattr("memalpha.store.store._PAGE", 2)
    write_between(lambda other: other.insert("semantic", "later"))
    assert store.export_jsonl(tmp_path / "log.jsonl") == 4
    assert "later" not in (tmp_path / "log.jsonl").read_text()
    write_between(lambda other: other.erase(ids[0]))
    with pytest.raises(StoreError, match="erased while the log was read: export again"):
        store.export_jsonl(tmp_path / "erased.jsonl")
    assert not (tmp_path / "erased.jsonl").exists()
