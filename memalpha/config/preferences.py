"""Configurations of runs on plain pairs: preference optimization and reward models."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from memalpha.config.algorithms import DPOConfig
from memalpha.config.groups import (
    ComputeConfig,
    PairsEvaluationConfig,
    PairsOptimizerConfig,
    PreferenceOptimizerConfig,
    RewardOptimizerConfig,
)
from memalpha.config.learner import LearnerConfig, check_one_length


class PairsConfig(LearnerConfig):
    """Settings shared by runs on a file of pairs."""

    data: Path = Field(description="JSON Lines of prompt, chosen, rejected (or of chats: chosen, rejected)")
    optimizer: PairsOptimizerConfig = PairsOptimizerConfig()
    evaluation: PairsEvaluationConfig = PairsEvaluationConfig()

    @field_validator("optimizer", mode="before")
    @classmethod
    def _schedule_replaces_epochs(cls, optimizer: Any) -> Any:
        if isinstance(optimizer, Mapping) and optimizer.get("schedule_steps") is not None and "epochs" not in optimizer:
            return {**optimizer, "epochs": None}
        return optimizer

    @model_validator(mode="after")
    def _within_schedule(self) -> PairsConfig:
        """Override the base's check, which does not hold where `epochs` sets the length of the schedule."""
        if self.optimizer.epochs is None:
            super()._within_schedule()  # type: ignore[operator]
        if self.evaluation.data is not None and not self.evaluation.validation_pairs:
            raise ValueError("evaluation.data: has no effect with validation_pairs=0; leave one of them out")
        check_one_length(self.optimizer)
        return self


class PreferenceConfig(PairsConfig):
    """Run on plain preference data (`train.trainers.preferences`); names follow TRL's `DPOConfig`."""

    algorithm: Literal["preferences"] = Field(default="preferences", description="marks a preference run")
    dpo: DPOConfig = DPOConfig()
    optimizer: PreferenceOptimizerConfig = PreferenceOptimizerConfig()


class RewardModelConfig(PairsConfig):
    """Run that trains a reward model; names and defaults follow TRL's `RewardConfig`."""

    algorithm: Literal["reward"] = Field(default="reward", description="marks a run that trains a reward model")
    data: Path = Field(
        description="JSON Lines of prompt, chosen, rejected (and margin, objective), or of prompt, completion and its "
        "score (or scores by objective)"
    )
    pooling: Literal["last", "mean", "attention"] = Field(
        default="last", description="hidden state for the head: the last token's, or a mean or attention over the reply"
    )
    objectives: dict[str, float] = Field(
        default={"reward": 1.0},
        description="weight in the score by name of objective; the head has one output for each",
    )
    center_rewards_coefficient: float | None = Field(
        default=None,
        gt=0.0,
        description="weight of (chosen + rejected) squared, which keeps scores around 0 (arXiv 2312.09244; often 0.01)",
    )
    optimizer: RewardOptimizerConfig = RewardOptimizerConfig()

    @model_validator(mode="after")
    def _worth_something(self) -> RewardModelConfig:
        if not self.objectives or not any(self.objectives.values()):
            raise ValueError("objectives: at least one with another weight than 0 is needed")
        for name, weight in self.objectives.items():
            if not name or not math.isfinite(weight):
                raise ValueError(f"objectives: {name!r} with weight {weight}: a name and a finite number are needed")
        if self.compute.head_tokens != ComputeConfig.model_fields["head_tokens"].default:
            raise ValueError(
                "compute.head_tokens: has no effect with algorithm=reward, which makes no logits; leave it out"
            )
        return self
