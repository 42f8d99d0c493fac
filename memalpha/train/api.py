"""`train`: start or resume a training run of the kind that its configuration names.

`trainers.base` holds what all runs share. `trainers.memory_rl` trains memory writers, `trainers.text_rl` trains replies
to prompts, `trainers.sft` imitates, `trainers.preferences` and `trainers.reward_model` train on pairs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from memalpha.config import PreferenceConfig, RewardModelConfig, SFTConfig, TextConfig, training_config
from memalpha.config.training import AnyTraining
from memalpha.errors import ConfigError
from memalpha.train.rollouts.text_inputs import pop_python_inputs
from memalpha.train.trainers.base import launch
from memalpha.train.trainers.memory_rl import MemoryRLTrainer
from memalpha.train.trainers.preferences import PreferenceTrainer
from memalpha.train.trainers.reward_model import RewardModelTrainer
from memalpha.train.trainers.sft import SFTTrainer
from memalpha.train.trainers.text_rl import TextRLTrainer


def train(config: AnyTraining | str | Path, **overrides: Any) -> dict[str, Any]:
    """Run or resume a training run and return its summary (also `summary.json` in the run directory).

    A resumed text run needs the same Python inputs again. Ctrl-C saves a checkpoint and raises `KeyboardInterrupt`; the
    same call resumes from it.

    Args:
        config: Configuration, shipped name or YAML path.
        overrides: Keys of the configuration, nested ones as mappings. Text runs also take objects that no file can
            hold: `rewards=[callable, ...]`, `tasks=[TextTask, ...]`, `eval_data=[TextTask, ...]`, `environment=` a
            class, `feedback_func=` a callable.

    Raises:
        ConfigError: The settings are invalid, or Python inputs are given to a run that takes none.
    """
    python_inputs = pop_python_inputs(overrides)
    settings = training_config(config, overrides)
    if isinstance(settings, TextConfig):
        return launch(lambda config, world: TextRLTrainer(config, world, python_inputs), settings)
    if python_inputs.names:
        raise ConfigError(f"{python_inputs.names[0]}: tasks and functions themselves are for text runs (task: text)")
    if isinstance(settings, PreferenceConfig):
        return launch(PreferenceTrainer, settings)
    if isinstance(settings, RewardModelConfig):
        return launch(RewardModelTrainer, settings)
    return launch(SFTTrainer, settings) if isinstance(settings, SFTConfig) else launch(MemoryRLTrainer, settings)
