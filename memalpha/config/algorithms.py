"""Settings of single algorithms, and the vetted defaults that choosing one brings (`VETTED`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt, model_validator

from memalpha.config.common import Config, Share


class PPOConfig(Config):
    """Settings of `algorithm: ppo` (`memalpha.train.algorithms.ppo`), named as in TRL where equal."""

    gamma: float = Field(default=1.0, gt=0.0, le=1.0, description="discount per token")
    lam: Share = Field(default=1.0, description="GAE: 0 trusts the value function, 1 only the rewards to come")
    vf_coef: PositiveFloat = Field(default=0.1, description="weight of the value loss, a mean over a step's tokens")
    cliprange_value: PositiveFloat | None = Field(
        default=None, description="largest change of a value in a step (default: unlimited; TRL had 0.2)"
    )
    value_learning_rate: PositiveFloat | None = Field(
        default=None, description="learning rate of the value head (default: 10 x optimizer.learning_rate)"
    )
    kl_target: PositiveFloat | None = Field(
        default=None,
        description="adapt beta to this KL per episode to the start policy (TRL: target; default: constant beta)",
    )
    kl_horizon: PositiveFloat = Field(
        default=10_000.0, description="time scale of that adaptation, in episodes (TRL: horizon)"
    )

    @model_validator(mode="after")
    def _a_target(self) -> PPOConfig:
        if self.kl_target is None:
            self.refuse_unread(["kl_horizon"], "without kl_target")
        return self


class DPOConfig(Config):
    """Preference optimization of `algorithm: dpo` and of plain pairs; names and defaults are TRL's."""

    beta: PositiveFloat = Field(default=0.1, description="strength of the pull to the reference policy (ipo: tau)")
    loss_type: Literal["sigmoid", "ipo"] = Field(
        default="sigmoid", description="sigmoid: DPO's loss; ipo: squared loss of log-probs averaged over tokens"
    )
    label_smoothing: float = Field(
        default=0.0, ge=0.0, lt=0.5, description="sigmoid: assumed share of swapped pairs (cDPO)"
    )
    reference_free: bool = Field(default=False, description="assume equal reference log-probs for all replies")

    @model_validator(mode="after")
    def _smoothed(self) -> DPOConfig:
        if self.loss_type == "ipo":
            self.refuse_unread(["label_smoothing"], "with loss_type=ipo")
        return self


class RolloutDPOConfig(DPOConfig):
    """Settings of `algorithm: dpo`, including how rollouts become pairs."""

    margin: NonNegativeFloat = Field(
        default=0.0, description="least difference of total reward between a task's best and worst rollout"
    )


class ERLSettings(Config):
    """Settings of `algorithm: erl` and of its demonstrations (`algorithm: sft`, `source: erl`)."""

    algorithm: Literal[1, 2] = Field(
        default=2,
        description="1: all attempts are reflected on, one update on everything; 2: those below the threshold, and "
        "internalization in an update of its own",
    )
    reward_threshold: float = Field(
        default=1.0, gt=0.0, le=1.0, description="an attempt with at least this accuracy has succeeded"
    )
    enable_reflection: bool = Field(
        default=True,
        description="false: the retry sees the feedback instead of advice, including right answers, which "
        "internalization then imitates under prompts without them",
    )
    enable_memory: bool = Field(default=True, description="keep advice that helped, and show it to later reflections")
    keep_advice: Literal["improvement", "success"] = Field(
        default="improvement",
        description="keep advice if the retry beat the first attempt, or if it succeeded, as in the paper",
    )
    memory_size: PositiveInt = Field(default=50, description="pieces of advice in memory; the oldest is dropped first")
    memory_top_k: PositiveInt = Field(default=3, description="pieces of advice that a reflection sees")
    memory_retrieval: Literal["recency", "similarity"] = Field(
        default="recency", description="choice of advice: the newest, or the most similar to the feedback"
    )
    enable_internalization: bool = Field(
        default=True, description="imitate successful retries under the task's own prompts"
    )
    internalization_coef: PositiveFloat = Field(default=1.0, description="weight of that cross-entropy")
    feedback_tokens: PositiveInt = Field(default=1024, description="budget of the feedback, in the policy's tokens")
    reflection_tokens: PositiveInt = Field(default=256, description="most tokens of advice")
    reflection_prompt: str | None = Field(
        default=None,
        description="text tasks: prompt of a reflection, with {prompt}, {attempt}, {reward}, {feedback}, {memory} "
        "(default: memalpha.environments.engine; erl-trainer: reflection_system_prompt)",
    )
    retry_prompt: str | None = Field(
        default=None,
        description="text tasks: prompt of the retry, with {prompt} and {reflection} (default: likewise; "
        "erl-trainer: retry_system_prompt)",
    )
    feedback_func: str | None = Field(
        default=None,
        description="text tasks: module:name of a function (prompts, completions, **columns) -> list[str] that "
        "describes the errors of replies (default: names the rewards that a reply lacks)",
    )
    tell_answer: bool = Field(
        default=False, description="text tasks: the default feedback also gives the answer in the column `answer`"
    )

    @model_validator(mode="after")
    def _read(self) -> ERLSettings:
        """Refuse a setting that nothing reads, or that cannot be filled."""
        memory = ("keep_advice", "memory_size", "memory_top_k", "memory_retrieval")
        if not self.enable_reflection:
            self.refuse_unread([*memory, "reflection_prompt"], "with enable_reflection=false")
        if not self.enable_memory:
            self.refuse_unread(memory, "with enable_memory=false")
        if not self.enable_internalization:
            self.refuse_unread(["internalization_coef"], "with enable_internalization=false")
        if self.feedback_func is not None:
            self.refuse_unread(["tell_answer"], "with feedback_func, which says what is told")
        for name, needed in (("reflection_prompt", ("prompt", "attempt")), ("retry_prompt", ("prompt", "reflection"))):
            template = getattr(self, name)
            for part in needed:
                if template is not None and f"{{{part}}}" not in template:
                    raise ValueError(f"{name}: has no place for {{{part}}}")
        if self.memory_top_k > self.memory_size:
            raise ValueError(f"memory_top_k: more than memory_size={self.memory_size} cannot be shown")
        return self


VETTED: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "grpo": {},
    "rloo": {"loss": {"scale_rewards": "none"}},
    "ppo": {
        "loss": {"loss_type": "dapo", "scale_rewards": "none"},
        "sampling": {"group_size": 1, "tasks_per_step": 64},
        "optimizer": {"num_iterations": 2},
    },
    "dpo": {},
    "erl": {},
}
"""Defaults that differ by algorithm, by group; settings that a configuration names win."""
