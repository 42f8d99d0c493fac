"""Generalised advantage estimation against its definition, written out as a double sum."""

from __future__ import annotations

import numpy as np
import pytest

from memalpha.train.algorithms.ppo import explained_variance, gae, whiten


def gae_by_definition(rewards, values, gamma, lam):
    """Compute A_t as the double sum of formulas (11) to (16) of the paper."""
    count = len(rewards)
    next_values = [*values[1:], 0.0]
    deltas = [rewards[t] + gamma * next_values[t] - values[t] for t in range(count)]
    return [sum((gamma * lam) ** (i - t) * deltas[i] for i in range(t, count)) for t in range(count)]


def gae_by_n_step_mixture(rewards, values, gamma, lam):
    """Compute A_t as a mixture of n-step advantages, where the last one has the remaining weight."""
    count, result = len(rewards), []
    for t in range(count):
        steps = []
        for n in range(1, count - t + 1):
            total = sum(gamma**i * rewards[t + i] for i in range(n))
            steps.append(total + (gamma**n * values[t + n] if t + n < count else 0.0) - values[t])
        weights = [(1 - lam) * lam**i for i in range(len(steps) - 1)]
        result.append(sum(w * step for w, step in zip(weights, steps, strict=False)) + lam ** len(weights) * steps[-1])
    return result


@pytest.mark.parametrize("gamma", [1.0, 0.97, 0.0])
@pytest.mark.parametrize("lam", [0.0, 0.9, 1.0])
@pytest.mark.parametrize("count", [1, 2, 60])
def test_gae_is_its_double_sum(gamma, lam, count):
    random = np.random.default_rng(count)
    rewards, values = random.normal(size=(2, count))
    advantages, returns = gae(rewards, values, gamma=gamma, lam=lam)
    assert np.abs(advantages - gae_by_definition(rewards, values, gamma, lam)).max() < 1e-12
    assert np.abs(advantages - gae_by_n_step_mixture(rewards, values, gamma, lam)).max() < 1e-12
    assert np.abs(returns - advantages - values).max() < 1e-12


def test_lam_one_without_discount_is_rewards_to_come_minus_the_value():
    rewards, values = np.array([0.0, 1.0, 0.0, 2.0]), np.array([0.5, 0.25, 0.0, 1.0])
    advantages, returns = gae(rewards, values, gamma=1.0, lam=1.0)
    assert returns.tolist() == [3.0, 3.0, 2.0, 2.0]
    assert advantages.tolist() == [2.5, 2.75, 2.0, 1.0]


def test_rewards_cross_the_end_of_a_turn():
    """A later turn's reward reaches earlier tokens; an earlier turn's reward reaches no later token."""
    late, _ = gae(np.array([0.0, 0.0, 0.0, 1.0]), np.zeros(4), gamma=1.0, lam=0.5)
    assert late.tolist() == [0.125, 0.25, 0.5, 1.0]
    early, _ = gae(np.array([0.0, 1.0, 0.0, 0.0]), np.zeros(4), gamma=1.0, lam=0.5)
    assert early.tolist() == [0.5, 1.0, 0.0, 0.0]


def test_float32_goes_in_float64_comes_out():
    row = np.array([0.1, 0.2], dtype=np.float32)
    advantages, returns = gae(row, row, gamma=1.0, lam=0.95)
    assert advantages.dtype == returns.dtype == np.float64


@pytest.mark.parametrize(("rewards", "values"), [((3,), (2,)), ((2, 2), (2, 2))])
def test_other_shapes_are_refused(rewards, values):
    with pytest.raises(ValueError, match="one row of equal length"):
        gae(np.zeros(rewards), np.zeros(values), gamma=1.0, lam=1.0)


def test_whitening_is_over_all_tokens_of_all_rows():
    rows = whiten([np.array([1.0, 2.0, 3.0]), np.array([10.0])])
    tokens = np.concatenate(rows)
    assert tokens.mean() == pytest.approx(0.0, abs=1e-12)
    assert tokens.std() == pytest.approx(1.0, rel=1e-6)
    assert [len(row) for row in rows] == [3, 1]
    assert np.concatenate(whiten([np.full(3, 0.3), np.full(2, 0.3)])).tolist() == pytest.approx([0.0] * 5, abs=1e-6)


def test_explained_variance():
    returns = [np.array([1.0, 2.0]), np.array([4.0])]
    assert explained_variance(returns, returns) == 1.0
    assert explained_variance([row * 0 + 7 for row in returns], returns) == pytest.approx(0.0)
    assert explained_variance([-row for row in returns], returns) == pytest.approx(-3.0)
    assert explained_variance(returns, [row * 0 for row in returns]) == 0.0
