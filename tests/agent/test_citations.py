"""Replies that name their evidence."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memalpha.agent.prompts import order_notes, question_with_choices
from memalpha.agent.reader import Cited, ExtractiveReader, PolicyReader, RetrievedMemory, parse_cited
from memalpha.config import ReaderConfig
from memalpha.policy.scripted import ScriptedPolicy
from memalpha.types import Hit, MemoryEntry, Question


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("Answer: (b)\nEvidence: [2], [5]\nReasoning: it says so", ("(b)", (2, 5), "it says so")),
        ("reasoning: x\n  EVIDENCE : 2 and 2, 3.\nanswer:Rome", ("Rome", (2, 3), "x")),
        ("Answer: Rome\nEvidence: none", ("Rome", (), None)),
        ("Answer: Rome\nEvidence: [1, 2]", ("Rome", (1, 2), None)),
        ("Answer: Rome\nEvidence: note 2", ("Rome", None, None)),
        ("Answer: Rome\nEvidence:\nReasoning:", ("Rome", None, None)),
        ("Answer: Rome\nAnswer: Oslo\nEvidence: 99999", (None, None, None)),
        ("Rome", (None, None, None)),
        ("The answer: Rome", (None, None, None)),
        ("", (None, None, None)),
    ],
)
def test_only_what_stands_on_its_line_once_counts(text, parts):
    assert parse_cited(text) == Cited(*parts)


@given(st.text())
def test_every_text_has_parts(text):
    cited = parse_cited(text)
    assert cited.evidence is None or len(set(cited.evidence)) == len(cited.evidence)


line = st.text(st.characters(exclude_categories=("Cc", "Cs", "Zl", "Zp")), min_size=1).map(str.strip).filter(bool)


@given(line, st.lists(st.integers(0, 9999), unique=True), line)
def test_what_was_written_is_read(answer, numbers, why):
    named = ", ".join(f"[{number}]" for number in numbers) or "none"
    assert parse_cited(f"Answer: {answer}\nEvidence: {named}\nReasoning: {why}") == Cited(answer, tuple(numbers), why)


def test_a_citing_reader_numbers_its_notes_and_gives_the_reply_in_parts():
    entries = [MemoryEntry("b", "semantic", "Ana lives in Porto.", "2024-05-02"), MemoryEntry("a", "semantic", "Old.")]
    hits = tuple(Hit(entry, 1.0) for entry in entries)
    policy = ScriptedPolicy("fixed", text="Answer: Porto\nEvidence: [2]\nReasoning: it is the newer one")
    question = Question(id="q", question="Where is Ana?", meta={"choices": {"a": "Rome", "b": "Porto"}})
    [answer] = PolicyReader(policy, ReaderConfig(kind="policy", cite=True)).answer([(question, RetrievedMemory(hits))])
    assert (answer.text, answer.notes, answer.cited) == (
        "Porto",
        ("a", "b"),
        Cited("Porto", (2,), "it is the newer one"),
    )
    assert "[1] Old.\n[2] Ana lives in Porto. (2024-05-02)" in (answer.prompt or "")
    assert "Question: Where is Ana?\n(a) Rome\n(b) Porto\n\nReply with three lines" in (answer.prompt or "")
    assert [entry.id for entry in order_notes(hits)] == ["a", "b"]
    times = ("2024-05-02T20:00+00:00", "2024-05-03T01:00+09:00", "2024-W17-1", "some day", None)
    dated = [Hit(replace(entries[0], timestamp=time), 0.5) for time in times]
    assert [entry.timestamp for entry in order_notes(dated)] == [None, "some day", "2024-W17-1", times[1], times[0]]


def test_a_language_model_gets_the_day_and_the_choices_and_a_floor_does_not():
    question = Question(id="q", question="Where is Ana now?", meta={"date": "2024-06-01", "choices": {"a": "Rome"}})
    assert question_with_choices(question) == "(asked on 2024-06-01) Where is Ana now?\n(a) Rome"
    assert question_with_choices(Question(id="q", question="Where?")) == "Where?"
    reader = PolicyReader(ScriptedPolicy("fixed", text="(a)"), ReaderConfig(kind="policy"))
    [answer] = reader.answer([(question, RetrievedMemory(()))])
    assert "Question: (asked on 2024-06-01) Where is Ana now?\n(a) Rome" in (answer.prompt or "")
    entry = MemoryEntry("a", "semantic", "Rome: 7")
    number = Question(id="q", question="What number?", meta={"choices": {"a": "Rome"}})
    [answer] = ExtractiveReader().answer([(number, RetrievedMemory((Hit(entry, 1.0),)))])
    assert answer.abstained


def test_a_reply_without_an_answer_line_says_nothing():
    reader = PolicyReader(ScriptedPolicy("fixed", text="Porto"), ReaderConfig(kind="policy", cite=True))
    [answer] = reader.answer([("Where?", RetrievedMemory(()))])
    assert (answer.text, answer.abstained) == ("", False)
