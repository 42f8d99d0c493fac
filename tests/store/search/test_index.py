"""The index in memory follows erasures, and serves filters and past states: with the answers of one made anew."""

from pathlib import Path
from typing import Any

import pytest

from memalpha.store.search.corpus import Corpus
from memalpha.store.store import MemoryStore

pytestmark = pytest.mark.sqlite
QUERIES = ("zebra number", "fact 3", "value of Ana")
FILTERS = ({"n": {"$gte": 7}}, {"n": 100}, {"$or": [{"n": 3}, {"category": "episodic"}]}, {"n": {"$nin": [1, 2]}})


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "a.db"
    with MemoryStore.open(path, embedder="hash") as store:
        for n in range(12):
            origin: dict[str, Any] = {"source": "chat", "turn": str(n)} if n % 2 else {}
            store.insert("episodic" if n % 3 else "semantic", f"fact {n}: value {n * n}", metadata={"n": n}, **origin)
        store.insert("semantic", "zebra: lives in the zoo", metadata={"n": 99, "keeper": "Zora"}, source="zoology")
        store.delete(store.list()[2].id)
    return path


def answers(store: MemoryStore) -> list:
    hits = [store.search(query, 20, where=where) for query in QUERIES for where in (None, *FILTERS)]
    return [[(hit.entry, hit.score, hit.explain) for hit in found] for found in hits]


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A number for each corpus that was made or copied."""
    numbers: list[int] = []
    make, copy = Corpus.__init__, Corpus.copy
    monkeypatch.setattr(
        Corpus, "__init__", lambda self, *args, **named: (numbers.append(1), make(self, *args, **named))[1]
    )
    monkeypatch.setattr(Corpus, "copy", lambda self, entries: (numbers.append(1), copy(self, entries))[1])
    return numbers


def test_an_erasure_leaves_the_index_and_nothing_of_the_entry(path: Path, made: list[int]) -> None:
    with MemoryStore.open(path) as store, MemoryStore.open(path) as other:
        zebra = store.search("zebra", 1)[0].entry
        other.search("zebra")
        store.update(zebra.id, "zebra: lives on a farm")  # not in the index yet
        made.clear()
        assert store.erase(zebra.id) == [] and "zebra" not in str(answers(store))
        assert made == []
        right = answers(other)
        assert made and answers(store) == right
        store.insert("semantic", "quagga: lives in the zoo")
        assert store.search("quagga", 1)[0].entry.content == "quagga: lives in the zoo"


def test_a_failed_erasure_leaves_the_index_right(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with MemoryStore.open(path) as store:
        right, id = answers(store), store.list()[0].id
        monkeypatch.setattr(store.database, "mark_for_scrub", lambda: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            store.erase(id)
        monkeypatch.undo()
        assert answers(store) == right


def test_a_past_state_is_indexed_once(path: Path, made: list[int]) -> None:
    with MemoryStore.open(path) as store:
        position = store.snapshot()
        zebra = store.find("semantic", "zebra: lives in the zoo")
        assert zebra is not None
        store.delete(store.list()[0].id)

        def past(handle: MemoryStore, where: dict | None) -> list:
            return [handle.search(query, 20, as_of=position, where=where) for query in QUERIES]

        right = []
        for where in (None, *FILTERS):
            with MemoryStore.open(path) as fresh, pytest.MonkeyPatch.context() as patch:
                patch.setattr(fresh._index, "_rewind", lambda *_: None)
                right.append(past(fresh, where))
        answers(store)
        made.clear()
        with pytest.MonkeyPatch.context() as patch:  # neither entries nor vectors are read again
            patch.setattr(store.rows.entries, "live", lambda **_: pytest.fail("read"))
            for _ in range(2):
                assert [past(store, where) for where in (None, *FILTERS)] == right
        assert len(made) == 1
        with MemoryStore.open(path) as other:
            made.clear()
            assert past(other, FILTERS[0]) == right[1] == past(other, FILTERS[0]) and len(made) == 1
            assert past(other, FILTERS[1]) == right[2] and len(made) == 2  # other entries pass
            other.erase(zebra.id)
        assert "zebra" not in str(past(store, None))
        with pytest.raises(ZeroDivisionError), store.transaction():
            store.insert("semantic", "zebra again")
            assert "zebra again" in str(store.search("zebra", as_of=store.snapshot()))
            raise ZeroDivisionError
        store.insert("semantic", "quagga")
        assert "zebra again" not in str(store.search("zebra", as_of=store.snapshot()))
