"""`ReinforcementConfig`: settings of an algorithm and checks of their combinations."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal

from pydantic import BaseModel, Field, ModelWrapValidatorHandler, PositiveInt, field_validator, model_validator

from memalpha.config.algorithms import VETTED, ERLSettings, PPOConfig, RolloutDPOConfig
from memalpha.config.common import AgentConfig, refuse_together
from memalpha.config.files import merge
from memalpha.config.groups import DatasetConfig, LossConfig, RLOptimizerConfig, expand_short_names
from memalpha.config.learner import RolloutConfig
from memalpha.config.rewards import RewardPart
from memalpha.config.sampling import CurriculumConfig, RLSamplingConfig, TextSamplingConfig
from memalpha.errors import did_you_mean

RECORDED_LOSS_CONSTANT = 16.0
"""`loss_constant` of the shipped configurations, and of the settings that earlier runs recorded.

It may stand where another `loss_type` does not read it, so that `loss_type` can be changed alone.
"""

_GROUPS = frozenset({"loss", "sampling", "optimizer", "erl"})
"""Groups that algorithms have vetted settings of, or choose them by."""
_FIXED: Mapping[str, Mapping[str, tuple[str, str]]] = {
    "rloo": {"scale_rewards": ("none", "rloo compares with the mean of the others and divides by nothing")},
    "ppo": {
        "scale_rewards": ("none", "ppo compares no rollouts of a group"),
        "importance_sampling_level": ("token", "ppo has an advantage a token, so a ratio a token"),
        "loss_type": ("dapo", "ppo's clipped loss is a mean over tokens, as its value loss is"),
    },
}
"""Settings of the loss that an algorithm fixes: the only value, and why."""


class ReinforcementConfig(RolloutConfig):
    """Settings of reinforcement learning on any tasks.

    Choosing only an `algorithm` selects its vetted settings (`config.algorithms.VETTED`).
    """

    algorithm: str = Field(
        default="grpo",
        description="grpo, rloo, ppo, dpo, erl, or package.module:Class of your own (train.algorithms.Algorithm)",
    )
    optimizer: RLOptimizerConfig = RLOptimizerConfig()
    sampling: RLSamplingConfig = RLSamplingConfig()
    loss: LossConfig = LossConfig()
    ppo: PPOConfig | None = Field(default=None, description="algorithm=ppo: its own settings (default: theirs)")
    dpo: RolloutDPOConfig | None = Field(default=None, description="algorithm=dpo: its own settings (default: theirs)")
    erl: ERLSettings | None = Field(default=None, description="algorithm=erl: its own settings (default: theirs)")

    @property
    def tasks_per_step(self) -> int:
        """Number of tasks of a step."""
        return self.sampling.tasks_per_step

    @property
    @abstractmethod
    def reply(self) -> AgentConfig | TextSamplingConfig:
        """Settings of a reply: its tokens, and those of the thoughts before it."""

    @property
    def reply_tokens(self) -> int:
        """Most new tokens of one reply, thoughts included."""
        return self.reply.thinking_tokens + self.reply.max_new_tokens

    @property
    @abstractmethod
    def has_curriculum(self) -> bool:
        """True if the tasks of a step depend on the steps before."""

    @field_validator("algorithm")
    @classmethod
    def _known_algorithm(cls, algorithm: str) -> str:
        module, colon, name = algorithm.partition(":")
        if algorithm not in VETTED and not (colon and module.strip() and name.strip()):
            near = did_you_mean(algorithm, VETTED)
            raise ValueError(
                f"no algorithm {algorithm!r}{near}: {', '.join(VETTED)}, or package.module:Class of your own"
            )
        return algorithm

    @model_validator(mode="wrap")
    @classmethod
    def _add_vetted_settings(
        cls, data: Any, handler: ModelWrapValidatorHandler[ReinforcementConfig]
    ) -> ReinforcementConfig:
        """Put the algorithm's vetted settings under the given ones; they do not count as set."""
        if not isinstance(data, Mapping):
            return handler(data)
        data = {
            name: value.model_dump(exclude_unset=True) if isinstance(value, BaseModel) and name in _GROUPS else value
            for name, value in expand_short_names(data, cls).items()
        }
        vetted = vetted_settings(data)
        config = handler(merge(vetted, data))
        for group, settings in vetted.items():
            getattr(config, group).model_fields_set.difference_update(settings.keys() - data.get(group, {}).keys())
            if group not in data:
                config.model_fields_set.discard(group)
        return config

    @model_validator(mode="after")
    def _check_loss(self) -> ReinforcementConfig:
        """Refuse settings of the loss that the algorithm does not have, or that bias it."""
        loss, algorithm = self.loss, self.algorithm
        if self.sampling.top_p != 1.0 or self.sampling.top_k != 0:
            raise ValueError(
                "sampling.top_p/top_k: truncated sampling biases every importance ratio; training samples with "
                "temperature only (top_p=1, top_k=0)"
            )
        if loss.importance_cap is not None and loss.old_logprobs == "sampled":
            raise ValueError(
                "loss.importance_cap: with old_logprobs=sampled the ratio itself corrects for the sampler; set "
                "old_logprobs=recomputed, or leave importance_cap out"
            )
        if loss.kl_estimator == "k1" and loss.kl_in == "loss" and loss.beta and not loss.use_bias_correction_kl:
            raise ValueError(
                "loss.kl_estimator: k1's gradient in the loss is 0 on average without the ratio, so nothing is held "
                "back; set use_bias_correction_kl=true, kl_in=reward or another estimator"
            )
        groups = [name for name in ("ppo", "dpo", "erl") if name != algorithm]
        self.refuse_unread(groups, f"with algorithm={algorithm}")
        fixed = dict(_FIXED.get(algorithm, {}))
        if algorithm == "rloo" and loss.importance_sampling_level == "sequence":
            fixed["loss_type"] = ("grpo", "with one ratio a completion rloo's loss is a mean over completions")
        for name, (value, reason) in fixed.items():
            if getattr(loss, name) != value:
                raise ValueError(f"loss.{name}: {reason}, not {getattr(loss, name)}: leave it out")
        if self.ppo is not None and self.ppo.kl_target is not None and not loss.beta:
            raise ValueError("ppo.kl_target: beta follows it and must start above 0")
        if loss.delta is not None and loss.delta <= 1 + (loss.epsilon_high or loss.epsilon):
            raise ValueError("loss.delta: bounds the ratio above what the clip does: it must be above 1 + epsilon_high")
        for names, reason in self._unread_loss_settings():
            loss.refuse_unread(names, reason, group="loss.")
        return self

    @model_validator(mode="after")
    def _check_sampling(self) -> ReinforcementConfig:
        """Refuse ways of sampling that exclude each other, or that the algorithm cannot use."""
        sampling, lora, algorithm = self.sampling, self.lora, f"algorithm={self.algorithm}"
        if sampling.group_size < 2 and self.algorithm != "ppo" and ":" not in self.algorithm:
            raise ValueError("sampling.group_size: rollouts of a task are compared, so at least 2 are needed")
        if sampling.dtype is not None:
            exclusions = {
                "compute.load_in_4bit": self.compute.load_in_4bit,
                "compute.device_map": self.compute.device_map is not None,
            }
            refuse_together("sampling.dtype", exclusions, "no copy in another precision can be made with {}")
        curriculum = {"a curriculum": self.has_curriculum}
        if sampling.resample_flat:
            exclusions = {algorithm: self.algorithm in ("ppo", "erl"), **curriculum}
            refuse_together("sampling.resample_flat", exclusions, "has no use with {}")
        if sampling.staleness:
            has_rounds = bool(sampling.resample_flat)
            exclusions = {algorithm: self.algorithm == "erl", "resample_flat": has_rounds, **curriculum}
            refuse_together("sampling.staleness", exclusions)
        if sampling.sampler is not None:
            exclusions = {
                algorithm: self.algorithm == "erl",
                "sampling.dtype": sampling.dtype is not None,
                "sampling.stop_repeats": sampling.stop_repeats,
                "thinking_tokens": self.reply.thinking_tokens > 0,
                # vLLM loads low-rank factors only.
                "lora.trainable_tokens": lora is not None and bool(lora.trainable_tokens),
                "lora.modules_to_save": lora is not None and bool(lora.modules_to_save),
            }
            refuse_together("sampler", exclusions, "{} needs the sampler of this process")
        return self

    def _unread_loss_settings(self) -> Iterator[tuple[Iterable[str], str]]:
        """Yield names of `loss` that nothing reads in this configuration, with the reason."""
        loss, is_recorded = self.loss, self.loss.loss_constant == RECORDED_LOSS_CONSTANT
        if self.algorithm == "dpo":
            names = LossConfig.model_fields.keys() - ({"loss_constant"} if is_recorded else set())
            yield sorted(names), "with algorithm=dpo, whose loss has settings of its own (dpo.*)"
            return
        if not loss.beta:
            yield ("kl_in", "kl_estimator"), "with beta=0, which asks for no KL"
        if not loss.beta or loss.kl_in == "reward":
            yield ["use_bias_correction_kl"], "where no KL is in the loss"
        if loss.loss_type != "dr_grpo" and not is_recorded:
            yield ["loss_constant"], f"with loss_type={loss.loss_type}"
        if loss.loss_type == "cispo":
            yield ("epsilon", "delta"), "with loss_type=cispo, which clips weights at epsilon_high"
        if loss.importance_cap is None:
            yield ["importance_sampling_mode"], "without importance_cap"
        if loss.scale_rewards == "none":
            yield ["advantage_floor"], "with scale_rewards=none, which divides by nothing"


def vetted_settings(data: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the settings, by group, that the algorithm named in `data` brings along.

    Args:
        data: Settings of a run by full name; `algorithm`, `loss` and `erl` are read.
    """
    algorithm = data.get("algorithm", "grpo")
    algorithm = algorithm if isinstance(algorithm, str) else ""  # refused by its field
    vetted = {group: dict(settings) for group, settings in VETTED.get(algorithm, {}).items()}
    loss, erl = (data[group] if isinstance(data.get(group), Mapping) else {} for group in ("loss", "erl"))
    if algorithm == "rloo" and loss.get("importance_sampling_level") == "sequence":
        vetted["loss"]["loss_type"] = "grpo"
    if algorithm == "erl" and erl.get("algorithm") == 1:
        vetted["loss"] = {"scale_rewards": "batch"}
    return vetted


class TextConfig(ReinforcementConfig):
    """One reinforcement-learning run on text tasks."""

    task: Literal["text"] = Field(default="text", description="marks a run on text tasks")
    data: str | None = Field(
        default=None, description="arithmetic, programs, gsm8k, math, a file, a folder or a hub id (tasks.text_tasks)"
    )
    dataset: DatasetConfig = DatasetConfig()
    sampling: TextSamplingConfig = TextSamplingConfig()
    system_prompt: str | None = Field(default=None, description="system prompt of tasks that have none")
    rewards: tuple[RewardPart, ...] = Field(
        default=(), description="parts of the reward; the first that applies decides whether a reply is correct"
    )
    environment: str | None = Field(
        default=None, description="module:name of a class with reset and step, instead of rewards"
    )
    max_turns: PositiveInt = Field(default=16, description="environment: most turns of an episode")
    curriculum: CurriculumConfig | None = Field(default=None, description="easy tasks first (default: all at once)")

    @property
    def has_curriculum(self) -> bool:
        return self.curriculum is not None

    @property
    def reply(self) -> TextSamplingConfig:
        return self.sampling

    @model_validator(mode="after")
    def _check_environment(self) -> TextConfig:
        if self.environment is not None:
            self.refuse_unread(["rewards"], "with an environment, which gives its own (rewards=[] removes them)")
        if self.rewards and not any(part.weight for part in self.rewards):
            raise ValueError("rewards: every weight is 0: set one")
        return self
