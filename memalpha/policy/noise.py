"""Sampling noise that depends on a request's key alone, and these keys, whatever the batches and processes."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np

ROLES = ("attempt", "reflection", "retry")
"""Roles of a trajectory (`Trajectory.role`). A role's index is part of its noise keys."""


def noise_key(seed: int, step: int, number: int, rollout: int, turn: int, role: str = "attempt") -> tuple[int, ...]:
    """Return the noise key of one sampled turn.

    Each role has separate keys, so that a retry does not reuse the noise of its attempt.

    Args:
        seed: seed of the run.
        step: training step.
        number: index of the task within the step, over all processes.
        rollout: index of the rollout within its group.
        turn: index of the turn within the rollout.
        role: "attempt", "reflection" or "retry".

    Returns:
        Five integers, plus the index of the role unless it is "attempt".
    """
    key = (seed, step, number, rollout, turn)
    return key if role == "attempt" else (*key, ROLES.index(role))


def sampling_uniforms(key: Sequence[int], steps: int) -> np.ndarray:
    """Return `steps` float64 uniforms in [0, 1) with 53 random bits each.

    The upper 24 bits and the lower 29 bits come from two streams of SHAKE-256. A longer stream begins with the shorter
    one. With 24 bits alone, most tokens of a vocabulary of 152,000 could never be drawn from a sharp distribution.

    Args:
        key: integers that name the request.
        steps: number of uniforms.

    Returns:
        Array (steps,).
    """
    seed = repr(tuple(int(part) for part in key)).encode()
    upper = _words(seed, steps) >> 8
    lower = _words(seed + b" lower bits", steps) >> 3
    return (upper + lower * 2.0**-29) * 2.0**-24


def request_seed(key: Sequence[int]) -> int:
    """Return the seed, from 0 to 2**31 - 1, that a server gets for a request with this key."""
    words = hashlib.sha256(repr(tuple(int(part) for part in key)).encode()).digest()
    return int.from_bytes(words[:4]) >> 1


def _words(seed: bytes, count: int) -> np.ndarray:
    """Return the first `count` 32-bit words of a seed's stream."""
    return np.frombuffer(hashlib.shake_256(seed).digest(4 * count), dtype="<u4")
