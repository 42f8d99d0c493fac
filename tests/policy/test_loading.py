"""How models are put into memory: attention, device map, batches; state-space models step as they prefill."""

from __future__ import annotations

import json

import pytest
import torch
from tiny import tiny_llama, tiny_model, tiny_tokenizer
from transformers import (
    FalconMambaConfig,
    FalconMambaForCausalLM,
    GPT2Config,
    Mamba2Config,
    Mamba2ForCausalLM,
    MambaConfig,
    MambaForCausalLM,
)

from memalpha.config import TrainConfig, build_config
from memalpha.config.groups import LoadingConfig
from memalpha.errors import ConfigError, PolicyError
from memalpha.policy.decoding_rows import PaddedRows
from memalpha.policy.load import load_policy
from memalpha.policy.model_files import max_positions
from memalpha.policy.transformers import TransformersPolicy
from memalpha.qa.from_config import load_config_reader, load_settings
from memalpha.train.learner.distributed import World
from memalpha.train.trainers.evaluations import FrozenPolicies
from memalpha.train.trainers.trainer import check_device_map, check_sampling_dtype, load_start, settings_of_small_models
from memalpha.types import SampleRequest


@pytest.fixture
def folder(tmp_path):
    tiny_llama().save_pretrained(tmp_path)
    tiny_tokenizer().save_pretrained(tmp_path)
    return tmp_path


def requests(count: int = 5) -> list[SampleRequest]:
    return [SampleRequest(({"role": "user", "content": "x" * i},), key=(2, i), max_new_tokens=6) for i in range(count)]


@pytest.mark.parametrize("name", ["nonsense", "flash_attention_2"])
def test_an_attention_that_does_not_work_here_names_its_key(folder, name):
    with pytest.raises(ConfigError, match=rf"compute\.attn_implementation: '{name}' does not work .*try sdpa or eager"):
        load_policy(folder, loading=LoadingConfig(attn_implementation=name))


@pytest.mark.parametrize("loading", [{"attn_implementation": "eager"}, {"device_map": "auto"}], ids=str)
def test_attention_and_device_map_sample_the_same_tokens(folder, loading):
    plain, other = load_policy(folder), load_policy(folder, loading=LoadingConfig(**loading))
    if "attn_implementation" in loading:
        assert other.model.config._attn_implementation == "eager"
    for first, second in zip(plain.sample(requests()), other.sample(requests()), strict=True):
        assert first.completion_ids == second.completion_ids
        assert first.logprobs == pytest.approx(second.logprobs, abs=1e-5)


@pytest.mark.parametrize(("name", "value"), [("pad_token_id", 9999), ("hidden_act", "nope")])
def test_a_configuration_that_transformers_cannot_use_is_refused(folder, name, value):
    config = folder / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {name: value}))
    with pytest.raises(PolicyError, match=r"cannot load policy .*(AssertionError|KeyError): "):
        load_policy(folder)


def test_an_unknown_device_map_is_refused(folder):
    with pytest.raises(ConfigError, match=r"compute\.device_map: no map 'gpus': give auto, balanced"):
        load_policy(folder, loading=LoadingConfig(device_map="gpus"))


def test_a_device_map_cannot_be_copied(folder):
    settings = build_config(TrainConfig, {"out": "unused", "device_map": "auto", "beta": 0.1}, "test")
    with pytest.raises(ConfigError, match=r"compute\.device_map: .*lora"):
        check_device_map(settings, World(), reference=True)
    with pytest.raises(ConfigError, match=r"compute\.device_map: .*accelerate launch"):
        check_device_map(settings, World(0, 2))


def test_the_keys_reach_every_model_of_a_run(folder):
    keys = {"attn_implementation": "eager", "batch_tokens": 4096, "decode_rows": 7}
    settings = build_config(TrainConfig, {"out": "unused", "policy": str(folder), **keys}, "test")
    for policy in (load_start(settings).policy, FrozenPolicies(settings).load(str(folder))):
        assert isinstance(policy, TransformersPolicy)
        assert policy.model.config._attn_implementation == "eager"
        assert (policy.batch_tokens, policy.batch_rows) == (4096, 7)
    keys = {"compute": {"attn_implementation": "eager"}, "sampling": {"batch_tokens": 99}}
    settings = load_settings("tasks", {"reader": {"kind": "policy", "policy": str(folder)}, **keys})
    policy = load_config_reader(settings).policy
    assert policy.model.config._attn_implementation == "eager" and policy.batch_tokens == 99


SMALL = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 8}
STATE_SPACE = {
    "mamba": lambda: MambaForCausalLM(MambaConfig(**SMALL)),
    "mamba2": lambda: Mamba2ForCausalLM(Mamba2Config(**SMALL, num_heads=4, head_dim=16, n_groups=1)),
    "falcon-mamba": lambda: FalconMambaForCausalLM(FalconMambaConfig(**SMALL)),
}


@pytest.mark.parametrize("kind", STATE_SPACE)
def test_a_state_space_model_steps_as_it_prefills(kind):
    """It takes its cache as `cache_params`; `past_key_values` was ignored, so each step saw its own token only."""
    torch.manual_seed(0)
    model = STATE_SPACE[kind]().eval()
    prompts = [[3, 4, 5, 6, 7, 8], [9, 10, 11], [3, 4, 5, 6, 7, 8]]
    rows = PaddedRows(model)
    with torch.no_grad():
        logits = rows.enter(prompts, [12] * 3)
        for step in range(3):
            for index, prompt in enumerate(prompts):
                expected = model(input_ids=torch.tensor([prompt])).logits[0, -1]
                torch.testing.assert_close(logits[index], expected, atol=1e-5, rtol=1e-4)
            tokens = [12 + step, 20 + step, 30 + step]
            prompts = [[*prompt, token] for prompt, token in zip(prompts, tokens, strict=True)]
            logits = rows.step(tokens)


def test_a_model_that_cannot_sample_in_float64_is_refused_before_the_run():
    policy = TransformersPolicy(tiny_llama(), tiny_tokenizer())
    policy.set_sampling_dtype("float64")
    check_sampling_dtype(policy, "float64")

    class Grouped(torch.nn.Module):
        def forward(self, hidden: torch.Tensor) -> torch.Tensor:
            if hidden.dtype == torch.float64:
                raise RuntimeError("Expected mat_a to be Float32, BFloat16 or Float16 matrix, got Double")
            return hidden

    policy.model.model.layers[1].mlp = Grouped()
    with pytest.raises(ConfigError, match=r"sampling\.dtype: LlamaForCausalLM cannot sample in float64 .*leave it out"):
        check_sampling_dtype(policy, "float64")


def test_settings_of_a_toy_are_named_for_a_large_model():
    settings = build_config(TrainConfig, {"out": "unused", "learning_rate": 4e-4, "sample_dtype": "float64"}, "test")
    notes = settings_of_small_models(settings, 4_000_000_000)
    assert [note.partition(":")[0] for note in notes] == [
        *("device=cpu", "dtype=float32", "sampling.dtype=float64", "learning_rate=0.0004")
    ]
    assert "16 GB" in notes[1] and "1e-06" in notes[3]
    assert not settings_of_small_models(settings, tiny_model().num_parameters())


def test_the_positions_of_a_family_that_names_them_otherwise_are_found():
    assert max_positions(GPT2Config(n_positions=77)) == 77
