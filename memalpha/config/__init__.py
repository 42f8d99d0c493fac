"""Configurations: pydantic, frozen, unknown keys refused; YAML files plus `key=value` overrides.

`training_config("demo", {"seed": 7})` reads a shipped YAML by name or a file by path. Nested keys take dots
(`reward.beta=0.1`). Relative paths in a user's file are taken from the working directory.

A module is imported when a name of it is first asked for: commands of a memory need no settings of a training run.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from memalpha.config.algorithms import DPOConfig, ERLSettings, RolloutDPOConfig
    from memalpha.config.common import (
        AgentConfig,
        BabiConfig,
        CreditConfig,
        EndpointConfig,
        JudgeConfig,
        MemoryFunction,
        ReaderConfig,
        RewardConfig,
        TrustConfig,
        WorldConfig,
    )
    from memalpha.config.evaluation import EVAL_K, EvalConfig
    from memalpha.config.files import build_config, load_config, merge, parse_overrides, read_config, shipped_configs
    from memalpha.config.groups import SHORT_NAMES, LossConfig, expand_short_names
    from memalpha.config.learner import LearnerConfig, LoraConfig
    from memalpha.config.reinforcement import ReinforcementConfig, TextConfig
    from memalpha.config.sampling import CurriculumConfig
    from memalpha.config.training import (
        PreferenceConfig,
        RewardModelConfig,
        RunConfig,
        SFTConfig,
        TrainConfig,
        training_config,
    )

_MODULES = ("common", "files", "groups", "sampling", "evaluation", "learner", "algorithms", "reinforcement", "training")
"""Each imports none but those before it, and `rewards`."""

__all__ = [
    "EVAL_K",
    "SHORT_NAMES",
    "AgentConfig",
    "BabiConfig",
    "CreditConfig",
    "CurriculumConfig",
    "DPOConfig",
    "ERLSettings",
    "EndpointConfig",
    "EvalConfig",
    "JudgeConfig",
    "LearnerConfig",
    "LoraConfig",
    "LossConfig",
    "MemoryFunction",
    "PreferenceConfig",
    "ReaderConfig",
    "ReinforcementConfig",
    "RewardConfig",
    "RewardModelConfig",
    "RolloutDPOConfig",
    "RunConfig",
    "SFTConfig",
    "TextConfig",
    "TrainConfig",
    "TrustConfig",
    "WorldConfig",
    "build_config",
    "expand_short_names",
    "load_config",
    "merge",
    "parse_overrides",
    "read_config",
    "shipped_configs",
    "training_config",
]


def __getattr__(name: str) -> Any:
    for module in _MODULES if name in __all__ else ():
        found = vars(import_module(f"{__name__}.{module}"))
        if name in found:
            return globals().setdefault(name, found[name])
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
