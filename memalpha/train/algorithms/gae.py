"""Generalised advantage estimation over the tokens of a whole episode (Schulman et al. 2016, arXiv 1506.02438).

    delta_t = r_t + gamma V(s_{t+1}) - V(s_t)              V(s_T) = 0
    A_t     = sum_{l = 0}^{T - t - 1} (gamma lam)^l delta_{t + l}
    R_t     = A_t + V(s_t)                                 TD(lam) return, the target of the value function

lam = 0 gives the one-step error, lam = 1 the discounted rewards to come minus the value. All arrays are float64.

An episode is every token that one rollout sampled, in order, across all its contexts. So the state after a turn's last
token is the state before the next turn's first token. The value after the last token of the episode is 0.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def gae(rewards: np.ndarray, values: np.ndarray, *, gamma: float, lam: float) -> tuple[np.ndarray, np.ndarray]:
    """Return advantages (T,) and returns (T,) of one episode's tokens.

    Args:
        rewards: Reward of each token (T,).
        values: Value before each token (T,).
        gamma: Discount per token.
        lam: Trade-off between bias (0) and variance (1).

    Raises:
        ValueError: `rewards` and `values` are not rows of equal length.
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
    """Shift and scale rows to mean 0 and standard deviation 1 over all tokens together; equal values become 0."""
    tokens = np.concatenate([np.asarray(row, dtype=np.float64) for row in rows])
    mean, deviation = tokens.mean(), tokens.std()
    return [(row - mean) / (deviation + 1e-8) for row in rows]


def explained_variance(values: Sequence[np.ndarray], returns: Sequence[np.ndarray]) -> float:
    """Return 1 - Var(R - V) / Var(R) over all tokens; 0 if all returns are equal.

    1 is a perfect value function, 0 one without information, and a negative result one that misleads.
    """
    target = np.concatenate([np.asarray(row, dtype=np.float64) for row in returns])
    error = target - np.concatenate([np.asarray(row, dtype=np.float64) for row in values])
    return 1.0 - float(error.var() / target.var()) if target.var() > 0 else 0.0
