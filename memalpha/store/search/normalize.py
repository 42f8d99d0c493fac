"""Scaling of scores, and selection of the best ones."""

from __future__ import annotations

import numpy as np

SMALLEST_RANGE = 1e-3  # of scores that are scaled; inner products are rounded to 1e-5


def scale(scores: np.ndarray, score_range: tuple[float, float] | None) -> np.ndarray:
    """Scale scores to 0..1 by minimum and maximum; equal scores become zeros.

    A range below `SMALLEST_RANGE` counts as that, so that rounding is not scaled up to a difference of 1.

    Args:
        scores: Scores `(n,)`.
        score_range: Minimum and maximum over more documents than these; None takes those of `scores`.
    """
    low, high = score_range or (scores.min(), scores.max())
    return (scores - low) / max(high - low, SMALLEST_RANGE)


def share_of_best(scores: np.ndarray) -> np.ndarray:
    """Divide scores by the best one, with negative scores as 0."""
    scores = np.maximum(scores, 0.0)
    best = scores.max(initial=0.0)
    return scores / best if best > 0 else scores


def top_k(scores: np.ndarray, orders: np.ndarray, k: int) -> np.ndarray:
    """Return the indices of the k largest scores, best first.

    Args:
        scores: Scores `(n,)`.
        orders: Tie-breakers `(n,)`; among equal scores the larger comes first.
        k: Number of indices; fewer are returned if there are fewer scores.
    """
    if k < len(scores):
        threshold = np.partition(scores, len(scores) - k)[len(scores) - k]
        candidates = np.flatnonzero(scores >= threshold)
    else:
        candidates = np.arange(len(scores))
    return candidates[np.lexsort((-orders[candidates], -scores[candidates]))][:k]
