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

SHARED = frozenset({"r1", "r3", "model"})
"""Components that belong to the whole trajectory, in a `Reward` that does not say; all others belong to a turn."""


def group_advantages(
    group: TrajectoryGroup[Any],
    *,
    baseline: Literal["mean", "leave_one_out"] = "mean",
    scale: Literal["group", "none"] = "group",
    floor: float = 0.01,
    extra: Sequence[Sequence[float]] | None = None,
) -> list[list[float]]:
    """One advantage per turn of each trajectory of `group`; `extra` is added to the turns' own rewards.

    `leave_one_out` compares a rollout with the mean of the others only. `scale="group"` divides by the population
    standard deviation over the G rollouts at that chunk index plus `floor`; a rollout that has no turn there counts as
    if its turn had earned the mean of those there, so that a chunk which one rollout alone reached is not blown up.
    """
    shared, own = zip(*(reward_parts(trajectory) for trajectory in group.trajectories), strict=True)
    if extra is not None:
        own = [[a + b for a, b in zip(*rows, strict=True)] for rows in zip(own, extra, strict=True)]
    shared_centred = _centre(shared, baseline)
    result = [[0.0] * len(values) for values in own]
    for at in range(max(len(values) for values in own)):
        have = [g for g, values in enumerate(own) if len(values) > at]
        turn_centred = dict(zip(have, _centre([own[g][at] for g in have], baseline), strict=True))
        centred = [value + turn_centred.get(g, 0.0) for g, value in enumerate(shared_centred)]
        divisor = 1.0
        if scale == "group":
            mean = sum(centred) / len(centred)
            divisor = math.sqrt(sum((value - mean) ** 2 for value in centred) / len(centred)) + floor
        for g in have:
            result[g][at] = centred[g] / divisor
    return result


def spread(groups: Sequence[TrajectoryGroup[Any]], extra: Sequence[Sequence[Sequence[float]]]) -> float:
    """The population standard deviation of r_t over all turns of all groups; every rollout weighs the same.

    `extra` is added to the turns' own rewards, by group and trajectory.
    """
    values, weights = [], []
    for group, added in zip(groups, extra, strict=True):
        for trajectory, more in zip(group.trajectories, added, strict=True):
            shared, own = reward_parts(trajectory)
            values += [shared + a + b for a, b in zip(own, more, strict=True)]
            weights += [1 / len(own)] * len(own)
    whole = sum(weights)
    mean = sum(weight * value for value, weight in zip(values, weights, strict=True)) / whole
    return math.sqrt(sum(weight * (value - mean) ** 2 for value, weight in zip(values, weights, strict=True)) / whole)


def reward_parts(trajectory: Trajectory[Any]) -> tuple[float, list[float]]:
    """The shared reward of a trajectory and its turns' own rewards, weighted."""
    reward = trajectory.reward
    if reward is None or len(reward.turns) != len(trajectory.turns) or not reward.turns:
        raise TrainingError(f"task {trajectory.task.id!r}, rollout {trajectory.rollout}: no reward for each turn")
    return (
        _weighted(reward, 0, shared=True),
        [_weighted(reward, at, shared=False) for at in range(len(reward.turns))],
    )


def _weighted(reward: Reward, at: int, *, shared: bool) -> float:
    of_all = SHARED if reward.shared is None else reward.shared
    return sum(
        reward.weights[name] * values[at] for name, values in reward.components.items() if (name in of_all) == shared
    )


def _centre(values: Sequence[float], baseline: str) -> list[float]:
    """Minus the mean of all, or of the others; a value without others is its own baseline."""
    count = len(values)
    mean = sum(values) / count
    factor = count / (count - 1) if baseline == "leave_one_out" and count > 1 else 1.0
    return [(value - mean) * factor for value in values]
