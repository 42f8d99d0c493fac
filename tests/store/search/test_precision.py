"""Vectors in fewer bytes: candidates by them, the scores of hits from the file's own."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memalpha.errors import StoreError
from memalpha.store.checks.integrity import examine
from memalpha.store.embedding import normalize
from memalpha.store.indexing import cache
from memalpha.store.indexing.cache import index_files
from memalpha.store.indexing.namespace_index import NamespaceIndex
from memalpha.store.search import ann as approximate
from memalpha.store.search.ranking import ROUTES
from memalpha.store.search.vectors import PRECISIONS, Precision, VectorIndex, decode, encode
from memalpha.store.store import MemoryStore

pytestmark = pytest.mark.sqlite  # about its files

COMPACT: tuple[Precision, ...] = ("float16", "int8")
ERROR = {"float32": 0.0, "float16": 2**-11, "int8": 1 / 254}  # of a number: of itself, of itself, of the largest
ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("precision", PRECISIONS)
@given(rows=st.lists(st.lists(st.floats(-1, 1, width=32), min_size=3, max_size=3), max_size=6))
def test_a_row_is_its_vector_as_far_as_the_precision_goes(precision: Precision, rows: list[list[float]]) -> None:
    vectors = np.array(rows, np.float32).reshape(-1, 3)
    encoded = encode(vectors, precision)
    assert encoded.nbytes == len(rows) * {"float32": 12, "float16": 6, "int8": 3 + 4}[precision]
    again = decode(encoded)
    largest = np.abs(vectors).max(axis=1, keepdims=True, initial=0.0)
    assert again.dtype == np.float32 and (np.abs(again - vectors) <= largest * ERROR[precision] * 1.01 + 1e-7).all()
    assert precision != "float16" or (again == encoded.astype(np.float32)).all()
    for row_index in range(len(rows)):  # whatever else is there
        assert (encode(vectors[row_index : row_index + 1], precision) == encoded[row_index]).all()


@pytest.mark.parametrize("precision", COMPACT)
def test_an_index_gives_the_products_with_what_it_holds(precision: Precision) -> None:
    rng = np.random.default_rng(0)
    vectors, queries = (normalize(rng.normal(size=(n, 48)).astype(np.float32)) for n in (5000, 2))
    index, plain = VectorIndex(48, precision), VectorIndex(48)
    encoded = index.set(np.arange(5000), vectors)
    plain.set(np.arange(5000), encoded)
    index.remove(7)
    plain.remove(7)
    assert (index.vectors_at(np.array([3, 7])) == plain.rows[[3, 7]]).all() and not index.vectors_at(
        np.array([7])
    ).any()
    assert (index.scores(queries) == plain.scores(queries)).all()
    for slots in (np.arange(0, 5000, 2), np.arange(10)):
        assert (index.scores(queries, slots) == plain.scores(queries, slots)).all()
    assert VectorIndex(48, precision).scores(queries).shape == (2, 0)


def open_as(path: Path | str, vectors: Precision, embedder: str = "hash") -> MemoryStore:
    return MemoryStore.open(path, embedder=embedder, vectors=vectors, durability="normal")


WORDS = st.lists(
    st.sampled_from(["cat", "dog", "fjord", "piano", "bread", "oven", "Oslo", "Rome"]), min_size=1, max_size=5
)


@settings(max_examples=25, deadline=None)
@given(
    facts=st.lists(st.tuples(WORDS.map(" ".join), st.sampled_from(["semantic", "episodic"])), min_size=1, max_size=90),
    removed=st.sets(st.integers(0, 89), max_size=40),
    query=WORDS.map(" ".join),
    route=st.sampled_from(ROUTES),
)
def test_the_scores_of_hits_are_exact(
    tmp_path_factory: pytest.TempPathFactory, facts: list[tuple[str, str]], removed: set[int], query: str, route
) -> None:
    path = tmp_path_factory.mktemp("store") / "a.db"
    with open_as(path, "float32") as plain, open_as(path, "float16") as half, open_as(path, "int8") as byte:
        plain.insert_many({"category": category, "content": text} for text, category in facts)
        past = plain.snapshot()
        for store in (half, byte):
            store.search(query)  # what follows is caught up
        for row_index, entry in enumerate(plain.list()):
            if row_index in removed:
                plain.delete(entry.id)
            elif row_index % 7 == 0:
                plain.update(entry.id, f"{entry.content} {row_index}")
        for where in ({}, {"category": "semantic"}, {"content": {"$contains": "cat"}}):
            right = {hit.entry.id: hit for hit in plain.search(query, 100, where=where, route=route)}
            for store in (half, byte):
                for k in (3, 100):
                    hits = store.search(query, k, where=where, route=route)
                    assert len(hits) == (min(k, len(right)) if route != "hard" else len(hits))
                    assert hits == sorted(hits, key=lambda hit: (-hit.score, -hit.entry.valid_from))
                    if route in ("dense", "bm25"):
                        assert hits == list(right.values())[:k]
                    for hit in hits if route != "hard" else ():
                        exact = right[hit.entry.id]
                        assert {**hit.explain, "group": 0} == {**exact.explain, "group": 0}
                        if k == 100:  # all of them: the scale of dense is exact as well
                            assert hit.score == pytest.approx(exact.score, abs=0.01)
        for store in (half, byte):
            assert store.search(query, 20, as_of=past) == plain.search(query, 20, as_of=past)
            name = store.namespace("other")
            name.insert("semantic", "by itself")
            assert name._index._corpus is None and name.search("itself")[0].entry.content == "by itself"
            assert name._index._corpus._vectors.precision == store._precision  # pyright: ignore


def recall(path: Path, precision: Precision, queries: list[str], embedder: str = "hash") -> float:
    with open_as(path, "float32", embedder) as plain, open_as(path, precision, embedder) as store:
        pairs = zip(plain.search_many(queries), store.search_many(queries), strict=True)
        shares = [
            len({hit.entry.id for hit in exact_hits} & {hit.entry.id for hit in compressed_hits}) / len(exact_hits)
            for exact_hits, compressed_hits in pairs
        ]
    return float(np.mean(shares))


@pytest.mark.parametrize("precision", COMPACT)
def test_the_best_are_found(tmp_path: Path, precision: Precision) -> None:
    rng = np.random.default_rng(0)
    with open_as(tmp_path / "random.db", "float32") as store:
        facts = [{"category": "semantic", "content": f"fact {number}"} for number in range(3000)]
        store.insert_many(facts, rng.normal(size=(3000, 256)).astype(np.float32))
    assert recall(tmp_path / "random.db", precision, [f"which {word}" for word in "abcdefghij"]) >= 0.99
    lines = {
        line.strip() for file in ("README.md", "CHANGELOG.md") for line in (ROOT / file).read_text("utf-8").splitlines()
    }
    texts = sorted(line for line in lines if len(line) > 30)
    with open_as(tmp_path / "real.db", "float32", "static") as store:
        store.insert_many({"category": "semantic", "content": text} for text in texts)
    queries = [" ".join(text.split()[:5]) for text in texts[::9]]
    assert recall(tmp_path / "real.db", precision, queries, "static") >= 0.99


@pytest.mark.parametrize("precision", COMPACT)
def test_a_large_memory_too(tmp_path: Path, precision: Precision, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(approximate, "EXACT_LIMIT", 500)
    texts = [f"{word} of the {other} in {number}" for number, word in enumerate("abcd" * 300) for other in ("x",)]
    with open_as(tmp_path / "a.db", precision) as store:
        store.insert_many({"category": "semantic", "content": text} for text in texts)
        store.build_index()
        dense = [store.search(f"c of 6{number}", route="dense") for number in range(5)]
        assert store._index._corpus._approximate.ready_lists() is not None  # pyright: ignore
    with open_as(tmp_path / "a.db", "float32") as store:
        for number, hits in enumerate(dense):
            right = {hit.entry.id: hit for hit in store.search(f"c of 6{number}", 1200, route="dense", exact=True)}
            assert len(hits) == 10 and hits == [right[hit.entry.id] for hit in hits]
            assert len({hit.entry.id for hit in hits} & set(list(right)[:10])) >= 9


def test_a_vector_that_the_file_lost_is_made_again(tmp_path: Path) -> None:
    with open_as(tmp_path / "a.db", "int8") as store:
        store.insert_many({"category": "semantic", "content": text} for text in ("cat fur", "Oslo fjord", "bread"))
        right = store.search("fjord", route="dense")
        with store._database.transaction() as connection:
            connection.execute("DELETE FROM vectors WHERE ROWID = 2")
        assert store.search("fjord", route="dense") == right


def test_an_index_file_of_another_precision_is_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "MIN_ENTRIES", 1)
    path, builds, build = tmp_path / "a.db", [], NamespaceIndex._build_corpus

    def build_and_note(self):
        builds.append(self._cache._precision)
        return build(self)

    monkeypatch.setattr(NamespaceIndex, "_build_corpus", build_and_note)
    with open_as(path, "float32") as store:
        store.insert_many({"category": "semantic", "content": f"fact {number}"} for number in range(40))
        right = store.search("fact 7", 40, route="dense")
    for precision in ("float32", "int8", "int8", "float16", "float16", "float32"):
        with open_as(path, precision) as store:
            assert store.search("fact 7", 40, route="dense") == right
        assert examine(path).problems == [] and len(index_files(str(path))) == 1
    assert builds == ["float32", "int8", "float16", "float32"]


def test_a_wrong_precision_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="vectors 'fp16': float32, float16 or int8 is needed"):
        MemoryStore.open(tmp_path / "a.db", vectors="fp16")  # pyright: ignore
    assert list(tmp_path.iterdir()) == []
