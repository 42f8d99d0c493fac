"""Words around raw spans: the formula written out, and what it is not to touch; the text around an entry."""

import dataclasses
import math
from itertools import combinations
from random import Random

import numpy as np
import pytest
from corpus_search import search
from hypothesis import given, settings
from hypothesis import strategies as st

from memalpha.errors import StoreError, UnknownEntry
from memalpha.store.embedding import CachedEmbedder, HashEmbedder
from memalpha.store.search.corpus import Corpus, Document
from memalpha.store.search.lexical import Span, split_passages, words
from memalpha.store.store import MemoryStore
from memalpha.types import MemoryEntry

EMBEDDER = CachedEmbedder(HashEmbedder(32))


def word_count(text):
    """Words of a text without stop words, two characters of a script without spaces being one."""
    runs = text.replace(".", " ").split()
    return max(min(1, len(runs)), math.ceil(sum(1 if run.isascii() else (len(run) - 1) / 2 for run in runs)))


def slowly(documents, query):
    """BM25 by passage, with the words around as far as neighbours have to do with each other."""
    alone = weigh([dataclasses.replace(document, span=None) for document in documents], query)
    share = relatedness(documents, query)
    return {
        id: score if word_count(text) > 80 else share * score + (1 - share) * alone[id]
        for (id, score), text in zip(
            weigh(documents, query).items(), (document.text for document in documents), strict=True
        )
    }


def relatedness(documents, query):
    """Pairs of spans within three steps that share a word, beside those of a random order."""
    runs = []
    for source in "ST":
        of_source = [doc for doc in documents if doc.span is not None and doc.span.source == source]
        run = []
        for doc in sorted(of_source, key=lambda doc: (doc.span.chunk, doc.span.position)):
            run = [] if word_count(doc.text) > 80 else [*run, doc.text]
            runs = [*runs[: -1 if len(run) > 1 else None], run] if run else runs
    places = [(number, at, text) for number, run in enumerate(runs) for at, text in enumerate(run)]

    def pairs(held):
        return [a[0] == b[0] and b[1] - a[1] <= 3 for a, b in combinations(held, 2)]

    near = pairs(places)
    chance = sum(near) / max(1, len(near))
    found = expected = 0
    for term in {term for term in words(query) if len(term) > 1}:
        held = [place for place in places if term in words(place[2])]
        if len(held) <= max(3, len(places) ** 0.5):
            found, expected = found + sum(pairs(held)), expected + len(pairs(held)) * chance
    return min(1, max(0, (found - expected + 8) / (expected * (1 - chance) + 8)))


def weigh(documents, query):
    """BM25 with the words around and by passage, document by document and word by word."""
    tokens = {doc.id: words(doc.text) for doc in documents}
    size = {doc.id: word_count(doc.text) for doc in documents}
    parts = {id: math.ceil(max(length, 1) / 80) for id, length in size.items()}
    mass = min(32, sum(size.values()) / sum(parts.values()))
    neighbours = {}  # by document: weight and id of each span that lends its words
    for doc in documents:
        neighbours[doc.id] = []
        if doc.span is None or size[doc.id] > 80 or not mass:
            continue
        source = [other for other in documents if other.span is not None and other.span.source == doc.span.source]
        line = [other.id for other in sorted(source, key=lambda other: (other.span.chunk, other.span.position))]
        here = line.index(doc.id)
        for direction in (-1, 1):
            weight = 1.0
            for far in range(1, 4):
                at = here + direction * far
                if not 0 <= at < len(line):
                    break
                length = size[line[at]]
                weight *= mass / (mass + size[doc.id])
                weight *= 0.0 if length > 80 else min(1.0, 32 / max(length, 1)) ** 8
                neighbours[doc.id].append((weight, line[at]))

    def counted(id, term):
        lenders = [] if len(term) == 1 else neighbours[id]  # a single character is not lent
        return tokens[id].count(term) or sum(w * tokens[other].count(term) for w, other in lenders)

    length = {
        id: size[id] / parts[id] + 64 if size[id] > 80 else size[id] + sum(w * size[other] for w, other in around)
        for id, around in neighbours.items()
    }
    mean_length = sum(length[id] * parts[id] for id in parts) / sum(parts.values())

    def saturate(count, length):
        return count / (count + 1.5 * (0.25 + 0.75 * length / mean_length)) if count else 0.0

    scores = {doc.id: 0.0 for doc in documents}
    of_passages = {doc.id: [[0.0, part] for part in split_passages(doc.text)] for doc in documents if size[doc.id] > 80}
    for term in words(query):
        counts = {id: counted(id, term) for id in scores}
        holders = sum(count >= 0.1 for count in counts.values())
        idf = math.log(1 + (len(documents) - holders + 0.5) / (holders + 0.5))
        for doc in documents:
            scores[doc.id] += idf * saturate(counts[doc.id], length[doc.id])
            rest = saturate(counts[doc.id] * 64 / max(size[doc.id], 1), length[doc.id])
            for passage in of_passages.get(doc.id, ()):
                own = words(passage[1]).count(term)
                passage[0] += idf * (saturate(own, word_count(passage[1]) + 64) if own else rest)
    for id, passages in of_passages.items():
        scores[id] = max((score for score, held in passages if {*words(held)} & {*words(query)}), default=0.0)
    return scores


def confidence(documents, query) -> float:
    """Return the share by which words count: a turn needs less of a query than a fact, its neighbours hold some."""
    sure_words = 1.5 if any(document.span for document in documents) else 4
    total, held, terms = len(documents), dict.fromkeys((document.id for document in documents), 0.0), words(query)
    for term in terms:
        holders = [document.id for document in documents if term in words(document.text)]
        for id in holders:
            held[id] += math.log(1 + (total - len(holders) + 0.5) / (len(holders) + 0.5))
    unique = math.log(1 + (total - 0.5) / 1.5)
    return min(1.0, max(held.values()) / (max(1, min(sure_words, len({*terms}))) * unique))


spans = st.one_of(st.none(), st.builds(Span, st.sampled_from("ST"), st.integers(-1, 2), st.just(0)))
texts = st.lists(st.sampled_from(["cat", "dog", "oslo", "nurse", "猫と犬", "犬"]), max_size=5).map(" ".join)
sentences = st.tuples(texts, st.sampled_from([1, 1, 1, 12, 30])).map(lambda pair: ". ".join([pair[0]] * pair[1]))
some_texts = st.lists(sentences, min_size=1, max_size=3).map(". ".join)  # up to 450 words


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(texts, spans), min_size=1, max_size=20), st.randoms(), texts)
def test_the_words_around_count_as_the_formula_says(lines, random, query):
    check_formula(lines, random, query)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(some_texts, spans), min_size=2, max_size=6), st.randoms(), texts)
def test_long_spans_are_searched_by_passage_as_the_formula_says(lines, random, query):
    check_formula(lines, random, query)


def check_formula(lines, random, query):
    positions = random.sample(range(100), len(lines))  # in no order of their coming
    documents = [
        Document(f"n{at}", text, "G", at, None if span is None else span._replace(position=position))
        for at, ((text, span), position) in enumerate(zip(lines, positions, strict=True))
    ]
    expected, hit_texts = slowly(documents, query), {document.id: document.text for document in documents}
    results = search(Corpus(EMBEDDER, documents), query, 30)
    plain = {hit.id: hit.score for hit in search(Corpus(EMBEDDER, documents), query, 30, route="bm25")}
    some = any(document.span for document in documents)
    for hit in results:
        is_long = word_count(hit_texts[hit.id]) > 80
        assert hit.explain["bm25"] == plain[hit.id] or (is_long and some)
        assert hit.explain.get("around", 0.0) == 0.0 or not is_long
        assert ("around" in hit.explain) == some
        assert math.isclose(hit.explain["bm25"] + hit.explain.get("around", 0.0), expected[hit.id], abs_tol=1e-12)
    values = np.array([[expected[hit.id], hit.explain["dense"]] for hit in results])
    width = np.maximum(np.ptp(values, axis=0), 1e-3)  # a difference of rounding is none
    words_count = confidence(documents, query)
    scaled = ((values - values.min(axis=0)) / width) @ np.array([words_count, 1.0])
    assert np.allclose([hit.score for hit in results], scaled, atol=1e-9)


@pytest.mark.parametrize("seed", range(8))
def test_the_order_in_which_spans_come_shows_in_no_digit(seed):
    random = Random(seed)
    lines = [" ".join(random.choices(["cat", "dog", "oslo", "rome"], k=random.randint(1, 30))) for _ in range(100)]
    spans = [Span(random.choice("ST"), random.randint(0, 3), at) for at in range(100)]
    documents = [
        Document(f"n{at}", line, "G", at, span) for at, (line, span) in enumerate(zip(lines, spans, strict=True))
    ]
    results = []
    for _ in range(2):
        hits = search(Corpus(EMBEDDER, documents), "cat in oslo", 100)
        results.append({hit.id: (hit.explain["bm25"], hit.explain["around"]) for hit in hits})
        random.shuffle(documents)
    assert len(results[0]) == 100 and results[0] == results[1]


@settings(max_examples=100, deadline=None)
@given(st.lists(texts, min_size=1, max_size=12), texts)
def test_without_neighbours_nothing_changes(contents, query):
    """Facts without a turn, with a turn and no source, and spans that are each alone in their source.

    Only the share by which words count is that of raw text.
    """
    facts = [MemoryEntry(f"n{at}", "semantic", text, valid_from=at) for at, text in enumerate(contents, start=1)]
    plain = search(Corpus(EMBEDDER, map(Document.from_entry, facts)), query, 20)
    for origin in ({"source": "chat", "chunk": 1}, {"chunk": 2, "turn": "2:3"}):
        of_facts = [dataclasses.replace(fact, **origin) for fact in facts]
        assert search(Corpus(EMBEDDER, map(Document.from_entry, of_facts)), query, 20) == plain
    alone = [dataclasses.replace(fact, source=fact.id, turn="1") for fact in facts]
    hits = search(Corpus(EMBEDDER, map(Document.from_entry, alone)), query, 20)
    parts = {hit.id: hit.explain for hit in plain}
    for hit in hits:
        assert {name: hit.explain[name] for name in parts[hit.id]} == pytest.approx(parts[hit.id], abs=1e-12)
    assert all(abs(hit.explain["around"]) < 1e-12 for hit in hits)


def chat(turns=9, **options):
    """A store with a conversation of two chunks and a fact of another source; turns of 40 characters, 10 tokens."""
    store = MemoryStore.open(":memory:", embedder="hash", **options)
    for number in range(turns):
        content = f"turn {number}: {'ab' * 20}"[:40]
        store.insert("episodic", content, source="chat", chunk=int(number >= 6), turn=f"D:{number}")
    store.insert("semantic", "city: Oslo", source="other", turn="1")
    return store


def turns_of(entries):
    return [int(entry.turn[2:]) for entry in entries]


def test_the_text_around_an_entry_of_now_and_of_then():
    with chat() as store:
        ids = [entry.id for entry in store.list()]
        assert turns_of(store.around(ids[4], 40)) == [2, 3, 4, 5]  # before comes before after
        store.delete(ids[3])
        assert turns_of(store.around(ids[4], 20)) == [2, 4]
        assert turns_of(store.around(ids[4], 20, as_of=10)) == [3, 4]
        assert store.around(ids[4], 20, as_of=10)[0] == store.get(ids[3], as_of=10)
        assert turns_of(store.around(ids[1], as_of=2)) == [0, 1]
        for entry in (*store.around(ids[4]), *store.around(ids[4], as_of=5)):
            assert entry.valid_to is None
        with pytest.raises(UnknownEntry):
            store.around(ids[3])
        with pytest.raises(UnknownEntry):
            store.around(ids[4], as_of=2)
        for tokens in (-1, 2.5):
            with pytest.raises(StoreError, match="tokens"):
                store.around(ids[4], tokens)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from("ST"), st.sampled_from([None, 0, 1]), st.integers(1, 60)), min_size=1, max_size=12
    ),
    st.integers(0, 11),
    st.integers(0, 40),
    st.sets(st.integers(0, 11), max_size=4),
)
def test_around_is_the_longest_run_that_fits(lines, at, tokens, removed):
    with MemoryStore.open(":memory:", embedder="hash") as store:
        entries_made = [
            store.insert("episodic", f"{number:02}{'x' * size}", source=source, chunk=chunk, turn=str(number))
            for number, (source, chunk, size) in enumerate(lines)
        ]
        chosen = entries_made[at % len(entries_made)]
        for number in removed - {at % len(entries_made)}:
            if number < len(entries_made):
                store.delete(entries_made[number].id)
        live = [entry for entry in store.list() if entry.source == chosen.source]
        live.sort(key=lambda entry: -1 if entry.chunk is None else entry.chunk)  # stable: as they were stored
        results = store.around(chosen.id, tokens)
        start = live.index(results[0])
        assert results == live[start : start + len(results)] and chosen in results
        size = sum(len(entry.content) for entry in results)
        assert size <= 4 * tokens or results == [chosen]
        for end in (start - 1, start + len(results)):
            assert not 0 <= end < len(live) or size + len(live[end].content) > 4 * tokens


def test_hits_bring_the_text_around_them_if_asked():
    with chat() as store:
        plain = store.search("turn 4", 3)
        assert all(hit.around == () for hit in plain)
        for as_of in (None, 7):
            hits = store.search("turn 4", 3, around=30, as_of=as_of)
            assert [hit.score for hit in hits] == [hit.score for hit in store.search("turn 4", 3, as_of=as_of)]
            for hit in hits:
                assert list(hit.around) == store.around(hit.entry.id, 30, as_of=as_of) != []
        with pytest.raises(StoreError, match="-3: a whole number"):
            store.search("turn 4", around=-3)
