"""Files of weights that are written tensor by tensor."""

from __future__ import annotations

import pytest
import torch
from tiny import tiny_model
from transformers import AutoModelForCausalLM

from memalpha.train.learner import sharded_files
from memalpha.train.learner.distributed import SINGLE_PROCESS
from memalpha.train.learner.sharded_files import read_weights, write_weights


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("file_bytes", [1 << 30, 20_000])
def test_weights_in_one_or_several_files_are_a_model_directory(tmp_path, monkeypatch, tied, file_bytes):
    monkeypatch.setattr(sharded_files, "FILE_BYTES", file_bytes)
    model = tiny_model(tied=tied)
    write_weights(model, tmp_path, SINGLE_PROCESS)
    files = list(tmp_path.glob("*.safetensors"))
    assert (len(files) == 1) == (file_bytes > 20_000) == (not (tmp_path / "model.safetensors.index.json").exists())
    expected = model.state_dict()
    loaded, other = AutoModelForCausalLM.from_pretrained(tmp_path), tiny_model(seed=1, tied=tied)
    read_weights(other, tmp_path)
    for state in (loaded.state_dict(), other.state_dict()):
        assert state.keys() == expected.keys()
        assert all(torch.equal(value, expected[name]) for name, value in state.items())
    files[0].unlink()
    with pytest.raises((KeyError, FileNotFoundError)):
        read_weights(other, tmp_path)
