"""Dynamic sampling (DAPO, 2503.14476): further tasks in place of groups that give no gradient."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from memalpha.qa.records import Record
from memalpha.train.rollouts.curriculum import TrainingTasks
from memalpha.train.rollouts.worker import RolloutWorker
from memalpha.types import TrajectoryGroup


def is_flat(group: TrajectoryGroup[Any]) -> bool:
    """Return True if all rollouts of the group have equal rewards in every turn: there is nothing to prefer."""
    return len({trajectory.reward.turns for trajectory in group.trajectories if trajectory.reward}) == 1


def resample_flat_groups(
    worker: RolloutWorker[Any],
    source: TrainingTasks[Any],
    groups: Sequence[TrajectoryGroup[Any]],
    records: Sequence[Record],
    *,
    position: int,
    step: int,
    rounds: int,
) -> tuple[list[TrajectoryGroup[Any]], list[Record], list[TrajectoryGroup[Any]], int]:
    """Sample as many further tasks as there are flat groups, until none is missing or `rounds` are over.

    If groups are still missing then, flat ones stay in: they have no gradient but count in the loss's divisors.

    Args:
        worker: Samples and scores rollouts.
        source: Training tasks.
        groups: Groups of the step's own tasks.
        records: Their records.
        position: Position of the step's first task in the source.
        step: Step number; keys the sampling noise.
        rounds: Further rounds, at most.

    Returns:
        All groups that were sampled, their records, the groups to train on (as many as the step has tasks: those with
        different rewards first), and the number of tasks that were drawn.
    """
    group_count = drawn = worker.config.tasks_per_step
    sampled, answers = list(groups), list(records)
    for _ in range(rounds):
        missing = group_count - sum(not is_flat(group) for group in sampled)
        if missing <= 0:
            break
        tasks = source.batch(position + drawn)[:missing]
        new_groups, new_records = worker.collect_attempts(tasks, step, drawn)
        sampled, answers, drawn = sampled + new_groups, answers + new_records, drawn + len(tasks)
    chosen = sorted(sampled, key=is_flat)[:group_count]
    return sampled, answers, chosen, drawn
