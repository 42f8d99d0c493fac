"""The corpus: the documented score, ties by recency, filters, batches, and change in place."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memalpha.errors import StoreError
from memalpha.store.embedding import CachedEmbedder, HashEmbedder, load_embedder
from memalpha.store.lexical import BM25, term_counts, words
from memalpha.store.retrieval import ROUTES, Corpus, Document
from memalpha.types import MemoryEntry

EMBEDDER = CachedEmbedder(HashEmbedder(64))
DOCS = [
    Document("a", "city: Oslo", "semantic", 1),
    Document("b", "pet: cat", "semantic", 2),
    Document("c", "trip: Rome", "episodic", 3),
    Document("d", "trip: the city of Oslo", "episodic", 4),
    Document("e", "job: nurse", "semantic", 5, lexical_text="job: nurse\npet: dog"),
]


def ids(results):
    return [result.id for result in results]


def scaled(values):
    values = np.array(values)
    return (values - values.min()) / (values.max() - values.min())


def test_the_score_is_the_documented_one():
    query = "the city of Oslo"
    vectors = EMBEDDER.encode([doc.text for doc in DOCS]).astype(float)
    asked = EMBEDDER.encode([query])[0].astype(float)
    lexical, groups = BM25(), BM25()
    names = ["semantic", "episodic"]
    for slot, doc in enumerate(DOCS):
        lexical.add(slot, term_counts(doc.lexical_text or doc.text))
        groups.add(names.index(doc.group), term_counts(doc.text))
    dense, bm25 = vectors @ asked, lexical.scores(words(query), 5)
    member = np.array([names.index(doc.group) for doc in DOCS])
    prototypes = np.array([vectors[member == g].mean(axis=0) for g in (0, 1)])
    near = np.maximum(prototypes / np.linalg.norm(prototypes, axis=1, keepdims=True) @ asked, 0)
    worded = groups.scores(words(query), 2)
    prior = (worded / worded.max() + near / near.max()) / 2
    wanted = {"dense": dense, "bm25": bm25, "flat": scaled(dense) + scaled(bm25)}
    wanted["soft"] = wanted["flat"] + prior[member]
    corpus = Corpus(EMBEDDER, DOCS)
    for route, scores in wanted.items():
        found = {result.id: result.score for result in corpus.search(query, 5, route=route)}
        assert np.allclose([found[doc.id] for doc in DOCS], scores, atol=1e-4), route
    best = corpus.search(query, 1)[0]
    assert best.id == "d"
    assert set(best.explain) == {"dense", "bm25", "group"}
    # round(sqrt(2)) = 1 group is left by the hard route, and its scores are flat's among its members.
    assert sorted(ids(corpus.search(query, 5, route="hard"))) == ["c", "d"]


def test_lexical_text_is_what_bm25_sees():
    corpus = Corpus(EMBEDDER, DOCS)
    assert ids(corpus.search("dog", 1, route="bm25")) == ["e"]
    assert corpus.search("dog", 1, route="bm25")[0].score > 0


def test_equal_scores_go_to_the_more_recent():
    docs = [Document(name, "pet: cat", "semantic", order) for name, order in (("x", 3), ("y", 9), ("z", 5))]
    corpus = Corpus(EMBEDDER, docs)
    for route in ROUTES:
        assert ids(corpus.search("cat", 2, route=route)) == ["y", "z"]
    assert ids(corpus.search("", 3)) == ["y", "z", "x"]


def test_allowed_filters_before_ranking():
    docs = [Document(f"n{i}", f"cat number {i}", "semantic", i) for i in range(50)]
    corpus = Corpus(EMBEDDER, docs)
    allowed = {f"n{i}" for i in range(0, 50, 5)} | {"unknown"}
    for route in ("soft", "flat", "dense", "bm25"):
        found = ids(corpus.search("cat", 10, route=route, allowed=allowed))
        assert sorted(found) == sorted(allowed - {"unknown"})
    assert corpus.search("cat", 10, allowed=()) == []
    assert ids(corpus.search("cat", 5, allowed={"n3"})) == ["n3"]


def test_a_batch_is_its_searches():
    corpus = Corpus(EMBEDDER, DOCS)
    queries = ["Oslo", "a nurse's cat", "", "Rome trip"]
    for route in ROUTES:
        assert corpus.search_many(queries, 3, route=route) == [corpus.search(q, 3, route=route) for q in queries]
    assert corpus.search_many([], 3) == []


def test_edges():
    corpus = Corpus(EMBEDDER)
    assert corpus.search("anything") == []
    corpus.add(DOCS[0])
    assert ids(corpus.search("nothing in common", 10)) == ["a"]
    assert corpus.search("Oslo", 0) == []
    with pytest.raises(StoreError, match="k -1"):
        corpus.search("Oslo", -1)
    with pytest.raises(StoreError, match="route 'best' is not one of soft, flat"):
        corpus.search("Oslo", route="best")
    with pytest.raises(KeyError):
        corpus.remove("zz")
    corpus.remove("a")
    assert "a" not in corpus
    assert corpus.search("Oslo") == []


def test_an_entry_is_a_document_of_its_category_as_recent_as_its_version():
    entry = MemoryEntry(id="city#e", category="semantic", content="city: Oslo", valid_from=7)
    assert Document.of(entry) == Document("city#e", "city: Oslo", "semantic", 7)


documents = st.builds(
    Document,
    id=st.sampled_from("pqrstu"),
    text=st.sampled_from(["cat", "dog and cat", "Oslo", "city of Oslo", "Rome in May", "", "cats dogs Rome Oslo"]),
    group=st.sampled_from("GH"),
    order=st.integers(0, 99),
    lexical_text=st.sampled_from([None, "cat dog", "Rome"]),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.one_of(documents, st.sampled_from("pqrstu")), max_size=25), st.booleans())
def test_changed_in_place_equals_built_anew(program, search_between):
    corpus, live = Corpus(EMBEDDER), {}
    for order, step in enumerate(program):
        if isinstance(step, Document):
            live[step.id] = dataclasses.replace(step, order=order)  # no two alike: recency decides every tie
            corpus.add(live[step.id])
        elif step in live:
            del live[step]
            corpus.remove(step)
        if search_between:
            corpus.search("cat in Rome", 2)
    fresh = Corpus(EMBEDDER, live.values())
    assert len(corpus) == len(fresh) == len(live)
    for route in ROUTES:
        for ours, theirs in zip(
            corpus.search_many(["cat", "the city of Rome"], 6, route=route),
            fresh.search_many(["cat", "the city of Rome"], 6, route=route),
            strict=True,
        ):
            assert ids(ours) == ids(theirs)
            assert np.allclose([r.score for r in ours], [r.score for r in theirs], atol=1e-9)


def test_new_documents_are_embedded_in_one_batch_and_only_for_routes_with_vectors():
    class Counting(HashEmbedder):
        batches = 0

        def encode(self, texts):
            Counting.batches += 1
            return super().encode(texts)

    corpus = Corpus(Counting(16), DOCS)
    corpus.search("cat", route="bm25")
    assert Counting.batches == 0
    corpus.search_many(["cat", "dog"])
    assert Counting.batches == 2  # the documents, the queries


def test_static_finds_what_shares_no_word():
    corpus = Corpus(load_embedder("static"), DOCS)
    assert corpus.search("Which animal do I have?", 1)[0].id == "b"
