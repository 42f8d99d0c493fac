"""Keys of the sampling noise, independent of batches and processes."""

from __future__ import annotations

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
