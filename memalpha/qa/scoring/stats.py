"""Averages with intervals and tests that treat the questions of one conversation as dependent.

Everything is computed from the answers, one `ScoredAnswer` each. `micro` is the mean over all questions, `macro` the
mean of the abilities' means. Intervals are bias-corrected and accelerated bootstrap intervals (BCa; Efron, JASA 1987)
over conversations: whole conversations are resampled, because a hundred questions about one conversation are no hundred
observations. The same seed gives the same interval. Fewer than two conversations have no interval, and with fewer than
about ten it is too narrow.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from statistics import NormalDist, fmean, stdev
from typing import NamedTuple

import numpy as np

from memalpha.arguments import group_values
from memalpha.errors import DataError

RESAMPLES = 10_000
CONFIDENCE = 0.95
MIN_CLUSTERS = 10
"""With fewer conversations an interval is too narrow to be shown."""
_BLOCK = 1_000  # resamples at once
_NORMAL = NormalDist()


class ScoredAnswer(NamedTuple):
    """Score of one answer (`value`), with its conversation (`cluster`) and ability (`group`)."""

    cluster: str
    group: str
    value: float


@dataclass(frozen=True, slots=True)
class Estimate:
    """Mean over `n` answers in `clusters` conversations, with its 95 % interval (None for one conversation)."""

    value: float
    low: float | None
    high: float | None
    n: int
    clusters: int

    @property
    def interval(self) -> tuple[float, float] | None:
        """Interval to show; None with fewer than `MIN_CLUSTERS` conversations, where it would be too narrow."""
        if self.low is None or self.high is None or self.clusters < MIN_CLUSTERS:
            return None
        return self.low, self.high


@dataclass(frozen=True, slots=True)
class Paired:
    """Difference of two systems on the same questions, second minus first.

    Attributes:
        first: Mean of the first system.
        second: Mean of the second system.
        difference: Mean difference with its interval.
        p: Two-sided p of the paired bootstrap over conversations.
        only_first: Questions that only the first system has right; None if scores are not 0 or 1.
        only_second: Questions that only the second system has right.
        mcnemar: Exact two-sided p of McNemar's test on these two. It treats questions as independent, which those of
            one conversation are not, so it is the more confident of the two tests.
    """

    first: float
    second: float
    difference: Estimate
    p: float | None
    only_first: int | None = None
    only_second: int | None = None
    mcnemar: float | None = None


def mean(values: Sequence[float]) -> float | None:
    """Return the mean of some values; None without any."""
    return sum(values) / len(values) if values else None


def micro(rows: Iterable[ScoredAnswer]) -> float:
    """Return the mean over all answers.

    Raises:
        DataError: There are no answers.
    """
    return _mean_of([row.value for row in rows])


def macro(rows: Iterable[ScoredAnswer]) -> float:
    """Return the unweighted mean of the abilities' means.

    Raises:
        DataError: There are no answers.
    """
    return _mean_of([fmean(values) for values in group_values((row.group, row.value) for row in rows).values()])


def _mean_of(values: Sequence[float]) -> float:
    if not values:
        raise DataError("no answers to average")
    return fmean(values)


def estimate(
    rows: Sequence[ScoredAnswer], *, macro: bool = False, seed: int = 0, resamples: int = RESAMPLES
) -> Estimate:
    """Return the micro (or macro) average with its interval.

    Args:
        rows: Scored answers.
        macro: True averages the abilities' means; an ability that a resample lacks is left out of it.
        seed: Seed of the bootstrap.
        resamples: Number of resamples.

    Raises:
        DataError: There are no answers.
    """
    return _estimate(rows, macro, seed, resamples)[0]


def _estimate(
    rows: Sequence[ScoredAnswer], is_macro: bool, seed: int, resamples: int
) -> tuple[Estimate, _Spread | None]:
    value = macro(rows) if is_macro else micro(rows)
    rows_of: dict[str, int] = {}  # in order of appearance
    columns: dict[str, int] = {}
    for row in rows:
        rows_of.setdefault(row.cluster, len(rows_of))
        columns.setdefault(row.group if is_macro else "", len(columns))
    sums, counts = np.zeros((2, len(rows_of), len(columns)))
    for row in rows:
        cell = rows_of[row.cluster], columns[row.group if is_macro else ""]
        sums[cell] += row.value
        counts[cell] += 1
    clusters = len(sums)
    if clusters < 2:
        return Estimate(value, None, None, len(rows), clusters), None
    blocks = np.array_split(_resample_counts(clusters, seed, resamples), -(-resamples // _BLOCK))
    resampled = np.concatenate([_means(weights @ sums, weights @ counts) for weights in blocks])
    spread = _Spread(resampled, _means(sums.sum(axis=0) - sums, counts.sum(axis=0) - counts))
    return Estimate(value, *_bca(value, spread), len(rows), clusters), spread


def compare_paired(
    first: Sequence[ScoredAnswer], second: Sequence[ScoredAnswer], *, seed: int = 0, resamples: int = RESAMPLES
) -> Paired:
    """Compare two systems by their answers to the same questions, in the same order.

    Args:
        first: Answers of the first system.
        second: Answers of the second system.
        seed: Seed of the bootstrap.
        resamples: Number of resamples.

    Raises:
        DataError: The questions differ, or there are none.
    """
    if [row[:2] for row in first] != [row[:2] for row in second]:
        raise DataError("a paired comparison needs both systems' answers to the same questions, in the same order")
    differences = [
        ScoredAnswer(baseline.cluster, baseline.group, other.value - baseline.value)
        for baseline, other in zip(first, second, strict=True)
    ]
    difference, spread = _estimate(differences, False, seed, resamples)
    p = None  # the two-sided share of centred resamples as far from 0 as the difference, never quite 0
    if spread is not None:
        distances = np.abs(spread.resampled - difference.value)
        extreme = int(np.sum(distances >= abs(difference.value) - 1e-12))
        p = (extreme + 1) / (len(spread.resampled) + 1)
    paired = Paired(micro(first), micro(second), difference, p)
    if any(row.value not in (0.0, 1.0) for row in (*first, *second)):
        return paired
    return with_mcnemar(paired, [row.value for row in first], [row.value for row in second])


def with_mcnemar(paired: Paired, first: Sequence[float], second: Sequence[float]) -> Paired:
    """Return the comparison with McNemar's test on which system has which question right.

    Args:
        paired: Comparison without the test.
        first: Score of each question for the first system: 1 if right, else 0.
        second: The same for the second system, in the same order.
    """
    only_first = sum(a > b for a, b in zip(first, second, strict=True))
    only_second = sum(a < b for a, b in zip(first, second, strict=True))
    mcnemar = exact_mcnemar(only_first, only_second)
    return replace(paired, only_first=only_first, only_second=only_second, mcnemar=mcnemar)


def exact_mcnemar(only_first: int, only_second: int) -> float:
    """Return the two-sided p of a split at least as uneven by a fair coin (McNemar 1947, exact)."""
    n, smaller = only_first + only_second, min(only_first, only_second)
    return min(1.0, 2 * sum(math.comb(n, k) for k in range(smaller + 1)) / 2**n)


def mean_and_deviation(values: Sequence[float]) -> tuple[float, float | None]:
    """Return mean and sample standard deviation over seeds (None for a single one)."""
    return fmean(values), stdev(values) if len(values) > 1 else None


# --------------------------------------------------------------------------------------------------------- bootstrap


class _Spread(NamedTuple):
    """Statistic over resampled conversations [R], and with each conversation left out [C]."""

    resampled: np.ndarray
    without: np.ndarray


@lru_cache(maxsize=2)
def _resample_counts(clusters: int, seed: int, resamples: int) -> np.ndarray:
    """Return the count of each cluster in each resample [R, C]; cached, since a comparison repeats the call."""
    rng, odds = np.random.default_rng(seed), [1 / clusters] * clusters
    draws = np.empty((resamples, clusters), np.uint8)  # a count above 255 will not be seen
    for block in np.split(draws, range(_BLOCK, resamples, _BLOCK)):  # a draw takes eight times the memory
        block[:] = rng.multinomial(clusters, odds, size=len(block))
    return draws


def _means(sums: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Return the mean over columns of sums / counts [N]; columns without a count are left out."""
    present = counts > 0
    ratios = np.divide(sums, counts, out=np.zeros_like(sums), where=present)
    return ratios.sum(axis=1) / np.maximum(1, present.sum(axis=1))


def _bca(value: float, spread: _Spread) -> tuple[float, float]:
    resampled, without = spread
    # Count half of the ties as below: with few conversations there are many.
    below = float(np.mean(resampled < value - 1e-12) + np.mean(np.abs(resampled - value) <= 1e-12) / 2)
    if not 0 < below < 1:
        return float(resampled.min()), float(resampled.max())
    bias = _NORMAL.inv_cdf(below)
    influence = without.mean() - without
    scale = float((influence**2).sum() ** 1.5)
    acceleration = float((influence**3).sum()) / (6 * scale) if scale > 1e-300 else 0.0

    def level(z: float) -> float:
        return _NORMAL.cdf(bias + (bias + z) / max(1e-9, 1 - acceleration * (bias + z)))

    z = _NORMAL.inv_cdf((1 + CONFIDENCE) / 2)
    low, high = np.quantile(resampled, [level(-z), level(z)])
    return float(low), float(high)
