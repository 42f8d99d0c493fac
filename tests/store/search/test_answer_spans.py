"""The reading network: its numbers are those that were trained, its chances are shared, and it finds what is said."""

import random

import make_answer_spans
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from make_answer_spans import Batch, Example, Network, Passage, Row
from memories import working_memory

from memalpha import MemoryStore
from memalpha.agent.copying_reader import copy_answer
from memalpha.agent.reader import QuotingReader, RetrievedMemory
from memalpha.store.search import answer_spans
from memalpha.store.search.answer_spans import (
    LONGEST,
    WINDOW,
    best_span,
    find_answers,
    order_of,
    passage_words,
    question_words,
)
from memalpha.types import MemoryEntry


@given(st.lists(st.tuples(st.floats(-9, 9), st.floats(-9, 9)), min_size=1, max_size=40))
def test_the_span_has_the_best_sum_of_scores(scores):
    begins, ends = np.array(scores).T
    left, right = best_span(begins, ends)
    spans = [(start, end) for start in range(len(scores)) for end in range(start, min(start + LONGEST, len(scores)))]
    assert (left, right) in spans and begins[left] + ends[right] == max(begins[a] + ends[b] for a, b in spans)


@settings(max_examples=30)
@given(st.text(max_size=60), st.lists(st.text(max_size=120), max_size=5))
def test_passages_share_one_chance(question, passages):
    spans = find_answers(question, passages)
    assert len(spans) == len(passages) and all(span.text in text for span, text in zip(spans, passages, strict=True))
    assert all(span.chance >= 0 for span in spans) and sum(span.chance for span in spans) <= 1 + 1e-5


def test_a_long_passage_is_read_in_parts():
    filler = "Nothing of that kind was said in the long meeting about the budget. " * 40
    (span,) = find_answers("What is the name of the dog?", [f"{filler}The dog's name is Rex. {filler}"])
    assert "Rex" in span.text


def test_a_label_is_read_but_is_no_answer():
    (free,), (kept,) = (find_answers("Which city is it?", ["Oslo: no"], labels=labels) for labels in ((), [6]))
    assert free.text.startswith("Oslo") and kept.text == "no"


def test_numpy_reads_as_the_network_that_was_trained(monkeypatch):
    for name in ("WITHOUT_VECTORS", "WITHOUT_WORD"):
        monkeypatch.setattr(make_answer_spans, name, 0.0)

    texts = ("Ana: my sister Mara moved to Oslo in May", "犬の名前はポチです。", "The rent is 640, due on Fridays")
    example = Example(
        "", "Where does Mara live?", (), tuple(Passage(t, (), at / 2) for at, t in enumerate(texts)), False
    )
    table = list[np.ndarray]()

    def place(read):
        table.extend(np.append(vector, norm) for vector, norm in zip(read.vectors, read.norms, strict=True))
        return [*range(len(table) - len(read.found), len(table))]

    row = Row(example, place)
    vectors, norms = torch.tensor(np.array(table, np.float32)).split([len(table[0]) - 1, 1], 1)
    network = Network(vectors.shape[1])

    class KeepsAll(random.Random):
        def choice(self, seq):
            return max(seq)

    read = [answer_spans.passage_words(example.question, text) for text in texts]
    places = np.array([[1 / (1 + at), at / 2] for at in range(3)], np.float32)
    for weights in answer_spans._networks():
        network.load_state_dict({name: torch.tensor(value) for name, value in weights.items()})
        begins, ends, nothing = network(Batch([row], vectors, norms, KeepsAll()))
        ours = answer_spans._scores(weights, answer_spans.question_words(example.question), read, places)
        np.testing.assert_allclose(ours[0], begins.detach(), atol=1e-3)
        np.testing.assert_allclose(ours[1], ends.detach(), atol=1e-3)
        assert ours[2] == pytest.approx(nothing.item(), abs=1e-3)


def test_a_memory_without_a_language_model_answers_in_other_words():
    notes = working_memory("city: Oslo", "pet: cat", "job: nurse")
    said = working_memory("I moved to Porto with my sister Mara.", "Rex mustn't have chicken, it makes him itch.")
    for memory, question, right in (
        (notes, "Where do I live?", "Oslo"),
        (notes, "What do I do for a living?", "nurse"),
        (notes, "How many pets do I have?", "1"),
        (said, "Who came along to Porto?", "I moved to Porto with my sister Mara."),
        (said, "What makes Rex itch?", "Rex mustn't have chicken, it makes him itch."),
        (said, "Which car do I drive?", "unknown"),
        (working_memory(), "Where do I live?", "unknown"),
        (
            working_memory("city: Oslo", "I moved to Rome last week."),
            "When did I move to Rome?",
            "the week before 2 May 2024",
        ),
    ):
        (answer,) = QuotingReader().answer([(question, memory)])
        assert (answer.text, answer.abstained) == (right, right == "unknown")


def test_the_core_memory_is_read():
    core = "The user's name is Ana and she lives in Porto."
    (answer,) = QuotingReader().answer([("Where does the user live?", RetrievedMemory((), core))])
    assert answer.text == "The user's name is Ana and she lives in Porto." and not answer.abstained


def test_a_question_without_english_words_is_answered_by_an_entry_with_a_word_of_it():
    memory = working_memory("Die Miete kostet 640 Euro.", "Mein Hund heißt Bello.")
    texts = [answer.text for answer in QuotingReader().answer([("Hund?", memory), ("Katze?", memory)])]
    assert texts == ["Mein Hund heißt Bello.", "unknown"]


def test_the_newest_of_two_values_is_read():
    entries = [
        MemoryEntry(str(at), "semantic", f"I live in {city}", valid_from=at) for at, city in ((1, "Rome"), (9, "Oslo"))
    ]
    assert order_of(entries) == [0.0, 1.0] and order_of(entries[::-1]) == [1.0, 0.0] and order_of(entries[:1]) == [0.0]
    for shown in (entries, entries[::-1]):
        assert copy_answer("Where do I live now?", shown) == "Oslo"


def test_an_answer_on_the_border_of_two_parts_is_whole_and_counted_once():
    for words in range(WINDOW - LONGEST - 4, WINDOW + 5, 3):
        text = f"{'nothing ' * words}. The dog is called Baron von Wuffington. {'nothing ' * 200}"
        (span,) = find_answers("What is the name of the dog?", [text])
        assert "Wuffington" in span.text and "Baron" in span.text and 0 < span.chance <= 1


def test_of_very_long_passages_the_parts_that_share_words_are_read():
    filler = "Nothing of that kind was said there. " * 2_500
    passages = [filler, f"{filler}The dog's name is Rex. {filler}", filler]
    spans = find_answers("What is the name of the dog?", passages)
    assert "Rex" in max(spans, key=lambda span: span.score).text
    assert len(find_answers("name " * 5_000, ["x" * 10**6])) == 1
    long = "x" * 150
    assert np.array_equal(question_words(long).norms, passage_words("", long).norms), "both sides read as much of it"


def test_a_korean_particle_is_a_word_of_its_own():
    said = "세종이 1443년에 NASA가 서울에서는 만든 rock'n'roll 회의 학교으로. 사과. 고양이"
    found = [match[0] for match in passage_words("", said).found]
    assert found == [
        *("세종", "이", "1443년", "에", "NASA", "가", "서울", "에서는", "만든", "rock'n'roll", "회의", "학교", "으로"),
        *("사과", "고양이"),
    ]


def test_the_reranker_that_ships_prefers_what_answers() -> None:
    store = MemoryStore.open(":memory:")
    told = ["Birthdays are fun in June.", "Mia was born on 3 June 1991.", "Mia's birthday cake had candles."]
    store.insert_many({"category": "episodic", "content": content} for content in told)
    query = "When is Mia's birthday?"
    assert store.search(query)[0].entry.content == told[0]
    hits = store.search(query, 2, reranker="spans")
    assert hits[0].entry.content == told[1]
    assert [hit.score for hit in hits] == [hit.explain["rerank"] for hit in hits]
    assert MemoryStore.open(":memory:").search(query, reranker="spans") == []


def test_the_reranker_that_ships_reads_twenty_hits_and_leaves_the_rest_in_order() -> None:
    store = MemoryStore.open(":memory:")
    store.insert_many({"category": "semantic", "content": f"note {number} about boats"} for number in range(60))
    before, after = (store.search("boats", 60, reranker=reranker) for reranker in (None, "spans"))
    assert {hit.entry.id for hit in before} == {hit.entry.id for hit in after}
    assert [(hit.entry.id, hit.score) for hit in after[20:]] == [(hit.entry.id, hit.score) for hit in before[20:]]
