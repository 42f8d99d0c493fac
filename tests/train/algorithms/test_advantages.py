"""Baselines over rollouts: ragged chunk counts, leave-one-out, scaling."""

from __future__ import annotations

import statistics

import pytest

from memalpha.errors import TrainingError
from memalpha.train.algorithms.advantages import group_advantages
from memalpha.types import Chunk, Completion, Reward, Task, Trajectory, TrajectoryGroup, Turn

TASK = Task(id="t", chunks=tuple(Chunk(text="x") for _ in range(6)))


def group(shared: list[float], own: list[list[float]]) -> TrajectoryGroup:
    """Rollouts with trajectory reward `shared[g]` (r1) and turn rewards `own[g][t]` (r2)."""
    trajectories = []
    for rollout, (value, turns) in enumerate(zip(shared, own, strict=True)):
        reward = Reward(
            turns=tuple(value + turn for turn in turns),
            components={"r1": (value,) * len(turns), "r2": tuple(turns)},
            weights={"r1": 1.0, "r2": 1.0},
            total=value,
        )
        made = tuple(Turn(chunk=at, completion=Completion("")) for at in range(len(turns)))
        trajectories.append(Trajectory(TASK, rollout, made, (), reward))
    return TrajectoryGroup(TASK, tuple(trajectories))


def test_ragged_rollouts_share_one_baseline():
    lengths = [2, 1, 6, 1]
    ragged = group([1.0, 0.0, 1.0, 0.0], [[0.0] * n for n in lengths])
    expected = [[0.5] * 2, [-0.5], [0.5] * 6, [-0.5]]
    assert group_advantages(ragged, scale="none") == expected
    scaled = group_advantages(ragged, scale="group", floor=0.0)
    assert [value for row in scaled for value in row] == pytest.approx([1, 1, -1, 1, 1, 1, 1, 1, 1, -1])


def test_turn_components_are_centred_at_the_same_chunk():
    own = [[1.0, 0.0, 0.5], [0.0, 0.0], [0.5, 0.6]]
    result = group_advantages(group([0.0] * 3, own), scale="none")
    assert result[0] == pytest.approx([0.5, -0.2, 0.0])  # nobody to compare the third turn with
    assert result[1] == pytest.approx([-0.5, -0.2])
    assert result[2] == pytest.approx([0.0, 0.4])


def test_equal_lengths_give_the_plain_formula():
    shared, own = [0.2, 0.9, 0.4, 0.4], [[1.0, 0.5], [0.0, 1.0], [1.0, 1.0], [0.25, 0.0]]
    result = group_advantages(group(shared, own))
    for at in range(2):
        totals = [value + turns[at] for value, turns in zip(shared, own, strict=True)]
        mean, deviation = statistics.mean(totals), statistics.pstdev(totals)
        assert [row[at] for row in result] == pytest.approx([(r - mean) / (deviation + 0.01) for r in totals])


def test_leave_one_out_compares_with_the_others():
    result = group_advantages(group([1.0, 0.0, 0.5], [[0.0]] * 3), baseline="leave_one_out", scale="none")
    assert [row[0] for row in result] == pytest.approx([1.0 - 0.25, 0.0 - 0.75, 0.5 - 0.5])


def test_extra_rewards_are_the_turns_own():
    shared, own, extra = [0.2, 0.9], [[1.0, 0.5], [0.0]], [[-0.3, 0.1], [0.4]]
    added = [[a + b for a, b in zip(*rows, strict=True)] for rows in zip(own, extra, strict=True)]
    assert group_advantages(group(shared, own), extra_rewards=extra) == group_advantages(group(shared, added))


def test_no_difference_no_advantage():
    assert group_advantages(group([0.7] * 4, [[0.3, 0.1]] * 4)) == [[0.0, 0.0]] * 4


def test_a_missing_reward_is_an_error():
    bare = TrajectoryGroup(TASK, (Trajectory(TASK, 0, (Turn(0, Completion("")),), ()),))
    with pytest.raises(TrainingError, match="no reward"):
        group_advantages(bare)
