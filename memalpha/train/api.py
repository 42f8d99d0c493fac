"""`train`: a run from its configuration, of the kind that this is; resumable at any time.

What every run does is `train.run`; memory writers are reinforced by `train.memory_run`, replies to prompts by
`train.text_run`; `algorithm: sft` is `train.sft`, `preferences` is `train.preferences`, `reward` `train.reward_run`.
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

    `config` is a configuration, a shipped name or a YAML path; `overrides` are its keys (nested ones as mappings). Text
    runs also take what no file can hold: `rewards=[callable, ...]`, `tasks=[TextTask, ...]`, `eval_data=[TextTask,
    ...]`, `environment=` a class, `feedback_func=` a callable; a run that goes on needs the same ones again. A Ctrl-C
    saves a checkpoint that the same call resumes, and comes out as `KeyboardInterrupt`.
    """
    given = pop_python_inputs(overrides)
    settings = training_config(config, overrides)
    if isinstance(settings, TextConfig):
        return launch(lambda config, world: TextRLTrainer(config, world, given), settings)
    if given.names:
        raise ConfigError(f"{given.names[0]}: tasks and functions themselves are for text runs (task: text)")
    if isinstance(settings, PreferenceConfig):
        return launch(PreferenceTrainer, settings)
    if isinstance(settings, RewardModelConfig):
        return launch(RewardModelTrainer, settings)
    return launch(SFTTrainer, settings) if isinstance(settings, SFTConfig) else launch(MemoryRLTrainer, settings)
