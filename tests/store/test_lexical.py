"""BM25 against bm25s, in-place change against building anew, tokens of several scripts, and Porter's stemmer."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memalpha.store.lexical import BM25, term_counts, words
from memalpha.store.stem import stem

DOCS = [
    "Ana moved to Lisbon with her dog last May.",
    "Ben keeps two dogs and a cat; the dogs bark.",
    "Lisbon was rainy. Ana went running in Lisbon anyway.",
    "Nothing here matters.",
]


def build(texts):
    index = BM25()
    for slot, text in enumerate(texts):
        index.add(slot, term_counts(text))
    return index


def test_agrees_with_bm25s():
    bm25s = pytest.importorskip("bm25s")
    reference = bm25s.BM25(method="lucene", k1=1.5, b=0.75)
    reference.index([words(text) for text in DOCS], show_progress=False)
    index = build(DOCS)
    for query in ("Where did Ana move?", "dogs in Lisbon", "cat cat dog", "zebra"):
        tokens = words(query)
        known = [token for token in tokens if token in reference.vocab_dict]
        theirs = reference.get_scores(known) if known else np.zeros(len(DOCS))
        assert np.allclose(index.scores(tokens, len(DOCS)), theirs, atol=1e-5), query


def test_score_by_hand():
    # Two documents of lengths 1 and 3 (mean 2); the term is in both, twice in the second.
    index = BM25()
    index.add(0, {"x": 1})
    index.add(1, {"x": 2, "y": 1})
    idf = np.log(1 + 0.5 / 2.5)
    wanted = [idf * 1 / (1 + 1.5 * (0.25 + 0.75 * 0.5)), idf * 2 / (2 + 1.5 * (0.25 + 0.75 * 1.5))]
    assert np.allclose(index.scores(["x"], 2), wanted, atol=1e-12)


texts = st.lists(st.text(st.sampled_from("ab cd "), max_size=12), max_size=8)


@settings(max_examples=100, deadline=None)
@given(texts, st.lists(st.tuples(st.integers(0, 7), st.text(st.sampled_from("ab cd "), max_size=12)), max_size=8))
def test_changed_in_place_equals_built_anew(start, changes):
    now = dict(enumerate(start))
    index = build(start)
    for slot, text in changes:
        index.scores(words("a b c d ab cd"), 8)  # whatever a search caches must not outlive the change
        if slot in now:
            index.remove(slot, term_counts(now.pop(slot)))
        else:
            index.add(slot, term_counts(text))
            now[slot] = text
    fresh = BM25()
    for slot, text in now.items():
        fresh.add(slot, term_counts(text))
    for query in ("a", "ab cd", "c d d"):
        assert np.allclose(index.scores(words(query), 8), fresh.scores(words(query), 8), atol=1e-12)
    assert len(index) == len(now)


def test_tokens():
    assert words("Ana's dogs weren't barking, 2024-05-01!") == ["ana", "dog", "weren't", "bark", "2024", "05", "01"]
    assert words("Ana\u2019s CAFÉ") == ["ana", "café"]
    assert words("我喜欢猫 ok") == ["我喜", "喜欢", "欢猫", "ok"]
    assert words("猫") == ["猫"]
    assert words("한국어 ไทย") == ["한국", "국어", "ไท", "ทย"]
    assert words("the of and ... \x00") == []
    assert words("\uff21\uff22\uff23 \u00bd") == ["abc", "1", "2"]  # NFKC


def test_chinese_is_found_by_part_of_a_sentence():
    index = build(["我住在上海、养了一只猫", "他喜欢打篮球"])
    scores = index.scores(words("谁住在上海"), 2)
    assert scores[0] > 0 == scores[1]


@given(st.text())
def test_any_text_has_tokens_without_blanks(text):
    assert all(token and not token.isspace() for token in words(text))


# Examples of the paper's rules, one or more a step.
PORTER = {
    "caresses": "caress", "ponies": "poni", "cats": "cat", "feed": "feed", "agreed": "agre", "plastered": "plaster",
    "motoring": "motor", "sing": "sing", "conflated": "conflat", "hopping": "hop", "falling": "fall", "filing": "file",
    "happy": "happi", "sky": "sky", "relational": "relat", "digitizer": "digit", "hopefulness": "hope",
    "formality": "formal", "electrical": "electr", "goodness": "good", "revival": "reviv", "adjustment": "adjust",
    "adoption": "adopt", "probate": "probat", "rate": "rate", "controll": "control", "roll": "roll",
    "generalizations": "gener", "oscillators": "oscil", "is": "is", "café": "café", "2024": "2024",
}  # fmt: skip


@pytest.mark.parametrize(("word", "wanted"), PORTER.items())
def test_porter(word, wanted):
    assert stem(word) == wanted


SUFFIXES = """
    ational tional enci anci izer alli entli eli ousli ization ation ator alism iveness fulness ousness aliti iviti
    biliti icate ative alize iciti ical ful ness al ance ence er ic able ible ant ement ment ent ion ou ism ate iti ous
    ive ize ed ing s es y ies
"""


# No b and c: Snowball has neither the later rule for "bli" nor every double consonant of the paper ("cc", "kk").
@settings(max_examples=500, deadline=None)
@given(st.text(st.sampled_from("adeilmnoprstu"), min_size=3, max_size=6), st.sampled_from(SUFFIXES.split()))
def test_porter_agrees_with_snowballs(root, suffix):
    stemmer = pytest.importorskip("Stemmer").Stemmer("porter")
    assert stem(root + suffix) == stemmer.stemWord(root + suffix)
