"""`LearnerConfig`, the settings of every training run, and `RolloutConfig`, those of runs that sample.

Default learning rates: by the number of weights, by LoRA, by supervised or reinforcement learning.

Two laws pass through the rate that trained the shipped policies (0.8 million weights, 4e-4) and a published one:

- Reinforcement learning, 4e-4 (N / 0.8e6) ** -0.7: 1e-6 at 4 billion weights, the rate of Mem-alpha (arXiv 2509.25911)
  and TRL's default of GRPO.
- Supervised learning, 4e-4 (N / 0.8e6) ** -0.35: 2e-5 at 4 billion, TRL's default of its SFTTrainer.

LoRA takes ten times the rate of all weights, whatever its rank (Schulman and Thinking Machines Lab 2025, "LoRA Without
Regret"): 2e-4 for supervised learning at 4 billion, the rate of QLoRA (arXiv 2305.14314). Between the two ends the laws
are a guess, so they give one significant digit. Models below 0.8 million weights get the rate at 0.8 million.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from memalpha.config.common import ONE_IS_A_LIST, Config, refuse_together
from memalpha.config.groups import (
    SHORT_NAMES,
    CheckpointConfig,
    ComputeConfig,
    EpochsOptimizerConfig,
    EvaluationConfig,
    OptimizerConfig,
    RowsOptimizerConfig,
    TaskEvaluationConfig,
    expand_short_names,
)
from memalpha.config.sampling import SamplingConfig

REFERENCE_PARAMETERS = 0.8e6
REFERENCE_RATE = 4e-4
REINFORCEMENT_EXPONENT = -0.7
SUPERVISED_EXPONENT = -0.35
LORA_FACTOR = 10.0

Tracker = Literal["aim", "clearml", "comet_ml", "dvclive", "mlflow", "swanlab", "tensorboard", "trackio", "wandb"]
"""Trackers that accelerate has a class of, by the names of their packages."""
_NONE_OF_TRL = BeforeValidator(lambda value: () if value in ("none", ["none"]) else value)


def default_learning_rate(parameters: int, *, lora: bool = False, supervised: bool = False) -> float:
    """Return the peak learning rate of a run that sets none, to one significant digit.

    Args:
        parameters: Weights of the model, without adapters.
        lora: Only low-rank adapters are trained.
        supervised: The run imitates rows; otherwise it reinforces rollouts.
    """
    exponent = SUPERVISED_EXPONENT if supervised else REINFORCEMENT_EXPONENT
    rate = REFERENCE_RATE * max(1.0, parameters / REFERENCE_PARAMETERS) ** exponent
    return float(f"{rate * (LORA_FACTOR if lora else 1.0):.0e}")


class LoraConfig(Config):
    """Low-rank adapters (Hu et al. 2021, arXiv 2106.09685) through peft; the names are peft's."""

    r: PositiveInt = Field(default=16, description="rank")
    lora_alpha: PositiveFloat = Field(default=32.0, description="the adapters' output is scaled by lora_alpha / r")
    target_modules: Literal["all-linear"] | tuple[str, ...] = Field(
        default="all-linear", description="names of the layers to adapt; all-linear leaves out the output embedding"
    )
    layers: PositiveInt | None = Field(
        default=None,
        description="adapt only this many last layers: those below keep no activations and get no backward pass "
        "(default: all)",
    )
    modules_to_save: tuple[str, ...] = Field(
        default=(),
        description="layers that are trained whole and saved with the adapters, such as norm; not the embeddings of a "
        "model that ties them",
    )
    trainable_tokens: tuple[Annotated[str, Field(min_length=1)], ...] = Field(
        default=(),
        description="tokens whose embeddings are trained beside the adapters; those that the tokenizer lacks are added "
        "(peft's trainable_token_indices)",
    )


class LearnerConfig(Config):
    """Settings of every training run: start, optimizer, compute, checkpoints."""

    out: Path = Field(description="run directory; a checkpoint found there is resumed")
    seed: NonNegativeInt = Field(default=0, lt=2**63, description="seed of tasks, sampling and order")
    policy: str = Field(default="tiny", description="a shipped policy's name, a directory, or a hub id")
    init_from: Path | None = Field(
        default=None,
        description="a run directory whose best checkpoint is the start instead of policy (adapters are merged into "
        "their base), and the reference of a KL or of preferences",
    )
    lora: LoraConfig | None = Field(default=None, description="train low-rank adapters only (default: all weights)")
    max_steps: NonNegativeInt | None = Field(
        default=None, description="stop after this many steps; never changes the schedule"
    )
    optimizer: OptimizerConfig = OptimizerConfig()
    compute: ComputeConfig = ComputeConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    report_to: Annotated[tuple[Tracker, ...], ONE_IS_A_LIST, _NONE_OF_TRL] = Field(
        default=(),
        description="send each step's metrics there, beside metrics.jsonl, and four rollouts where a table can be "
        "shown: one name, or a list",
    )

    @model_validator(mode="before")
    @classmethod
    def _expand_short_names(cls, data: Any) -> Any:
        return expand_short_names(data, cls) if isinstance(data, Mapping) else data

    @model_validator(mode="after")
    def _check_combinations(self) -> LearnerConfig:
        """Refuse steps beyond the schedule, two starts, and ways of saving memory that do not go together."""
        steps, wanted, optimizer = self.optimizer.schedule_steps, self.max_steps, self.optimizer
        if isinstance(optimizer, EpochsOptimizerConfig) and optimizer.epochs is not None:
            optimizer.refuse_unread(["schedule_steps"], f"with epochs={optimizer.epochs}", group="optimizer.")
        elif wanted is not None and wanted > steps:
            raise ValueError(
                f"max_steps: {wanted} is beyond schedule_steps {steps}: set schedule_steps={wanted} (a run that has "
                "begun keeps its schedule: start another out from its best weights with init_from)"
            )
        # A run's config.yaml names both: the policy is then the checkpoint that init_from stands for.
        start, has_policy = self.init_from, "policy" in self.model_fields_set
        if start is not None and has_policy and Path(self.policy).parent != start / "checkpoints":
            raise ValueError(
                f"init_from: starts from the best checkpoint of {start}, policy from {self.policy!r}: give one of them"
            )
        compute = self.compute
        if compute.load_in_4bit and self.lora is None:
            raise ValueError("compute.load_in_4bit: weights in 4 bits cannot be trained, only adapters: set lora={}")
        if compute.sharding == "fsdp":
            exclusions = {
                "compute.load_in_4bit": compute.load_in_4bit,
                "compute.device_map": compute.device_map is not None,
                "compute.offload_optimizer": compute.offload_optimizer,
                "lora.trainable_tokens": self.lora is not None and bool(self.lora.trainable_tokens),
            }
            refuse_together("compute.sharding", exclusions, "fsdp does not work with {}")
        return self

    def with_learning_rate(self, parameters: int) -> Self:
        """Return a copy with the learning rate set, if it is not, by `default_learning_rate`.

        Args:
            parameters: Weights of the model, without adapters.
        """
        if self.optimizer.learning_rate is not None:
            return self
        is_supervised = isinstance(self.optimizer, RowsOptimizerConfig)
        rate = default_learning_rate(parameters, lora=self.lora is not None, supervised=is_supervised)
        return self.replace(learning_rate=rate)

    def replace(self, **values: Any) -> Self:
        """Return a copy with other values, by short or top-level name; they are not validated."""
        copy = self
        for name, value in values.items():
            group, _, leaf = SHORT_NAMES.get(name, name).partition(".")
            if leaf:
                value = getattr(copy, group).model_copy(update={leaf: value})
            copy = copy.model_copy(update={group: value})
        return copy


class RolloutConfig(LearnerConfig):
    """Settings of every run that samples rollouts."""

    sampling: SamplingConfig = SamplingConfig()
    evaluation: TaskEvaluationConfig = TaskEvaluationConfig()
