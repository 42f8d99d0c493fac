"""Baselines over rollouts: ragged chunk counts, leave-one-out, scaling."""

from __future__ import annotations

import statistics
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


def test_ragged_rollouts_share_one_baseline():
    lengths = [2, 1, 6, 1]
    ragged = make_group([1.0, 0.0, 1.0, 0.0], [[0.0] * n for n in lengths])
    expected = [[0.5] * 2, [-0.5], [0.5] * 6, [-0.5]]
    assert group_advantages(ragged, scale="none") == expected
    scaled = group_advantages(ragged, scale="group", floor=0.0)
    assert [value for row in scaled for value in row] == pytest.approx([1, 1, -1, 1, 1, 1, 1, 1, 1, -1])


def test_a_reward_says_itself_what_is_shared():
    """By name alone nothing is: r1 of two ragged rollouts is a turn's unless the reward says otherwise."""
    ragged = make_group([1.0, 0.0, 0.5], [[0.0] * 2, [0.0], [0.0]])
    own = [replace(one, reward=replace(one.reward, shared=frozenset())) for one in ragged.trajectories]
    unshared = TrajectoryGroup(TASK, tuple(own))
    assert group_advantages(ragged, scale="none") == [[0.5, 0.5], [-0.5], [0.0]]
    assert group_advantages(unshared, scale="none") == [[0.5, 0.0], [-0.5], [0.0]], "no other has a second turn"
    assert Reward((1.0,), {"r1": (1.0,)}, {"r1": 1.0}, 1.0).shared == frozenset()


def test_turn_components_are_centred_at_the_same_chunk():
    turn_rewards = [[1.0, 0.0, 0.5], [0.0, 0.0], [0.5, 0.6]]
    result = group_advantages(make_group([0.0] * 3, turn_rewards), scale="none")
    assert result[0] == pytest.approx([0.5, -0.2, 0.0])  # no other rollout has a third turn
    assert result[1] == pytest.approx([-0.5, -0.2])
    assert result[2] == pytest.approx([0.0, 0.4])


def test_equal_lengths_give_the_plain_formula():
    shared, turn_rewards = [0.2, 0.9, 0.4, 0.4], [[1.0, 0.5], [0.0, 1.0], [1.0, 1.0], [0.25, 0.0]]
    result = group_advantages(make_group(shared, turn_rewards))
    for index in range(2):
        totals = [value + turns[index] for value, turns in zip(shared, turn_rewards, strict=True)]
        mean, deviation = statistics.mean(totals), statistics.pstdev(totals)
        assert [row[index] for row in result] == pytest.approx([(r - mean) / (deviation + 0.01) for r in totals])


def test_leave_one_out_compares_with_the_others():
    result = group_advantages(make_group([1.0, 0.0, 0.5], [[0.0]] * 3), baseline="leave_one_out", scale="none")
    assert [row[0] for row in result] == pytest.approx([1.0 - 0.25, 0.0 - 0.75, 0.5 - 0.5])


def test_extra_rewards_add_to_turn_rewards():
    shared, turn_rewards, extra = [0.2, 0.9], [[1.0, 0.5], [0.0]], [[-0.3, 0.1], [0.4]]
    total_rewards = [[a + b for a, b in zip(*rows, strict=True)] for rows in zip(turn_rewards, extra, strict=True)]
    assert group_advantages(make_group(shared, turn_rewards), extra_rewards=extra) == group_advantages(
        make_group(shared, total_rewards)
    )


def test_equal_rewards_give_no_advantage():
    assert group_advantages(make_group([0.7] * 4, [[0.3, 0.1]] * 4)) == [[0.0, 0.0]] * 4


def test_a_missing_reward_is_an_error():
    unscored = TrajectoryGroup(TASK, (Trajectory(TASK, 0, (Turn(0, Completion("")),), ()),))
    with pytest.raises(TrainingError, match="no reward"):
        group_advantages(unscored)
