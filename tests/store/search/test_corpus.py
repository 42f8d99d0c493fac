"""The corpus: the documented score, ties by recency, filters, batches, and change in place."""

import dataclasses
from itertools import combinations

import numpy as np
import pytest
from corpus_search import search, search_many
from filter_strategies import entries, wheres
from hypothesis import given, settings
from hypothesis import strategies as st

from memalpha.errors import StoreError
from memalpha.store.embedding import CachedEmbedder, HashEmbedder
from memalpha.store.filters import parse_filter
from memalpha.store.search.corpus import Corpus, Document
from memalpha.store.search.ranking import ROUTES, Boost, SearchOptions
from memalpha.types import MemoryEntry

EMBEDDER = CachedEmbedder(HashEmbedder(64))
DOCS = [
    Document("a", "city: Oslo", "semantic", 1),
    Document("b", "pet: cat", "semantic", 2),
    Document("c", "trip: Rome", "episodic", 3),
    Document("d", "trip: the city of Oslo", "episodic", 4),
    Document("e", "job: nurse", "semantic", 5),
]


def ids(results):
    return [result.id for result in results]


def test_equal_scores_go_to_the_more_recent():
    docs = [Document(name, "pet: cat", "semantic", order) for name, order in (("x", 3), ("y", 9), ("z", 5))]
    corpus = Corpus(EMBEDDER, docs)
    for route in ROUTES:
        assert ids(search(corpus, "cat", 2, route=route)) == ["y", "z"]
    assert ids(search(corpus, "", 3)) == ["y", "z", "x"]


def fact(number, user="ana", **fields):
    content = f"pet {number}: a {['cat', 'dog', 'bird'][number % 3]} of {user}"
    return MemoryEntry(f"n{number}", fields.pop("category", "semantic"), content, valid_from=number, **fields)


def corpus_of(entries):
    return Corpus(EMBEDDER, map(Document.from_entry, entries), lambda: entries)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(entries | st.integers(0, 20), max_size=25),
    st.lists(
        st.tuples(wheres | st.just({}), st.sampled_from(ROUTES), st.sampled_from([1, 3, 30])), min_size=1, max_size=3
    ),
    st.booleans(),
)
def test_a_filtered_search_is_the_search_of_what_passes(program, searches, search_between):
    """Also while documents come and go, whenever the columns were made."""
    live: dict[str, MemoryEntry] = {}
    corpus = Corpus(EMBEDDER, (), lambda: live.values())
    for number, step in enumerate(program):
        if isinstance(step, MemoryEntry):
            id = f"n{number % 15}"
            content = fact(number % 4, user=step.source or "ben").content
            live[id] = dataclasses.replace(step, id=id, valid_from=number, content=content)
            corpus.add_many([Document.from_entry(live[id])])
        elif f"n{step}" in live:
            del live[f"n{step}"]
            corpus.remove(f"n{step}")
        if search_between:
            search(corpus, "cat of ana", 2, where=searches[number % len(searches)][0])
    for where, route, k in searches:
        chosen = parse_filter(where)
        ours = search_many(corpus, ["a cat of ana 3", "ben"], k, route=route, where=where)
        passing = [entry for entry in live.values() if chosen is None or chosen.matches(entry)]
        assert ours == search_many(corpus_of(passing), ["a cat of ana 3", "ben"], k, route=route)


def test_what_was_removed_is_dropped_in_time():
    corpus = Corpus(EMBEDDER, DOCS)
    for order in range(3000):
        corpus.add_many([Document("a", f"city: Oslo {order}", "semantic", order)])
        if order % 500 == 0:
            search(corpus, "Oslo", 1)
    assert search(corpus, "city Oslo 2999", 1)[0].id == "a"
    assert corpus._size < 2000
    fresh = Corpus(EMBEDDER, [Document("a", "city: Oslo 2999", "semantic", 2999), *DOCS[1:]])
    assert search(corpus, "city of Oslo", 5) == search(fresh, "city of Oslo", 5)


def test_importance_and_recency_are_terms_of_the_score():
    dates = ["2025-01-01", "2024-12-02", "2024-11-02T00:00Z", None, "2026-01-01"]  # 0, 30, 60 days old, none, to come
    facts = [fact(i, importance=i / 10, timestamp=date, metadata={"n": i}) for i, date in enumerate(dates)]
    corpus = corpus_of(facts)
    boost = Boost(importance=2, recency=3, half_life=30, now="2025-01-01")
    terms = {f"n{i}": (0.2 * i, 3 * near) for i, near in enumerate([1, 0.5, 0.25, 0, 1])}
    for route in ROUTES:
        for where in (None, {"n": {"$gt": 0}}):
            plain = {hit.id: hit for hit in search(corpus, "a cat of ana 1", 9, route=route, where=where)}
            boosted = search(corpus, "a cat of ana 1", 9, route=route, where=where, boost=boost)
            assert {hit.id for hit in boosted} == set(plain)
            assert [hit.score for hit in boosted] == sorted((hit.score for hit in boosted), reverse=True)
            for hit in boosted:
                assert np.allclose((hit.explain["importance"], hit.explain["recency"]), terms[hit.id])
                assert np.isclose(hit.score, plain[hit.id].score + sum(terms[hit.id]))
                assert hit.explain.keys() - plain[hit.id].explain.keys() == {"importance", "recency"}
    assert search(corpus, "cat", 9, boost=Boost()) == search(corpus, "cat", 9)
    corpus.remove("n0")
    corpus.add_many([Document.from_entry(fact(7, importance=50, timestamp="2024-05-01T12:00+02:00"))])
    assert ids(search(corpus, "nothing", 1, boost=Boost(importance=1))) == ["n7"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"recency": 1}, "recency needs now"),
        ({"recency": 1, "now": "soon"}, "now 'soon' is no ISO"),
        ({"importance": "1"}, "importance '1'"),
        ({"recency": float("nan"), "now": "2025-01-01"}, "recency nan"),
        ({"half_life": 0}, "half_life 0"),
    ],
)
def test_a_boost_that_means_nothing_is_refused(options, message):
    with pytest.raises(StoreError, match=message):
        Boost(**options)


@pytest.mark.parametrize("route", ["flat", "soft"])
def test_vectors_count_by_the_square_of_the_share_that_the_embedder_knows(route):
    class Half(HashEmbedder):
        def coverage(self, texts):
            return [0.5] * len(texts)

    descriptions = {"semantic": "facts about a city", "episodic": "trips"}
    corpus, query = Corpus(Half(64), DOCS, descriptions=descriptions), "the city of Oslo"
    vectors = HashEmbedder(64).encode([query])
    weights = dict.fromkeys(("dense", "group", "category"), 0.25)
    options = SearchOptions(5, route=route, vector=vectors[0], weights=weights)
    assert [search(corpus, query, 5, route=route)] == corpus.search_many([query], options, vectors)


@pytest.mark.parametrize("group_of", [lambda topic, at: topic, lambda topic, at: at % 3, lambda topic, at: at % 2])
def test_groups_count_as_far_as_they_hold_what_is_alike(group_of) -> None:
    """The adjusted R squared from the distances of pairs (Anderson, Austral Ecology 26, 2001)."""
    texts = [(topic, at, f"{word} {at}") for topic, word in enumerate(("oslo city", "cat pet")) for at in range(6)]
    groups = [group_of(topic, at) for topic, at, _ in texts]
    corpus = Corpus(EMBEDDER, [Document(f"d{at}", texts[at][2], f"g{groups[at]}", at) for at in range(12)])
    vectors = EMBEDDER.encode([text for *_, text in texts])

    def spread(members) -> float:
        return sum(((vectors[a] - vectors[b]) ** 2).sum() for a, b in combinations(members, 2)) / len(members)

    within = sum(spread([at for at in range(12) if groups[at] == group]) for group in {*groups})
    explained = 1 - within / (12 - len({*groups})) * 11 / spread(range(12))
    fit = min(1.0, max(0.0, (12 * explained + 1) / (12 * 0.03 + 1)))
    members = vectors[[at for at in range(12) if groups[at] == groups[3]]].sum(0)
    best = search(corpus, texts[3][2], 1)[0]
    assert best.explain["group"] == pytest.approx(fit * (vectors[3] @ members) / np.linalg.norm(members), abs=1e-4)
