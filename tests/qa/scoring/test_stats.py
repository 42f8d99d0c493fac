"""Averages, intervals and paired tests beside plain Python (float64) and scipy."""

import itertools
import random
import tracemalloc
from statistics import mean, stdev

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memalpha.errors import DataError
from memalpha.qa.scoring import stats


def sample(conversations=12, seed=0, rate=0.6, size=(3, 9)):
    rng = random.Random(seed)
    rows = []
    for number in range(conversations):
        conversation_rate = min(1.0, max(0.0, rng.gauss(rate, 0.2)))
        rows += [
            stats.ScoredAnswer(f"c{number}", rng.choice("xyz"), float(rng.random() < conversation_rate))
            for _ in range(rng.randint(*size))
        ]
    return rows


def answers(*lines):
    return [stats.ScoredAnswer(cluster, group, float(value)) for cluster, group, value in map(str.split, lines)]


def test_averages_by_hand():
    rows = answers("c1 x 1", "c1 x 1", "c1 y 0", "c2 x 0")
    assert stats.micro(rows) == 0.5
    assert stats.macro(rows) == (2 / 3 + 0) / 2
    for empty in (stats.micro, stats.macro, stats.estimate):
        with pytest.raises(DataError, match="no answers"):
            empty([])


@pytest.mark.parametrize("by_group", [False, True])
def test_the_interval_is_bca(by_group):
    """As scipy computes it from the means of whole conversations, resampled."""
    scipy_stats = pytest.importorskip("scipy.stats", reason="scipy comes with memalpha[embed]")
    rows = sample()
    clusters = [[row for row in rows if row.cluster == f"c{number}"] for number in range(12)]

    def statistic(numbers):
        flat = [row for number in numbers for row in clusters[int(number)]]
        return stats.macro(flat) if by_group else stats.micro(flat)

    options = {"method": "BCa", "n_resamples": 4000, "vectorized": False, "random_state": 0}
    reference = tuple(scipy_stats.bootstrap((range(12),), statistic, **options).confidence_interval)
    result = stats.estimate(rows, macro=by_group, resamples=20_000)
    assert result.value == pytest.approx(statistic(range(12)), abs=1e-12)
    assert (result.low, result.high) == pytest.approx(reference, abs=0.015)
    assert (result.n, result.clusters) == (len(rows), 12)
    assert result == stats.estimate(rows, macro=by_group, resamples=20_000)
    assert result != stats.estimate(rows, macro=by_group, resamples=20_000, seed=1)


def test_questions_of_one_conversation_are_not_independent():
    alike = [stats.ScoredAnswer(f"c{n}", "x", float(n % 2)) for n in range(10) for _ in range(50)]
    apart = [stats.ScoredAnswer(f"c{n}.{k}", "x", float(n % 2)) for n in range(10) for k in range(50)]
    wide, narrow = stats.estimate(alike), stats.estimate(apart)
    assert wide.value == narrow.value == 0.5
    assert wide.high - wide.low > 5 * (narrow.high - narrow.low)


def test_edges():
    answer = stats.estimate([stats.ScoredAnswer("c", "x", 1.0), stats.ScoredAnswer("c", "x", 0.0)])
    assert (answer.value, answer.low, answer.high, answer.clusters) == (0.5, None, None, 1)
    same = stats.estimate([stats.ScoredAnswer(f"c{n}", "x", 1.0) for n in range(5)])
    assert (same.value, same.low, same.high) == (1.0, 1.0, 1.0)


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.sampled_from("xy"), st.floats(0, 1)), min_size=1, max_size=20))
def test_an_interval_holds_what_can_be(items):
    rows = [stats.ScoredAnswer(*item) for item in items]
    for by_group in (False, True):
        result = stats.estimate(rows, macro=by_group, resamples=50)
        assert result.low is None or -1e-9 <= result.low <= result.high <= 1 + 1e-9


def test_paired_by_hand():
    first = answers("c1 x 1", "c1 x 0", "c2 x 0", "c3 y 0")
    second = answers("c1 x 0", "c1 x 1", "c2 x 1", "c3 y 1")
    result = stats.compare_paired(first, second)
    assert (result.first, result.second, result.difference.value) == (0.25, 0.75, 0.5)
    assert (result.only_first, result.only_second, result.mcnemar) == (1, 3, 0.625)  # 2 * (1 + 4) / 16
    scored = stats.compare_paired(first, [row._replace(value=0.5) for row in second])
    assert (scored.only_first, scored.mcnemar) == (None, None)
    with pytest.raises(DataError, match="same questions"):
        stats.compare_paired(first, second[::-1])
    with pytest.raises(DataError, match="same questions"):
        stats.compare_paired(first, second[1:])


def test_the_paired_p_is_that_of_all_resamples():
    """With five conversations all 3,125 resamples can be counted."""
    gains = [0.2, 0.4, -0.1, 0.3, 0.1]
    first = [stats.ScoredAnswer(f"c{n}", "x", 0.5) for n in range(5)]
    second = [stats.ScoredAnswer(f"c{n}", "x", 0.5 + gain) for n, gain in enumerate(gains)]
    centre = mean(gains)
    exact = mean(abs(mean(draw) - centre) >= centre - 1e-12 for draw in itertools.product(gains, repeat=5))
    assert stats.compare_paired(first, second, resamples=50_000).p == pytest.approx(exact, abs=0.005)


@given(st.integers(0, 40), st.integers(0, 40))
def test_mcnemar_is_a_fair_coin(answer, two):
    p = stats.exact_mcnemar(answer, two)
    assert 0 < p <= 1
    assert p == stats.exact_mcnemar(two, answer)
    binomial = pytest.importorskip("scipy.stats", reason="scipy comes with memalpha[embed]").binomtest
    if answer + two:
        assert p == pytest.approx(binomial(answer, answer + two).pvalue, rel=1e-9)


def test_seeds():
    assert stats.mean_and_deviation([0.5]) == (0.5, None)
    values = [0.5, 0.7, 0.9, 0.4]
    assert stats.mean_and_deviation(values) == (pytest.approx(mean(values)), pytest.approx(stdev(values)))


def test_resamples_are_drawn_in_blocks_of_the_same_counts():
    tracemalloc.start()
    counts = stats._resample_counts(800, 3, 5_500)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert counts.dtype == np.uint8 and peak < 3 * counts.nbytes
    assert (counts == np.random.default_rng(3).multinomial(800, [1 / 800] * 800, size=5_500)).all()
