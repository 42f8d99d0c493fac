"""The rollouts of a step: where each starts, and their trajectories by task."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic

from memalpha.types import AnyTask, Trajectory, TrajectoryGroup


@dataclass(frozen=True, slots=True)
class Start(Generic[AnyTask]):
    """A rollout that is to be made: `number` is its task's place among all of the step, `advice` what each of its
    prompts carries beside what the task says."""

    task: AnyTask
    number: int
    rollout: int = 0
    advice: str = ""


def make_starts(tasks: Sequence[AnyTask], rollouts: int, first_index: int = 0) -> list[Start[AnyTask]]:
    """`rollouts` of each task, in order; tasks are numbered from `first`."""
    return [
        Start(task, number, rollout) for number, task in enumerate(tasks, first_index) for rollout in range(rollouts)
    ]


def group_by_task(
    tasks: Sequence[AnyTask], trajectories: Sequence[Trajectory[AnyTask]], rollouts: int
) -> list[TrajectoryGroup[AnyTask]]:
    """The trajectories of `starts_of`, by task."""
    return [
        TrajectoryGroup(task, tuple(trajectories[number * rollouts : (number + 1) * rollouts]))
        for number, task in enumerate(tasks)
    ]
