"""Starts of a step's rollouts, and their trajectories grouped by task."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic

from memalpha.types import AnyTask, Trajectory, TrajectoryGroup


@dataclass(frozen=True, slots=True)
class Start(Generic[AnyTask]):
    """Rollout to make.

    `number` is the index of its task within the step. `advice` is added to each of its prompts.
    """

    task: AnyTask
    number: int
    rollout: int = 0
    advice: str = ""


def make_starts(tasks: Sequence[AnyTask], rollouts: int, first_index: int = 0) -> list[Start[AnyTask]]:
    """Return `rollouts` starts of each task, in order.

    Args:
        tasks: tasks to roll out.
        rollouts: rollouts per task.
        first_index: index of the first task within the step.

    Returns:
        Starts, those of one task next to each other.
    """
    return [
        Start(task, number, rollout) for number, task in enumerate(tasks, first_index) for rollout in range(rollouts)
    ]


def group_by_task(
    tasks: Sequence[AnyTask], trajectories: Sequence[Trajectory[AnyTask]], rollouts: int
) -> list[TrajectoryGroup[AnyTask]]:
    """Group the trajectories of `make_starts` by task.

    Args:
        tasks: tasks in the order of the starts.
        trajectories: `rollouts` trajectories per task, in order.
        rollouts: rollouts per task.

    Returns:
        One group per task.
    """
    return [
        TrajectoryGroup(task, tuple(trajectories[number * rollouts : (number + 1) * rollouts]))
        for number, task in enumerate(tasks)
    ]
