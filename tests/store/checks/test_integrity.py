"""The doctor names whatever is wrong with a file, makes anew what follows from the log, and never touches the log."""

import sqlite3
from pathlib import Path

import pytest
from stores import NegatedEmbedder, tamper

from memalpha.errors import StoreError
from memalpha.store.checks.integrity import examine
from memalpha.store.store import MemoryStore

pytestmark = pytest.mark.sqlite  # about its files


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A store of two namespaces with inserts, an update, a delete and an undo."""
    path = tmp_path / "a.db"
    with MemoryStore.open(path, embedder="hash") as store:
        for index in range(4):
            store.insert("semantic", f"fact {index}: value {index}", metadata={"a": [1.5, None]})
        a, b, *_ = store.list()
        store.update(a.id, "fact 0: changed", timestamp="2024-05-01")
        store.delete(b.id)
        store.core_update("Ana")
        store.undo()
        store.namespace("other").insert("episodic", "trip: Rome")
    return path


def contents(path: Path) -> object:
    with MemoryStore.open(path) as store:
        other = store.namespace("other")
        return store.state, store.list(), other.list(), store.search("value 2"), store.search("value 2", as_of=3)


COPY = "CREATE TEMP TABLE copy AS SELECT * FROM versions WHERE valid_from = 1"
DERIVED = {
    "UPDATE versions SET content = 'changed' WHERE version = 1 AND content LIKE 'fact 2%'": "versions",
    "UPDATE versions SET valid_to = NULL WHERE id LIKE 'fact-1%'": "versions",
    "UPDATE versions SET metadata = '{' WHERE valid_from = 3": "versions",
    "UPDATE versions SET created = 90 WHERE valid_from = 4": "versions",
    "UPDATE versions SET version = 'x' WHERE valid_from = 4": "versions",
    "UPDATE versions SET id = CAST(x'ff' AS TEXT) WHERE valid_from = 4": "versions",
    "DELETE FROM versions WHERE valid_from = 1": "versions",
    "DELETE FROM versions": "versions",
    f"{COPY}; UPDATE copy SET id = 'ghost#1', created = 50; INSERT INTO versions SELECT * FROM copy": "versions",
    f"{COPY}; UPDATE copy SET ns = 9; INSERT INTO versions SELECT * FROM copy": "versions",
    "DELETE FROM vectors": "vectors",
    "UPDATE vectors SET vector = x'00'": "vectors",
    "UPDATE vectors SET vector = (SELECT vector FROM vectors LIMIT 1)": "vectors",
    "UPDATE vectors SET vector = CAST(x'0000c07f' || substr(vector, 5) AS BLOB)": "vectors",  # not a number
    "INSERT INTO vectors SELECT ns, x'01', vector FROM vectors LIMIT 1": "vectors",
    "INSERT INTO vectors SELECT 9, digest, vector FROM vectors LIMIT 1": "vectors",
    "DROP TRIGGER operations_last": "file",
    "DROP INDEX live_content": "file",
    "DROP TRIGGER operations_stay; CREATE TRIGGER operations_stay AFTER UPDATE ON meta BEGIN SELECT 1; END": "file",
    "DROP TABLE vectors": "file",
    "DROP TABLE versions": "file",
}


@pytest.mark.parametrize("statement", DERIVED)
def test_what_follows_from_the_log_is_made_anew(path: Path, statement: str) -> None:
    before = contents(path)
    tamper(path, statement)
    report = examine(path)
    assert report.problems and {problem.part for problem in report.problems} <= {DERIVED[statement]}
    assert examine(path).problems == report.problems  # looking changes nothing
    mended = examine(path, repair=True)
    assert mended.problems == [] and mended.repaired[: len(report.problems)] == report.problems
    assert examine(path).problems == []
    assert contents(path) == before


def test_rows_that_an_index_would_refuse_are_mended_before_it_is_made(path: Path) -> None:
    before = contents(path)
    tamper(path, "DROP INDEX live_order; UPDATE versions SET created = 1, valid_to = NULL WHERE ns = 1")
    assert {problem.part for problem in examine(path).problems} == {"file", "versions"}
    assert examine(path, repair=True).problems == [] and contents(path) == before


UNLOCK = "DROP TRIGGER operations_stay; DROP TRIGGER operations_last;"
LOG = {
    "DELETE FROM operations WHERE seq = 2 AND ns = 1": "position 2: it is missing; the next is 3",
    "DELETE FROM operations WHERE seq >= 5": "ends at 4, before 'fact-0",
    "UPDATE operations SET head = 2 WHERE seq = 1": "position 1: its head 2",
    "UPDATE operations SET time = '2020-01-01' WHERE seq = 3": "position 3: its time '2020-01-01'",
    "UPDATE operations SET content = 'other' WHERE seq = 3": "checksum",
    "UPDATE operations SET id = 'nobody#x' WHERE seq = 5": "position 5: no live entry has the id 'nobody#x'",
    "UPDATE operations SET kind = 'forget' WHERE seq = 5": "position 5: no operation 'forget'",
    "UPDATE operations SET metadata = '{' WHERE seq = 2": "position 2",
    "UPDATE operations SET content = CAST(x'ff' AS TEXT) WHERE seq = 2 AND ns = 1": "position 2",
    "UPDATE operations SET ns = 9 WHERE seq = 8": "1 rows belong to no namespace",
}


@pytest.mark.parametrize("statement", LOG)
def test_a_damaged_log_is_named_and_left_alone(path: Path, statement: str) -> None:
    tamper(path, UNLOCK + statement)
    rows = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    before = sorted(rows.execute("SELECT ns, seq, kind FROM operations"))
    for repair in (False, True):
        problems = [problem for problem in examine(path, repair=repair).problems if problem.part == "log"]
        assert problems and LOG[statement] in str(problems[0]) and "memalpha export" in str(problems[0])
    assert before == sorted(rows.execute("SELECT ns, seq, kind FROM operations"))


def test_a_file_that_sqlite_cannot_read(path: Path) -> None:
    with MemoryStore.open(path) as store:
        for index in range(100):
            store.insert("semantic", f"more {index}: value")
    data = bytearray(path.read_bytes())
    for page in range(4, len(data) // 4096):
        data[page * 4096 : page * 4096 + 200] = b"\xa5" * 200
    path.write_bytes(data)
    health = examine(path, repair=True)
    assert {problem.part for problem in health.problems} == {"file"} and not health.repaired
    assert "memalpha export" in str(health.problems[0])
    with pytest.raises(StoreError, match="not a memalpha store"):
        path.write_text("hello" * 1000)
        examine(path)
    with pytest.raises(StoreError, match="no such store"):
        examine(path.with_name("none.db"))


def test_without_its_embedder_vectors_are_looked_at_but_not_compared(path: Path) -> None:
    health = examine(path, embedder=NegatedEmbedder())
    assert health.problems == [] and "another version of the embedder 'hash'" in health.notes[0]
    tamper(path, "DELETE FROM vectors WHERE ns = 2; DELETE FROM versions WHERE ns = 2")
    left = examine(path, embedder=NegatedEmbedder(), repair=True)
    assert [problem.part for problem in left.repaired] == ["versions"]
    assert [problem.part for problem in left.problems] == ["vectors"]
