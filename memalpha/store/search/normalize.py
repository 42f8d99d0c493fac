"""Scores of many documents: put on one scale, as shares of the best, and the best of them."""

from __future__ import annotations

import numpy as np


def scale(scores: np.ndarray, ends: tuple[float, float] | None) -> np.ndarray:
    """Min-max to 0..1, with the smallest and largest score where these do not hold them; all zero where both are the
    same."""
    low, high = ends or (scores.min(), scores.max())
    return (scores - low) / (high - low) if high > low else np.zeros_like(scores)


def share_of_best(scores: np.ndarray) -> np.ndarray:
    """Scores as shares of the best one; nothing below 0. Groups that are equally near get an equal prior."""
    scores = np.maximum(scores, 0.0)
    best = scores.max(initial=0.0)
    return scores / best if best > 0 else scores


def top_k(scores: np.ndarray, orders: np.ndarray, k: int) -> np.ndarray:
    """Indices of the k largest scores, best first; equal scores by the larger order."""
    if k < len(scores):
        bar = np.partition(scores, len(scores) - k)[len(scores) - k]
        kept = np.flatnonzero(scores >= bar)
    else:
        kept = np.arange(len(scores))
    return kept[np.lexsort((-orders[kept], -scores[kept]))][:k]
