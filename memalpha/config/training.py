"""Configurations of training runs: reinforcement, supervised and preference runs, and which of them a file is."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, model_validator

from memalpha.config.algorithms import ERLConfig
from memalpha.config.common import (
    AgentConfig,
    BabiConfig,
    EndpointConfig,
    ReaderConfig,
    RewardConfig,
    WorldConfig,
)
from memalpha.config.files import build_config, merge, read_config
from memalpha.config.learner import RolloutConfig, one_length
from memalpha.config.preferences import PreferenceConfig, RewardModelConfig
from memalpha.config.reinforcement import ReinforcementConfig
from memalpha.config.text import TextConfig
from memalpha.errors import ConfigError


class RunConfig(RolloutConfig):
    """Tasks, writer, reader and reward of a training run, whatever it learns from."""

    data: str = Field(
        default="synthetic",
        description="synthetic, babi, a data set with a training split (see `memalpha data list NAME`), or a task file",
    )
    train_on_evaluation_split: bool = Field(
        default=False, description="train on the evaluation split of a named data set, which is refused otherwise"
    )
    eval_data: str | None = Field(
        default=None,
        description="held-out tasks: a data set's evaluation split, or a task file (default: the test split of "
        "synthetic or babi, the last fifth of data otherwise)",
    )
    world: WorldConfig = WorldConfig()
    eval_world: WorldConfig | None = Field(default=None, description="held-out world; default: world with split=test")
    babi: BabiConfig = BabiConfig()
    eval_babi: BabiConfig | None = Field(default=None, description="held-out streams of another shape (default: babi)")
    agent: AgentConfig = AgentConfig()
    reader: ReaderConfig = ReaderConfig()
    reward: RewardConfig = RewardConfig()
    endpoint: EndpointConfig = Field(default=EndpointConfig(), description="how a reader behind an endpoint is asked")

    @model_validator(mode="after")
    def _a_reply_to_score(self) -> RunConfig:
        if self.reward.metric == "cited" and not self.reader.cite:
            raise ValueError("reward.metric: cited scores replies that name their evidence: set reader.cite=true")
        return self


class TrainConfig(ReinforcementConfig, RunConfig):
    """One reinforcement-learning run of a memory writer. Names follow TRL's `GRPOConfig` where the meaning is the same.

    Picking an `algorithm` and nothing else is its vetted setting (`config.algorithms.VETTED`).
    """

    training_reader: ReaderConfig | None = Field(
        default=None, description="another reader for the reward only; evaluations keep `reader` (default: the same)"
    )

    @model_validator(mode="after")
    def _own_prompts(self) -> TrainConfig:
        _no_templates(self.erl)
        return self


def _no_templates(erl: ERLConfig | None) -> None:
    for name in ("reflection_prompt", "retry_prompt"):
        if erl is not None and getattr(erl, name) is not None:
            raise ValueError(f"erl.{name}: is for text tasks; a memory writer has prompts of its own; leave it out")


class SFTConfig(RunConfig):
    """One supervised run: the learner imitates rows (`train.demonstrations`)."""

    algorithm: Literal["sft"] = "sft"
    source: str = Field(
        default="gold",
        description="rows to imitate: gold (each task's operations), scripted:KIND, best (the policy's best rollout "
        "of group_size by reward), erl (second attempts and reflections: train.lessons), a run directory with "
        "turns.jsonl (its best rollouts), or a .jsonl file of rows",
    )
    erl: ERLConfig | None = Field(default=None, description="source=erl: as in the run that is to follow")
    tasks: int = Field(
        default=256, gt=0, description="gold, scripted, best, erl: training tasks of a round (of a file: all at most)"
    )
    rounds: int = Field(default=1, gt=0, description="best: sample new rows so often, with the weights of then")
    batch_rows: int = Field(default=32, gt=0, description="rows of an optimizer step")
    epochs: float | None = Field(
        default=None, gt=0.0, description="passes over the rows, in the place of schedule_steps"
    )
    evaluate: bool = Field(default=True, description="answer questions of held-out tasks before and after")

    @property
    def tasks_per_step(self) -> int:
        """How many tasks are taken at a time: all of a round."""
        return self.tasks

    @model_validator(mode="after")
    def _within_schedule(self) -> SFTConfig:
        """Overrides the base's check, which does not hold where `epochs` sets the length of the schedule."""
        if self.epochs is None:
            super()._within_schedule()  # type: ignore[operator]
        if self.rounds > 1 and self.source != "best":
            raise ValueError(
                f"rounds: only source=best samples rows anew, {self.source!r} has the same ones every time"
            )
        if self.erl is not None and self.source != "erl":
            raise ValueError(f"erl: has no effect with source={self.source}; leave it out")
        for name in ("enable_reflection", "enable_internalization", "internalization_coef", "internalization_margin"):
            if self.erl is not None and getattr(self.erl, name) != ERLConfig.model_fields[name].default:
                raise ValueError(
                    f"erl.{name}: has no effect with source=erl, whose rows teach to reflect and to take advice; leave "
                    "it out"
                )
        _no_templates(self.erl)
        one_length(self)
        if self.source == "best" and self.epochs is not None:
            raise ValueError("epochs: how many rows source=best will find is not known: set schedule_steps")
        if self.rounds > self.schedule_steps:
            raise ValueError(f"rounds: {self.rounds} rounds need at least as many schedule_steps")
        return self


AnyTraining = TrainConfig | TextConfig | SFTConfig | PreferenceConfig | RewardModelConfig
KINDS: Mapping[str, type[AnyTraining]] = {
    "sft": SFTConfig,
    "preferences": PreferenceConfig,
    "reward": RewardModelConfig,
}
"""Configurations by `algorithm`; every other algorithm has a `TrainConfig`, or with `task: text` a `TextConfig`."""


def training_config(config: AnyTraining | str | Path, overrides: Mapping[str, Any] | None = None) -> AnyTraining:
    """The configuration of a training run, with overrides on top: of the kind that its `algorithm` has.

    An override of `init_from` takes the place of the configuration's `policy`, and the other way round; so do `epochs`
    and `schedule_steps`.
    """
    over = dict(overrides or {})
    if isinstance(config, AnyTraining):
        base, label = config.model_dump(exclude_unset=True), "overrides"  # what was not set stays so, as if from a file
    else:
        base, label = read_config(config), str(config)
    for pair in (("init_from", "policy"), ("epochs", "schedule_steps")):
        for one, other in (pair, pair[::-1]):
            if over.get(one) is not None and other not in over:
                base = {key: value for key, value in base.items() if key != other}
    data = merge(base, over)
    if isinstance(config, AnyTraining):
        return build_config(type(config), data, label)
    if "task" in data:
        if data["task"] != "text":
            raise ConfigError(
                f"{label}: task: {data['task']!r} is none: text, or leave it out to train a memory writer"
            )
        return build_config(TextConfig, data, label)
    return build_config(KINDS.get(str(data.get("algorithm")), TrainConfig), data, label)
