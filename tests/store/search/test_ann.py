"""Large memories are searched without looking at every document: near enough, and with the very scores."""

import numpy as np
import pytest
from corpus_search import search, search_many

from memalpha.store.search import corpus
from memalpha.store.search.corpus import Corpus, Document
from memalpha.store.store import MemoryStore

TOPICS = ["cat pet fur", "city Oslo fjord", "piano music score", "bread oven flour"]
QUERIES = ["Which pet has fur?", "fjord 17", "piano", "flour 250 oven bread", "nothing of this"]


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lower the limits, so that a few hundred documents count as many."""
    monkeypatch.setattr(corpus, "EXACT_LIMIT", 200)
    monkeypatch.setattr(corpus, "NEAREST", 100)
    monkeypatch.setattr(corpus, "BEST_BY_WORDS", 100)
    monkeypatch.setattr(corpus, "FARTHEST", 20)
    monkeypatch.setattr(corpus, "LISTS", 8)


class Embedder:
    """Directions of the topics, and a little of each text's own."""

    name, dim = "topics", 64

    def encode(self, texts):
        rows = []
        for text in texts:
            own_vector = np.random.default_rng(list(text.encode())).normal(size=64)
            of_topics = [sum(word in text for word in topic.split()) for topic in TOPICS]
            rows.append(own_vector * 0.15 + np.pad(of_topics, (0, 60)))
        rows = np.array(rows, np.float32).reshape(len(texts), 64)
        return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def document(number: int) -> Document:
    words = TOPICS[number % 4].split()
    return Document(f"d{number}", f"{words[number % 3]} {words[number % 2]} {number}", f"g{number % 3}", number)


def make_corpus(count: int, *, approximate: bool = True) -> Corpus:
    return Corpus(Embedder(), map(document, range(count)), approximate=approximate)


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Number of vectors of each index that was trained."""
    sizes: list[int] = []
    make = corpus.ApproximateIndex.__init__

    def counted(self, rows, slots) -> None:
        sizes.append(len(slots))
        make(self, rows, slots)

    monkeypatch.setattr(corpus.ApproximateIndex, "__init__", counted)
    return sizes


def recall(corpus: Corpus, **options) -> float:
    shares = []
    for query in QUERIES:
        right = search_many(corpus, [query], 10, exact=True, **options)[0]
        recalled = search_many(corpus, [query], 10, **options)[0]
        shares.append(len({hit.id for hit in right} & {hit.id for hit in recalled}) / 10)
    return float(np.mean(shares))


@pytest.mark.parametrize("route", ["soft", "flat", "dense", "bm25", "hard"])
def test_the_best_are_found_with_the_scores_of_the_exact_search(route) -> None:
    corpus = make_corpus(600)
    search(corpus, "pet", route=route)
    for number in range(0, 600, 7):  # holes, which the index does not know of
        corpus.remove(f"d{number}")
    corpus.add_many(map(document, range(600, 615)))
    assert recall(corpus, route=route) >= 0.95
    assert len(search(corpus, "pet", 150, route="soft")) == 150  # more than there are candidates
    for query in QUERIES:
        exact = {hit.id: hit for hit in search_many(corpus, [query], 700, route=route, exact=True)[0]}
        hits = search_many(corpus, [query], 10, route=route)[0]
        assert hits == sorted(hits, key=lambda hit: (-hit.score, -int(hit.id[1:])))
        for hit in hits:
            assert hit.explain == exact[hit.id].explain
            assert hit.score == pytest.approx(exact[hit.id].score, abs=0.02)  # where the scale of dense begins
    everything = search_many(corpus, QUERIES, 10, route=route)
    assert everything == [search(corpus, query, 10, route=route) for query in QUERIES]


def test_it_looks_at_candidates_alone_and_exactly_where_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    corpus, counts = make_corpus(600), []
    rank = Corpus._rank

    def counted(self, features, *rest):
        counts.append(len(features.slots))
        return rank(self, features, *rest)

    monkeypatch.setattr(Corpus, "_rank", counted)
    search(corpus, "pet fur")
    assert 100 <= counts[0] < 400
    search_many(corpus, ["pet fur"], exact=True)
    for route in ("hard", "bm25"):
        search(corpus, "pet fur", route=route)
    search(make_corpus(200), "pet fur")
    search(make_corpus(600, approximate=False), "pet fur")  # the memory of a rollout
    search(corpus.copy(tuple), "pet fur")
    assert counts[1:] == [600, 400, 600, 200, 600, 600]  # two of three groups are left by the route "hard"


def test_the_index_takes_new_documents_and_is_trained_anew_once_it_is_worn(trained: list[int]) -> None:
    corpus = make_corpus(300)
    search(corpus, "x", route="bm25")
    assert trained == []
    search(corpus, "x")
    corpus.add_many([Document("new", "zyxomma alone", "g0", 1000)])
    corpus.remove("d299")
    assert search(corpus, "zyxomma")[0].id == "new" and trained == [300]
    corpus.add_many(map(document, range(300, 600)))
    assert recall(corpus) >= 0.95 and trained == [300]
    for number in {*range(400)} - {299}:
        corpus.remove(f"d{number}")
    assert recall(corpus) >= 0.95 and trained == [300, 201]  # more removed than live
    corpus.add_many(map(document, range(600, 800)))
    assert recall(corpus) >= 0.95 and trained == [300, 201]
    corpus.add_many(map(document, range(800, 1400)))
    assert recall(corpus) >= 0.95 and trained == [300, 201, 1001]  # more than four times as many


def test_a_store_searches_so_but_filters_and_past_states_exactly(trained: list[int]) -> None:
    with MemoryStore.open(":memory:", embedder=Embedder()) as store:
        store.insert_many({"category": "semantic", "content": document(number).text} for number in range(400))
        new = store.insert("semantic", "zyxomma alone")
        position, where = store.snapshot(), {"content": {"$contains": "piano"}}
        assert store.search("piano", where=where) == store.search("piano", where=where, exact=True) and trained == []
        assert store.search("zyxomma")[0].entry == new and trained == [401]
        store.delete(new.id)
        assert store.search("zyxomma", as_of=position)[0].entry == new and trained == [401]
