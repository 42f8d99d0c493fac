"""Shipped recipes for real models, shrunk: their first step on a random model of the same architecture, on CPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tiny import tiny_model, tiny_tokenizer

from memalpha.config import TrainConfig, training_config
from memalpha.config.files import merge
from memalpha.train.api import train

POSITIONS = 40960
"""Context of Qwen3; the shrunk model has it too, since a byte is one of its tokens."""


def shrunk_policy(folder: Path) -> Path:
    """Write a random Qwen3 of 20,000 weights to `folder` and return it."""
    if not folder.exists():
        model = tiny_model()
        model.config.max_position_embeddings = POSITIONS
        model.save_pretrained(folder)
        tiny_tokenizer().save_pretrained(folder)
    return folder


def shrunk(recipe: str, folder: Path, **changes: Any) -> TrainConfig:
    """Return a shipped recipe with smaller sizes; other keys stay as they are shipped, but for three.

    The device is the CPU, in float32 (bfloat16 is ten times slower on many). Replies of random weights never end, so
    cut ones are trained on, and the check of the first steps is off.

    Args:
        recipe: Name of the shipped configuration.
        folder: Folder for the run and the policy.
        changes: Further overrides, such as `data` where the recipe's own needs a download.
    """
    policy = str(shrunk_policy(folder / "policy"))
    shipped = training_config(recipe, {})
    assert isinstance(shipped, TrainConfig)
    sizes: dict[str, Any] = {
        "policy": policy,
        "out": str(folder / "run"),
        "max_steps": 1,
        "agent": {"max_new_tokens": 8},
        "reader": {"max_new_tokens": 4},
        "sampling": {"tasks_per_step": shipped.sampling.overlap, "group_size": 2, "stop_unreadable": False},
        "compute": {"device": "cpu", "dtype": "float32", "threads": 1, "load_in_4bit": False},
        "loss": {"mask_truncated_completions": False},
        "evaluation": {"tasks": 1, "validation_tasks": 1},
    }
    if shipped.data == "synthetic" and shipped.world.preset == "full":
        sizes["world"] = {"tokens": 300}
    if shipped.reader.policy is not None:
        sizes["reader"]["policy"] = policy
    if shipped.reward.reader is not None:
        sizes["reward"] = {"reader": {"max_new_tokens": 4}}
    return training_config(shipped, merge(sizes, changes))


def first_step(recipe: str, folder: Path, **changes: Any) -> dict[str, Any]:
    """Train one step of a shrunk recipe in `folder` and return the run's summary; arguments as in `shrunk`."""
    return train(shrunk(recipe, folder, **changes))
