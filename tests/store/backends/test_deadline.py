"""A deadline stops a statement of the database, stores nothing, and leaves the store usable."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from memalpha.errors import DeadlineExceeded
from memalpha.store.backends import base as deadline_module
from memalpha.store.backends.base import deadline, seconds_left
from memalpha.store.store import MemoryStore
from memalpha.types import MemoryEntry

ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT max(i) FROM n"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MemoryStore]:
    with MemoryStore.open(tmp_path / "ana.db", embedder="hash") as store:
        yield store


def check_stops(store: MemoryStore, statement: str) -> None:
    """Run a statement that would not end, reading and writing, against a deadline."""
    fact = store.insert("semantic", "city: Oslo")
    for write in (False, True):
        began = time.monotonic()
        with pytest.raises(DeadlineExceeded, match="nothing was stored"), deadline(0.1):  # noqa: SIM117
            with store._transaction(write=write):
                if write:
                    store.update(fact.id, "city: Rome")
                store.rows.log._scope.statements.execute(statement).fetchall()
        assert time.monotonic() - began < 30
    assert [entry.content for entry in store.list()] == ["city: Oslo"] and seconds_left() is None
    with deadline(60):
        assert store.update(fact.id, "city: Riga").content == "city: Riga"
        assert store.search("city")[0].entry.content == "city: Riga"
    with pytest.raises(DeadlineExceeded), deadline(0):
        store.list()
    assert store.search("city")[0].entry.content == "city: Riga"


def test_an_index_is_built_beyond_the_deadline(store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    # A search that is stopped while it builds the index would begin anew each time.
    store.insert_many({"category": "semantic", "content": f"fact {number}"} for number in range(50))
    rows, search_rows, live = store.rows, store.rows.vectors.search_rows, store.rows.entries.live

    def search_rows_slowly(page: int) -> Iterator[list[tuple]]:
        time.sleep(0.3)
        return search_rows(page)

    def live_slowly() -> list[MemoryEntry]:
        time.sleep(0.3)
        return live()

    monkeypatch.setattr(deadline_module, "_STEPS", 1)
    monkeypatch.setattr(rows.vectors, "search_rows", search_rows_slowly)
    monkeypatch.setattr(rows.entries, "live", live_slowly)
    with deadline(0.25):
        assert store.search("fact 7")[0].entry.content == "fact 7"
        assert store.search("fact 7", where={"importance": 1.0})[0].entry.content == "fact 7"
    with pytest.raises(DeadlineExceeded), deadline(0.05):  # what is not done once stays bounded
        time.sleep(0.06)
        store.search("fact 7")


def test_sqlite_stops_at_the_deadline(store: MemoryStore) -> None:
    check_stops(store, ENDLESS)


@pytest.mark.postgres
def test_postgres_stops_at_the_deadline(postgres_url: str) -> None:
    with MemoryStore.open(postgres_url, embedder="hash") as store:
        check_stops(store, "SELECT pg_sleep(60)")
