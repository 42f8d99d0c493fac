"""What the algorithms have of their own, and the settings that picking one by name brings along (`VETTED`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from memalpha.config.common import Config


class PPOConfig(Config):
    """Of `algorithm: ppo` alone."""


class DPOConfig(Config):
    """Of `algorithm: dpo` alone."""


class ERLConfig(Config):
    """Of `algorithm: erl` alone."""


VETTED: Mapping[str, Mapping[str, Any]] = {
    "grpo": {},
    "rloo": {"scale_rewards": "none"},
    "ppo": {},
    "dpo": {},
    "erl": {},
}
"""Defaults of `TrainConfig` that differ by algorithm; what a configuration names itself wins."""
