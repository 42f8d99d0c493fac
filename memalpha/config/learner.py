"""What every training run reads: learner, optimizer, processes, and how many rollouts it samples."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import Field, model_validator

from memalpha.config.common import Config


class LoraConfig(Config):
    """Low-rank adapters (Hu et al. 2021, arXiv 2106.09685) through peft; the names are peft's."""

    r: int = Field(default=16, gt=0, description="rank")
    lora_alpha: float = Field(default=32.0, gt=0.0, description="the adapters' output is scaled by lora_alpha / r")
    target_modules: Literal["all-linear"] | tuple[str, ...] = Field(
        default="all-linear", description="names of the layers to adapt; all-linear leaves out the output embedding"
    )


class LearnerConfig(Config):
    """What the learner itself reads: weights, precision, memory, optimizer, processes. Names follow TRL's."""

    out: Path = Field(description="run directory; a checkpoint found there is resumed")
    seed: int = Field(default=0, ge=0)
    policy: str = Field(default="tiny", description="a shipped policy's name, a directory, or a hub id")
    init_from: Path | None = Field(
        default=None,
        description="a run directory: its best checkpoint is the start, in the place of policy (adapters are merged "
        "into their base), and the reference of a KL or of preferences",
    )
    lora: LoraConfig | None = Field(default=None, description="train low-rank adapters only (default: all weights)")
    dtype: Literal["float32", "bfloat16"] = Field(
        default="float32",
        description="precision of the passes; trained weights and optimizer stay float32 (bfloat16 is for GPUs and for "
        "CPUs that have it: others are 10 times slower in it)",
    )
    gradient_checkpointing: bool = Field(
        default=False, description="recompute each layer in the backward pass instead of keeping its activations"
    )
    microbatch_tokens: int = Field(default=4096, gt=0, description="padded tokens per forward pass")
    head_tokens: int = Field(
        default=1024, gt=0, description="completion tokens whose logits exist at the same time (the rest wait)"
    )
    learning_rate: float = Field(default=4e-4, gt=0.0)
    adam_betas: tuple[float, float] = (0.9, 0.98)
    weight_decay: float = Field(default=0.0, ge=0.0)
    max_grad_norm: float = Field(default=1.0, gt=0.0)
    warmup_steps: int = Field(default=3, ge=0)
    decay_fraction: float = Field(
        default=0.3, ge=0.0, le=1.0, description="last share of the schedule that decays to zero"
    )
    schedule_steps: int = Field(default=50, gt=0, description="length of the learning-rate schedule")
    max_steps: int | None = Field(
        default=None, ge=0, description="stop after this many steps; never changes the schedule"
    )
    save_every: int = Field(default=10, gt=0)
    validate_every: int = Field(default=10, gt=0)
    keep_checkpoints: int = Field(2, gt=0, description="newest checkpoints kept beside best (keep_tokens: all)")
    report_to: tuple[Literal["tensorboard", "wandb"], ...] = Field(
        default=(), description="where each step's figures go beside metrics.jsonl (train.tracking)"
    )
    threads: int = Field(default=1, gt=0, description="torch threads")
    device: str = Field(default="cpu", description="torch device of the policy")
    sharding: Literal["ddp", "fsdp"] = Field(
        default="ddp",
        description="under accelerate launch; fsdp: a part of optimizer and passes each, and the sampler whole",
    )

    @model_validator(mode="after")
    def _within_schedule(self) -> LearnerConfig:
        if self.max_steps is not None and self.max_steps > self.schedule_steps:
            raise ValueError(f"max_steps: {self.max_steps} is beyond schedule_steps {self.schedule_steps}")
        return self

    @model_validator(mode="after")
    def _one_start(self) -> LearnerConfig:
        """A run's own config.yaml names both: the run before it, and which of its checkpoints was the best."""
        start, named = self.init_from, "policy" in self.model_fields_set
        if start is not None and named and Path(self.policy).parent != start / "checkpoints":
            raise ValueError(
                f"init_from: starts from the best checkpoint of {start}, policy from {self.policy!r}: give one of them"
            )
        return self


class RolloutConfig(LearnerConfig):
    """How many rollouts of which tasks a run samples."""

    group_size: int = Field(default=8, gt=0, description="rollouts per task (TRL: num_generations)")
    temperature: float = Field(default=1.0, gt=0.0)
    eval_tasks: int = Field(default=200, gt=0, description="held-out tasks of the evaluation before and after")
    validation_tasks: int = Field(default=40, ge=0)

    @model_validator(mode="after")
    def _a_group(self) -> RolloutConfig:
        if self.group_size < 2 and not self._alone():
            raise ValueError("group_size: rollouts of a task are compared, so at least 2 are needed")
        return self

    def _alone(self) -> bool:
        """Whether a rollout can be learnt from without others of its task."""
        return False


def one_length(config: Any) -> None:
    """Raise `ValueError` where both `epochs` and `schedule_steps` say how long a run is."""
    steps = config.schedule_steps
    if config.epochs is not None and steps != LearnerConfig.model_fields["schedule_steps"].default:
        raise ValueError(f"schedule_steps: {steps} has no effect with epochs={config.epochs}; leave one of them out")
