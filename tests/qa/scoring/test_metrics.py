"""Metrics: known cases, bounds, and LoCoMo's official rules by category."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memalpha.agent.reader import Answer
from memalpha.qa.scoring.metrics import METRICS, best_score, score_answer
from memalpha.qa.scoring.official import locomo_f1

WORDS = st.lists(st.sampled_from(["the", "red", "Fox", "fox", "runs", "running", "a", "7", ".", ","]), max_size=6).map(
    " ".join
)
TEXT = st.text(max_size=12) | WORDS


@pytest.mark.parametrize(
    ("metric", "prediction", "gold", "score"),
    [
        ("exact", "The Oslo.", "oslo", 1.0),
        ("exact", "Oslo, Norway", "Oslo", 0.0),
        ("exact", "", "", 0.0),
        ("contains", "You live in Oslo now", "oslo", 1.0),
        ("contains", "Osloer", "Oslo", 0.0),
        ("contains", "Oslo", "Oslo Norway", 0.0),
        ("f1", "red fox", "the red fox", 1.0),
        ("f1", "red red fox", "red fox", 0.8),
        ("f1", "cat", "dog", 0.0),
        ("f1", "the", "a", 0.0),
    ],
)
def test_known_scores(metric, prediction, gold, score):
    assert METRICS[metric](prediction, gold) == pytest.approx(score)


@given(st.sampled_from(sorted(METRICS)), TEXT, st.lists(TEXT, max_size=3))
def test_bounds(metric, prediction, answers):
    score = best_score(metric, prediction, answers)
    assert 0.0 <= score <= 1.0
    assert best_score(metric, " ", answers) == 0.0
    for gold in answers:
        assert METRICS["exact"](prediction, gold) <= METRICS["contains"](prediction, gold)
        assert METRICS["exact"](prediction, gold) <= METRICS["f1"](prediction, gold)
        assert METRICS["f1"](prediction, gold) == METRICS["f1"](gold, prediction)


@pytest.mark.parametrize("metric", sorted(METRICS))
def test_abstention_conflict_and_silence(metric):
    unknown, right, silent = Answer("unknown", abstained=True), Answer("Oslo"), Answer("")
    assert score_answer(metric, right, ("Rome", "Oslo")) == 1.0
    assert score_answer(metric, unknown, ("Oslo", "nobody is known")) == 0.0
    assert score_answer(metric, Answer("None.", abstained=True), ("none",)) == 1.0  # an accepted answer to the letter
    assert score_answer(metric, unknown, ()) == 1.0
    assert score_answer(metric, right, ()) == 0.0
    assert score_answer(metric, silent, ()) == score_answer(metric, silent, ("Oslo",)) == 0.0
    assert score_answer(metric, Answer("Oslo", conflict=True), ("Oslo",)) == 0.0
    assert score_answer(metric, Answer("unknown", abstained=True, conflict=True), ()) == 0.0


def test_locomo_has_five_categories():
    with pytest.raises(ValueError, match="1 to 5"):
        locomo_f1("a", "b", 6)
