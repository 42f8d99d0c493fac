"""What a reward says of itself. Baselines of ragged groups: `test_algorithms_float64`; of TRL: `test_trl_parity`."""

from __future__ import annotations

from dataclasses import replace

import pytest

from memalpha.errors import TrainingError
from memalpha.train.algorithms.advantages import group_advantages
from memalpha.types import Chunk, Completion, Reward, Task, Trajectory, TrajectoryGroup, Turn

TASK = Task(id="t", chunks=tuple(Chunk(text="x") for _ in range(6)))


def make_group(shared: list[float], turn_rewards: list[list[float]]) -> TrajectoryGroup:
    """Rollouts with trajectory reward `shared[g]` (r1) and turn rewards `turn_rewards[g][t]` (r2)."""
    trajectories = []
    for rollout, (value, turns) in enumerate(zip(shared, turn_rewards, strict=True)):
        reward = Reward(
            turns=tuple(value + turn for turn in turns),
            components={"r1": (value,) * len(turns), "r2": tuple(turns)},
            weights={"r1": 1.0, "r2": 1.0},
            total=value,
            shared=frozenset({"r1"}),
        )
        turn_records = tuple(Turn(chunk=index, completion=Completion("")) for index in range(len(turns)))
        trajectories.append(Trajectory(TASK, rollout, turn_records, (), reward))
    return TrajectoryGroup(TASK, tuple(trajectories))


def test_a_reward_says_itself_what_is_shared():
    """By name alone nothing is: r1 of two ragged rollouts is a turn's unless the reward says otherwise."""
    ragged = make_group([1.0, 0.0, 0.5], [[0.0] * 2, [0.0], [0.0]])
    own = [replace(one, reward=replace(one.reward, shared=frozenset())) for one in ragged.trajectories]
    unshared = TrajectoryGroup(TASK, tuple(own))
    assert group_advantages(ragged, scale="none") == [[0.5, 0.5], [-0.5], [0.0]]
    assert group_advantages(unshared, scale="none") == [[0.5, 0.0], [-0.5], [0.0]], "no other has a second turn"
    assert Reward((1.0,), {"r1": (1.0,)}, {"r1": 1.0}, 1.0).shared == frozenset()


def test_a_missing_reward_is_an_error():
    unscored = TrajectoryGroup(TASK, (Trajectory(TASK, 0, (Turn(0, Completion("")),), ()),))
    with pytest.raises(TrainingError, match="no reward"):
        group_advantages(unscored)
