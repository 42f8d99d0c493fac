"""The extension that runs inside the server: what it refuses, and the version it answers for."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from memalpha.policy.vllm.worker_extension import INDEX, WeightsExtension

CONFIG = {"model_type": "qwen3", "hidden_size": 32, "num_hidden_layers": 2, "rope_theta": 1.0}


@pytest.fixture
def worker():
    """A worker whose runner notes what it loads."""
    loads: list[str] = []
    worker = WeightsExtension()
    worker.model_runner = SimpleNamespace(
        model_config=SimpleNamespace(hf_config=SimpleNamespace(to_dict=lambda: CONFIG)),
        reload_weights=lambda weights_path: loads.append(weights_path),
        get_model=lambda: SimpleNamespace(),
    )
    return worker, loads


def write_model(folder, config=CONFIG, files=("model.safetensors",)):
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    for name in files:
        (folder / name).write_bytes(b"")
    return str(folder)


def test_a_version_holds_until_the_next_load(worker, tmp_path):
    extension, loads = worker
    assert extension.memalpha_version() is None
    folder = write_model(tmp_path / "a")
    assert extension.memalpha_load(folder, "v1") == {"version": "v1"} and loads == [folder]
    assert extension.memalpha_version() == "v1"


def test_what_cannot_be_loaded_leaves_the_old_weights(worker, tmp_path):
    extension, loads = worker
    extension.memalpha_load(write_model(tmp_path / "a"), "v1")
    index = tmp_path / "parts" / INDEX
    cases = {
        str(tmp_path / "nothing"): "no model directory",
        write_model(tmp_path / "empty", files=()): "lacks model.safetensors",
        write_model(tmp_path / "wide", CONFIG | {"hidden_size": 64}): "another shape \\(hidden_size\\)",
        write_model(tmp_path / "parts", files=("one.safetensors",)): "lacks two.safetensors",
    }
    index.write_text(json.dumps({"weight_map": {"a": "one.safetensors", "b": "two.safetensors"}}))
    for folder, message in cases.items():
        with pytest.raises(ValueError, match=message):
            raise ValueError(extension.memalpha_load(folder, "v2")["error"])
    assert extension.memalpha_version() == "v1" and len(loads) == 1


def test_a_load_that_fails_half_way_takes_the_version_back(worker, tmp_path):
    extension, _ = worker
    extension.memalpha_load(write_model(tmp_path / "a"), "v1")

    def fail(weights_path):
        raise RuntimeError("a tensor is missing")

    extension.model_runner.reload_weights = fail
    answer = extension.memalpha_load(write_model(tmp_path / "b"), "v2")
    assert "must be started again" in answer["error"] and extension.memalpha_version() is None
