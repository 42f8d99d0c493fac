"""A random tiny policy on disk and the smallest real training configuration."""

from __future__ import annotations

import pytest
from tiny import tiny_policy

from memalpha.config import TrainConfig, build_config, merge


@pytest.fixture(scope="session")
def policy_path(tmp_path_factory):
    path = tmp_path_factory.mktemp("policy")
    policy = tiny_policy()
    policy.model.save_pretrained(path)
    policy.tokenizer.save_pretrained(path)
    return path


@pytest.fixture
def small(policy_path, tmp_path):
    """A function: overrides -> configuration of a run of a few seconds in `tmp_path / "run"`."""
    base = {
        "out": str(tmp_path / "run"),
        "policy": str(policy_path),
        "agent": {"prompt": "compact", "embedder": "hash", "max_new_tokens": 12},
        "group_size": 3,
        "tasks_per_step": 2,
        "schedule_steps": 4,
        "warmup_steps": 1,
        "eval_tasks": 3,
        "validation_tasks": 2,
        "validate_every": 2,
        "save_every": 2,
        "learning_rate": 1e-2,
    }
    return lambda **changes: build_config(TrainConfig, merge(base, changes), "test")
