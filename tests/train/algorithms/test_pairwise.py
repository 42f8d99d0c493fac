"""Preference pairs: weights against float64 autograd, losses against their formulas, choice of pairs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from memalpha.config import DPOConfig
from memalpha.errors import TrainingError
from memalpha.train.algorithms.dpo import choose_pairs
from memalpha.train.algorithms.pairwise import build_pair_row, pair_losses, weight_pairs
from memalpha.types import Chunk, Reward, Task, Trajectory, TrajectoryGroup

WAYS = {
    "sigmoid": DPOConfig(),
    "cdpo": DPOConfig(beta=0.5, label_smoothing=0.2),
    "ipo": DPOConfig(beta=0.3, loss_type="ipo"),
    "reference-free": DPOConfig(beta=0.2, reference_free=True),
}


def rows_of(random: np.random.Generator, pairs: int, longest: int = 6):
    """Return shuffled rows of pairs, with one to three contexts per side, and their log-probs."""
    rows, logprobs = [], []
    for pair in range(pairs):
        for chosen in (True, False):
            for chunk in range(random.integers(1, 4)):
                count = int(random.integers(1, longest))
                row = build_pair_row((1, 2), range(3, 3 + count), f"pair-{pair}", chosen=chosen, chunk=chunk)
                rows.append(replace(row, reference=-random.exponential(1.0, count).astype(np.float32)))
                logprobs.append(-random.exponential(1.0, count).astype(np.float32))
    order = random.permutation(len(rows))
    return [rows[i] for i in order], [logprobs[i] for i in order]


def written_out(rows, logprobs: list[torch.Tensor], config: DPOConfig) -> torch.Tensor:
    """Compute the loss by its formula, one pair at a time, for autograd."""
    losses = []
    for unit in {row.unit for row in rows}:
        sides = []
        for sign in (1, -1):
            side_rows = [i for i, row in enumerate(rows) if row.unit == unit and row.advantages[0] == sign]
            gaps = [
                logprobs[i] - (0.0 if config.reference_free else torch.from_numpy(rows[i].reference).double())
                for i in side_rows
            ]
            sides.append(torch.cat(gaps))
        if config.loss_type == "ipo":
            losses.append((sides[0].mean() - sides[1].mean() - 1 / (2 * config.beta)) ** 2)
        else:
            z = config.beta * (sides[0].sum() - sides[1].sum())
            right, wrong = torch.nn.functional.logsigmoid(z), torch.nn.functional.logsigmoid(-z)
            losses.append(-(1 - config.label_smoothing) * right - config.label_smoothing * wrong)
    return torch.stack(losses).mean()


@pytest.mark.parametrize("config", WAYS.values(), ids=WAYS)
@given(st.integers(0, 10_000), st.integers(1, 5))
@settings(max_examples=30, deadline=None)
def test_weights_are_the_gradient(config, seed, pairs):
    rows, logprobs = rows_of(np.random.default_rng(seed), pairs)
    weighed, figures = weight_pairs(rows, logprobs, config)
    leaves = [torch.from_numpy(values).double().requires_grad_() for values in logprobs]
    loss = written_out(rows, leaves, config)
    loss.backward()
    assert figures["loss"].mean() == pytest.approx(loss.item(), rel=1e-12)
    for row, leaf in zip(weighed, leaves, strict=True):
        assert row.ce / pairs == pytest.approx(-leaf.grad.numpy(), rel=1e-6, abs=1e-30)


def test_figures_are_of_sums_whatever_the_loss():
    rows = [
        build_pair_row((1,), (2, 3), "a", chosen=True),
        build_pair_row((1,), (2,), "a", chosen=False),
        build_pair_row((1,), (4,), "b", chosen=True),
        build_pair_row((1,), (5,), "b", chosen=False),
    ]
    logprobs = [np.array(values, dtype=np.float32) for values in ([-1, -1], [-3], [-2], [-1])]
    for loss_type in ("sigmoid", "ipo"):
        _, figures = weight_pairs(rows, logprobs, DPOConfig(beta=0.5, reference_free=True, loss_type=loss_type))
        assert figures["margins"].tolist() == [0.5, -0.5]
        assert figures["accuracies"].tolist() == [1.0, 0.0]


def test_a_pair_of_equal_sides_pulls_at_nothing():
    rows = [build_pair_row((1,), (2, 3), "a", chosen=chosen) for chosen in (True, False)]
    same = np.array([-1.0, -2.0], dtype=np.float32)
    (row, two), figures = weight_pairs(rows, [same, same], DPOConfig(reference_free=True))
    assert (row.ce == -two.ce).all() and figures["loss"] == pytest.approx(np.log(2))


@pytest.mark.parametrize("difference", [-1e5, 1e5, 5.0])
@pytest.mark.parametrize("loss_type", ["sigmoid", "ipo"])
def test_a_pair_that_no_longer_pulls_still_counts(difference, loss_type):
    """A pair without gradient still counts in the mean over pairs."""
    config = DPOConfig(reference_free=True, loss_type=loss_type)  # ipo: D = 5 is where its slope is 0
    rows = [build_pair_row((1,), (2,), "a", chosen=chosen) for chosen in (True, False)]
    logprobs = [np.array([value], dtype=np.float32) for value in (difference, 0.0)]
    weighed, figures = weight_pairs(rows, logprobs, config)
    assert np.isfinite(figures["loss"]).all()
    assert all(row.ce.all() for row in weighed)


def test_half_a_pair_is_refused():
    row = build_pair_row((1,), (2,), "a", chosen=True)
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


def test_equal_up_to_rounding_is_a_tie():
    assert not choose_pairs([group([0.1 + 0.2, 0.3])])
    assert choose_pairs([group([0.3, 0.2])], margin=0.1), "0.3 - 0.2 is less than 0.1 in floats"


def test_a_rollout_without_a_reward_is_refused():
    with pytest.raises(TrainingError, match="task 't', rollout 1: no reward"):
        choose_pairs([group([1.0, None])])
