"""BM25 against bm25s, selections against indexes of their own, tokens of several scripts, and Porter's stemmer."""

import hashlib
from importlib import resources

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memalpha.store.search import lexical
from memalpha.store.search.lexical import BM25, LexicalIndex, SelectedPostings, stem, word_count, words

DOCS = [
    "Ana moved to Lisbon with her dog last May.",
    "Ben keeps two dogs and a cat; the dogs bark.",
    "Lisbon was rainy. Ana went running in Lisbon anyway.",
    "Nothing here matters.",
]


def build(texts):
    index = LexicalIndex()
    index.add(np.arange(len(texts)), texts)
    return index


def bm25(index, slots, query):
    """Scores of each slot, where nothing else is there."""
    selected = SelectedPostings(index, np.array(slots, np.int64))
    return BM25(selected.lengths, len(slots) / max(1, selected.lengths.sum())).scores(selected.match_terms(query))[0]


def test_agrees_with_bm25s():
    bm25s = pytest.importorskip("bm25s")
    reference = bm25s.BM25(method="lucene", k1=1.5, b=0.75)
    reference.index([words(text) for text in DOCS], show_progress=False)
    index = build(DOCS)
    for query in ("Where did Ana move?", "dogs in Lisbon", "cat cat dog", "zebra"):
        tokens = words(query)
        occurrences = [token for token in tokens if token in reference.vocab_dict]
        reference_scores = reference.get_scores(occurrences) if occurrences else np.zeros(len(DOCS))
        assert np.allclose(bm25(index, range(len(DOCS)), tokens), reference_scores, atol=1e-5), query


def bm25_by_hand(counts, lengths) -> np.ndarray:
    """BM25 of one word by its count in each document: Lucene's form with k1 1.5 and b .75."""
    counts, lengths = np.array(counts, float), np.array(lengths, float)
    idf = np.log(1 + (len(counts) - (counts > 0).sum() + 0.5) / ((counts > 0).sum() + 0.5))
    return idf * counts / (counts + 1.5 * (0.25 + 0.75 * lengths / lengths.mean()))


@pytest.mark.parametrize("most", [254, 255, 256, 257, 65_535, 65_536])
@pytest.mark.parametrize("few", [0, 1 << 20])
def test_a_word_counts_however_often_it_stands(most: int, few: int, monkeypatch) -> None:
    """Settled postings hold counts in the narrowest type: 255 is the largest of one byte, 65,535 of two."""
    monkeypatch.setattr(lexical, "_FEW", few)
    repeats = [most, 1, 0, 3]
    texts = ["cat " * repeat + "dog" for repeat in repeats]
    index = build(texts)
    expected = bm25_by_hand(repeats, [repeat + 1 for repeat in repeats])
    assert np.allclose(bm25(index, range(4), ["cat"]), expected, atol=1e-12)
    index.settle(np.ones(len(index.lengths), bool))
    index.add(np.array([4]), ["cat bird"])
    expected = bm25_by_hand([*repeats, 1], [*(repeat + 1 for repeat in repeats), 2])
    assert np.allclose(bm25(index, range(5), ["cat"]), expected, atol=1e-12)


some_words = st.text(st.sampled_from("ab cd "), max_size=12)


@settings(max_examples=150, deadline=None)
@given(st.data(), st.lists(st.lists(some_words, min_size=1, max_size=5), max_size=5), st.sampled_from([0, 3, 64]))
def test_a_selection_is_an_index_of_its_own(data, batches, few) -> None:
    """However the documents came in, what is settled, and what was dropped."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lexical, "_FEW", few)
        index, texts, live = LexicalIndex(), [], []
        for batch in batches:
            index.add(np.arange(len(texts), len(texts) + len(batch)), batch)
            texts += batch
            live += [True] * len(batch)
            bm25(index, np.flatnonzero(live), words("a b c d ab cd"))  # what it keeps must not outlive a change
            live[data.draw(st.integers(0, len(texts) - 1))] = False
            if data.draw(st.booleans()):
                index.settle(np.array([*live, *[False] * (len(index.lengths) - len(live))]))
    slots = [slot for slot in np.flatnonzero(live).tolist() if data.draw(st.booleans())]
    alone = build([texts[slot] for slot in slots])
    for query in map(words, ("a", "ab cd", "c d d")):
        assert bm25(index, slots, query).tolist() == bm25(alone, range(len(slots)), query).tolist()


def test_slots_are_used_again_after_settling() -> None:
    index = build(["cat", "dog", "cat dog"])
    index.settle(np.arange(len(index.lengths)) != 1)
    index.add(np.array([1]), ["cat cat bird"])
    fresh, query = build(["cat", "cat cat bird", "cat dog"]), words("cat dog bird")
    assert bm25(index, range(3), query).tolist() == bm25(fresh, range(3), query).tolist()


@settings(max_examples=500, deadline=None)
@given(st.text(st.sampled_from("aBcs09_''. -\n\x00"), max_size=20))
def test_ascii_has_the_tokens_it_would_have_beside_other_scripts(text) -> None:
    assert lexical._tokens(text) == lexical._any_tokens(text)


def test_tokens():
    assert words("Ana's dogs weren't barking, 2024-05-01!") == ["ana", "dog", "weren't", "bark", "2024", "05", "01"]
    assert words("Ana\u2019s CAFÉ") == ["ana", "café", "cafe"]
    assert words("我喜欢猫 ok") == ["我喜", "喜欢", "欢猫", "我", "喜", "欢", "猫", "ok"]
    assert words("猫") == ["猫"]
    assert words("한국어 ไทย") == ["한국", "국어", "한", "국", "어", "ไท", "ทย"]
    assert words("東京タワーbar") == ["東京", "京タ", "タワ", "ワー", "東", "京", "bar"]
    assert words("ｶﾀｶﾅ") == ["カタ", "タカ", "カナ"]  # NFKC
    assert words("नमस्ते दुनिया") == ["नमस्ते", "दुनिया"]
    assert words("வணக்கம்") == ["வணக்கம்"]
    assert words("كَتَبَ الكتـاب שָׁלוֹם") == ["كتب", "الكتاب", "שלום"]
    assert words("Москва, Αθήνα İstanbul") == ["москва", "αθήνα", "αθηνα", "istanbul"]
    assert words("the of and ... \x00") == []
    assert words("\uff21\uff22\uff23 \u00bd") == ["abc", "1", "2"]  # NFKC


INVISIBLE = "\u00ad\u200c\u200d\u2060\ufeff\u034f\u200e"


@pytest.mark.parametrize(
    ("text", "query"),
    [
        *((f"Das Gesamt{sign}konzept ist fertig.", "Gesamtkonzept") for sign in INVISIBLE),
        *((f"{sign}Porto{sign} liegt im Norden.", "Porto") for sign in "\u200b\u200f\u202a\u202e\u2066\u2069\ufeff"),
        ("می\u200cخواهم بروم", "میخواهم"),  # noqa: RUF001
        ("I love Lisboa\ufe0f", "lisboa"),
        ("\u0130zmir'de oturuyor.", "izmir"),
        ("Ay\u015fe I\u015f\u0131k geldi.", "isik"),
        ("I\u015fIK", "\u0131\u015f\u0131k"),
        ("Die STRASSE ist lang.", "Straße"),
        ("ΟΔΥΣΣΕΥΣ", "Οδυσσεύς"),
        ("Elle aime l'opéra.", "opéra"),
        ("Elle aime l\u2019opéra.", "opera"),
        ("C'est qu'Anne d'Orléans l'aime.", "Anne"),
        ("Amo l'arte e dell'acqua.", "acqua"),
        ("Un'amica e nell'estate.", "estate"),
        ("Visc a l'Hospitalet.", "hospitalet"),
        ("Copo d'água", "agua"),
        ("Renée vend des vélos.", "Renee"),
        ("Renee sells bikes.", "Renée"),
        ("Jose\u0301 vive en León.", "jose leon"),
        ("Tôi ở Đà Nẵng", "da nang"),
        ("Mieszka w Łodzi", "lodzi"),
        ("Smørrebrød med ost", "smorrebrod"),
        ("Зелёный чай", "зеленый"),
        ("Party on Friday\U0001f389!", "\U0001f389"),
        ("Great \U0001f44d\U0001f3fd", "\U0001f44d"),
        ("Love \u2764\ufe0f it", "\u2764"),
    ],
)
def test_a_word_is_found_however_it_is_written(text, query) -> None:
    index = build([text, "nothing of it", "another kind"])
    for variant in (query, query.upper(), query.lower()):
        scores = bm25(index, range(3), words(variant))
        assert scores[0] > 0 == scores[1] == scores[2], variant


def test_marks_tell_words_apart_that_differ_in_them_alone() -> None:
    """A word without its accents is a second term, not the only one: Vietnamese has many of one skeleton."""
    texts = ["má", "mà", "mã", "ma"]
    for number, query in enumerate(texts[:3]):
        scores = bm25(build(texts), range(4), words(query))
        assert scores.argmax() == number and (scores == scores.max()).sum() == 1


@pytest.mark.parametrize(
    ("query", "expected", "other"),
    [
        ("谁住在上海", "我住在上海、养了一只猫", "他喜欢打篮球"),
        ("猫", "我住在上海、养了一只猫", "他喜欢打篮球"),
        ("猫はどこ", "リスボンで猫を飼っている", "仕事は看護師です"),
        ("リスボン", "2024年にリスボンへ引っ越した", "東京タワーを見た"),
        ("Lisbonに住む人", "アナはLisbonに引っ越した", "ベンはMadridにいる"),
        ("개", "나는 개가 두 마리 있다", "그는 농구를 좋아한다"),
        ("고양이 이름", "우리 고양이는 나비라고 한다", "그는 농구를 좋아한다"),
        ("กรุงเทพ", "ฉันย้ายไปกรุงเทพเมื่อปีที่แล้ว", "เขาชอบเล่นบาสเกตบอล"),
        ("दिल्ली में कौन", "आना दिल्ली में रहती है", "बेन को क्रिकेट पसंद है"),
        ("القاهرة", "انتقلت إلى القَاهِرة", "يحب كرة السلة"),
    ],
)
def test_found_inside_a_sentence(query, expected, other) -> None:
    scores = bm25(build([expected, other]), [0, 1], words(query))
    assert scores[0] > scores[1]


@pytest.mark.parametrize(
    ("text", "length"),
    [
        ("Ana moved to Lisbon.", 3),  # without a stop word
        ("她搬到了里斯本", 3),
        ("그녀는 리스본에 산다", 3),
        ("ﾘｽﾎﾞﾝ", 2),  # in katakana of half width, five signs of four letters
        ("猫", 1),
        ("", 0),
    ],
)
@pytest.mark.parametrize("few", [0, 1 << 20])
def test_two_characters_of_a_script_without_spaces_are_a_word(text, length, few, monkeypatch) -> None:
    monkeypatch.setattr(lexical, "_FEW", few)
    index = build(["Ben", text])
    assert index.lengths[1] == word_count(words(text)) == length


@given(st.text())
def test_any_text_has_tokens_without_blanks(text):
    assert all(token and not token.isspace() for token in words(text))


# Examples of the paper's rules, one or more a step.
STEMS = "77e7fc479214e4b29f033cc64d2bc44ade777d5ff93b5c2dfd73cc7b41e145a2"  # SHA-256


def test_stems_of_the_shipped_vocabulary_stay():
    """Scores depend on them: a release of PyStemmer that stems otherwise is noticed."""
    vocabulary = resources.files("memalpha") / "store" / "static" / "vocabulary.txt"
    stems = "\n".join(map(stem, vocabulary.read_text(encoding="utf-8").split("\n")))
    assert hashlib.sha256(stems.encode()).hexdigest() == STEMS
