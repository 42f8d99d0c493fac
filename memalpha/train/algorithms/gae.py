"""Generalised advantage estimation over the tokens of a whole episode (Schulman et al. 2016, arXiv 1506.02438).

An episode is all that one rollout sampled, in that order, whatever number of contexts it has: the state after the last
token of a turn is the one before the first token of the next. After the last token there is nothing to come.

    delta_t = r_t + gamma V(s_{t+1}) - V(s_t)              V(s_T) = 0
    A_t     = sum_{l = 0}^{T - t - 1} (gamma lam)^l delta_{t + l}
    R_t     = A_t + V(s_t)                                 what the value function is fitted to: its TD(lam) return

lam = 0 is the one-step error, lam = 1 the discounted rewards to come minus the value. All in float64.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def gae(rewards: np.ndarray, values: np.ndarray, *, gamma: float, lam: float) -> tuple[np.ndarray, np.ndarray]:
    """Advantages A and returns R (T,) of one episode's tokens.

    `rewards` (T,): what each token earned; `values` (T,): V before each token. Raises `ValueError` for other shapes.
    """
    rewards, values = np.asarray(rewards, dtype=np.float64), np.asarray(values, dtype=np.float64)
    if rewards.ndim != 1 or rewards.shape != values.shape:
        raise ValueError(f"rewards {rewards.shape} and values {values.shape} must be one row of equal length")
    deltas = rewards + gamma * np.append(values[1:], 0.0)[: len(values)] - values
    advantages, running = np.empty_like(deltas), 0.0
    for t in range(len(deltas) - 1, -1, -1):
        running = deltas[t] + gamma * lam * running
        advantages[t] = running
    return advantages, advantages + values


def whiten(rows: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Rows with mean 0 and standard deviation 1 over all their tokens together; zeros where all are equal."""
    tokens = np.concatenate([np.asarray(row, dtype=np.float64) for row in rows])
    mean, deviation = tokens.mean(), tokens.std()
    return [(row - mean) / (deviation + 1e-8) for row in rows]


def explained_variance(values: Sequence[np.ndarray], returns: Sequence[np.ndarray]) -> float:
    """1 - Var(R - V) / Var(R) over all tokens: 1 for a perfect value function, 0 for one that says nothing (or where
    all returns are equal), below 0 for one that misleads."""
    target = np.concatenate([np.asarray(row, dtype=np.float64) for row in returns])
    error = target - np.concatenate([np.asarray(row, dtype=np.float64) for row in values])
    return 1.0 - float(error.var() / target.var()) if target.var() > 0 else 0.0
