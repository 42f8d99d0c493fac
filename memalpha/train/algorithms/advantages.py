"""Group-relative advantages per turn.

Baselines are over rollouts, never over rows. A reward component belongs either to the whole trajectory
(`Reward.shared`, as r1 and r3) or to one turn (r2, r4). Trajectory components are centred over the G rollouts, whatever
their number of turns. Turn components are centred over the rollouts that have a turn at the same chunk index. With
equal chunk counts the sum of both is r_t minus the group's mean r_t at that chunk.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

from memalpha.errors import TrainingError
from memalpha.types import Reward, Trajectory, TrajectoryGroup

TIE_TOLERANCE = 1e-9
"""Rewards closer than this are ties: they may be sums of the same numbers in another order."""


def group_advantages(
    group: TrajectoryGroup[Any],
    *,
    baseline: Literal["mean", "leave_one_out"] = "mean",
    scale: Literal["group", "none"] = "group",
    floor: float = 0.01,
    extra_rewards: Sequence[Sequence[float]] | None = None,
) -> list[list[float]]:
    """Return one advantage per turn of each trajectory in `group`.

    A rollout without a turn at some chunk index counts there as if its turn had earned the mean of the others. So a
    chunk that only one rollout reached gets no inflated advantage.

    Args:
        group: Scored rollouts of one task.
        baseline: "mean" subtracts the mean of all G rollouts, "leave_one_out" that of the other G - 1.
        scale: "group" divides by the population standard deviation over the G rollouts at that chunk index, "none" by
            nothing.
        floor: Added to the standard deviation before dividing.
        extra_rewards: Reward to add per trajectory and turn, for example a KL penalty.

    Returns:
        Advantages by trajectory and turn.

    Raises:
        TrainingError: A trajectory has no reward for each of its turns.
    """
    shared, turn_rewards = zip(*(split_reward(trajectory) for trajectory in group.trajectories), strict=True)
    if extra_rewards is not None:
        turn_rewards = [
            [a + b for a, b in zip(*rows, strict=True)] for rows in zip(turn_rewards, extra_rewards, strict=True)
        ]
    shared_centred = centre(shared, baseline)
    advantages = [[0.0] * len(values) for values in turn_rewards]
    for index in range(max(len(values) for values in turn_rewards)):
        present = [g for g, values in enumerate(turn_rewards) if len(values) > index]
        turn_centred = dict(zip(present, centre([turn_rewards[g][index] for g in present], baseline), strict=True))
        centred = [value + turn_centred.get(g, 0.0) for g, value in enumerate(shared_centred)]
        divisor = 1.0
        if scale == "group":
            mean = sum(centred) / len(centred)
            divisor = math.sqrt(sum((value - mean) ** 2 for value in centred) / len(centred)) + floor
        for g in present:
            advantages[g][index] = centred[g] / divisor
    return advantages


def reward_std(groups: Sequence[TrajectoryGroup[Any]], extra_rewards: Sequence[Sequence[Sequence[float]]]) -> float:
    """Return the population standard deviation of r_t over all turns; each rollout has equal weight.

    Args:
        groups: Scored groups of the step.
        extra_rewards: Reward to add, by group, trajectory and turn.
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
    """Return a trajectory's weighted shared reward and its weighted reward per turn.

    Raises:
        TrainingError: The reward is missing, or has another number of turns than the trajectory.
    """
    reward = trajectory.reward
    if reward is None or len(reward.turns) != len(trajectory.turns) or not reward.turns:
        raise TrainingError(f"task {trajectory.task.id!r}, rollout {trajectory.rollout}: no reward for each turn")
    shared = _weighted_sum(reward, 0, shared=True)
    return shared, [_weighted_sum(reward, index, shared=False) for index in range(len(reward.turns))]


def _weighted_sum(reward: Reward, index: int, *, shared: bool) -> float:
    names = [name for name in reward.components if (name in reward.shared) == shared]
    return sum(reward.weights[name] * reward.components[name][index] for name in names)


def centre(values: Sequence[float], baseline: str) -> list[float]:
    """Subtract the mean of all values, or of the other values; a single value is its own baseline.

    Ties give exact zeros: Adam would make a full step of a rounding error.
    """
    count = len(values)
    if max(values) - min(values) <= TIE_TOLERANCE:
        return [0.0] * count
    mean = sum(values) / count
    factor = count / (count - 1) if baseline == "leave_one_out" and count > 1 else 1.0
    return [(value - mean) * factor for value in values]
