"""The value head: its inputs, its training, and that it changes nothing else."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny import tiny_model, tiny_policy

from memalpha.config import LoraConfig, TrainConfig
from memalpha.errors import CheckpointError, TrainingError
from memalpha.train.data.samples import TrainingSample
from memalpha.train.learner.engine import Engine
from memalpha.train.learner.lora import add_lora
from memalpha.train.learner.loss_weights import normalize
from memalpha.train.learner.losses import LossSettings
from memalpha.train.trainers.checkpoint import VALUE_HEAD, load_checkpoint, load_weights
from memalpha.train.trainers.directory import RunDirectory

CLIP = 0.2


def config(**changes) -> TrainConfig:
    return TrainConfig(out=Path("unused"), warmup_steps=0, **{"microbatch_tokens": 100, "head_tokens": 7, **changes})


def rows(count: int = 9, weight: float = 0.3) -> list[TrainingSample]:
    """Return ragged rows with old values and returns, some beyond the clip range."""
    noise = np.random.default_rng(0)
    result = []
    for number in range(count):
        length = 1 + 3 * (number % 4)
        ones = np.ones(length, dtype=np.float32)
        old = noise.normal(size=length).astype(np.float32)
        row = TrainingSample(
            prompt_ids=tuple(noise.integers(3, 200, 4 + 5 * (number % 5)).tolist()),
            completion_ids=tuple(noise.integers(3, 200, length).tolist()),
            logprobs=-ones,
            advantages=noise.normal(size=length).astype(np.float32),
            pg=ones,
            ce=ones * 0,
            kl=ones * 0,
            values=old,
            returns=(old + 0.5 * noise.normal(size=length)).astype(np.float32),
            vf=ones * np.float32(weight),
        )
        result.append(row)
    return result


def make_engine(model=None, loss=LossSettings(cliprange_value=CLIP), noise=0.1, **changes) -> Engine:  # noqa: B008
    """Build an engine with a non-zero value head."""
    engine = Engine(tiny_model() if model is None else model, config(**changes), loss, value_learning_rate=1e-3)
    torch.manual_seed(4)
    with torch.no_grad():
        for part in engine.value_head.values():
            part.add_(noise * torch.randn_like(part))
    return engine


def values64(engine: Engine, row: TrainingSample, model) -> torch.Tensor:
    """Compute one row's values in float64, from the states that predict its tokens."""
    weight, bias = (engine.value_head[f"value_head.{name}"].detach().double() for name in ("weight", "bias"))
    hidden = model.base_model(input_ids=torch.tensor([row.prompt_ids + row.completion_ids])).last_hidden_state[0]
    return hidden[len(row.prompt_ids) - 1 : -1] @ weight[0] + bias


def test_values_come_from_the_states_before_the_tokens():
    engine = make_engine()
    exact = copy.deepcopy(engine.model).double()
    for row, values in zip(rows(), engine.values(rows()), strict=True):
        expected = values64(engine, row, exact).detach().numpy()
        assert values.shape == expected.shape == (len(row.completion_ids),)
        assert np.abs(values - expected).max() < 1e-5


def test_the_first_values_are_zero():
    engine = Engine(tiny_model(), config(), value_learning_rate=1e-3)
    assert not np.concatenate(engine.values(rows())).any()


@pytest.mark.parametrize("clip", [CLIP, None])
@pytest.mark.parametrize("changes", [{}, {"microbatch_tokens": 10**6}, {"gradient_checkpointing": True}])
def test_gradient_of_the_value_loss_equals_float64(clip, changes):
    engine = make_engine(loss=LossSettings(cliprange_value=clip), noise=0.3, **changes)
    samples = [replace(row, pg=row.pg * 0) for row in rows()]
    metrics = engine.forward_backward(normalize(samples, "token"))
    model = copy.deepcopy(engine.model).double()
    leaves = {name: part.detach().double().requires_grad_() for name, part in engine.value_head.items()}
    total, count, silent = torch.zeros((), dtype=torch.float64), 0, 0
    for row in samples:
        hidden = model.base_model(input_ids=torch.tensor([row.prompt_ids + row.completion_ids])).last_hidden_state[0]
        new = hidden[len(row.prompt_ids) - 1 : -1] @ leaves["value_head.weight"][0] + leaves["value_head.bias"]
        old, target = (torch.tensor(part, dtype=torch.float64) for part in (row.values, row.returns))
        for at in range(len(old)):
            worse = (new[at] - target[at]) ** 2
            if clip is not None:
                near = torch.min(torch.max(new[at], old[at] - clip), old[at] + clip)
                silent += bool((near - target[at]) ** 2 > worse)
                worse = max(worse, (near - target[at]) ** 2)
            total, count = total + worse / 2, count + 1
    (0.3 * total / count).backward()
    assert (clip is not None) == (0 < silent < count)
    assert metrics["value_loss"] == pytest.approx(float(total.detach()) / count, rel=1e-5)
    assert metrics["loss"] == pytest.approx(0.3 * metrics["value_loss"], rel=1e-5)
    pairs = [
        *((part.grad, leaves[name].grad) for name, part in engine.value_head.items()),
        *((part.grad, dict(model.named_parameters())[name].grad) for name, part in engine.model.named_parameters()),
    ]
    actual, expected = (torch.cat([pair[i].flatten().double() for pair in pairs]) for i in (0, 1))
    assert float((actual - expected).norm() / expected.norm()) < 1e-5


def test_a_head_changes_nothing_else():
    """Two steps without a value loss equal those of an engine without a head bit for bit."""
    with_head, without = Engine(tiny_model(), config(), value_learning_rate=1e-3), Engine(tiny_model(), config())
    samples = [replace(row, vf=None) for row in rows()]
    for _ in range(2):
        metrics = [engine.update(samples, 1e-3) for engine in (with_head, without)]
        assert metrics[0] == {**metrics[1], "value_loss": 0.0}
    assert all(torch.equal(part, without.trainable[name]) for name, part in with_head.model.named_parameters())
    assert "value_loss" not in metrics[1]
    with pytest.raises(TrainingError, match="no value head"):
        without.values(samples)


def test_the_head_has_a_learning_rate_of_its_own():
    """Adam's first step is as large as its learning rate."""
    engine = make_engine(learning_rate=1e-4)
    before = {name: part.detach().clone() for name, part in engine.trainable.items()}
    engine.update(rows(), 0.5e-4)  # half of the schedule's
    moved = {name: float((part.detach() - before[name]).abs().max()) for name, part in engine.trainable.items()}
    assert moved["value_head.bias"] == pytest.approx(0.5e-3, rel=1e-2)
    assert moved["model.embed_tokens.weight"] == pytest.approx(0.5e-4, rel=1e-2)


def test_with_adapters_in_bfloat16_the_head_stays_float32():
    model = add_lora(tiny_model().bfloat16(), LoraConfig(r=3), "tiny")
    engine = make_engine(model, noise=0.1, dtype="bfloat16", lora=LoraConfig(r=3), gradient_checkpointing=True)
    exact = copy.deepcopy(engine.model.get_base_model()).double()
    for row, values in zip(rows(), engine.values(rows()), strict=True):
        assert values.dtype == np.float32
        assert values == pytest.approx(values64(engine, row, exact).detach().numpy(), abs=0.1)
    engine.update(rows(), 1e-7)
    assert {part.dtype for part in engine.trainable.values()} == {torch.float32}
    assert set(engine.trainable) - set(engine.value_head) == {name for name in engine.trainable if "lora_" in name}


def test_a_checkpoint_keeps_the_head_beside_a_plain_model(tmp_path):
    policy = tiny_policy()
    engine = make_engine(policy.model)
    engine.update(rows(), 1e-3)
    path = RunDirectory(tmp_path).save_checkpoint(1, policy, engine, {})
    saved_values = engine.values(rows())
    after = [engine.update(rows(), 1e-3), engine.values(rows())]
    assert not np.array_equal(np.concatenate(saved_values), np.concatenate(after[1]))
    load_weights(path, engine)
    assert np.array_equal(np.concatenate(saved_values), np.concatenate(engine.values(rows())))

    fresh = Engine(tiny_model(1), config(), LossSettings(cliprange_value=CLIP), value_learning_rate=1e-3)
    load_checkpoint(path, fresh)
    assert np.array_equal(np.concatenate(saved_values), np.concatenate(fresh.values(rows())))
    assert fresh.update(rows(), 1e-3) == after[0]
    assert np.array_equal(np.concatenate(after[1]), np.concatenate(fresh.values(rows())))

    plain = Engine(tiny_model(1), config())
    load_weights(path, plain)
    assert not plain.value_head
    (path / VALUE_HEAD).unlink()
    with pytest.raises(CheckpointError, match="step-1 cannot be loaded"):
        load_weights(path, fresh)
