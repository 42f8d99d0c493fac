"""Importers: mem0 and LangGraph arrive with their history, the source stays unchanged, no pickle is executed.

The files in `data/peers` were made by the real packages: see `make.py` there.
"""

from __future__ import annotations

import json
import os
import pickle
import shutil
import sqlite3
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memalpha.errors import DataError, StoreError
from memalpha.store.embedding import HashEmbedder
from memalpha.store.io.importers import base, replay
from memalpha.store.io.importers.base import SkippedMemory, SourceEvent
from memalpha.store.io.importers.replay import detect_format, import_memories
from memalpha.store.store import MemoryStore
from memalpha.types import Operation

NOW = datetime(2026, 11, 21, 19, 20, tzinfo=UTC)  # soon after the files were made
PEERS = Path(__file__).parents[1] / "data" / "peers"


@pytest.fixture
def store():
    with MemoryStore.open(":memory:", embedder=HashEmbedder(16), clock=lambda: NOW) as store:
        yield store


@pytest.fixture
def peers(tmp_path: Path) -> Path:
    return Path(shutil.copytree(PEERS, tmp_path / "peers"))


def files(folder: Path) -> dict[Path, tuple[bytes, int]]:
    return {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in folder.rglob("*") if path.is_file()}


def contents(store: MemoryStore) -> dict[str, list[str]]:
    return {name: [entry.content for entry in store.namespace(name).list()] for name in store.namespaces()}


@pytest.mark.parametrize(
    ("path", "history"),
    [
        ("mem0-faiss", None),
        ("mem0-faiss/mem0.json", "mem0-faiss/history.db"),
        ("mem0-qdrant", None),
        ("mem0-qdrant/collection/mem0", "mem0-qdrant/history.db"),
    ],
)
def test_mem0_is_imported_by_scope_with_history(store, peers: Path, path: str, history: str | None) -> None:
    before = files(peers)
    assert detect_format(peers / path) == "mem0"
    done = import_memories(store, peers / path, "mem0", history=history and peers / history)
    assert contents(store) == {
        "agent:coach": ["Be brief."],
        "default": [],
        "user:ana": ["Ana lives in Porto.", "I ran a half marathon.", "Well done!"],
        "user:tom": ["Tom likes tea."],
    }
    assert done.operations == {"user:ana": 4, "user:tom": 1, "default": 2, "agent:coach": 1} and done.notes == []
    [copy] = done.left_out
    assert (copy.namespace, copy.content) == ("user:tom", "Tom likes tea.")
    assert copy.same_as == store.namespace("user:tom").list()[0].id != copy.id
    ana = store.namespace("user:ana")
    home, run, _ = ana.list()
    assert [version.content for version in ana.history(home.id)] == ["Ana lives in Lisbon.", "Ana lives in Porto."]
    assert home.metadata == {"user_id": "ana", "role": "user", "topic": "home"}
    assert ana.list(where={"run_id": "run-1", "actor_id": "ana"}) == [run]
    moved = [time for _, time, operation in ana.log() if operation.kind == "update"]
    assert moved == [home.timestamp]
    assert ana.get(home.id, as_of=run.timestamp).content == "Ana lives in Lisbon."
    assert [operation.kind for _, _, operation in store.log()] == ["insert", "delete"]  # nobody knows whose the cat was
    assert store.namespace("user:tom").list()[0].expires == "2030-02-01T00:00:00.000000+00:00"
    assert files(peers) == before
    assert ana.search("Where does Ana live?", 1)[0].entry == home


def test_a_history_alone_and_payloads_alone(store, peers: Path) -> None:
    done = import_memories(store, peers / "mem0-faiss/history.db", "mem0")
    assert list(done.operations) == ["default"] and len(store.list()) == 5
    (peers / "mem0-faiss/history.db").unlink()
    with MemoryStore.open(":memory:", embedder=HashEmbedder(16)) as other:
        assert import_memories(other, peers / "mem0-faiss", "mem0").notes[0].startswith("no history.db beside it")
        assert contents(other)["user:ana"][-1] == "Ana lives in Porto." and "default" not in contents(other)


def test_mem0_payloads_win_over_its_history(store, peers: Path) -> None:
    file = peers / "mem0-faiss/mem0.json"
    data = json.loads(file.read_text())
    texts = {fields["data"]: id for id, fields in data["docstore"].items()}
    del data["docstore"][texts["Well done!"]]
    data["docstore"][texts["Be brief."]]["data"] = "Be kind."
    data["docstore"]["new"] = {"data": "Tom is 40.", "user_id": "tom", "created_at": "2024-01-01T00:00:00-07:00"}
    file.write_text(json.dumps(data))
    done = import_memories(store, peers / "mem0-faiss", "mem0")
    assert contents(store)["agent:coach"] == ["Be kind."] and contents(store)["default"] == []
    assert contents(store)["user:tom"] == ["Tom is 40.", "Tom likes tea."]
    assert next(store.namespace("user:tom").log())[1] == "2024-01-01T07:00:00.000000+00:00"
    assert [note[: note.index(":")] for note in done.notes] == [
        "1 memories are in the vectors but not in the history",
        "1 memories are otherwise in the vectors than the history says",
        "1 memories are in the history but not in these vectors",
    ]


def test_langgraph_is_imported_by_prefix(store, peers: Path) -> None:
    before = files(peers)
    path = peers / "langgraph.db"
    assert detect_format(path) == "langgraph"
    done = import_memories(store, path, "langgraph")
    assert contents(store) == {
        "users.ana": ["Ana lives in Porto."],
        "users.tom": ["Tom likes tea.", '{"name": "Tom", "age": 40}'],
    }
    assert done.operations == {"users.ana": 1, "users.tom": 2}
    tea = store.namespace("users.tom").list()[0]
    assert tea.metadata == {"kind": "Memory", "langgraph": {"key": "a key"}}
    assert tea.expires is not None and tea.expires.startswith("2026-11-21T20:17:04.")
    assert [(copy.id, copy.same_as) for copy in done.left_out] == [("tea-too", tea.id)]
    assert store.namespace("users.ana").get("home").metadata == {"topic": "home"}
    assert files(peers) == before


def test_the_write_ahead_log_of_the_source_is_read(store, tmp_path: Path) -> None:
    path = tmp_path / "langgraph.db"
    rows = sqlite3.connect(path)
    rows.execute("PRAGMA journal_mode = WAL")
    rows.execute("CREATE TABLE store (prefix, key, value, created_at, updated_at)")
    rows.execute("INSERT INTO store VALUES ('', 'k', '{\"text\": \"in the log\"}', NULL, NULL)")
    rows.commit()
    before = files(tmp_path)
    import_memories(store, path, "langgraph")
    assert contents(store) == {"default": ["in the log"]} and files(tmp_path) == before
    rows.close()


def test_a_second_import_is_refused_and_changes_nothing(store, peers: Path) -> None:
    import_memories(store, peers / "langgraph.db", "langgraph")
    before = contents(store)
    with pytest.raises(StoreError, match=r"namespace 'users\.\w+' has a log already"):
        import_memories(store, peers / "langgraph.db", "langgraph")
    assert contents(store) == before


def set_cell(path: Path, statement: str) -> None:
    rows = sqlite3.connect(path)
    rows.execute(statement)
    rows.commit()
    rows.close()


@pytest.mark.parametrize(
    ("name", "statement", "says"),
    [
        ("langgraph.db", "UPDATE store SET value = '[1]' WHERE rowid = 2", "langgraph.db: table store, row 2: value"),
        ("langgraph.db", "UPDATE store SET value = '{' WHERE rowid = 2", "row 2: value: not JSON"),
        ("langgraph.db", "UPDATE store SET updated_at = 'May' WHERE rowid = 2", "row 2: 'May' is no time"),
        ("langgraph.db", "ALTER TABLE store DROP COLUMN value", "table store: no column value"),
        ("mem0-faiss/history.db", "UPDATE history SET event = 'X' WHERE rowid = 3", "history, row 3: event 'X'"),
        ("mem0-faiss/history.db", "UPDATE history SET new_memory = NULL WHERE rowid = 3", "row 3: new_memory: text"),
        ("mem0-faiss/history.db", "ALTER TABLE history DROP COLUMN event", "table history: no column event"),
        ("mem0-qdrant/collection/mem0/storage.sqlite", "UPDATE points SET point = x'80' WHERE rowid = 4", "row 4: the"),
        ("mem0-qdrant/collection/mem0/storage.sqlite", "ALTER TABLE points DROP COLUMN point", "no column point"),
    ],
)
def test_invalid_input_is_named_and_nothing_is_stored(store, peers, name, statement, says) -> None:
    path = peers / name
    set_cell(path, statement)
    root = path if path.suffix == ".db" and "mem0" not in name else peers / name.split("/")[0]
    with pytest.raises(DataError) as error:
        import_memories(store, root, "mem0" if "mem0" in name else "langgraph")
    assert says in str(error.value) and store.namespaces() == []


class Evil:
    """Object whose unpickling would create a folder."""

    def __reduce__(self):
        return os.mkdir, ("evil",)


@pytest.mark.parametrize("module", ["os", "qdrant_client.http"])
def test_a_pickle_executes_nothing(store, peers: Path, tmp_path: Path, monkeypatch, module: str) -> None:
    monkeypatch.chdir(tmp_path)
    evil = pickle.dumps(Evil(), protocol=0).replace(b"cposix", b"c" + module.encode())
    pickle.loads(pickle.dumps(Evil()))
    assert Path("evil").is_dir()  # so it would
    Path("evil").rmdir()
    (tmp_path / "mem0.pkl").write_bytes(pickle.dumps(({"a": {"data": Evil()}}, {0: "a"})))
    with pytest.raises(DataError, match=r"mem0\.pkl: the pickle is refused: it refers to \w+\.mkdir"):
        import_memories(store, tmp_path / "mem0.pkl", "mem0")
    points = peers / "mem0-qdrant/collection/mem0/storage.sqlite"
    rows = sqlite3.connect(points)
    rows.execute("UPDATE points SET point = ? WHERE rowid = 2", (evil,))
    rows.commit()
    rows.close()
    with pytest.raises(DataError, match="table points, row 2: "):
        import_memories(store, peers / "mem0-qdrant", "mem0")
    assert not Path("evil").exists() and store.namespaces() == []


POINT = sqlite3.connect(PEERS / "mem0-qdrant/collection/mem0/storage.sqlite").execute("SELECT point FROM points")
POINT = POINT.fetchone()[0]


@given(st.data())
def test_any_bytes_are_a_value_or_an_error(data: st.DataObject) -> None:
    """Corrupt a pickle at random: the result holds only plain data and stand-ins."""
    raw = bytearray(POINT)
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    try:
        value = base.load_plain_pickle("here", bytes(raw), ("qdrant_client",))
    except DataError:
        return
    todo = [value]
    while todo:
        item = todo.pop()
        assert type(item) in (
            base.InertObject,
            type,
            dict,
            list,
            tuple,
            set,
            frozenset,
            str,
            int,
            float,
            bool,
            bytes,
            type(None),
            bytearray,
        )
        assert not isinstance(item, type) or item is base.InertObject
        todo += (
            [*item, *item.values()]
            if isinstance(item, dict)
            else list(item)
            if isinstance(item, list | tuple | set)
            else []
        )
        todo += [item.state] if isinstance(item, base.InertObject) else []


def test_the_older_docstore_is_read(store, peers: Path) -> None:
    file = peers / "mem0-faiss/mem0.json"
    data = json.loads(file.read_text())
    file.with_suffix(".pkl").write_bytes(pickle.dumps((data["docstore"], {0: "a"})))
    file.unlink()
    import_memories(store, peers / "mem0-faiss", "mem0")
    assert contents(store)["user:tom"] == ["Tom likes tea."]


def test_several_collections_are_refused(store, peers: Path) -> None:
    shutil.copytree(peers / "mem0-qdrant/collection/mem0", peers / "mem0-qdrant/collection/mem0_entities")
    import_memories(store, peers / "mem0-qdrant", "mem0")
    shutil.copytree(peers / "mem0-qdrant/collection/mem0", peers / "mem0-qdrant/collection/work")
    with pytest.raises(DataError, match=r"several collections: give one of .*mem0.*, .*work"):
        import_memories(store, peers / "mem0-qdrant", "mem0")


@pytest.mark.sqlite
def test_other_files_are_recognized(tmp_path: Path) -> None:
    MemoryStore.open(tmp_path / "own.db", embedder=HashEmbedder(16)).close()
    sqlite3.connect(tmp_path / "x.db").execute("CREATE TABLE t (a)").connection.close()
    (tmp_path / "x.jsonl").write_text('{"category": "semantic", "content": "x"}')
    (tmp_path / "torn.db").write_bytes((PEERS / "langgraph.db").read_bytes()[:9000])
    assert detect_format(tmp_path / "x.jsonl") is None
    for name, says in [
        ("own.db", "memalpha fork"),
        ("x.db", "without mem0's table"),
        ("none", "cannot be read"),
        ("torn.db", "SQLite cannot read it"),
    ]:
        with pytest.raises(DataError, match=says):
            detect_format(tmp_path / name)


IDS = st.sampled_from("abc")
STEPS = st.lists(st.tuples(st.sampled_from(["insert", "update", "delete"]), IDS, st.sampled_from(["x", "y", " x", ""])))


@given(STEPS)
def test_any_history_ends_at_the_state_of_the_source(steps) -> None:
    """A model of the other store, which holds copies: ours has every content it holds, and names each copy."""
    expected: dict[str, str] = {}
    events, deleted = [], set()
    for number, (kind, id, content) in enumerate(steps):
        if kind == "delete":
            expected.pop(id, None)
        elif content:
            expected[id] = content.strip()
        else:
            deleted.add(number)
        operation = (
            Operation("delete", id=id) if kind == "delete" else Operation(kind, id=id, content=content, metadata={})
        )
        events.append(SourceEvent(f"row {number}", "", operation))
    with MemoryStore.open(":memory:", embedder=HashEmbedder(16)) as store:
        left_out: list[SkippedMemory] = []
        log = replay._replay(store.schema, "n", events, left_out)
        for _, operation in log:
            store.apply(operation)
        live = {entry.id: entry.content for entry in store.list()}
        copies = {item.id: item.same_as for item in left_out if item.content}
        assert live | {id: live[same] for id, same in copies.items()} == expected
        assert len(set(live.values())) == len(live) and len(left_out) - len(copies) == len(deleted)
