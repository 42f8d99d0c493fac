"""The learner behind futures: pipelined equals one by one, accumulation, losses of one's own, failures."""

from __future__ import annotations

import asyncio
import copy
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import tiny_model, tiny_policy
from two_processes import UNEVEN, rows

from memalpha.config import TrainConfig
from memalpha.errors import TrainingError
from memalpha.train.learner.async_engine import Learner, merge_metrics
from memalpha.train.learner.engine import Engine

ROWS = rows(UNEVEN, 0.01)
CALLS = ("forward", "forward_backward", "own loss", "optim_step")


def engine(model=None, **changes) -> Engine:
    config = TrainConfig(**{"out": Path("unused"), "microbatch_tokens": 96, **changes})
    return Engine(model or tiny_model(), config)


def coupled(logprobs, samples) -> torch.Tensor:
    """A loss over all rows together: preferences of each row over the next, and the spread of the rows' means."""
    sums = torch.stack([row.sum() for row in logprobs])
    means = torch.stack([row.mean() for row in logprobs])
    signs = torch.tensor([float(np.sign(sample.advantages[0])) for sample in samples])
    return -torch.nn.functional.logsigmoid(0.1 * (sums[1:] - sums[:-1])).sum() + (signs * means).var()


def state(one: Engine) -> dict[str, torch.Tensor]:
    weights = {name: value.detach().clone() for name, value in one.model.named_parameters()}
    gradient = {f"{name}.grad": value.grad.clone() for name, value in one.trainable.items() if value.grad is not None}
    return {**weights, **gradient, **one.optimizer_tensors()}


def assert_same(one: Engine, two: Engine) -> None:
    first, second = state(one), state(two)
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)


def call(learner: Learner, name: str, part):
    if name == "forward":
        return learner.forward(part)
    if name == "own loss":
        return learner.forward_backward(part, loss=coupled)
    return learner.forward_backward(part) if name == "forward_backward" else learner.optim_step(1e-2)


def as_bytes(result):
    return [row.tobytes() for row in result] if isinstance(result, list) else result


@settings(deadline=None, max_examples=12)
@given(st.lists(st.tuples(st.sampled_from(CALLS), st.integers(0, 8)), min_size=1, max_size=6))
def test_pipelined_equals_sequential_bit_for_bit(plan):
    sequential, pipelined = engine(), engine()
    plan = [(name, ROWS[first : first + 3]) for name, first in plan]
    with Learner(sequential, inline=True) as learner:
        expected = [as_bytes(call(learner, name, part).result()) for name, part in plan]
    with Learner(pipelined) as learner:
        futures = [call(learner, name, part) for name, part in plan]
    assert [as_bytes(future.result(0)) for future in futures] == expected
    assert_same(pipelined, sequential)


def test_an_update_is_the_engine_s():
    one, two = engine(), engine()
    with Learner(two) as learner:
        for _ in range(2):
            expected = one.update(ROWS, 1e-2)
            assert learner.update(ROWS, rate=1e-2).result() == expected
    assert_same(two, one)


def test_parts_of_an_update_are_normalised_together():
    whole, parts = engine(), engine()
    parted = (ROWS[:2], ROWS[2:9], ROWS[9:])
    with Learner(whole) as learner:
        expected = learner.update(ROWS, rate=1e-2).result()
    with Learner(parts) as learner:
        found = learner.update(*parted, rate=1e-2).result()
        again = learner.normalized(*parted)
    quantile = expected.pop("old_p99"), found.pop("old_p99")
    assert quantile[1] == pytest.approx(quantile[0], rel=0.5)
    assert found == pytest.approx(expected, rel=1e-4, abs=1e-6)
    expected_rows = [row.pg for row in whole.normalized(ROWS)]
    assert all(map(np.array_equal, [row.pg for part in again for row in part], expected_rows))
    apart = [(a - b).norm() / b.norm() for a, b in zip(parts.trainable.values(), whole.trainable.values(), strict=True)]
    assert max(apart) < 1e-5


def test_figures_of_several_passes_are_those_of_one():
    one = {"loss": 1.0, "tokens": 1.0, "entropy": 4.0, "old_max": 0.5, "ratio_deviation": 0.1, "old_p99": 0.0}
    two = {"loss": 2.0, "tokens": 3.0, "entropy": 0.0, "old_max": 0.2, "ratio_deviation": 0.3, "old_p99": 1.0}
    expected = {"loss": 3.0, "tokens": 4.0, "entropy": 1.0, "old_max": 0.5, "ratio_deviation": 0.3, "old_p99": 0.75}
    assert merge_metrics([one, two]) == expected and merge_metrics([one]) == one


@pytest.mark.parametrize("tokens", [10**6, 96, 1])
def test_a_loss_of_one_s_own_has_the_gradient_of_autograd_in_float64(tokens):
    ours = engine(microbatch_tokens=tokens)
    exact = copy.deepcopy(ours.model).double()
    with Learner(ours) as learner:
        result = learner.forward_backward(ROWS, loss=coupled).result()

    def score(row) -> torch.Tensor:
        ids = torch.tensor([row.prompt_ids + row.completion_ids])
        logits = exact(input_ids=ids).logits[0, len(row.prompt_ids) - 1 : -1] / row.temperature
        return torch.log_softmax(logits, -1).gather(1, torch.tensor(row.completion_ids)[:, None])[:, 0]

    value = coupled([score(row) for row in ROWS], ROWS)
    value.backward()
    assert result["loss"] == pytest.approx(value.item(), rel=1e-5)
    found = torch.cat([tensor.grad.flatten().double() for tensor in ours.trainable.values()])
    expected = torch.cat([dict(exact.named_parameters())[name].grad.flatten() for name in ours.trainable])
    assert (found - expected).norm() / expected.norm() < 1e-5


def test_a_loss_of_one_s_own_may_leave_rows_out_and_reads_no_weights():
    one, two = engine(), engine()
    with Learner(one) as learner:
        learner.forward_backward(ROWS[:2], loss=lambda logprobs, samples: -logprobs[0].sum()).result()
    nothing = np.zeros(len(ROWS[0].completion_ids), dtype=np.float32)
    two.forward_backward([replace(ROWS[0], pg=nothing, ent=None, ce=nothing + 1)])
    for a, b in zip(one.trainable.values(), two.trainable.values(), strict=True):
        assert torch.allclose(a.grad, b.grad, atol=1e-7)


@pytest.mark.parametrize(
    "loss, told",
    [
        (lambda logprobs, samples: 3.0, "3.0 has no gradient"),
        (lambda logprobs, samples: logprobs[1], r"one of shape \(\d+,\) has no gradient"),
        (lambda logprobs, samples: torch.tensor(1.0), r"one of shape \(\) has no gradient"),
        (lambda logprobs, samples: (logprobs[0].sum() * 0).log(), "loss: -inf, or its gradient, is not finite"),
        (lambda logprobs, samples: (logprobs[0] * 0).sum().sqrt(), "loss: (-?)0, or its gradient, is not finite"),
    ],
)
def test_a_loss_without_a_use_is_refused(loss, told):
    with Learner(engine()) as learner, pytest.raises(TrainingError, match=told):
        learner.forward_backward(ROWS, loss=loss).result()


def test_nothing_is_done_after_a_failure_and_a_new_learner_starts_clean():
    ours = engine()
    before = state(ours)
    bad = replace(ROWS[0], advantages=ROWS[0].advantages * np.nan)
    learner = Learner(ours)
    passed, step = learner.forward_backward([bad]), learner.optim_step(1e-2)
    later = [learner.forward(ROWS), learner.update(ROWS, rate=1e-2)]
    assert np.isnan(passed.result()["loss"])
    with pytest.raises(TrainingError, match="the gradient norm is nan") as first:
        step.result()
    for future in later:
        with pytest.raises(TrainingError, match=r"was not done: optim_step before it failed \(the gradient") as told:
            future.result()
        assert told.value.__cause__ is first.value
    learner.close()
    fresh = engine()
    with Learner(ours) as learner, Learner(fresh) as other:
        assert all(torch.equal(value, before[name]) for name, value in state(ours).items())
        assert learner.update(ROWS, rate=1e-2).result() == other.update(ROWS, rate=1e-2).result()
    assert_same(ours, fresh)


def test_what_is_saved_is_what_was_there_in_that_place_of_the_order(tmp_path):
    policy = tiny_policy()
    ours = engine(policy.model)
    with Learner(ours) as learner:
        learner.update(ROWS, rate=1e-2)
        saved = learner.save(tmp_path, 1, policy, {"note": 7})
        after = [learner.update(ROWS, rate=1e-2), learner.forward(ROWS)]
        expected = state(ours) if after[-1].result() else {}
        loaded = learner.load(saved.result())
        again = [learner.update(ROWS, rate=1e-2), learner.forward(ROWS)]
    assert saved.result() == tmp_path / "checkpoints" / "step-1" and loaded.result()["note"] == 7
    assert again[0].result() == after[0].result()
    assert as_bytes(again[1].result()) == as_bytes(after[1].result())
    assert all(torch.equal(value, expected[name]) for name, value in state(ours).items())


def test_a_program_awaits_what_the_learner_does_beside_it():
    ours, other = engine(), engine()

    async def program() -> float:
        with Learner(ours) as learner:
            first = learner.forward_backward(learner.normalized(ROWS)[0])
            second = learner.optim_step(1e-2)
            await asyncio.sleep(0)
            return (await first)["loss"] + await second

    expected = other.update(ROWS, 1e-2)
    assert asyncio.run(program()) == expected["loss"] + expected["grad_norm"]
    assert_same(ours, other)
