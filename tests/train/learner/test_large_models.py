"""What makes large models fit: weights in 4 bits, Adam in host memory; and log-probs after a step against float64."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest
import torch
from test_engine import config
from tiny import tiny_llama, tiny_model, tiny_tokenizer

from memalpha.config.groups import LoadingConfig
from memalpha.errors import ConfigError
from memalpha.policy.load import load_policy, write_merged
from memalpha.policy.transformers import TransformersPolicy
from memalpha.train.data.samples import policy_gradient_sample
from memalpha.train.learner.engine import Engine
from memalpha.train.learner.lora import add_lora
from memalpha.train.trainers.directory import load_checkpoint, write_checkpoint
from memalpha.train.trainers.trainer import load_start
from memalpha.types import SampleRequest, Turn

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")  # peft calls transformers by names on their way out

MODELS = {"qwen3": tiny_model, "llama": tiny_llama}
NEEDS_BITSANDBYTES = "needs bitsandbytes: pip install 'memalpha[quantize]'"


def save(folder, kind: str = "llama"):
    """Write a random model with a tokenizer and return its folder."""
    MODELS[kind]().save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder


def sampled_rows(policy: TransformersPolicy, count: int = 6):
    """Sample ragged rows with alternating advantages."""
    requests = [
        SampleRequest(({"role": "user", "content": "hello" * i},), key=(1, i), temperature=0.8, max_new_tokens=12)
        for i in range(1, count + 1)
    ]
    return [
        policy_gradient_sample(Turn(chunk=0, completion=completion), (-1.0) ** i, task=str(i))
        for i, completion in enumerate(policy.sample(requests))
    ]


def largest_gap(first, second) -> float:
    return max(float(np.abs(np.asarray(a) - np.asarray(b)).max()) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize("lora", [None, {"r": 4}], ids=["full", "lora"])
def test_adam_in_host_memory_steps_bit_for_bit(tmp_path, lora):
    """Clipped steps, a checkpoint, a resumed run and a value head: as without `offload_optimizer`."""
    start = TransformersPolicy(tiny_model(), tiny_tokenizer())
    rows = sampled_rows(start)

    def engine(offload: bool, seed: int = 0) -> Engine:
        settings = config(lora=lora, max_grad_norm=0.5, weight_decay=0.1, offload_optimizer=offload)
        model = tiny_model() if lora is None else add_lora(tiny_model(), settings.lora, "tiny", seed)
        return Engine(model, settings, value_learning_rate=3e-3)

    plain, offloaded = engine(False), engine(True)
    for learner in (plain, offloaded):
        for _ in range(2):
            assert learner.update(rows, 1e-3)["grad_norm"] > 0.5
    write_checkpoint(tmp_path / "step-2", start, offloaded, {})
    resumed = engine(True, seed=5)
    load_checkpoint(tmp_path / "step-2", resumed)
    for learner in (plain, offloaded, resumed):
        learner.update(rows, 1e-3)
    assert all(not value.is_cuda for value in offloaded.optimizer_tensors().values())
    for other in (offloaded, resumed):
        assert all(torch.equal(part, other.trainable[name]) for name, part in plain.trainable.items())
        states = other.optimizer_tensors()
        assert all(torch.equal(value, states[name]) for name, value in plain.optimizer_tensors().items())


def test_4_bits_without_bitsandbytes_say_what_to_install(tmp_path, monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "bitsandbytes" else find(name))
    with pytest.raises(ConfigError, match=r"compute\.load_in_4bit: needs bitsandbytes: pip install .*\[quantize\]"):
        load_policy(save(tmp_path), loading=LoadingConfig(load_in_4bit=True))


def test_qlora_trains_resumes_and_merges_into_the_unquantized_base(tmp_path):
    pytest.importorskip("bitsandbytes", reason=NEEDS_BITSANDBYTES)
    base, loading = save(tmp_path / "base"), LoadingConfig(load_in_4bit=True)
    settings = config(lora={"r": 4}, load_in_4bit=True, learning_rate=1e-2, policy=str(base), dtype="float32")

    def learner(seed: int = 0) -> tuple[TransformersPolicy, Engine]:
        policy = load_start(settings).policy
        return policy, Engine(add_lora(policy.model, settings.lora, str(base), seed), settings, reference=True)

    policy, engine = learner()
    assert str(base) not in Path("/proc/self/maps").read_text(), "the unpacked weights are let go"
    assert type(policy.model.model.layers[0].mlp.up_proj.base_layer).__name__ == "Linear4bit"
    assert policy.model.config.quantization_config.bnb_4bit_quant_type == "nf4"
    assert policy.model.config.quantization_config.bnb_4bit_use_double_quant
    rows = sampled_rows(policy)
    start = engine.forward(rows)
    for _ in range(2):
        engine.update(rows, 1e-2)
    rows = sampled_rows(policy)
    assert largest_gap([row.logprobs for row in rows], engine.forward(rows)) < 1e-5, (
        "the learner recomputes the sampler"
    )
    assert largest_gap(start, engine.forward(sampled_rows(load_start(settings).policy), reference=True)) < 1e-5

    write_checkpoint(tmp_path / "step-2", policy, engine, {})
    engine.update(rows, 1e-2)
    _, resumed = learner(seed=3)
    load_checkpoint(tmp_path / "step-2", resumed)
    resumed.update(rows, 1e-2)
    assert all(torch.equal(part, resumed.trainable[name]) for name, part in engine.trainable.items())

    adapters = load_policy(tmp_path / "step-2", loading=loading)
    assert adapters.parameters > load_policy(base).parameters, "adapters of weights in 4 bits are not merged"
    merged = load_policy(write_merged(tmp_path / "step-2", tmp_path / "merged"))
    assert type(merged.model.model.layers[0].mlp.up_proj) is torch.nn.Linear
    changed = config(lora={}, load_in_4bit=True, policy=str(tmp_path / "step-2"))
    with pytest.raises(ConfigError, match=r"compute\.load_in_4bit: .*holds adapters.*memalpha merge"):
        load_start(changed)
