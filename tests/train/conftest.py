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
    tiny_policy().save(path)
    return path


@pytest.fixture(scope="session")
def ending_policy(tmp_path_factory):
    """A random policy of which many tokens end a reply: its replies are short, and not all are cut off."""
    path = tmp_path_factory.mktemp("ending")
    policy = tiny_policy()
    policy.model.generation_config.eos_token_id = list(range(0, 60, 2))
    policy.save(path)
    return path


@pytest.fixture
def small(policy_path, tmp_path):
    """A function: overrides -> configuration of a run of a few seconds in `tmp_path / "run"`."""
    return partial(small_config, TrainConfig, policy_path, tmp_path)
