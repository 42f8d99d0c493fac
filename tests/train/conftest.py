"""A random tiny policy on disk and the smallest real training configuration."""

from __future__ import annotations

from functools import partial

import pytest
from run_kinds import small_config
from tiny import tiny_policy

from memalpha.config import TrainConfig


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
    return partial(small_config, TrainConfig, policy_path, tmp_path)
