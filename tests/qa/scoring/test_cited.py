"""The worth of a reply that names its evidence."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memalpha.agent.reader import Cited, ExtractiveReader, PolicyReader, parse_cited
from memalpha.config import AgentConfig, ReaderConfig, training_config
from memalpha.environments import memory_engine
from memalpha.errors import ConfigError, DataError
from memalpha.policy.scripted import ScriptedPolicy
from memalpha.qa.evaluate import evaluate_memory, run_systems
from memalpha.qa.scoring.metrics import cited_scores
from memalpha.store.embedding import load_embedder
from memalpha.types import Task


@pytest.mark.parametrize(
    ("reply", "right", "notes", "parts"),
    [
        ("Answer: (a)\nEvidence: [1]\nReasoning: so", 1.0, [True, False], (0.2, 0.1)),
        ("Answer: (a)\nEvidence: [1], [2]", 1.0, [True, False], (0.15, 0.05)),
        ("Answer: (a)\nEvidence: [2]", 0.0, [True, False], (0.15, -0.05)),
        ("Evidence: 1, 2, 3, 4", 0.0, [True] * 4, (0.05, 0.3)),
        ("Evidence: 1, 2, 3, 4", 0.0, [False] * 4, (0.05, -0.1)),
        ("Evidence: 0, 5", 0.0, [True] * 4, (0.05, -0.1)),
        ("(a)", 0.0, [True], (0.0, 0.0)),
    ],
)
def test_form_answer_and_evidence_add_up(reply, right, notes, parts):
    scores = cited_scores(parse_cited(reply), right, notes)
    assert (scores["cited.format"], scores["cited.evidence"]) == pytest.approx(parts)
    assert scores["cited.answer"] == right
    assert scores["cited"] == pytest.approx(max(0.0, sum(parts) + right) / 1.5)


numbers = st.none() | st.lists(st.integers(0, 20), unique=True).map(tuple)


@given(numbers, st.floats(0, 1), st.lists(st.booleans()))
def test_a_score_stays_within_0_and_1_and_a_right_citation_never_costs(named, right, notes):
    scores = cited_scores(Cited("x", named, "y"), right, notes)
    assert 0.0 <= scores["cited"] <= 1.0
    left = [n for n, good in enumerate(notes, 1) if good and n not in (named or ())]
    if named is not None and left:
        more = cited_scores(Cited("x", (*named, left[0]), "y"), right, notes)
        assert more["cited"] >= scores["cited"]


# ---------------------------------------------------------------------------------------- in training and in evaluation

REPLY = "Answer: (b)\nEvidence: [2]\nReasoning: that is what was said"


@pytest.fixture
def task():
    chunks = [
        {"turns": [{"id": "s0:0", "speaker": "user", "text": "I like green tea."}]},
        {"turns": [{"id": "s1:0", "speaker": "user", "text": "My tea is black tea."}]},
    ]
    meta = {"metric": "choice", "choices": {"a": "Green", "b": "Black"}, "choice": "b"}
    question = {"id": "q0", "question": "Which tea?", "answers": ["(b) Black"], "evidence": ["s1:0"], "meta": meta}
    return Task.model_validate({"id": "t", "chunks": chunks, "questions": [question]})


def test_a_written_memory_earns_by_the_chunk_its_note_was_written_at(task):
    reader = PolicyReader(ScriptedPolicy("fixed", text=REPLY), ReaderConfig(kind="policy", cite=True))
    embedder = load_embedder("hash")
    groups = memory_engine(ScriptedPolicy("add-all"), AgentConfig(embedder="hash"), embedder).roll_out([task])
    [[[record]]] = evaluate_memory(groups, reader, "cited", embedder=embedder)
    assert record.correct
    assert record.scores["cited.evidence"] == pytest.approx(0.1)
    assert record.score == record.scores["cited"] == pytest.approx(1.3 / 1.5)
    [[[plain]]] = evaluate_memory(groups, reader, "question", embedder=embedder)
    assert (plain.score, plain.scores) == (1.0, {})


@pytest.mark.parametrize("system", ["rag", "scripted:add-all"])
def test_an_evaluation_of_systems_says_the_same(task, system):
    reader = PolicyReader(ScriptedPolicy("fixed", text=REPLY), ReaderConfig(kind="policy", cite=True))
    [report] = run_systems([system], [task], reader, embedder="hash")
    [record] = report.records
    assert record.correct
    assert record.scores["cited"] == pytest.approx(1.3 / 1.5)


def test_a_reader_that_does_not_cite_cannot_be_scored_so(task):
    with pytest.raises(ConfigError, match=r"reader\.cite"):
        training_config("demo", {"reward": {"metric": "cited"}})
    embedder = load_embedder("hash")
    groups = memory_engine(ScriptedPolicy("add-all"), AgentConfig(embedder="hash"), embedder).roll_out([task])
    with pytest.raises(ConfigError, match=r"reader\.cite"):
        evaluate_memory(groups, ExtractiveReader(), "cited", embedder=embedder)


def test_a_metric_that_needs_a_judge_is_no_score_of_a_question(task):
    [question] = task.questions
    judged = task.model_copy(update={"questions": (question.model_copy(update={"meta": {"metric": "judge"}}),)})
    embedder = load_embedder("hash")
    groups = memory_engine(ScriptedPolicy("add-all"), AgentConfig(embedder="hash"), embedder).roll_out([judged])
    with pytest.raises(DataError, match=r"reward\.metric=judge"):
        evaluate_memory(groups, ExtractiveReader(), "question", embedder=embedder)
