"""The learner behind futures: pipelined equals sequential, accumulation, custom losses, failures."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import oracle
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import tiny_model, tiny_policy
from two_processes import UNEVEN, rows

from memalpha.config import TrainConfig
from memalpha.errors import TrainingError
from memalpha.train.learner.async_engine import Learner
from memalpha.train.learner.engine import Engine

ROWS = rows(UNEVEN, 0.01)
CALLS = ("forward", "forward_backward", "custom loss", "optim_step")


def make_engine(model=None, **changes) -> Engine:
    config = TrainConfig(**{"out": Path("unused"), "microbatch_tokens": 96, **changes})
    return Engine(model or tiny_model(), config)


def coupled_loss(logprobs, samples) -> torch.Tensor:
    """Compute a loss that couples all rows: preferences between neighbours, and the variance of the row means."""
    sums = torch.stack([row.sum() for row in logprobs])
    means = torch.stack([row.mean() for row in logprobs])
    signs = torch.tensor([float(np.sign(sample.advantages[0])) for sample in samples])
    return -torch.nn.functional.logsigmoid(0.1 * (sums[1:] - sums[:-1])).sum() + (signs * means).var()


def state(engine: Engine) -> dict[str, torch.Tensor]:
    weights = {name: value.detach().clone() for name, value in engine.model.named_parameters()}
    gradient = {
        f"{name}.grad": value.grad.clone() for name, value in engine.trainable.items() if value.grad is not None
    }
    return {**weights, **gradient, **engine.optimizer_tensors()}


def assert_same(engine: Engine, other: Engine) -> None:
    first, second = state(engine), state(other)
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)


def call(learner: Learner, name: str, part):
    if name == "forward":
        return learner.forward(part)
    if name == "custom loss":
        return learner.forward_backward(part, loss=coupled_loss)
    return learner.forward_backward(part) if name == "forward_backward" else learner.optim_step(1e-2)


def as_bytes(result):
    return [row.tobytes() for row in result] if isinstance(result, list) else result


@settings(deadline=None, max_examples=12)
@given(st.lists(st.tuples(st.sampled_from(CALLS), st.integers(0, 8)), min_size=1, max_size=6))
def test_pipelined_equals_sequential_bit_for_bit(plan):
    sequential, pipelined = make_engine(), make_engine()
    plan = [(name, ROWS[first : first + 3]) for name, first in plan]
    with Learner(sequential, inline=True) as learner:
        expected = [as_bytes(call(learner, name, part).result()) for name, part in plan]
    with Learner(pipelined) as learner:
        futures = [call(learner, name, part) for name, part in plan]
    assert [as_bytes(future.result(0)) for future in futures] == expected
    assert_same(pipelined, sequential)


def test_parts_of_an_update_are_normalised_together():
    single, split = make_engine(), make_engine()
    parts = (ROWS[:2], ROWS[2:9], ROWS[9:])
    with Learner(single) as learner:
        expected = learner.update(ROWS, rate=1e-2).result()
    with Learner(split) as learner:
        metrics = learner.update(*parts, rate=1e-2).result()
        normalized = learner.normalized(*parts)
    quantile = expected.pop("old_p99"), metrics.pop("old_p99")
    assert quantile[1] == pytest.approx(quantile[0], rel=0.5)
    assert metrics == pytest.approx(expected, rel=1e-4, abs=1e-6)
    expected_rows = [row.pg for row in single.normalized(ROWS)]
    assert all(map(np.array_equal, [row.pg for part in normalized for row in part], expected_rows))
    distances = [
        (a - b).norm() / b.norm() for a, b in zip(split.trainable.values(), single.trainable.values(), strict=True)
    ]
    assert max(distances) < 1e-5


@pytest.mark.parametrize("tokens", [10**6, 96, 1])
def test_a_custom_loss_has_the_gradient_of_float64_autograd(tokens):
    engine = make_engine(microbatch_tokens=tokens)
    net = oracle.Net64(engine.model)
    with Learner(engine) as learner:
        result = learner.forward_backward(ROWS, loss=coupled_loss).result()
    value = coupled_loss(oracle.logprobs64(net, list(map(oracle.row_of, ROWS))), ROWS)
    assert result["loss"] == pytest.approx(value.item(), rel=1e-5)
    gradient = oracle.flat({name: part.grad for name, part in engine.trainable.items()}, net.weights)
    assert oracle.relative_error(gradient, oracle.gradient(value, net.weights)) < 1e-5


@pytest.mark.parametrize(
    "loss, message",
    [
        (lambda logprobs, samples: 3.0, "3.0 has no gradient"),
        (lambda logprobs, samples: logprobs[1], r"one of shape \(\d+,\) has no gradient"),
        (lambda logprobs, samples: torch.tensor(1.0), r"one of shape \(\) has no gradient"),
        (lambda logprobs, samples: (logprobs[0].sum() * 0).log(), "loss: -inf, or its gradient, is not finite"),
        (lambda logprobs, samples: (logprobs[0] * 0).sum().sqrt(), "loss: (-?)0, or its gradient, is not finite"),
    ],
)
def test_a_custom_loss_without_a_finite_gradient_is_refused(loss, message):
    with Learner(make_engine()) as learner, pytest.raises(TrainingError, match=message):
        learner.forward_backward(ROWS, loss=loss).result()


@pytest.mark.parametrize("rate", [-1e-3, math.inf, "1e-3"])
def test_a_rate_that_is_none_is_refused_before_anything_is_done(rate):
    with Learner(make_engine()) as learner:
        for request in (learner.optim_step, lambda rate: learner.update(ROWS, rate=rate)):
            with pytest.raises(TrainingError, match="a learning rate, 0 or above, is needed"):
                request(rate)


def test_nothing_runs_after_a_failure_and_a_new_learner_starts_clean():
    engine = make_engine()
    before = state(engine)
    bad = replace(ROWS[0], advantages=ROWS[0].advantages * np.nan)
    learner = Learner(engine)
    gradient, step = learner.forward_backward([bad]), learner.optim_step(1e-2)
    later = [learner.forward(ROWS), learner.update(ROWS, rate=1e-2)]
    assert np.isnan(gradient.result()["loss"])
    with pytest.raises(TrainingError, match="the gradient norm is nan") as step_error:
        step.result()
    for future in later:
        with pytest.raises(
            TrainingError, match=r"was not done: optim_step before it failed \(the gradient"
        ) as later_error:
            future.result()
        assert later_error.value.__cause__ is step_error.value
    learner.close()
    fresh = make_engine()
    with Learner(engine) as learner, Learner(fresh) as other:
        assert all(torch.equal(value, before[name]) for name, value in state(engine).items())
        assert learner.update(ROWS, rate=1e-2).result() == other.update(ROWS, rate=1e-2).result()
    assert_same(engine, fresh)


def test_a_checkpoint_holds_the_state_at_its_place_in_the_order(tmp_path):
    policy = tiny_policy()
    engine = make_engine(policy.model)
    with Learner(engine) as learner:
        learner.update(ROWS, rate=1e-2)
        saved = learner.save(str(tmp_path), 1, policy, {"note": 7})
        after = [learner.update(ROWS, rate=1e-2), learner.forward(ROWS)]
        expected = state(engine) if after[-1].result() else {}
        loaded = learner.load(str(saved.result()))
        repeated = [learner.update(ROWS, rate=1e-2), learner.forward(ROWS)]
    assert saved.result() == tmp_path / "checkpoints" / "step-1" and loaded.result()["note"] == 7
    assert repeated[0].result() == after[0].result()
    assert as_bytes(repeated[1].result()) == as_bytes(after[1].result())
    assert all(torch.equal(value, expected[name]) for name, value in state(engine).items())
