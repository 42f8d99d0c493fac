"""Averages, intervals and paired tests beside independent computations in plain Python (float64) and scipy."""

import itertools
import math
import random
from statistics import NormalDist, mean, stdev

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memalpha.errors import DataError
from memalpha.qa.scoring.stats import (
    ScoredAnswer,
    compare_paired,
    estimate,
    exact_mcnemar,
    macro,
    mean_and_deviation,
    micro,
)


def sample(conversations=12, seed=0, rate=0.6, size=(3, 9)):
    rng = random.Random(seed)
    rows = []
    for number in range(conversations):
        conversation_rate = min(1.0, max(0.0, rng.gauss(rate, 0.2)))
        rows += [
            ScoredAnswer(f"c{number}", rng.choice("xyz"), float(rng.random() < conversation_rate))
            for _ in range(rng.randint(*size))
        ]
    return rows


def test_averages_by_hand():
    rows = [
        ScoredAnswer("c1", "x", 1.0),
        ScoredAnswer("c1", "x", 1.0),
        ScoredAnswer("c1", "y", 0.0),
        ScoredAnswer("c2", "x", 0.0),
    ]
    assert micro(rows) == 0.5
    assert macro(rows) == (2 / 3 + 0) / 2
    for empty in (micro, macro, estimate):
        with pytest.raises(DataError, match="no answers"):
            empty([])


def plain_bca(rows, by_group, seed=1, resamples=4000):
    """BCa written again without arrays: every resample is a list of rows."""
    clusters = {}
    for row in rows:
        clusters.setdefault(row.cluster, []).append(row)
    groups = list(clusters.values())

    def statistic(chosen):
        flat = [row for group in chosen for row in group]
        if not by_group:
            return sum(row.value for row in flat) / len(flat)
        names = sorted({row.group for row in flat})
        return mean(mean(row.value for row in flat if row.group == name) for name in names)

    rng, value = random.Random(seed), statistic(groups)
    drawn = sorted(statistic(rng.choices(groups, k=len(groups))) for _ in range(resamples))
    normal = NormalDist()
    z0 = normal.inv_cdf(sum((x < value - 1e-12) + 0.5 * (abs(x - value) <= 1e-12) for x in drawn) / resamples)
    jack = [statistic(groups[:i] + groups[i + 1 :]) for i in range(len(groups))]
    centre = mean(jack)
    a = sum((centre - x) ** 3 for x in jack) / (6 * sum((centre - x) ** 2 for x in jack) ** 1.5)
    ends = []
    for z in (normal.inv_cdf(0.025), normal.inv_cdf(0.975)):
        index = normal.cdf(z0 + (z0 + z) / (1 - a * (z0 + z))) * (resamples - 1)
        low = math.floor(index)
        ends.append(drawn[low] + (index - low) * (drawn[min(low + 1, resamples - 1)] - drawn[low]))
    return value, *ends


@pytest.mark.parametrize("by_group", [False, True])
def test_the_interval_is_bca(by_group):
    rows = sample()
    result = estimate(rows, macro=by_group, resamples=20_000)
    value, low, high = plain_bca(rows, by_group)
    assert result.value == pytest.approx(value, abs=1e-12)
    assert (result.low, result.high) == (pytest.approx(low, abs=0.015), pytest.approx(high, abs=0.015))
    assert (result.n, result.clusters) == (len(rows), 12)
    assert result == estimate(rows, macro=by_group, resamples=20_000)
    assert result != estimate(rows, macro=by_group, resamples=20_000, seed=1)


def test_the_interval_agrees_with_scipy():
    stats = pytest.importorskip("scipy.stats", reason="scipy comes with memalpha[embed]")
    rng = random.Random(3)
    rows = [ScoredAnswer(f"c{n}", "x", rng.expovariate(1.0)) for n in range(25)]  # one answer a conversation: plain BCa
    reference = stats.bootstrap(([row.value for row in rows],), mean, method="BCa", n_resamples=4000, random_state=0)
    ours = estimate(rows, resamples=20_000)
    assert ours.low == pytest.approx(reference.confidence_interval.low, abs=0.02)
    assert ours.high == pytest.approx(reference.confidence_interval.high, abs=0.02)


def test_questions_of_one_conversation_are_not_independent():
    alike = [ScoredAnswer(f"c{n}", "x", float(n % 2)) for n in range(10) for _ in range(50)]
    apart = [ScoredAnswer(f"c{n}.{k}", "x", float(n % 2)) for n in range(10) for k in range(50)]
    wide, narrow = estimate(alike), estimate(apart)
    assert wide.value == narrow.value == 0.5
    assert wide.high - wide.low > 5 * (narrow.high - narrow.low)


def test_edges():
    answer = estimate([ScoredAnswer("c", "x", 1.0), ScoredAnswer("c", "x", 0.0)])
    assert (answer.value, answer.low, answer.high, answer.clusters) == (0.5, None, None, 1)
    same = estimate([ScoredAnswer(f"c{n}", "x", 1.0) for n in range(5)])
    assert (same.value, same.low, same.high) == (1.0, 1.0, 1.0)


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.sampled_from("xy"), st.floats(0, 1)), min_size=1, max_size=20))
def test_an_interval_holds_what_can_be(items):
    rows = [ScoredAnswer(*item) for item in items]
    for by_group in (False, True):
        result = estimate(rows, macro=by_group, resamples=50)
        assert result.low is None or -1e-9 <= result.low <= result.high <= 1 + 1e-9


def test_paired_by_hand():
    first = [
        ScoredAnswer("c1", "x", 1.0),
        ScoredAnswer("c1", "x", 0.0),
        ScoredAnswer("c2", "x", 0.0),
        ScoredAnswer("c3", "y", 0.0),
    ]
    second = [
        ScoredAnswer("c1", "x", 0.0),
        ScoredAnswer("c1", "x", 1.0),
        ScoredAnswer("c2", "x", 1.0),
        ScoredAnswer("c3", "y", 1.0),
    ]
    result = compare_paired(first, second)
    assert (result.first, result.second, result.difference.value) == (0.25, 0.75, 0.5)
    assert (result.only_first, result.only_second, result.mcnemar) == (1, 3, 0.625)  # 2 * (1 + 4) / 16
    scored = compare_paired(first, [row._replace(value=0.5) for row in second])
    assert (scored.only_first, scored.mcnemar) == (None, None)
    with pytest.raises(DataError, match="same questions"):
        compare_paired(first, second[::-1])
    with pytest.raises(DataError, match="same questions"):
        compare_paired(first, second[1:])


def test_the_paired_p_is_that_of_all_resamples():
    """With five conversations all 3,125 resamples can be counted."""
    gains = [0.2, 0.4, -0.1, 0.3, 0.1]
    first = [ScoredAnswer(f"c{n}", "x", 0.5) for n in range(5)]
    second = [ScoredAnswer(f"c{n}", "x", 0.5 + gain) for n, gain in enumerate(gains)]
    centre = mean(gains)
    exact = mean(abs(mean(draw) - centre) >= centre - 1e-12 for draw in itertools.product(gains, repeat=5))
    assert compare_paired(first, second, resamples=50_000).p == pytest.approx(exact, abs=0.005)


@given(st.integers(0, 40), st.integers(0, 40))
def test_mcnemar_is_a_fair_coin(answer, two):
    p = exact_mcnemar(answer, two)
    assert 0 < p <= 1
    assert p == exact_mcnemar(two, answer)
    binomial = pytest.importorskip("scipy.stats", reason="scipy comes with memalpha[embed]").binomtest
    if answer + two:
        assert p == pytest.approx(binomial(answer, answer + two).pvalue, rel=1e-9)


def test_seeds():
    assert mean_and_deviation([0.5]) == (0.5, None)
    values = [0.5, 0.7, 0.9, 0.4]
    assert mean_and_deviation(values) == (pytest.approx(mean(values)), pytest.approx(stdev(values)))
