"""A toy task for the trainers built on TRL: prompts of two kinds, a reward, the smallest settings."""

from __future__ import annotations

import torch
from datasets import Dataset


def upper(prompts, completions, **columns):
    """Return the share of the first four characters that are of the row's kind."""
    kinds = {"word": str.isalnum, "other": lambda character: not character.isalnum()}
    texts = [completion if isinstance(completion, str) else completion[0]["content"] for completion in completions]
    return [sum(map(kinds[kind], text[:4])) / 4 for text, kind in zip(texts, columns["kind"], strict=True)]


def say(prompts, completions, **columns):
    """Return feedback that names the row's kind."""
    return [f"I wanted {kind}." for kind in columns["kind"]]


def tasks(chat: bool = False, count: int = 8) -> Dataset:
    prompts = [f"Say {number}" for number in range(count)]
    rows = [[{"role": "user", "content": prompt}] for prompt in prompts] if chat else prompts
    return Dataset.from_dict({"prompt": rows, "kind": ["word", "other"] * (count // 2)})


COMMON = {
    "model_init_kwargs": {"dtype": "float32"},
    "bf16": False,
    "gradient_checkpointing": False,
    "use_cpu": True,
    "report_to": "none",
    "per_device_train_batch_size": 4,
    "gradient_accumulation_steps": 2,
    "num_generations": 4,
    "max_completion_length": 8,
    "learning_rate": 1e-3,
    "logging_steps": 1,
    "save_strategy": "no",
    "disable_tqdm": True,
}


def weights(trainer) -> dict[str, torch.Tensor]:
    return {name: weight.detach().clone() for name, weight in trainer.model.named_parameters()}
