"""Keys of the sampling noise: what is sampled depends on neither batch nor processes."""

from __future__ import annotations

ROLES = ("attempt", "reflection", "retry")
"""What a trajectory is (`Trajectory.role`); the place of a role is part of its noise keys."""


def noise_key(seed: int, step: int, number: int, rollout: int, turn: int, role: str = "attempt") -> tuple[int, ...]:
    """The key of a sampled turn. Roles have keys of their own, so that a retry does not draw its attempt's noise."""
    key = (seed, step, number, rollout, turn)
    return key if role == "attempt" else (*key, ROLES.index(role))
