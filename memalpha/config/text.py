"""`TextConfig`: reinforcement learning on text tasks."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from memalpha.config.groups import DatasetConfig, TaskEvaluationConfig
from memalpha.config.reinforcement import ReinforcementConfig
from memalpha.config.rewards import RewardPart
from memalpha.config.sampling import CurriculumConfig, TextSamplingConfig


class TextConfig(ReinforcementConfig):
    """One reinforcement-learning run on text tasks."""

    task: Literal["text"] = Field(default="text", description="marks a run on text tasks")
    data: str | None = Field(
        default=None, description="arithmetic, programs, gsm8k, math, a file, a folder or a hub id (tasks.text_tasks)"
    )
    dataset: DatasetConfig = DatasetConfig()
    evaluation: TaskEvaluationConfig = TaskEvaluationConfig()
    sampling: TextSamplingConfig = TextSamplingConfig()
    system_prompt: str | None = Field(default=None, description="system prompt of tasks that have none")
    rewards: tuple[RewardPart, ...] = Field(
        default=(), description="parts of the reward; the first that applies decides whether a reply is correct"
    )
    environment: str | None = Field(
        default=None, description="module:name of a class with reset and step, instead of rewards"
    )
    max_turns: int = Field(default=16, gt=0, description="environment: most turns of an episode")
    curriculum: CurriculumConfig | None = Field(default=None, description="easy tasks first (default: all at once)")

    @property
    def reply_tokens(self) -> int:
        """Most new tokens of one reply."""
        return self.sampling.thinking_tokens + self.sampling.max_new_tokens

    @model_validator(mode="after")
    def _check_environment(self) -> TextConfig:
        if self.environment is not None and self.rewards:
            raise ValueError("rewards: have no effect with an environment, which gives its own; leave one of them out")
        if self.environment is None and self.max_turns != type(self).model_fields["max_turns"].default:
            raise ValueError("max_turns: has no effect without an environment of your own; leave it out")
        return self
