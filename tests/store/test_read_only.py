"""Stores opened read-only: every read works, nothing is written, on read-only folders too."""

import os
import shutil
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path

import pytest

from memalpha.errors import StoreError
from memalpha.store.checks.integrity import examine
from memalpha.store.store import MemoryStore

pytestmark = pytest.mark.sqlite

READS = {
    "list": lambda store: store.list(where={"user": "ana"}),
    "past list": lambda store: store.list(as_of=1),
    "search": lambda store: store.search("city", where={"user": "ana"}),
    "log": lambda store: list(store.log()),
    "diff": lambda store: store.diff(1),
    "core": lambda store: store.core,
    "state": lambda store: store.state,
    "namespaces": lambda store: store.namespaces(),
    "history": lambda store: store.history(store.list(limit=1)[0].id),
    "recent": lambda store: store.recent(2),
}
WRITES = {
    "add": lambda store: store.add("pet: dog"),
    "add_many": lambda store: store.add_many(["pet: dog"]),
    "delete": lambda store: store.delete(store.list(limit=1)[0].id),
    "core_update": lambda store: store.core_update("Ben"),
    "undo": lambda store: store.undo(),
    "restore": lambda store: store.restore(1),
    "erase": lambda store: store.erase(store.list(limit=1)[0].id),
    "fork": lambda store: store.fork("copy"),
    "drop": lambda store: store.drop_namespace("default"),
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "folder" / "a b?#%.db"
    path.parent.mkdir()
    with MemoryStore.open(path, embedder="hash") as store:
        store.insert("semantic", "city: Oslo", metadata={"user": "ana"}, expires="2030-01-01")
        store.insert("semantic", "pet: cat")
        store.core_update("Ana")
    return path


def contents(folder: Path) -> dict[str, tuple[int, bytes]]:
    return {file.name: (file.stat().st_mtime_ns, file.read_bytes()) for file in folder.iterdir()}


@pytest.mark.parametrize("year", [2027, 2031])  # without and with expired entries
def test_reads_write_nothing_and_writes_are_refused(path: Path, tmp_path: Path, year: int) -> None:
    clock, before = lambda: datetime(year, 1, 1, tzinfo=UTC), contents(path.parent)
    shutil.copy(path, tmp_path / "copy.db")
    with (
        MemoryStore.open(path, clock=clock, read_only=True) as store,
        MemoryStore.open(tmp_path / "copy.db", clock=clock) as other,
    ):
        for name, read in READS.items():
            assert read(store) == read(other), name
        for name, write in WRITES.items():
            with pytest.raises(StoreError, match="read-only"):
                write(store)
            assert store.list() == other.list(), name
        store.export_jsonl(tmp_path / "log.jsonl")
        with store.fork(path=tmp_path / "fork.db") as fork:
            assert fork.list() == other.list()
    assert contents(path.parent) == before


def test_writes_of_others_are_seen(path: Path) -> None:
    store = MemoryStore.open(path, read_only=True)
    assert len(store.search("pet")) == 2
    with MemoryStore.open(path) as writer:
        writer.add("pet: dog")
        assert len(store.search("pet")) == 3 == len(store.list())
    assert len(store.search("pet")) == 3
    backup = path.rename(path.with_name("backup"))
    for content in (None, b"no store", None):  # while somebody restores a backup
        path.unlink(missing_ok=True) if content is None else path.write_bytes(content)
        with pytest.raises(StoreError, match=r"cannot be read any more|not a memalpha store"):
            store.list()
    backup.rename(path)
    assert len(store.search("pet")) == 3
    with MemoryStore.open(path.with_name("other"), embedder="hash") as other:
        other.add_many(["pet: hen", "pet: cow", "pet: owl", "pet: fox"])  # as many operations
    for end in ("-wal", "-shm"):  # as the guide says
        path.with_name(f"{path.name}{end}").unlink()
    path.with_name("other").replace(path)
    assert {hit.entry.content[-3:] for hit in store.search("pet")} == {"hen", "cow", "owl", "fox"}
    store.close()
    with pytest.raises(StoreError, match="is closed"):
        store.list()


@pytest.mark.parametrize("has_common_log", [False, True])
def test_another_store_copied_into_the_file_is_read(path: Path, tmp_path: Path, has_common_log: bool) -> None:
    """A copy in place keeps the file's inode, and its log may end at the same position."""
    other = tmp_path / "other.db"
    if has_common_log:
        shutil.copyfile(path, other)
    with MemoryStore.open(other, embedder="hash") as store:
        for text in ["city: Rome", "pet: dog", "job: cook"][: 1 if has_common_log else 3]:
            store.insert("semantic", text)
        position = store.snapshot()
    with MemoryStore.open(path, embedder="hash") as store:
        while store.snapshot() < position:
            store.insert("semantic", "hobby: chess")
    with MemoryStore.open(path, embedder="hash", read_only=True) as reader:
        assert len(reader.search("city pet", k=5)) > 1 and reader.snapshot() == position
        shutil.copyfile(other, path)
        contents = {hit.entry.content for hit in reader.search("city pet", k=5)}
        assert contents == {entry.content for entry in reader.list()} and "city: Rome" in contents


def test_a_write_during_a_read_of_an_unlocked_file_is_noticed(path: Path) -> None:
    store = MemoryStore.open(path, read_only=True)
    with pytest.raises(StoreError, match="written while it was read"), store._transaction():
        store.list()
        with MemoryStore.open(path) as writer:
            writer.add("pet: hen")
    assert len(store.list()) == 3


def test_what_cannot_be_opened_read_only_is_said(path: Path, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="no such store"):
        MemoryStore.open(tmp_path / "no.db", read_only=True)
    with pytest.raises(StoreError, match="a store file is needed"):
        MemoryStore.open(":memory:", read_only=True)


@pytest.mark.skipif(os.getuid() != 0 or not shutil.which("setpriv"), reason="needs root, to become another user")
def test_reading_commands_on_a_read_only_folder() -> None:
    with tempfile.TemporaryDirectory() as name:  # that another user can reach
        folder = Path(name)
        path = folder / "a.db"
        with MemoryStore.open(path, embedder="hash") as store:
            id = store.add("city: Oslo").id
        path.chmod(0o444)
        folder.chmod(0o555)
        code = f"""
from memalpha.cli.main import app
COMMANDS = [["search", "city"], ["show"], ["ask", "Which city?"], ["history", {id!r}], ["diff", "0"], ["audit"],
    ["doctor"]]
for words in COMMANDS:
    try:
        app([words[0], {str(path)!r}, *words[1:]], standalone_mode=False)
    except SystemExit as exit:
        assert not exit.code, words
"""
        command = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", sys.executable, "-c", code]
        done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "HOME": "/nonexistent"})
        assert done.returncode == 0 and done.stdout.count("city: Oslo") >= 4, done.stderr
        assert [file.name for file in folder.iterdir()] == ["a.db"]
        folder.chmod(0o755)
        assert examine(path).problems == []
