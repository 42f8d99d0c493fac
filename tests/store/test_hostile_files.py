"""Files of others and vectors of others: refused by name, or read rightly; nothing of them runs."""

import os
import stat
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from stores import tamper

from memalpha.errors import DamagedStore, StoreError
from memalpha.store.backends.sqlite import definitions
from memalpha.store.checks.integrity import examine
from memalpha.store.fields import decode_entries, decode_entry
from memalpha.store.open import copy_store
from memalpha.store.store import MemoryStore

ENDLESS = "WITH RECURSIVE r(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM r WHERE x < 1e12) SELECT count(*) FROM r"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "a.db"
    with MemoryStore.open(path, embedder="hash") as store:
        for index in range(4):
            store.insert("semantic", f"fact {index}: value {index}", metadata={"user": "ana"})
    return path


ADDED = {
    "CREATE TABLE loot (x)": "table 'loot'",
    "CREATE TRIGGER wipe AFTER INSERT ON versions BEGIN DELETE FROM versions WHERE id <> NEW.id; END": "trigger 'wipe'",
    "CREATE VIEW peek AS SELECT * FROM versions": "view 'peek'",
    "CREATE VIRTUAL TABLE words USING fts5(x)": "table 'words'",
    "CREATE INDEX slow ON versions (hex(content))": "index 'slow'",
    "DROP TRIGGER operations_last; CREATE TRIGGER operations_last BEFORE INSERT ON operations BEGIN SELECT 1; END": (
        "trigger 'operations_last'"
    ),
    'CREATE TABLE "a""; DROP TABLE versions; --" (x)': "DROP TABLE versions",
}
REPLACED = {
    "ALTER TABLE versions ADD COLUMN loud TEXT AS (upper(content))": "table 'versions'",
    f"ALTER TABLE meta RENAME TO m; CREATE VIEW meta AS SELECT key, value FROM m WHERE ({ENDLESS}) > 0": "view 'meta'",
    "ALTER TABLE vectors RENAME TO v; CREATE VIRTUAL TABLE vectors USING fts5(ns, digest, vector)": "table 'vectors'",
}


@pytest.mark.sqlite
@pytest.mark.parametrize("statement", ADDED | REPLACED)
def test_a_foreign_object_is_refused_by_name_before_any_write(path: Path, statement: str) -> None:
    before = tamper(path, statement)
    with pytest.raises(DamagedStore, match="refused") as error:
        MemoryStore.open(path)
    assert (ADDED | REPLACED)[statement] in str(error.value)
    problems = [str(problem) for problem in examine(path).problems]
    assert any((ADDED | REPLACED)[statement].split("'")[-2:][0] in problem for problem in problems)
    assert path.read_bytes() == before


@pytest.mark.sqlite
@pytest.mark.parametrize("statement", ADDED)
def test_a_repair_removes_what_was_added(path: Path, statement: str) -> None:
    tamper(path, statement)
    assert examine(path, repair=True).problems == []
    with MemoryStore.open(path) as store:
        store.insert("semantic", "one more")
        assert len(store.list()) == 5 and len(store.search("value 2")) == 5
    assert examine(path).problems == []


@pytest.mark.sqlite
def test_statistics_of_analyze_are_no_foreign_objects(path: Path) -> None:
    tamper(path, "ANALYZE")
    assert len(MemoryStore.open(path).list()) == 4 and examine(path).problems == []


COLUMNS = ("content", "category", "timestamp", "importance", "metadata", "source", "chunk", "turn", "expires")
VALUES = {"blob": "x'fffe'", "text": "'{'", "huge": f"'{'9' * 100_000}'", "nested": f"""'{'{"a":' * 3000}'"""}


@pytest.mark.sqlite
@pytest.mark.parametrize("column", COLUMNS)
@pytest.mark.parametrize("value", VALUES)
def test_a_damaged_row_is_read_or_named(path: Path, column: str, value: str) -> None:
    tamper(path, f"UPDATE versions SET {column} = {VALUES[value]} WHERE valid_from = 2")
    with MemoryStore.open(path) as store:
        for read in (
            store.list,
            lambda: store.list(where={"user": "ana"}),
            lambda: store.search("value", where={"user": "ana"}),
            lambda: store.search("value"),
        ):
            try:
                read()
            except DamagedStore as error:
                assert "fact-1#" in str(error)
    mended = examine(path, repair=True)
    assert mended.problems == [] and mended.repaired


@pytest.mark.sqlite
@pytest.mark.parametrize("key", ["schema", "embedder"])
@pytest.mark.parametrize("value", ["NULL", "'x'", "x'ff'", "'[]'", "'{}'", f"'{'[' * 100_000}'"])
def test_an_unreadable_record_is_named(path: Path, key: str, value: str) -> None:
    change = "DELETE FROM meta" if value == "NULL" else f"UPDATE meta SET value = {value}"
    tamper(path, f"{change} WHERE key = '{key}'")
    with pytest.raises(StoreError, match=rf"a\.db.*record of the {key}|damaged"):
        MemoryStore.open(path)
    assert examine(path).problems


@pytest.mark.sqlite
def test_new_files_are_their_owners_alone_and_pipes_do_not_hang(path: Path, tmp_path: Path) -> None:
    with MemoryStore.open(path) as store:
        assert len(store.search("fact 2", 3)) == 3
        for file in tmp_path.iterdir():
            assert stat.S_IMODE(file.stat().st_mode) == 0o600, file
    os.mkfifo(tmp_path / "pipe.db")
    with pytest.raises(StoreError, match="device or a pipe"):
        MemoryStore.open(tmp_path / "pipe.db")


@pytest.mark.parametrize("scale", [0.0, np.nan, np.inf])
def test_given_vectors_without_a_direction_are_refused(scale: float) -> None:
    store = MemoryStore.open(":memory:", embedder="hash")
    vectors = np.eye(256)[:2]
    vectors[1] = np.where(vectors[1] > 0, scale, 0.0)
    facts = [{"category": "semantic", "content": f"fact {index}"} for index in range(2)]
    with pytest.raises(StoreError, match="row 1"):
        store.insert_many(facts, vectors)
    assert store.list() == []


STORED = ("x''", "x'616263'", "'x'", "zeroblob(8)", "x'0000c07f' || zeroblob(1020)", "x'ffff7f7f' || zeroblob(1020)")


@pytest.mark.sqlite
@pytest.mark.parametrize("vector", STORED)
def test_a_bad_stored_vector_is_named_not_copied_and_embedded_anew(path: Path, tmp_path: Path, vector: str) -> None:
    with MemoryStore.open(path) as store:
        before = store.search("value 1")
    tamper(path, f"UPDATE vectors SET vector = CAST({vector} AS BLOB) WHERE rowid = 2")
    with MemoryStore.open(path) as store:
        with pytest.raises(DamagedStore, match=r"vector of 'fact-1#.*doctor --repair"):
            store.search("value 1")
        with pytest.raises(DamagedStore, match="doctor --repair"):
            store.fork(path=tmp_path / "b.db")
        assert len(store.list()) == 4
    with pytest.raises(DamagedStore, match="doctor --repair"):
        copy_store(path, tmp_path / "b.db")
    assert not (tmp_path / "b.db").exists()
    assert examine(path, repair=True).problems == []
    with MemoryStore.open(path) as store:
        assert store.search("value 1") == before


DAMAGED_COLUMNS = {
    "operations.time": "x'ff'",
    "operations.time, text": "'{'",
    "operations.head": "x'ff'",
    "operations.id": "x'ff'",
    "operations.source": "x'ff'",
    "operations.importance": "9e999",
    "versions.created": "x'ff'",
    "versions.valid_from": "x'ff' WHERE id LIKE 'fact-1#%'",
    "versions.valid_to": "'x' WHERE valid_to IS NOT NULL",
    "versions.valid_from, far": "9223372036854775807",
    "versions.id": "x'ff' WHERE id LIKE 'fact-1#%'",
    "versions.category": "'' WHERE id LIKE 'fact-1#%'",
    "versions.chunk": "'x', source = 's', turn = 't'",
    "versions.digest": "'x'",
    "versions.version": "9223372036854775807",
    "namespaces.name": "CAST(x'ff61' AS TEXT)",
}


@pytest.mark.sqlite
@pytest.mark.parametrize("column", DAMAGED_COLUMNS)
def test_a_damaged_log_or_position_is_refused_by_what_reads_it(path: Path, column: str) -> None:
    with MemoryStore.open(path) as store:
        store.delete(store.list()[0].id)
        id = store.list()[-1].id
    table, name = column.partition(",")[0].split(".")
    change = f"UPDATE OR IGNORE {table} SET {name} = {DAMAGED_COLUMNS[column]}"
    tamper(path, f"DROP TRIGGER operations_stay; {change}; {definitions()['operations_stay'][1]}")
    with MemoryStore.open(path) as store:
        refused = 0
        for use in (
            lambda: list(store.log()),
            lambda: store.search("fact"),
            lambda: store.fork("copy"),
            store.list,
            lambda: store.list(as_of="2026-11-02"),
            lambda: store.diff(1),
            lambda: store.restore(2),
            lambda: store.revert(speaker="nobody", since=0, dry_run=True),
            lambda: store.revert(since=1, dry_run=True),
            lambda: store.insert("semantic", "fact 9: value 9"),
            lambda: store.erase(id),
            store.namespaces,
        ):
            try:
                use()
            except StoreError:
                refused += 1
        assert refused
    assert examine(path).problems


SOUND_ROW = ("a#b", "semantic", "a", None, 1.0, "{}", None, None, None, None, None, None, 1, 1, None)
METADATA = st.sampled_from(["{}", '{"a": [1]}', ' {"a": 1} ', '{"a": 1}, {}', '{"a": [1', "2]}", "[]", "", "{"])
COLUMN = st.integers(0, len(SOUND_ROW) - 1)
FIELD_VALUES = st.sampled_from([None, "", "x", 0, 2, True, 1.5, float("nan"), float("inf"), b"x"])


@given(st.lists(st.tuples(st.booleans(), COLUMN, FIELD_VALUES, METADATA), max_size=4))
def test_rows_decoded_together_are_those_decoded_alone(changes) -> None:
    rows = []
    for is_changed, column, value, metadata in changes:
        row = [*SOUND_ROW[:5], metadata, *SOUND_ROW[6:]]
        row[column] = value if is_changed else row[column]
        rows.append(tuple(row))

    def outcome(decode) -> object:
        try:
            return decode(rows)
        except DamagedStore as error:
            return str(error)

    assert outcome(decode_entries) == outcome(lambda rows: [decode_entry(row) for row in rows])
