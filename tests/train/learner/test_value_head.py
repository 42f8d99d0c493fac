"""The value head: its start, rate and precision, and that it changes nothing else. Its gradient: PPO's in float64."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny import tiny_model, tiny_policy
from two_processes import UNEVEN
from two_processes import rows as policy_rows

from memalpha.config import TrainConfig
from memalpha.errors import CheckpointError, TrainingError
from memalpha.train.data.samples import TrainingSample
from memalpha.train.learner.engine import Engine
from memalpha.train.learner.losses import LossSettings
from memalpha.train.trainers.directory import VALUE_HEAD, load_weights, write_checkpoint

CLIP = 0.2


def config(**changes) -> TrainConfig:
    return TrainConfig(out=Path("unused"), warmup_steps=0, **{"microbatch_tokens": 100, "head_tokens": 7, **changes})


def rows() -> list[TrainingSample]:
    """Return ragged rows with old values and returns, some beyond the clip range."""
    noise = np.random.default_rng(0)
    result = []
    for row in policy_rows(UNEVEN, 0.0):
        old, gap = noise.normal(size=(2, len(row.pg))).astype(np.float32)
        result.append(replace(row, values=old, returns=old + gap / 2, vf=row.pg * np.float32(0.3)))
    return result


def make_engine(model=None, loss=LossSettings(cliprange_value=CLIP), noise=0.1, **changes) -> Engine:  # noqa: B008
    """Build an engine with a non-zero value head."""
    engine = Engine(tiny_model() if model is None else model, config(**changes), loss, value_learning_rate=1e-3)
    torch.manual_seed(4)
    with torch.no_grad():
        for part in engine.value_head.values():
            part.add_(noise * torch.randn_like(part))
    return engine


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


def test_a_checkpoint_without_the_head_is_refused(tmp_path):
    policy = tiny_policy()
    path = tmp_path / "step-1"
    write_checkpoint(path, policy, make_engine(policy.model), {})
    plain = Engine(tiny_model(1), config())
    load_weights(path, plain)
    assert not plain.value_head, "beside a plain model"
    (path / VALUE_HEAD).unlink()
    with pytest.raises(CheckpointError, match="step-1 cannot be loaded"):
        load_weights(path, make_engine())
