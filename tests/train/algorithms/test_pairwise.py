"""Preference pairs: losses against their formulas, choice of pairs. Gradients: `test_dpo`."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from memalpha.config import DPOConfig
from memalpha.errors import TrainingError
from memalpha.train.algorithms.dpo import build_pair_row, choose_pairs, pair_losses, weight_pairs
from memalpha.train.data.samples import cross_entropy_sample
from memalpha.types import Chunk, Reward, Task, Trajectory, TrajectoryGroup


def test_half_a_pair_is_refused():
    row = build_pair_row(cross_entropy_sample((1,), (2,)), "a", chosen=True)
    with pytest.raises(ValueError, match="lacks the rows of one of its sides"):
        weight_pairs([row], [np.zeros(1, dtype=np.float32)], DPOConfig(reference_free=True))


@given(st.floats(-800, 800), st.floats(0.01, 2.0), st.floats(0.0, 0.49))
def test_sigmoid_losses_have_their_slopes(difference, beta, smoothing):
    config = DPOConfig(beta=beta, label_smoothing=smoothing)
    (loss,), (slope,) = pair_losses(np.array([difference]), config)
    z = torch.tensor(beta * difference, dtype=torch.float64, requires_grad=True)
    expected = -(1 - smoothing) * torch.nn.functional.logsigmoid(z) - smoothing * torch.nn.functional.logsigmoid(-z)
    expected.backward()
    assert loss == pytest.approx(expected.item(), rel=1e-12, abs=1e-300)
    assert slope == pytest.approx(beta * z.grad.item(), rel=1e-9, abs=1e-300)


# -------------------------------------------------------------------------------------------------- what makes a pair

TASK = Task(id="t", chunks=(Chunk(text="a"),))


def group(totals: list[float | None]) -> TrajectoryGroup:
    def trajectory(number: int, total: float | None) -> Trajectory:
        reward = None if total is None else Reward(turns=(total,), components={}, weights={}, total=total)
        return Trajectory(task=TASK, rollout=number, turns=(), states=(), reward=reward)

    return TrajectoryGroup(TASK, tuple(trajectory(number, total) for number, total in enumerate(totals)))


TOTALS = st.lists(st.sampled_from([-0.5, 0.0, 0.1, 0.3, 1.0]), min_size=2, max_size=6)


@given(st.lists(TOTALS, max_size=6), st.sampled_from([0.0, 0.2, 0.9]))
def test_best_against_worst(groups, margin):
    engine = [group(totals) for totals in groups]
    pairs = choose_pairs(engine, margin)
    expected = [totals for totals in groups if max(totals) > min(totals) and max(totals) - min(totals) > margin - 1e-9]
    assert len(pairs) == len(expected)
    for (chosen, rejected), totals in zip(pairs, expected, strict=True):
        assert chosen.rollout == totals.index(max(totals)) and rejected.rollout == totals.index(min(totals))


def test_a_rollout_without_a_reward_is_refused():
    with pytest.raises(TrainingError, match="task 't', rollout 1: no reward"):
        choose_pairs([group([1.0, None])])
