"""`ERLConfig`: `GRPOConfig` plus the settings of experiential reinforcement learning."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from memalpha.errors import ConfigError
from memalpha.integrations.trl.guard import require_trl
from memalpha.integrations.trl.phases import REFLECTION_TEMPLATE, RETRY_TEMPLATE, check_template

require_trl()

from trl.trainer.grpo_config import GRPOConfig  # noqa: E402


@dataclass
class ERLConfig(GRPOConfig):
    """Settings of `ERLTrainer`: those of `GRPOConfig`, unchanged, and these.

    Raises:
        ConfigError: A value is invalid, a template has unknown or missing fields, or a setting has no effect.
    """

    algorithm: int = field(
        default=1,
        metadata={
            "help": "1: internalization is a term of the one update; 2: it has one more epoch of updates after the "
            "others, which the schedule counts."
        },
    )
    reward_threshold: float = field(
        default=1.0,
        metadata={
            "help": "Reward from which an attempt has succeeded. Failed first attempts are reflected on; a reflection "
            "is kept in memory if its second attempt succeeds."
        },
    )
    reflection_system_prompt: str = field(
        default=REFLECTION_TEMPLATE,
        metadata={
            "help": "Template of the reflection prompt with the fields {prompt} {attempt} {feedback} {reward} "
            "{memory}. {prompt} and {attempt} are required, {memory} too unless enable_memory is false."
        },
    )
    retry_system_prompt: str = field(
        default=RETRY_TEMPLATE,
        metadata={"help": "Template of the second attempt's prompt with the fields {prompt} and {reflection}."},
    )
    enable_memory: bool = field(
        default=True, metadata={"help": "Keep reflections that helped and show them in later reflection prompts."}
    )
    memory_size: int = field(
        default=50, metadata={"help": "Maximum number of reflections in memory; the oldest is dropped first."}
    )
    memory_top_k: int = field(
        default=3, metadata={"help": "Number of reflections, the newest, in a reflection prompt."}
    )
    enable_internalization: bool = field(
        default=True,
        metadata={"help": "Imitate rewarded second attempts under the original prompt (internalization)."},
    )
    internalization_coef: float = field(default=1.0, metadata={"help": "Weight of internalization's cross-entropy."})
    internalization_threshold: float = field(
        default=0.0, metadata={"help": "Second attempts with a higher reward are imitated."}
    )

    def __post_init__(self) -> None:
        for name in ("reward_threshold", "internalization_coef", "internalization_threshold"):
            if not math.isfinite(getattr(self, name)):
                raise ConfigError(f"{name}: {getattr(self, name)} is not a number; give one")
        for name in ("memory_size", "memory_top_k", "internalization_coef"):
            if getattr(self, name) <= 0:
                raise ConfigError(f"{name}: {getattr(self, name)} must be above 0 (enable_... switches a part off)")
        if self.memory_top_k > self.memory_size:
            raise ConfigError(f"memory_top_k: more than memory_size={self.memory_size} cannot be shown")
        if self.algorithm not in (1, 2):
            raise ConfigError(f"algorithm: {self.algorithm} is neither 1 (one update) nor 2 (two)")
        if self.algorithm == 2 and not self.enable_internalization:
            raise ConfigError("algorithm: 2 has nothing to do in its own updates with enable_internalization=False")
        if self.algorithm == 2 and self.fp16:
            raise ConfigError(
                "fp16: updates with nothing to imitate are left out (algorithm=2), which fp16's scaler "
                "cannot do: use bf16, or algorithm=1"
            )
        check_template("reflection_system_prompt", self.reflection_system_prompt, memory=self.enable_memory)
        check_template("retry_system_prompt", self.retry_system_prompt)
        without = {
            "enable_memory": ("memory_size", "memory_top_k"),
            "enable_internalization": ("internalization_coef", "internalization_threshold"),
        }
        for switch, names in without.items():
            for name in names:
                if not getattr(self, switch) and getattr(self, name) != type(self).__dataclass_fields__[name].default:
                    raise ConfigError(f"{name}: has no effect with {switch}=False; leave it out")
        super().__post_init__()
        steps, window = self.steps_per_generation or 1, self.gradient_accumulation_steps
        if self.algorithm == 2 and steps % window:
            raise ConfigError(
                f"steps_per_generation: algorithm=2 needs a multiple of gradient_accumulation_steps={window}: "
                "no update may be of both kinds"
            )
