"""Contamination check: a brute-force reference on small alphabets, planted leaks, and the known ones."""

from __future__ import annotations

import re
from collections import defaultdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memalpha.errors import DataError
from memalpha.tasks.overlap import REASONS, WITHIN, find_overlap
from memalpha.types import Chunk, Question, SpeakerTurn, Task

LONG = "the old lighthouse keeper of Karvik paints his boat in green and white every spring before Easter"


def task(
    id: str, texts: list[str], question_texts: list[str] | None = None, evidence: tuple[str, ...] = (), **meta: object
) -> Task:
    turns = tuple(SpeakerTurn(speaker="s", text=text, id=f"t{number}") for number, text in enumerate(texts))
    questions = tuple(
        Question(id=f"q{number}", question=text, evidence=evidence, meta=meta)
        for number, text in enumerate(question_texts or [])
    )
    return Task(id=id, chunks=(Chunk(turns=turns),), questions=questions)


def test_only_the_passages_that_a_question_rests_on_count():
    train = [task("train", [LONG])]
    assert not find_overlap(train, [task("test", [LONG, "x"], ["y"], ("t1",))]).resting
    assert find_overlap(train, [task("test", [LONG, "x"], ["y"])]).resting  # without evidence, on all
    early = Task(
        id="early",
        chunks=(Chunk(text="x"), Chunk(text=LONG)),
        questions=(Question(id="q0", question="y", asked_after_chunk=0), Question(id="q1", question="z")),
    )
    assert find_overlap(train, [early]).resting == ("early/q1",)


def test_lines_of_plain_text_are_passages_and_a_text_across_lines_has_its_n_grams():
    train = [Task(id="train", chunks=(Chunk(text=f"x\nis it green\n{LONG.replace(' and', chr(10) + 'and')}"),))]
    result = find_overlap(train, [task("test", ["a"], ["Is it green?", f"{LONG}?"])])
    assert (result.reasons["said"], result.reasons["question n-gram"]) == (1, 1)
    assert result.sizes["train"]["passages"] == 1
    within = Task(id="test", chunks=(Chunk(text=f"y\n{LONG}\nz"),), questions=(Question(id="q", question="a"),))
    assert find_overlap([task("train", [LONG])], [within]).reasons["passage"] == 1


def test_a_loaders_frame_around_a_question_is_ignored():
    plain, wrapped = task("a", ["x"], ["who goes"]), task("b", ["y"], ['Which label: "who goes"?'], text="who goes")
    assert find_overlap([plain], [wrapped]).reasons["question"] == 1
    assert find_overlap([wrapped], [plain]).reasons["question"] == 1


def test_empty_texts_are_never_shared():
    punctuation = [task("train", ["?!", "..."], ["?"])]
    assert not any(find_overlap(punctuation, [task("test", ["!"], ["?"])], n=1).reasons.values())
    assert not any(find_overlap([], [task("test", ["a"], ["b"])]).reasons.values())
    assert find_overlap(punctuation, []).questions == 0
    for wrong in ({"n": 0}, {"common": 0}):
        with pytest.raises(DataError, match="at least 1"):
            find_overlap([], [], **wrong)


SENTENCE = st.lists(st.sampled_from(["a", "B", "c."]), min_size=1, max_size=9).map(" ".join)
TASKS = st.lists(st.tuples(st.lists(SENTENCE, min_size=1, max_size=4), st.lists(SENTENCE, max_size=3)), max_size=4)


@given(TASKS, TASKS, st.integers(1, 7), st.integers(1, 3))
@settings(max_examples=150)
def test_overlap_equals_a_brute_force_count(train, test, n, common):
    trained = [task(f"train-{number}", *of) for number, of in enumerate(train)]
    tested = [task(f"test-{number}", *of) for number, of in enumerate(test)]
    result = find_overlap(trained, tested, n=n, common=common, examples=1000)

    def words(text: str) -> tuple[str, ...]:
        return tuple(re.findall(r"[a-z]+", text.lower()))

    def grams(text: tuple[str, ...]) -> set[tuple[str, ...]]:
        return {text[at : at + n] for at in range(len(text) - n + 1)}

    train_questions = {words(text) for _, questions in train for text in questions}
    train_passages = {words(text) for train_text, _ in train for text in train_text}
    texts: dict[tuple[str, ...], set[tuple[str, ...]]] = defaultdict(set)
    for text in train_questions | train_passages:
        for gram in grams(text):
            texts[gram].add(text)
    leaked = {gram for gram, holders in texts.items() if len(holders) <= common}
    expected = dict.fromkeys(REASONS, 0)
    for train_text, questions in test:
        for text in questions:
            expected["question"] += words(text) in train_questions
            expected["said"] += words(text) in train_passages
            longer = [of for of in train_questions | train_passages if len(of) > len(words(text))]
            expected["within"] += WITHIN <= len(words(text)) < n and any(
                f" {' '.join(words(text))} " in f" {' '.join(of)} " for of in longer
            )
            expected["passage"] += any(words(of) in train_passages and len(words(of)) >= n for of in train_text)
            expected["question n-gram"] += bool(grams(words(text)) & leaked)
            expected["passage n-gram"] += any(grams(words(of)) & leaked for of in train_text)
    assert result.reasons == expected
    assert len(result.examples) == sum(expected.values())
