"""`TextConfig`: reinforcement on prompts to complete."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator, model_validator

from memalpha.config.common import Config
from memalpha.config.reinforcement import ReinforcementConfig
from memalpha.config.rewards import RewardPart


class CurriculumConfig(Config):
    """Easy tasks first (`train.curriculum`): the next level is unlocked by accuracy at the one before it."""

    column: str = Field(default="level", description="the column of a task that names its level")
    order: tuple[str, ...] = Field(min_length=2, description="levels, the easiest first")
    threshold: float = Field(default=0.8, gt=0.0, le=1.0, description="training accuracy that unlocks the next level")
    window: int = Field(default=64, gt=0, description="the last so many attempts at the level, over which it is taken")
    review: float = Field(default=0.2, ge=0.0, lt=1.0, description="share of tasks that come from earlier levels")

    @field_validator("order")
    @classmethod
    def _once_each(cls, order: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(order)) < len(order):
            raise ValueError("a level comes twice")
        return order


class TextConfig(ReinforcementConfig):
    """One reinforcement-learning run on text tasks. Names follow TRL's where the meaning is the same.

    Picking an `algorithm` and nothing else is its vetted setting (`config.algorithms.VETTED`).
    """

    task: Literal["text"] = Field(default="text", description="what tells this kind of run in a file")
    data: str | None = Field(
        default=None, description="arithmetic, programs, gsm8k, math, a file, a folder or a hub id (tasks.text)"
    )
    data_folder: str | None = Field(default=None, description="gsm8k, math: a folder with its files, if not the hub")
    eval_data: str | None = Field(
        default=None,
        description="held-out tasks, by such a name (default: the test split of a named set, a fifth of others)",
    )
    columns: dict[str, str] = Field(
        default_factory=dict, description="which column is what, ours to theirs: {prompt: question, answer: target}"
    )
    limit: int | None = Field(default=None, gt=0, description="only the first tasks of data")
    system_prompt: str | None = Field(default=None, description="comes first where a task has none of its own")
    max_new_tokens: int = Field(default=256, gt=0, description="of a reply (TRL: max_completion_length)")
    rewards: tuple[RewardPart, ...] = Field(
        default=(), description="the parts of the reward; the first that applies says whether a reply is correct"
    )
    environment: str | None = Field(
        default=None, description="module:name of a class with reset and step, in the place of rewards"
    )
    max_turns: int = Field(default=16, gt=0, description="environment: where an episode ends that it does not end")
    curriculum: CurriculumConfig | None = Field(default=None, description="easy tasks first (default: all at once)")
    feedback_func: str | None = Field(
        default=None,
        description="algorithm=erl: module:name of a function (prompts, completions, **columns) -> list[str] that says "
        "what is wrong with a reply (default: which rewards it lacks)",
    )
    tell_answer: bool = Field(
        default=False, description="algorithm=erl: such feedback also tells what the column answer has"
    )

    @model_validator(mode="after")
    def _read(self) -> TextConfig:
        """Refuse what nothing reads."""
        if self.environment is not None and self.rewards:
            raise ValueError("rewards: have no effect with an environment, which gives its own; leave one of them out")
        if self.environment is None and self.max_turns != type(self).model_fields["max_turns"].default:
            raise ValueError("max_turns: has no effect without an environment of your own; leave it out")
        for name in ("feedback_func", "tell_answer"):
            if getattr(self, name) and self.algorithm != "erl":
                raise ValueError(f"{name}: has no effect with algorithm={self.algorithm}; leave it out")
        if self.feedback_func is not None and self.tell_answer:
            raise ValueError("tell_answer: has no effect with feedback_func, which says what is told; leave it out")
        return self
