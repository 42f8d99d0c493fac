"""Files of sharded weights and optimizers, written by one process."""

from __future__ import annotations

import pytest
import torch
from tiny import tiny_model
from transformers import AutoModelForCausalLM
from two_processes import UNEVEN, rows

from memalpha.config import TrainConfig
from memalpha.errors import CheckpointError
from memalpha.train.learner.engine import Engine


def sharded_engine(tmp_path, model) -> Engine:
    engine = Engine(model, TrainConfig(out=tmp_path / "none"))
    engine.is_sharded = True  # as with FSDP and a sampler on a server
    return engine


@pytest.mark.parametrize("tied", [True, False])
def test_weights_are_a_model_directory(tmp_path, tied):
    engine = sharded_engine(tmp_path, tiny_model(tied=tied))
    engine.write_shards(tmp_path / "model")
    assert {path.name for path in (tmp_path / "model").iterdir()} == {
        *("model.safetensors", "config.json", "generation_config.json")
    }
    loaded, other = AutoModelForCausalLM.from_pretrained(tmp_path / "model"), tiny_model(seed=1, tied=tied)
    sharded_engine(tmp_path, other).read(tmp_path / "model")
    expected = engine.model.state_dict()
    for state in (loaded.state_dict(), other.state_dict()):
        assert state.keys() == expected.keys()
        assert all(torch.equal(value, expected[name]) for name, value in state.items())
    with pytest.raises(CheckpointError, match="lm_head"):
        sharded_engine(tmp_path, tiny_model(tied=False)).read(tmp_path / "model") if tied else engine.read(tmp_path)


def test_an_optimizer_is_restored_bit_for_bit(tmp_path):
    engine, other = (sharded_engine(tmp_path, tiny_model()) for _ in range(2))
    engine.update(rows(UNEVEN, 0.0), 1e-2)
    engine.write_optimizer(tmp_path / "optimizer", extra=torch.arange(3))
    extra = torch.zeros(3, dtype=torch.int64)
    other.load_optimizer(tmp_path / "optimizer", extra=extra)
    expected, actual = engine.optimizer_tensors(), other.optimizer_tensors()
    assert extra.tolist() == [0, 1, 2] and expected.keys() == actual.keys() and len(expected) > 10
    assert all(torch.equal(value, actual[name]) for name, value in expected.items())
