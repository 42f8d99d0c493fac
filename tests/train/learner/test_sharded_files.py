"""Files of sharded weights and optimizers, written by one process."""

from __future__ import annotations

import pytest
import torch
from tiny import tiny_model
from transformers import AutoModelForCausalLM

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
