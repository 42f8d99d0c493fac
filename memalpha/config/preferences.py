"""Configurations of runs on plain data about replies: preference optimisation, and reward models."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, model_validator

from memalpha.config.algorithms import DPOConfig
from memalpha.config.learner import LearnerConfig, one_length


class PairsConfig(LearnerConfig):
    """What runs on a file of pairs share."""

    data: Path = Field(description="JSON Lines of prompt, chosen, rejected (or of chats: chosen, rejected)")
    eval_data: Path | None = Field(
        default=None, description="pairs that validate, in such a file (default: the last fifth of `data`)"
    )
    validation_pairs: int = Field(default=200, ge=0, description="how many pairs validate at most")
    batch_pairs: int = Field(default=16, gt=0, description="pairs of an optimizer step")
    epochs: float | None = Field(
        default=1.0, gt=0.0, description="passes over the pairs, unless schedule_steps alone is given"
    )

    @model_validator(mode="before")
    @classmethod
    def _so_many_steps(cls, given: Any) -> Any:
        if isinstance(given, Mapping) and given.get("schedule_steps") is not None and "epochs" not in given:
            return {**given, "epochs": None}
        return given

    @model_validator(mode="after")
    def _within_schedule(self) -> PairsConfig:
        """Overrides the base's check, which does not hold where `epochs` sets the length of the schedule."""
        if self.epochs is None:
            super()._within_schedule()  # type: ignore[operator]
        if self.eval_data is not None and not self.validation_pairs:
            raise ValueError("eval_data: has no effect with validation_pairs=0; leave one of them out")
        one_length(self)
        return self


class PreferenceConfig(PairsConfig):
    """One run on plain preference data (`train.preferences`). Names follow TRL's `DPOConfig`."""

    algorithm: Literal["preferences"] = "preferences"
    dpo: DPOConfig = DPOConfig()
    learning_rate: float = Field(default=1e-6, gt=0.0, description="for 100 million weights and more")


class RewardModelConfig(PairsConfig):
    """One run that trains a reward model (`train.reward_run`). Names and defaults follow TRL's `RewardConfig`."""

    algorithm: Literal["reward"] = "reward"
    data: Path = Field(
        description="JSON Lines of prompt, chosen, rejected (and margin, objective), or of prompt, completion and its "
        "score (or scores by objective)"
    )
    pooling: Literal["last", "mean", "attention"] = Field(
        default="last", description="which hidden states the head gets: the last token's, or a mean over the reply's"
    )
    objectives: dict[str, float] = Field(
        default={"reward": 1.0},
        description="an output of the head each, by name, and its weight in the score",
    )
    center_rewards_coefficient: float | None = Field(
        default=None,
        gt=0.0,
        description="weight of (chosen + rejected) squared, which keeps scores around 0 (arXiv 2312.09244; often 0.01)",
    )
    learning_rate: float = Field(default=1e-4, gt=0.0)

    @model_validator(mode="after")
    def _worth_something(self) -> RewardModelConfig:
        if not self.objectives or not any(self.objectives.values()):
            raise ValueError("objectives: at least one with another weight than 0 is needed")
        for name, weight in self.objectives.items():
            if not name or not math.isfinite(weight):
                raise ValueError(f"objectives: {name!r} with weight {weight}: a name and a finite number are needed")
        if self.head_tokens != LearnerConfig.model_fields["head_tokens"].default:
            raise ValueError("head_tokens: has no effect with algorithm=reward, which makes no logits; leave it out")
        return self
