"""Long entries are searched by passage; weights, a lowest score, a vector of the caller's, and rerankers."""

from __future__ import annotations

import pytest

from memalpha.errors import StoreError
from memalpha.store.embedding import HashEmbedder
from memalpha.store.search.lexical import WINDOW, split_passages, word_count, words
from memalpha.store.store import MemoryStore

FILLER = "The kettle was broken again before lunch. "
LONG = FILLER * 30 + "Ana's boat is called Albatross. " + FILLER * 30


@pytest.mark.parametrize("text", ["", "one", LONG, "word " * 500, "字" * 900, "a.b " * 300 + "\n" + "c d. " * 200])
def test_passages_are_whole_and_short_enough(text: str) -> None:
    passages = split_passages(text)
    assert "".join("".join(passages).split()) == "".join(text.split())
    assert all(word_count(words(passage)) <= WINDOW for passage in passages)


@pytest.fixture
def store(tmp_path):
    with MemoryStore.open(tmp_path / "a.db", embedder=HashEmbedder(64)) as store:
        notes = [f"Note {number} of {number % 7} boats." for number in range(60)]
        origin = {"category": "episodic", "source": "chat", "chunk": 0}
        store.insert_many(origin | {"content": text, "turn": text[:8]} for text in [LONG, *notes])
        yield store


@pytest.mark.parametrize("route", ["soft", "flat", "bm25", "hard"])
def test_a_hit_names_the_passage_of_a_long_entry(store: MemoryStore, route) -> None:
    hits = store.search("What is Ana's boat called?", 70, route=route)
    [long] = [hit for hit in hits if hit.entry.content == LONG.strip()]
    assert long.passage is not None and "Albatross" in long.passage and len(words(long.passage)) <= WINDOW
    assert split_passages(long.entry.content)[int(long.explain["passage"])] == long.passage
    assert all(hit.passage is None and "passage" not in hit.explain for hit in hits if hit is not long)
    assert route == "flat" or hits[0] == long or route == "hard"


def test_passages_outlive_removal_and_reopening(tmp_path) -> None:
    path, query = tmp_path / "b.db", "Ana's boat"
    with MemoryStore.open(path, embedder=HashEmbedder(64)) as store:
        texts = [f"{FILLER * (10 + number)}Boat {number}. {FILLER * 20}" for number in range(20)]
        entries = store.insert_many({"category": "semantic", "content": text} for text in [LONG, *texts])
        store.search(query)
        for entry in entries[1:10]:
            store.delete(entry.id)
        hits = store.search(query, 30)
    with MemoryStore.open(path, embedder=HashEmbedder(64)) as store:
        assert store.search(query, 30) == hits
    with MemoryStore.open(":memory:", embedder=HashEmbedder(64)) as alone:
        alone.insert_many({"category": "semantic", "content": hit.entry.content} for hit in hits)
        scores = {hit.entry.content: hit.explain for hit in alone.search(query, 30)}
        assert {hit.entry.content: hit.explain for hit in hits} == scores


def test_a_vector_of_the_callers(store: MemoryStore) -> None:
    query = "boats of note 3"
    vector = HashEmbedder(64).encode([query])[0]
    assert store.search(query, vector=vector * 3) == store.search(query)
    assert store.search("", route="dense", vector=vector.tolist()) == store.search(query, route="dense")
    for bad in ([1.0] * 63, [0.0] * 64, [float("nan")] * 64):
        with pytest.raises(StoreError, match="vector: 64 finite numbers"):
            store.search(query, vector=bad)


def test_a_reranker_sorts_the_first_hits_anew(store: MemoryStore) -> None:
    seen = []

    def shortest_first(query, texts):
        seen.append(texts)
        return [-len(text) for text in texts]

    hits = store.search("boats of note", 3, reranker=shortest_first)
    assert len(hits) == 3 and len(seen[0]) == 50
    assert [hit.score for hit in hits] == sorted((-len(text) for text in seen[0]), reverse=True)[:3]
    assert hits[0].explain["rerank"] == hits[0].score
    for bad in ([1.0], [float("nan")] * 50):
        with pytest.raises(StoreError, match="a finite number for each of 50 texts"):
            store.search("boats of note", reranker=lambda query, texts, scores=bad: scores)
