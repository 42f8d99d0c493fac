"""The smallest run of every kind: a second each, on random weights and a handful of tasks, rows or pairs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from memalpha.config import (
    LearnerConfig,
    PreferenceConfig,
    RewardModelConfig,
    SFTConfig,
    TextConfig,
    TrainConfig,
    build_config,
    merge,
)
from memalpha.types import TextTask

AGENT = {"prompt": "compact", "embedder": "hash", "max_new_tokens": 12}
RANDOM = {"stop_unreadable": False}  # random weights write no call and no end
STEPS = {"schedule_steps": 4, "warmup_steps": 1, "validate_every": 2, "save_every": 2, "learning_rate": 1e-2}
MEMORY = {
    "agent": AGENT,
    "group_size": 2,
    "tasks_per_step": 1,
    "eval_tasks": 1,
    "validation_tasks": 1,
    **RANDOM,
    **STEPS,
}
TEXT = {
    "max_new_tokens": 3,
    "group_size": 4,
    "tasks_per_step": 3,
    "eval_tasks": 4,
    "validation_tasks": 3,
    **RANDOM,
    **STEPS,
}
ROWS = {
    "agent": {**AGENT, "max_new_tokens": 1200}, "tasks": 4, "batch_rows": 4, "validation_tasks": 2, "evaluate": False,
    **STEPS,
}  # fmt: skip
PAIRS = {
    "batch_pairs": 4, "epochs": 2, "warmup_steps": 1, "validate_every": 2, "save_every": 2, "learning_rate": 3e-3,
}  # fmt: skip

LEVELS = ("easy", "hard")
PROMPTS = [f"<|user|>{number}<|assistant|>" for number in range(10)]
YES, NO = [f"yes {number}" for number in range(10)], [f"no, not {number} at all" for number in range(10)]


def write_lines(path: Path, rows: list[dict[str, Any]]) -> str:
    """Write a row a line unless the file exists, and return the path as text."""
    if not path.exists():
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def pair_rows(**more: Any) -> list[dict[str, Any]]:
    """Return ten preferences, with further columns."""
    return [{"prompt": p, "chosen": c, "rejected": r, **more} for p, c, r in zip(PROMPTS, YES, NO, strict=True)]


def demonstration_rows() -> list[dict[str, Any]]:
    """Return twenty short demonstrations."""
    return [{"prompt": f"<|user|>{number}", "completion": f"{number} it is"} for number in range(20)]


def text_tasks(count: int = 30, first: int = 0) -> list[TextTask]:
    """Return text tasks of two levels."""
    return [
        TextTask(id=f"t{n}", prompt=f"{n}?", columns={"answer": str(n), "level": LEVELS[n % 2]}, category=LEVELS[n % 2])
        for n in range(first, first + count)
    ]


def upper(completions):
    """Reward a reply's first byte in the upper half."""
    return [float(bool(text) and max(text.encode()) >= 128) for text in completions]


def short(completions):
    """Reward short replies."""
    return [1.0 - len(text.encode()) / 8 for text in completions]


def small_config(kind: type[LearnerConfig], policy: Path | str, folder: Path, /, **changes: Any) -> Any:
    """Return the configuration of the smallest run of a kind in `folder / "run"`.

    Args:
        kind: Class of the configuration.
        policy: Folder of the policy.
        folder: Folder for the run and its data.
        changes: Settings that differ.
    """
    base: dict[str, Any] = {"out": str(folder / "run"), "policy": str(policy)}
    if kind is TrainConfig:
        base |= MEMORY
    elif kind is TextConfig:
        base |= TEXT
    elif kind is SFTConfig:
        base |= {**ROWS, "source": write_lines(folder / "mine.jsonl", demonstration_rows())}
        if "epochs" in changes:
            del base["schedule_steps"]
    else:
        assert kind in (PreferenceConfig, RewardModelConfig)
        base |= {**PAIRS, "data": write_lines(folder / "pairs.jsonl", pair_rows())}
    return build_config(kind, merge(base, changes), "test")


def python_inputs(config: LearnerConfig) -> dict[str, Any]:
    """Return what `train` is given beside the configuration: tasks and rewards of text runs."""
    return {"tasks": text_tasks(), "rewards": [upper, short]} if isinstance(config, TextConfig) else {}
