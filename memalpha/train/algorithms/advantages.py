"""Group-relative advantages per turn: baselines over rollouts, never over rows.

A reward component is either shared by a whole trajectory (r1, r3: centred over the G rollouts, whatever their number of
turns) or belongs to a turn (r2, r4: centred over the rollouts that have a turn at the same chunk index). With equal
chunk counts the two together are r_t minus the group's mean r_t at that chunk.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

from memalpha.errors import TrainingError
from memalpha.types import Reward, Trajectory, TrajectoryGroup

SHARED_COMPONENTS = frozenset({"r1", "r3", "model"})
"""Components that belong to the whole trajectory, in a `Reward` that does not say; all others belong to a turn."""


def group_advantages(
    group: TrajectoryGroup[Any],
    *,
    baseline: Literal["mean", "leave_one_out"] = "mean",
    scale: Literal["group", "none"] = "group",
    floor: float = 0.01,
    extra_rewards: Sequence[Sequence[float]] | None = None,
) -> list[list[float]]:
    """One advantage per turn of each trajectory of `group`; `extra` is added to the turns' own rewards.

    `leave_one_out` compares a rollout with the mean of the others only. `scale="group"` divides by the population
    standard deviation over the G rollouts at that chunk index plus `floor`; a rollout that has no turn there counts as
    if its turn had earned the mean of those there, so that a chunk which one rollout alone reached is not blown up.
    """
    shared, turn_rewards = zip(*(split_reward(trajectory) for trajectory in group.trajectories), strict=True)
    if extra_rewards is not None:
        turn_rewards = [
            [a + b for a, b in zip(*rows, strict=True)] for rows in zip(turn_rewards, extra_rewards, strict=True)
        ]
    shared_centred = _centre(shared, baseline)
    advantages = [[0.0] * len(values) for values in turn_rewards]
    for index in range(max(len(values) for values in turn_rewards)):
        present = [g for g, values in enumerate(turn_rewards) if len(values) > index]
        turn_centred = dict(zip(present, _centre([turn_rewards[g][index] for g in present], baseline), strict=True))
        centred = [value + turn_centred.get(g, 0.0) for g, value in enumerate(shared_centred)]
        divisor = 1.0
        if scale == "group":
            mean = sum(centred) / len(centred)
            divisor = math.sqrt(sum((value - mean) ** 2 for value in centred) / len(centred)) + floor
        for g in present:
            advantages[g][index] = centred[g] / divisor
    return advantages


def reward_std(groups: Sequence[TrajectoryGroup[Any]], extra_rewards: Sequence[Sequence[Sequence[float]]]) -> float:
    """The population standard deviation of r_t over all turns of all groups; every rollout weighs the same.

    `extra` is added to the turns' own rewards, by group and trajectory.
    """
    values, weights = [], []
    for group, group_extra in zip(groups, extra_rewards, strict=True):
        for trajectory, turn_extra in zip(group.trajectories, group_extra, strict=True):
            shared, turn_rewards = split_reward(trajectory)
            values += [shared + a + b for a, b in zip(turn_rewards, turn_extra, strict=True)]
            weights += [1 / len(turn_rewards)] * len(turn_rewards)
    total_weight = sum(weights)
    mean = sum(weight * value for value, weight in zip(values, weights, strict=True)) / total_weight
    return math.sqrt(
        sum(weight * (value - mean) ** 2 for value, weight in zip(values, weights, strict=True)) / total_weight
    )


def split_reward(trajectory: Trajectory[Any]) -> tuple[float, list[float]]:
    """The shared reward of a trajectory and its turns' own rewards, weighted."""
    reward = trajectory.reward
    if reward is None or len(reward.turns) != len(trajectory.turns) or not reward.turns:
        raise TrainingError(f"task {trajectory.task.id!r}, rollout {trajectory.rollout}: no reward for each turn")
    return (
        _weighted_sum(reward, 0, shared=True),
        [_weighted_sum(reward, index, shared=False) for index in range(len(reward.turns))],
    )


def _weighted_sum(reward: Reward, index: int, *, shared: bool) -> float:
    shared_names = SHARED_COMPONENTS if reward.shared is None else reward.shared
    return sum(
        reward.weights[name] * values[index]
        for name, values in reward.components.items()
        if (name in shared_names) == shared
    )


def _centre(values: Sequence[float], baseline: str) -> list[float]:
    """Minus the mean of all, or of the others; a value without others is its own baseline."""
    count = len(values)
    mean = sum(values) / count
    factor = count / (count - 1) if baseline == "leave_one_out" and count > 1 else 1.0
    return [(value - mean) * factor for value in values]
