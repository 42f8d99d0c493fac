"""File format: older files are migrated when opened, completely or not at all."""

import json
import sqlite3
from pathlib import Path

import numpy as np
import pytest

from memalpha.errors import StoreError
from memalpha.store.backends import sqlite
from memalpha.store.backends.row_codec import content_digest
from memalpha.store.backends.sqlite import FORMAT
from memalpha.store.checks.integrity import examine
from memalpha.store.embedding import load_embedder
from memalpha.store.indexing.stored_embedder import embedder_record
from memalpha.store.schema import MEM_ALPHA
from memalpha.store.store import MemoryStore

pytestmark = pytest.mark.sqlite  # about its files

FORMAT_1 = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE namespaces (ns INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE);
CREATE TABLE operations (
  ns INTEGER NOT NULL, seq INTEGER NOT NULL, time TEXT NOT NULL, head INTEGER NOT NULL, kind TEXT NOT NULL,
  id TEXT, category TEXT, content TEXT, timestamp TEXT, importance REAL, metadata TEXT, source TEXT, chunk INTEGER,
  turn TEXT, PRIMARY KEY (ns, seq)) WITHOUT ROWID;
CREATE INDEX core_updates ON operations (ns, seq) WHERE kind = 'core_update';
CREATE TRIGGER operations_stay BEFORE UPDATE ON operations BEGIN SELECT RAISE(ABORT, 'the log is append-only'); END;
CREATE TRIGGER operations_last BEFORE DELETE ON operations BEGIN SELECT RAISE(ABORT, 'the log is append-only'); END;
CREATE TABLE versions (
  ns INTEGER NOT NULL, id TEXT NOT NULL, version INTEGER NOT NULL, category TEXT NOT NULL, content TEXT NOT NULL,
  timestamp TEXT, importance REAL NOT NULL, metadata TEXT NOT NULL, source TEXT, chunk INTEGER, turn TEXT,
  valid_from INTEGER NOT NULL, valid_to INTEGER, created INTEGER NOT NULL, digest BLOB NOT NULL,
  PRIMARY KEY (ns, id, version)) WITHOUT ROWID;
CREATE UNIQUE INDEX live_order ON versions (ns, created) WHERE valid_to IS NULL;
CREATE INDEX live_content ON versions (ns, digest) WHERE valid_to IS NULL;
CREATE TABLE vectors (ns INTEGER NOT NULL, digest BLOB NOT NULL, vector BLOB NOT NULL, PRIMARY KEY (ns, digest));
PRAGMA application_id = 0x6D416C70;
PRAGMA user_version = 1;
"""

# Format 2 lets erasure make stubs of the log's rows.
FORMAT_2 = """
DROP TRIGGER operations_stay;
CREATE TRIGGER operations_stay BEFORE UPDATE ON operations WHEN NOT (
  OLD.kind <> 'erased' AND NEW.kind = 'erased' AND (NEW.ns, NEW.seq, NEW.time, NEW.head)
    = (OLD.ns, OLD.seq, OLD.time, OLD.head)
  AND coalesce(NEW.category, NEW.content, NEW.timestamp, NEW.importance, NEW.metadata, NEW.source, NEW.chunk, NEW.turn)
    IS NULL)
BEGIN SELECT RAISE(ABORT, 'the log is append-only'); END;
PRAGMA user_version = 2;
"""

# Format 3 lets entries expire.
FORMAT_3 = """
DROP TRIGGER operations_stay;
ALTER TABLE operations ADD COLUMN expires TEXT;
ALTER TABLE versions ADD COLUMN expires TEXT;
CREATE TRIGGER operations_stay BEFORE UPDATE ON operations WHEN NOT (
  OLD.kind <> 'erased' AND NEW.kind = 'erased' AND (NEW.ns, NEW.seq, NEW.time, NEW.head)
    = (OLD.ns, OLD.seq, OLD.time, OLD.head)
  AND coalesce(NEW.category, NEW.content, NEW.timestamp, NEW.importance, NEW.metadata, NEW.source, NEW.chunk, NEW.turn,
    NEW.expires) IS NULL)
BEGIN SELECT RAISE(ABORT, 'the log is append-only'); END;
CREATE INDEX expiring ON versions (ns, expires) WHERE valid_to IS NULL AND expires IS NOT NULL;
PRAGMA user_version = 3;
"""

# Format 4 finds the neighbours of a span.
FORMAT_4 = """
CREATE INDEX spans ON versions (ns, source, coalesce(chunk, -1), created)
  WHERE valid_to IS NULL AND turn IS NOT NULL AND source IS NOT NULL;
PRAGMA user_version = 4;
"""

# Format 5 finds erasures.
FORMAT_5 = """
CREATE INDEX erasures ON operations (ns, seq) WHERE kind = 'erased';
PRAGMA user_version = 5;
"""


@pytest.fixture(params=[1, 2, 3, 4, 5])
def old(tmp_path: Path, request) -> Path:
    """A file of an older format: one fact, updated once, then the update undone."""
    texts = ["city: Oslo", "city: Rome", "city: Oslo"]
    path = tmp_path / "old.db"
    rows = sqlite3.connect(path)
    rows.executescript("PRAGMA journal_mode = WAL;" + FORMAT_1)
    meta = {
        "schema": MEM_ALPHA.to_json(),
        "embedder": embedder_record("hash"),
        "created": "2026-11-01T00:00:00.000000+00:00",
    }
    rows.executemany("INSERT INTO meta VALUES (?, ?)", meta.items())
    rows.execute("INSERT INTO namespaces VALUES (1, 'default')")
    for seq, (kind, content) in enumerate(zip(("insert", "update", "update"), texts, strict=True), 1):
        time = f"2026-11-01T00:00:0{seq}.000000+00:00"
        head, valid_to = (1 if seq == 3 else seq), (None if seq == 3 else seq + 1)
        rows.execute(
            "INSERT INTO operations VALUES (1, ?, ?, ?, ?, 'city#x', 'semantic', ?, ?, 1.0, '{}', NULL, NULL, NULL)",
            (seq, time, head, kind, content, None if kind == "insert" else ""),
        )
        rows.execute(
            "INSERT INTO versions VALUES (1, 'city#x', ?, 'semantic', ?, NULL, 1, '{}', NULL, NULL, NULL, ?, ?, 1, ?)",
            (seq, content, seq, valid_to, content_digest(content)),
        )
    for text in texts[:2]:
        vector = np.asarray(load_embedder("hash").encode([text])[0], "<f4").tobytes()
        rows.execute("INSERT INTO vectors VALUES (1, ?, ?)", (content_digest(text), vector))
    rows.commit()
    for later in (FORMAT_2, FORMAT_3, FORMAT_4, FORMAT_5)[: request.param - 1]:
        rows.executescript(later)
    rows.close()
    return path


def version_of(path: Path) -> int:
    rows = sqlite3.connect(path)
    try:
        return rows.execute("PRAGMA user_version").fetchone()[0]
    finally:
        rows.close()


def test_an_older_file_is_opened_and_migrated(old: Path, tmp_path: Path) -> None:
    assert examine(old).problems == []
    with MemoryStore.open(old) as store:
        assert [version.content for version in store.history("city#x")] == ["city: Oslo", "city: Rome", "city: Oslo"]
        assert store.search("city", as_of=2)[0].entry.content == "city: Rome"
        assert store.undo() is not None
        assert store.list() == []
        pet = store.insert("semantic", "pet: cat", expires="2000-01-01")
        assert store.list() == []
        assert store.erase(pet.id) == []
        with store.writing_as(speaker="Ana", key="phone"):
            store.insert("semantic", "city: Bonn")
        assert [(entry.speaker, entry.key) for entry in store.list()] == [("Ana", "phone")]
    assert examine(old).problems == []
    assert version_of(old) == FORMAT
    MemoryStore.open(tmp_path / "new.db", embedder="hash").close()
    layouts = []
    for path in (old, tmp_path / "new.db"):
        rows = sqlite3.connect(path)
        layouts.append(set(rows.execute("SELECT type, name, sql FROM sqlite_master")))
        rows.close()
    assert layouts[0] == layouts[1]


def test_a_migration_that_fails_changes_nothing(old: Path, monkeypatch) -> None:
    before = version_of(old), old.read_bytes()
    steps = sqlite.MIGRATIONS | {FORMAT - 1: sqlite.MIGRATIONS[FORMAT - 1] + "\nINSERT INTO nothing VALUES (1);"}
    with monkeypatch.context() as patch:
        patch.setattr(sqlite, "MIGRATIONS", steps)
        with pytest.raises(StoreError, match="nothing"):
            MemoryStore.open(old)
    assert (version_of(old), old.read_bytes()) == before
    assert json.loads(embedder_record("hash"))["name"] == MemoryStore.open(old).embedder


@pytest.mark.parametrize("version", [0, FORMAT + 1])
def test_an_unknown_format_is_refused(tmp_path: Path, version: int) -> None:
    path = tmp_path / "a.db"
    MemoryStore.open(path, embedder="hash").close()
    with sqlite3.connect(path) as rows:
        rows.execute(f"PRAGMA user_version = {version}")
    rows.close()
    with pytest.raises(StoreError, match=f"format {version}.*upgrade memalpha"):
        MemoryStore.open(path)
