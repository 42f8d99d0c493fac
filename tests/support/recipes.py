"""Shipped recipes for real models, shrunk: their first step on a random model of the same architecture, on CPU."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from tiny import tiny_model, tiny_tokenizer
from transformers import LlamaConfig, LlamaForCausalLM

from memalpha.agent import mem_alpha
from memalpha.agent.agent import build_request
from memalpha.agent.parsing import format_call
from memalpha.config import AgentConfig, SFTConfig, TrainConfig, training_config
from memalpha.config.files import merge
from memalpha.policy.transformers import TransformersPolicy
from memalpha.store.schema import load_schema
from memalpha.train.api import train
from memalpha.types import Chunk, Observation

POSITIONS = 40960
"""Context of Qwen3; the shrunk models have it too, since a byte is one of their tokens."""
SMOLLM2_TEMPLATE = Path(__file__).parents[1] / "data" / "smollm2_chat_template.jinja"
SMOLLM2 = {  # config.json of HuggingFaceTB/SmolLM2-135M-Instruct
    "vocab_size": 49152,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "head_dim": 64,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "rope_parameters": {"rope_type": "default", "rope_theta": 100000.0},
    "tie_word_embeddings": True,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 2,
}


def add_prompt_tokens(tokenizer: Any) -> None:
    """Make each fixed line of the prompts and each fixed part of a call one token: prompts of bytes alone are slow."""
    prompt = mem_alpha.load_prompt(None)
    plain = TransformersPolicy(tiny_model(vocab=len(tokenizer)), tokenizer, "bytes")
    request = build_request(Observation(Chunk(text=".")), AgentConfig(), load_schema("mem-alpha"))
    lines = str(tokenizer.decode(plain.render_request(request))).splitlines()
    pieces = [piece for text in (prompt.system, prompt.user) for piece in re.split(r"\{\{\w+\}\}", text)]
    arguments = [{"category": name, "content": "*"} for name in ("semantic", "episodic")]
    calls = [("memory_insert", arguments[0]), ("memory_insert", arguments[1])]
    calls += [("memory_update", {"id": "*", "content": "*"}), ("memory_delete", {"id": "*"})]
    pieces += [piece for name, values in calls for piece in format_call(name, values).split("*")]
    tokenizer.add_tokens(list(dict.fromkeys(piece for piece in [*pieces, *lines] if len(piece) > 4)))


def smollm2_tokenizer() -> Any:
    """Return the tokenizer of bytes with SmolLM2's marks and its chat template, which drops tools."""
    tokenizer = tiny_tokenizer()
    marks = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>", "pad_token": "<|im_end|>"}
    tokenizer.add_special_tokens(marks)
    tokenizer.chat_template = SMOLLM2_TEMPLATE.read_text(encoding="utf-8")
    return tokenizer


def smollm2_model(tokenizer: Any) -> LlamaForCausalLM:
    """Make a random Llama with SmolLM2's ratios of widths and heads, at a hundredth of its size."""
    ids = {"bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id}
    sizes = {"hidden_size": 24, "intermediate_size": 64, "num_hidden_layers": 2, "head_dim": 8}
    heads = {"num_attention_heads": 3, "num_key_value_heads": 1}
    shape = {**SMOLLM2, **sizes, **heads, **ids, "pad_token_id": tokenizer.pad_token_id, "vocab_size": len(tokenizer)}
    return LlamaForCausalLM(LlamaConfig(**{**shape, "max_position_embeddings": POSITIONS}))


def shrunk_policy(folder: Path, recipe: str) -> Path:
    """Write a random model of the recipe's architecture to `folder` and return it: a Qwen3, or SmolLM2's Llama."""
    if not folder.exists():
        is_smollm2 = recipe.startswith("smollm2")
        tokenizer = smollm2_tokenizer() if is_smollm2 else tiny_tokenizer()
        add_prompt_tokens(tokenizer)
        model = smollm2_model(tokenizer) if is_smollm2 else tiny_model(vocab=len(tokenizer))
        model.config.max_position_embeddings = POSITIONS
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    return folder


def shrunk(recipe: str, folder: Path, **changes: Any) -> TrainConfig | SFTConfig:
    """Return a shipped recipe with smaller sizes; other keys stay as they are shipped, but for three.

    The device is the CPU, in float32 (bfloat16 is ten times slower on many). Replies of random weights never end, so
    cut ones are trained on, and the check of the first steps is off.

    Args:
        recipe: Name of the shipped configuration.
        folder: Folder for the run and the policy.
        changes: Further overrides, such as `data` where the recipe's own needs a download.
    """
    policy = str(shrunk_policy(folder / "policy", recipe))
    shipped = training_config(recipe, {})
    assert isinstance(shipped, TrainConfig | SFTConfig)
    sizes: dict[str, Any] = {
        "policy": policy,
        "out": str(folder / "run"),
        "max_steps": 1,
        "agent": {"max_new_tokens": 8},
        "compute": {"device": "cpu", "dtype": "float32", "threads": 1, "load_in_4bit": False},
        "evaluation": {"tasks": 1, "validation_tasks": 1},
    }
    if isinstance(shipped, SFTConfig):
        sizes |= {"tasks": 2, "optimizer": {"batch_rows": 2}, "agent": {"max_new_tokens": 160}}  # a whole gold reply
        sizes["evaluation"] = {"validation_tasks": 1, "evaluate": False}
        return training_config(shipped, merge(sizes, changes))
    sizes |= {
        "reader": {"max_new_tokens": 4} if shipped.reader.is_model else {},
        "sampling": {"tasks_per_step": 1, "group_size": 2, "stop_unreadable": False},
        "loss": {"mask_truncated_completions": False},
    }
    if shipped.data == "synthetic" and shipped.world.preset == "full":
        sizes["world"] = {"tokens": 300}
    if shipped.lora is not None and shipped.lora.layers is not None:
        sizes["lora"] = {"layers": 2}
    if shipped.reader.policy is not None:
        sizes["reader"]["policy"] = policy
    if shipped.reward.reader is not None and shipped.reward.reader.is_model:
        sizes["reward"] = {"reader": {"max_new_tokens": 4}}
    return training_config(shipped, merge(sizes, changes))


def first_step(recipe: str, folder: Path, **changes: Any) -> dict[str, Any]:
    """Train one step of a shrunk recipe in `folder` and return the run's summary; arguments as in `shrunk`."""
    return train(shrunk(recipe, folder, **changes))
