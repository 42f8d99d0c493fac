"""Forks: where they lie, and what is refused."""

from pathlib import Path

import pytest
from stores import new

from memalpha.errors import StoreError
from memalpha.store.backends.sqlite import SQLiteDatabase


def test_a_fork_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    store = new(tmp_path / "a.db")
    store.insert("semantic", "city: Oslo", timestamp="2024-05-01")
    store.core_update("Ana")
    store.fork("other", as_of=1)
    store.fork(path=tmp_path / "b.db", as_of=1)
    if isinstance(store.database, SQLiteDatabase):
        assert sorted(path.name for path in tmp_path.iterdir() if path.suffix == ".db") == ["a.db", "b.db"]
    with store.fork("mine", path=tmp_path / "c.db") as fork:
        assert fork.namespaces() == ["mine"] and fork.diff(0) == store.diff(0)
    for wrong, message in [
        ({}, "a namespace"),
        ({"namespace": "other"}, "has a log already"),
        ({"namespace": "default"}, "has a log already"),
        ({"path": tmp_path / "b.db"}, "already( exists)?: give another"),
        *(
            [({"path": tmp_path / "none" / "b.db"}, "does not exist")]
            if isinstance(store.database, SQLiteDatabase)
            else []
        ),
        ({"namespace": "new", "as_of": "soon"}, "as_of"),
        ({"path": tmp_path / "d.db", "as_of": -1}, "as_of"),
    ]:
        with pytest.raises(StoreError, match=message):
            store.fork(**wrong)
    assert store.namespaces() == ["default", "other"]
    assert not [path for path in tmp_path.iterdir() if "d.db" in path.name]
