"""Any architecture is planned, sampled and trained, or refused in words, never with a traceback."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tiny import nudged, tiny_tokenizer
from transformers import (
    AutoModelForCausalLM,
    BartConfig,
    BertConfig,
    DeepseekV3Config,
    Gemma3Config,
    GPTNeoXConfig,
    Llama4TextConfig,
    MambaConfig,
    MixtralConfig,
    PreTrainedConfig,
    Qwen3MoeConfig,
    RwkvConfig,
    T5Config,
)
from typer.testing import CliRunner

from memalpha.cli.main import app
from memalpha.config import LoraConfig, training_config
from memalpha.errors import ConfigError, PolicyError
from memalpha.policy.load import load_policy
from memalpha.policy.transformers import TransformersPolicy
from memalpha.train.learner.lora import add_lora
from memalpha.train.learner.token_logprobs import TokenScorer
from memalpha.train.plan import plan_run
from memalpha.types import SampleRequest

SMALL: dict[str, Any] = {
    "vocab_size": 512, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 48, "max_position_embeddings": 8192, "bos_token_id": None, "eos_token_id": 0,
    "pad_token_id": 0,
}  # fmt: skip
MLA = {
    "num_key_value_heads": 4, "n_routed_experts": 4, "n_group": 2, "topk_group": 1, "num_experts_per_tok": 2,
    "moe_intermediate_size": 16, "q_lora_rank": 8, "kv_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 4,
    "v_head_dim": 6, "first_k_dense_replace": 1, "head_dim": 4,
}  # fmt: skip
VISION = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
MODELS: dict[str, PreTrainedConfig] = {
    "mixtral": MixtralConfig(**SMALL, num_local_experts=4),
    "qwen3-moe": Qwen3MoeConfig(**SMALL, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16, head_dim=8),
    "deepseek-v3": DeepseekV3Config(**{**SMALL, **MLA}),
    "gemma3": Gemma3Config(text_config={**SMALL, "head_dim": 8, "sliding_window": 16}, vision_config=VISION),
    "llama4": Llama4TextConfig(**SMALL, num_local_experts=2, head_dim=8, intermediate_size_mlp=48),
    "gpt-neox": GPTNeoXConfig(**{key: value for key, value in SMALL.items() if key != "num_key_value_heads"}),
    "mamba": MambaConfig(vocab_size=512, hidden_size=32, num_hidden_layers=2, state_size=4, eos_token_id=0),
}
REFUSED: dict[str, tuple[PreTrainedConfig, str]] = {
    "t5": (T5Config(d_model=32), "of type 't5', an encoder-decoder model: take a decoder-only"),
    "bart": (BartConfig(d_model=32), "of type 'bart', an encoder-decoder model"),
    "bert": (BertConfig(hidden_size=32, num_attention_heads=4), "of type 'bert', an encoder, which writes no text"),
}


def write_config(config: PreTrainedConfig, folder: Path) -> str:
    config.save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return str(folder)


def settings(policy: str, **changes: Any) -> Any:
    base = {"policy": policy, "out": "unused", "device": "cuda", "dtype": "bfloat16", "tasks_per_step": 1}
    base |= {"group_size": 2, "reader": {"kind": "extractive"}, "agent": {"view_tokens": 64, "max_new_tokens": 16}}
    return training_config("demo", {**base, **changes})


@pytest.mark.parametrize("lora", [None, {"r": 4}])
@pytest.mark.parametrize("name", MODELS)
def test_a_plan_counts_any_decoder(name, lora, tmp_path):
    plan = plan_run(settings(write_config(MODELS[name], tmp_path), **({"lora": lora} if lora else {})), gpu="h100")
    model = plan["model"]
    assert 0 < model["trained"] <= model["parameters"] and (model["trained"] < model["parameters"]) == (
        lora is not None
    )
    assert all(min(phase["parts"].values()) >= 0 for phase in plan["memory"]["phases"])
    assert 0 < plan["memory"]["peak"]["bytes"] < 10**10 and plan["time"]["step_seconds"] > 0


@pytest.mark.parametrize("name", REFUSED)
def test_other_kinds_are_refused_in_words(name, tmp_path):
    config, message = REFUSED[name]
    policy = write_config(config, tmp_path)
    with pytest.raises(PolicyError, match=message):
        plan_run(settings(policy), gpu="h100")
    with pytest.raises(PolicyError, match=message):
        load_policy(policy, device="meta")
    command = ["train", "demo", f"policy={policy}", f"out={tmp_path / 'run'}", "--plan", "--gpu", "h100"]
    done = CliRunner().invoke(app, command)
    assert done.exit_code != 0 and not (tmp_path / "run").exists()


def test_a_state_that_cannot_be_sampled_is_refused(tmp_path):
    config = RwkvConfig(vocab_size=512, hidden_size=32, num_hidden_layers=2)
    with pytest.raises(PolicyError, match="RwkvForCausalLM keeps its state in a form of its own"):
        plan_run(settings(write_config(config, tmp_path)), gpu="h100")


def test_deepseek_samples_as_it_is_trained():
    """Its keys and values differ in width, which the sampler's cache refused."""
    torch.manual_seed(0)
    tokenizer = tiny_tokenizer()
    model = nudged(AutoModelForCausalLM.from_config(MODELS["deepseek-v3"]), 0, 0.1)
    policy = TransformersPolicy(model, tokenizer, "deepseek")
    messages = ({"role": "user", "content": "Ana lives in Porto."},)
    requests = [SampleRequest(messages, key=(0, n), temperature=1.0, max_new_tokens=6) for n in range(3)]
    scorer = TokenScorer(model)
    for completion in policy.sample(requests):
        ids, count = [*completion.prompt_ids, *completion.completion_ids], len(completion.completion_ids)
        positions = torch.arange(len(ids) - count - 1, len(ids) - 1)
        targets = torch.tensor(completion.completion_ids)
        logprobs, _, _ = scorer(torch.tensor([ids]), positions, targets, torch.ones(count))
        torch.testing.assert_close(logprobs, torch.tensor(completion.logprobs), atol=1e-4, rtol=0)


def test_llama4_is_scored_below_its_head():
    """Its `base_model` is the whole model, so that log-probs could not be computed."""
    model = AutoModelForCausalLM.from_config(MODELS["llama4"]).eval()
    ids = torch.arange(1, 9)[None]
    logprobs, _, _ = TokenScorer(model)(ids, torch.arange(7), ids[0, 1:], torch.ones(7))
    expected = torch.log_softmax(model(input_ids=ids).logits[0, :-1].double(), -1)[torch.arange(7), ids[0, 1:]]
    torch.testing.assert_close(logprobs.double(), expected, atol=1e-5, rtol=0)


def test_adapters_leave_out_what_mamba_fuses():
    model = AutoModelForCausalLM.from_config(MODELS["mamba"])
    adapted = add_lora(model, LoraConfig(r=2), "mamba")
    names = {name.split(".")[-3] for name, _ in adapted.named_parameters() if "lora_A" in name}
    assert names and not names & {"out_proj", "conv1d"}
    with pytest.raises(ConfigError, match="out_proj of 'mamba' is fused into a kernel"):
        add_lora(AutoModelForCausalLM.from_config(MODELS["mamba"]), LoraConfig(target_modules=("out_proj",)), "mamba")
