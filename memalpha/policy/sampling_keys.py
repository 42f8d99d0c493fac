"""Where rollouts start, and the keys of their noise: what is sampled depends on neither batch nor processes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic

from memalpha.types import AnyTask, Trajectory, TrajectoryGroup

ROLES = ("attempt", "reflection", "retry")
"""What a trajectory is (`Trajectory.role`); the place of a role is part of its noise keys."""


def noise_key(seed: int, step: int, number: int, rollout: int, turn: int, role: str = "attempt") -> tuple[int, ...]:
    """The key of a sampled turn. Roles have keys of their own, so that a retry does not draw its attempt's noise."""
    key = (seed, step, number, rollout, turn)
    return key if role == "attempt" else (*key, ROLES.index(role))


@dataclass(frozen=True, slots=True)
class Start(Generic[AnyTask]):
    """A rollout that is to be made: `number` is its task's place among all of the step, `advice` what each of its
    prompts carries beside what the task says."""

    task: AnyTask
    number: int
    rollout: int = 0
    advice: str = ""


def starts_of(tasks: Sequence[AnyTask], rollouts: int, first: int = 0) -> list[Start[AnyTask]]:
    """`rollouts` of each task, in order; tasks are numbered from `first`."""
    return [Start(task, number, rollout) for number, task in enumerate(tasks, first) for rollout in range(rollouts)]


def grouped(
    tasks: Sequence[AnyTask], made: Sequence[Trajectory[AnyTask]], rollouts: int
) -> list[TrajectoryGroup[AnyTask]]:
    """The trajectories of `starts_of`, by task."""
    return [
        TrajectoryGroup(task, tuple(made[number * rollouts : (number + 1) * rollouts]))
        for number, task in enumerate(tasks)
    ]
