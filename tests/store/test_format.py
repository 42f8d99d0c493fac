"""File format: a file of format 1 opens for ever, with what it holds; other formats are refused by name."""

import shutil
import sqlite3
from pathlib import Path

import pytest

from memalpha.errors import StoreError
from memalpha.store.checks.integrity import examine
from memalpha.store.fields import FORMAT
from memalpha.store.store import MemoryStore

FORMAT_1 = Path(__file__).parent / "data" / "format-1.db"
"""Written once, never again: inserts, updates, an undo, an expiry, spans, an erasure, a quarantine, two namespaces."""

LOG = """\
 1 insert city#x semantic city: Oslo
 2 update city#x semantic city: Rome
 3 update city#x semantic city: Oslo
 4 update city#x semantic city: Porto
 5 insert pet#u semantic pet: cat
 6 delete pet#u semantic None
 7 insert ana#t episodic Ana: I swim on Mondays.
 8 insert ben#w episodic Ben: So do I.
 9 erased erased#9 None None
10 erased None None None
11 insert ana-likes#k.7s semantic Ana likes tea.
12 core_update None None Ana, a swimmer.
13 quarantined quarantined#13 semantic Ana hates tea.
"""

pytestmark = pytest.mark.sqlite  # about its files


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return Path(shutil.copy(FORMAT_1, tmp_path / "a.db"))


def table_definitions(path: Path) -> set[tuple[str, ...]]:
    rows = sqlite3.connect(path)
    try:
        found = rows.execute("SELECT type, name, sql FROM sqlite_master")
        return {(kind, name, " ".join((sql or "").split())) for kind, name, sql in found}  # lines may be cut elsewhere
    finally:
        rows.close()


@pytest.mark.parametrize("read_only", [True, False])
def test_a_file_of_format_1_holds_what_was_written(path: Path, read_only: bool) -> None:
    assert examine(path).problems == []
    with MemoryStore.open(path, read_only=read_only) as store:
        log = [f"{n:2} {op.kind} {op.id} {op.category} {op.content}\n" for n, _, op in store.log()]
        assert "".join(log) == LOG
        assert next(store.log())[1] == "2026-11-26T00:00:01.000000+00:00"
        assert [entry.id for entry in store.list()] == ["city#x", "ana#t", "ben#w", "ana-likes#k.7s"]
        assert (store.core, store.core_at(11)) == ("Ana, a swimmer.", "")
        versions = [(version.content, version.valid_from, version.valid_to) for version in store.history("city#x")]
        assert versions == [("city: Oslo", 1, 2), ("city: Rome", 2, 3), ("city: Oslo", 3, 4), ("city: Porto", 4, None)]
        first = store.history("city#x")[0]
        assert (first.timestamp, first.importance, first.metadata) == ("2024-05-01", 0.8, {"tags": ["home"]})
        assert (first.source, first.chunk) == ("chat-7", 2)
        assert store.get("pet#u", as_of=5).expires == "2030-01-01T00:00:00.000000+00:00"
        tea = store.get("ana-likes#k.7s")
        assert (tea.speaker, tea.key) == ("Ana", "phone")
        assert [(item.position, item.operation.speaker, item.reason) for item in store.quarantined()] == [
            (13, "Ben", "not the owner")
        ]
        hit = store.search("city", as_of=1)[0]
        assert (hit.entry.content, hit.explain["dense"]) == ("city: Oslo", 0.70711)
        assert [entry.content for entry in store.around("ana#t")] == ["Ana: I swim on Mondays.", "Ben: So do I."]
        assert store.namespaces() == ["default", "other"]
        assert store.namespace("other").get("mood").content == "happy: 東京"


def test_a_file_of_format_1_is_written_on(path: Path, tmp_path: Path) -> None:
    with MemoryStore.open(path) as store:
        store.add("Ana moved to Lima.")
        assert store.undo() is not None
        store.review(13, accept=True)
        assert store.search("hates tea", k=1)[0].entry.content == "Ana hates tea."
        assert store.erase("ana#t") == []
    assert examine(path).problems == []
    MemoryStore.open(tmp_path / "new.db", embedder="hash").close()
    assert table_definitions(path) == table_definitions(tmp_path / "new.db")


@pytest.mark.parametrize(
    ("version", "advice"), [(0, "open it with the memalpha that made it"), (FORMAT + 1, "upgrade")]
)
@pytest.mark.parametrize("read_only", [True, False])
def test_another_format_is_refused_by_name(path: Path, version: int, advice: str, read_only: bool) -> None:
    with sqlite3.connect(path) as rows:
        rows.execute(f"PRAGMA user_version = {version}")
    rows.close()
    with pytest.raises(StoreError, match=f"format {version}, this memalpha reads 1: {advice}"):
        MemoryStore.open(path, read_only=read_only)
