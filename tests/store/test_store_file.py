"""Store files: recorded metadata, refused files, export and import, threads, processes, kills."""

import sqlite3
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import pytest
from stores import NegatedEmbedder, facts, new

from memalpha.errors import DataError, EmbedderError, InvalidContent, StoreError
from memalpha.store.backends import base, sqlite
from memalpha.store.embedding import HashEmbedder, load_embedder
from memalpha.store.io.markdown import export_markdown
from memalpha.store.store import MemoryStore

HASH = load_embedder("hash")


@pytest.mark.sqlite
def test_durable_settings(tmp_path) -> None:
    for durability, synchronous in [("full", 2), ("full", 2), ("normal", 1)]:
        with new(tmp_path / "a.db", durability=durability) as store:
            rows = store.database.connection
            assert rows.execute("PRAGMA journal_mode").fetchone() == ("wal",)
            assert rows.execute("PRAGMA synchronous").fetchone() == (synchronous,)
    with pytest.raises(StoreError, match="durability 'fast'"):
        new(tmp_path / "b.db", durability="fast")
    assert not (tmp_path / "b.db").exists()


class Failing(HashEmbedder):
    def encode(self, texts):
        raise EmbedderError("no answer")


def test_reopening_checks_the_recorded_schema_and_embedder(tmp_path) -> None:
    path = tmp_path / "a.db"
    schema_path = tmp_path / "own.yaml"
    schema_path.write_text("name: own\ncategories: {customer: Who it is.}")
    new(path, schema=schema_path).insert("customer", "Ana")
    store = MemoryStore.open(path)
    assert store.schema.name == "own"
    assert store.embedder == "hash"
    assert store.search("Ana")[0].entry.content == "Ana"
    assert MemoryStore.open(path, schema=schema_path).schema == store.schema
    with pytest.raises(EmbedderError, match=r"(a\.db|&schema=\w+) was made with the embedder 'hash', not 'static'"):
        MemoryStore.open(path, embedder="static")
    with pytest.raises(StoreError, match=r"schema 'own' .* not 'mem-alpha'"):
        MemoryStore.open(path, schema="mem-alpha")
    for changed in (NegatedEmbedder(), HashEmbedder(64)):
        with pytest.raises(EmbedderError, match="another version of the embedder 'hash'"):
            MemoryStore.open(path, embedder=changed).search("Ana")
    # What needs no vectors works without the embedder.
    assert MemoryStore.open(path, embedder=NegatedEmbedder()).list()[0].content == "Ana"


@pytest.mark.sqlite
def test_other_files_are_refused_and_unchanged(tmp_path) -> None:
    (tmp_path / "short").write_text("hello")
    (tmp_path / "long").write_text("hello" * 1000)
    with sqlite3.connect(tmp_path / "foreign") as rows:
        rows.execute("CREATE TABLE t (x)")
    rows.close()
    for name, message in [
        ("short", "is not a memalpha store"),
        ("long", "is not a memalpha store"),
        ("foreign", "SQLite database, but not a memalpha store"),
    ]:
        before = (tmp_path / name).read_bytes()
        with pytest.raises(StoreError, match=message) as caught:
            new(tmp_path / name)
        assert name in str(caught.value)
        assert (tmp_path / name).read_bytes() == before
    for path, message in [
        (tmp_path, "is a folder"),
        (tmp_path / "none" / "a.db", "the folder .* does not exist"),
        ("mysql://host/db", "mysql://...: give a path"),
    ]:
        with pytest.raises(StoreError, match=message):
            new(path)
    with pytest.raises(StoreError, match="no such store"):
        new(tmp_path / "none.db", create=False)
    assert not (tmp_path / "none.db").exists()
    with pytest.raises(EmbedderError):
        MemoryStore.open(tmp_path / "b.db", embedder=Failing())
    assert not list(tmp_path.glob("b.db*"))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "2: not JSON"),
        ('{"category": "semantic", "content": "a", "content": "b"}', "2: not JSON: content: the key occurs twice"),
        ('{"category": "semantic", "text": "a"}', "2: text: no field of a line: there are seq, time"),
        ('{"category": "semantic", "content": 3}', "2: content"),
        ('{"category": "semantic", "content": ""}', "2: content is empty"),
        ('{"category": "semantic"}', "2: content"),
        ('{"category": "nine", "content": "a"}', "2: no category 'nine'"),
        ('{"category": "semantic", "content": "a", "expires": "May"}', "2: expires 'May'"),
        ('{"kind": "delete", "id": "none"}', "2: no live entry"),
        ('{"kind": "forget", "id": "none"}', "2: kind"),
        ('{"time": "2024-01-01", "category": "semantic", "content": "a"}', "2: time"),
        ('"a"', "2: line: a JSON object is needed"),
        ('{"category": "semantic", "content": "\\ud800"}', "2: content"),
    ],
)
def test_a_bad_line_is_named_and_nothing_is_imported(tmp_path, line: str, message: str) -> None:
    file = tmp_path / "facts.jsonl"
    file.write_text('{"category": "semantic", "content": "pet: cat"}\n' + line + "\n")
    store = new()
    with pytest.raises(DataError) as caught:
        store.import_jsonl(file)
    assert f"facts.jsonl:{message}" in str(caught.value)
    assert store.list() == []
    for text, expected in [('{"memalpha": 99}', "file format 99"), ("\udcff", "not UTF-8")]:
        file.write_bytes(text.encode("utf-8", "surrogateescape"))
        with pytest.raises(DataError, match=expected):
            store.import_jsonl(file)
    with pytest.raises(DataError, match="cannot be read"):
        store.import_jsonl(tmp_path / "none")
    with pytest.raises(StoreError, match="cannot be written"):
        store.export_jsonl(tmp_path / "none" / "log.jsonl")


WRITER = "import sys; from memalpha import MemoryStore; store = MemoryStore.open(sys.argv[1], embedder='hash'); "
WRITER += "[store.add(f'{sys.argv[2]} {number}') for number in range(20)]"


@pytest.mark.sqlite
def test_processes_take_turns_on_one_file(tmp_path) -> None:
    path, names = tmp_path / "a.db", ("first", "second")
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, str(path), name]) for name in names]
    assert [process.wait() for process in writers] == [0, 0]
    assert {entry.content for entry in new(path).list()} == {f"{name} {n}" for name in names for n in range(20)}


@pytest.mark.sqlite
def test_temporary_files_of_a_killed_process_are_removed(tmp_path) -> None:
    with new(tmp_path / "a.db") as store:
        facts(store, 2)
        old = [tmp_path / f".{name}.4242.0123abcd.partial" for name in ("b.db", "b.jsonl")]
        old.append(tmp_path / ".b.db.4242.0123abcd.partial-wal")
        unrelated = [
            tmp_path / name for name in (".b.db.4242", ".b.db.copy", ".bbdb.4242.0123abcd.partial", "b.db.4242")
        ]
        for path in (*old, *unrelated):
            path.write_text("left")
        store.fork(path=tmp_path / "b.db").close()
        store.export_jsonl(tmp_path / "b.jsonl")
    assert not any(path.exists() for path in old)
    assert all(path.exists() for path in unrelated)


def test_one_reading_of_a_wrong_clock_is_refused(tmp_path: Path) -> None:
    now = [datetime(2027, 1, 1, tzinfo=UTC)]
    store = MemoryStore.open(tmp_path / "a.db", embedder="hash", clock=lambda: now[0])
    store.insert("semantic", "pet: cat", expires="2040-01-01")
    now[0] = datetime(9999, 12, 31, tzinfo=UTC)
    for write in (lambda: store.add("pet: dog"), lambda: store.add_many(["pet: dog"]), store.list, store.undo):
        with pytest.raises(StoreError, match=r"clock reads 9999-12-31.*set it right"):
            write()
    now[0] = datetime(2027, 1, 2, tzinfo=UTC)
    store.add("pet: hen")
    assert [time[:10] for _, time, _ in store.log()] == ["2027-01-01", "2027-01-02"]
    now[0] = datetime(2036, 1, 1, tzinfo=UTC)
    store.add("pet: bee")  # a long pause is none


@pytest.mark.parametrize("days", [1.5, 40, 5 * 365])
def test_a_jump_of_the_systems_clock_is_refused(tmp_path: Path, days, monkeypatch) -> None:
    ahead = [timedelta()]

    class Clock(datetime):
        @classmethod
        def now(cls, tz=None) -> datetime:
            return super().now(tz) + ahead[0]

    monkeypatch.setattr(base, "datetime", Clock)
    store = MemoryStore.open(tmp_path / "a.db", embedder="hash")
    expires = (datetime.now(UTC) + timedelta(days=days * 0.9)).isoformat()
    entry = store.insert("semantic", "Ana is on holiday.", expires=expires)
    ahead[0] = timedelta(days=days)
    for call in (store.list, lambda: store.insert("semantic", "Ana skis."), lambda: store.search("Ana")):
        with pytest.raises(StoreError, match=r"clock reads 20.*nothing was written.*open the store again"):
            call()
    ahead[0] = timedelta(hours=20)  # a timezone set wrong, or a slow clock put right
    store.insert("semantic", "Ana skis.")
    ahead[0] = timedelta()
    assert entry in store.list()
    monkeypatch.setattr(base, "time_since_boot", lambda: time.monotonic() + days * 86400)  # a machine that slept
    ahead[0] = timedelta(days=days)
    store.insert("semantic", "Ana is back.")
    assert entry not in store.list()


@pytest.mark.sqlite
def test_a_file_with_two_names_is_not_written(tmp_path: Path, monkeypatch) -> None:
    path, second = tmp_path / "a b.db", tmp_path / "second.db"
    new(path).close()
    second.hardlink_to(path)
    with pytest.raises(StoreError, match="second name"):
        MemoryStore.open(second)
    assert MemoryStore.open(second, read_only=True).count() == 0
    second.unlink()
    mounts = tmp_path / "mountinfo"
    mounts.write_text("63 43 254:0 /a.db " + str(path).replace(" ", r"\040") + " rw,relatime - ext4 /dev/vda rw\n")
    monkeypatch.setattr(sqlite, "MOUNTS", mounts)
    with pytest.raises(StoreError, match=r"mounted alone.*mount the folder"):
        MemoryStore.open(path)
    mounts.unlink()
    MemoryStore.open(path).close()


@pytest.mark.sqlite
def test_a_link_is_read_with_the_log_of_its_file(tmp_path: Path) -> None:
    (tmp_path / "link.db").symlink_to(tmp_path / "a.db")
    with new(tmp_path / "a.db") as store:
        store.add("only in the log")
        with MemoryStore.open(tmp_path / "link.db", read_only=True) as reader:
            assert reader.count() == 1


@pytest.mark.sqlite
@pytest.mark.parametrize("event", ["replaced", "removed", "moved away", "link changed"])
@pytest.mark.parametrize("namespace", ["default", "other"])
def test_a_file_that_is_no_longer_the_open_one_is_not_written(tmp_path: Path, event, namespace) -> None:
    path, other = tmp_path / "s.db", tmp_path / "other.db"
    with MemoryStore.open(other, embedder="hash") as second:
        second.add("of the other file")
    if event == "link changed":
        path.symlink_to(tmp_path / "first.db")
    store = MemoryStore.open(path, embedder="hash").namespace(namespace)
    store.add("of the first file")
    if event == "replaced":
        other.replace(path)
    elif event == "link changed":
        path.unlink()
        path.symlink_to(other)
    elif event == "removed":
        path.unlink()
    else:
        path.rename(tmp_path / "backup.db")
    word = "replaced" if event in ("replaced", "link changed") else "removed"
    for write in (lambda: store.add("lost"), store.undo, lambda: store.erase_all()):
        with pytest.raises(StoreError, match=rf"s\.db was {word}.*nothing was written; open the store again"):
            write()
    if word == "replaced":  # the old log is not applied to the other file
        with MemoryStore.open(path) as restored:
            assert [entry.content for entry in restored.list()] == ["of the other file"]
            restored.add("after it")
    else:
        assert not path.exists()
        MemoryStore.open(path, embedder="hash").add("anew")
    if event == "moved away":
        with MemoryStore.open(tmp_path / "backup.db", namespace=namespace) as moved:
            assert [entry.content for entry in moved.list()] == ["of the first file"]


@pytest.mark.sqlite
@pytest.mark.parametrize(
    "name", ["file:x.db", "file:x.db?mode=ro", "file://x", "file::memory:", "x?cache=shared", "%41.db"]
)
def test_a_path_is_a_path(tmp_path: Path, name, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    try:
        with MemoryStore.open(name, embedder="hash") as store:
            store.add("fact")
            monkeypatch.chdir(tmp_path.parent)
            store.add("another")
            monkeypatch.chdir(tmp_path)
        with MemoryStore.open(name, read_only=True) as store:
            assert store.count() == 2
    except StoreError as error:
        assert "://" in name, error
        assert not list(tmp_path.iterdir())
    else:
        assert [file.name for file in tmp_path.iterdir()] == [name]


def test_deep_metadata_is_refused_and_never_blocks_an_export(tmp_path: Path) -> None:
    store = MemoryStore.open(tmp_path / "a.db", embedder="hash")
    for depth, is_stored in ((1, True), (48, True), (49, False), (900, False), (100_000, False)):
        metadata: dict = {}
        inner = metadata
        for _ in range(depth):
            inner["a"] = inner = {}
        inner["b"] = [1]
        if is_stored:
            store.insert("semantic", f"depth {depth}", metadata=metadata)
        else:
            with pytest.raises(InvalidContent, match="metadata"):
                store.insert("semantic", f"depth {depth}", metadata=metadata)
    assert store.export_jsonl(tmp_path / "log.jsonl") == 2
    assert len(store.list(where={"a": {"$ne": 1}})) == 2
    (tmp_path / "deep.jsonl").write_text("[" * 100_000)
    with pytest.raises(DataError, match="not JSON"):
        store.import_jsonl(tmp_path / "deep.jsonl")


@pytest.mark.parametrize(
    ("metadata", "key"),
    [
        ({"a": 1, "b": {"when": datetime(2024, 5, 1)}}, r"metadata\.b\.when"),
        ({"a": [0, float("nan")]}, r"metadata\.a\[1\]"),
        ({"a": {(1, 2): 3}}, r"metadata\.a"),
    ],
)
def test_what_json_cannot_hold_is_refused_with_its_key(metadata: dict, key: str) -> None:
    with pytest.raises(InvalidContent, match=f"^{key} cannot be written as JSON"):
        new().insert("semantic", "city: Porto", metadata=metadata)


@pytest.mark.sqlite
@pytest.mark.parametrize("name", ["a.db", "other.db", "a.db-wal", "."])
def test_an_export_never_replaces_a_store(tmp_path: Path, name: str) -> None:
    with new(tmp_path / "other.db") as other:
        other.insert("semantic", "pet: dog")
    with new(tmp_path / "a.db") as store:
        store.insert("semantic", "pet: cat")
        before = {file: file.read_bytes() for file in (*tmp_path.glob("*.db"), tmp_path / "a.db-wal")}
        for export in (store.export_jsonl, partial(export_markdown, store)):
            with pytest.raises(StoreError, match=r"a database is there|is a folder"):
                export(tmp_path / name)
        assert {file: file.read_bytes() for file in before} == before
