"""Groups of settings of a training run: `optimizer`, `compute`, `checkpoint`, `evaluation`, `sampling`, `loss`.

A setting may also be given by its short name, without the group (`SHORT_NAMES`): `learning_rate=1e-3` is
`optimizer.learning_rate=1e-3`. Names are TRL's where TRL has the setting.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from memalpha.config.common import BabiConfig, Config, Share, WorldConfig
from memalpha.errors import ConfigError

Decay = Annotated[float, Field(ge=0.0, lt=1.0)]


class OptimizerConfig(Config):
    """Adam's settings and the learning-rate schedule."""

    learning_rate: PositiveFloat | None = Field(
        default=None,
        description="peak learning rate (default: by the number of weights and lora; shown at the start and recorded)",
    )
    adam_betas: tuple[Decay, Decay] = Field(
        default=(0.9, 0.98),
        description="Adam's decay rates (0.98: a memory of 50 steps, for runs of 50 to 500; trl and torch: 0.999)",
    )
    weight_decay: NonNegativeFloat = Field(default=0.0, description="decoupled weight decay (AdamW)")
    max_grad_norm: PositiveFloat = Field(default=1.0, description="clip the gradient to this norm")
    warmup_steps: NonNegativeInt = Field(default=3, description="steps of linear warm-up")
    decay_fraction: Share = Field(default=0.3, description="last share of the schedule, in which the rate decays to 0")
    schedule_steps: PositiveInt = Field(default=50, description="optimizer steps of the learning-rate schedule")

    @property
    def peak_rate(self) -> float:
        """Return `learning_rate`. Raises `ConfigError` if it still depends on a model."""
        if self.learning_rate is None:
            raise ConfigError("optimizer.learning_rate: not set, and its default depends on a model: give a number")
        return self.learning_rate


class EpochsOptimizerConfig(OptimizerConfig):
    """Optimizer of a run over rows or pairs, whose length may be a number of epochs."""

    epochs: PositiveFloat | None = Field(
        default=None, description="epochs over the data; sets the schedule's length instead of schedule_steps"
    )


class RowsOptimizerConfig(EpochsOptimizerConfig):
    """Optimizer of a supervised run."""

    batch_rows: PositiveInt = Field(default=32, description="rows per optimizer step")


class PairsOptimizerConfig(EpochsOptimizerConfig):
    """Optimizer of a run on pairs."""

    batch_pairs: PositiveInt = Field(default=16, description="pairs per optimizer step")
    epochs: PositiveFloat | None = Field(
        default=1.0, description="epochs over the pairs, unless only schedule_steps is set"
    )


class PreferenceOptimizerConfig(PairsOptimizerConfig):
    """Optimizer of a preference run."""

    learning_rate: PositiveFloat | None = Field(
        default=1e-6, description="peak rate; for models of 100 million weights up (trl's default of DPO)"
    )


class RewardOptimizerConfig(PairsOptimizerConfig):
    """Optimizer of a reward model."""

    learning_rate: PositiveFloat | None = Field(
        default=1e-4, description="peak rate; with lora (trl's default); all weights of a large model: 1e-5"
    )


class RLOptimizerConfig(OptimizerConfig):
    """Optimizer of a reinforcement run: how often a step's samples are trained on."""

    num_iterations: PositiveInt = Field(default=1, description="epochs over a step's samples")
    minibatches: PositiveInt = Field(default=2, description="optimizer steps per epoch over a step's samples")
    target_kl: PositiveFloat | None = Field(
        default=None,
        description="scale the rate, by a factor of 2 at most, so that an update at the peak rate moves the policy by "
        "this KL in nats per token (2e-4 to 5e-4; metric update_kl; default: the rate is as scheduled)",
    )


class LoadingConfig(Config):
    """How the weights of large models are put into memory."""

    load_in_4bit: bool = Field(
        default=False,
        description="hold the base weights in 4 bits (NF4 with double quantization, QLoRA, arXiv 2305.14314), products "
        "in dtype; training needs lora; needs bitsandbytes",
    )
    device_map: str | None = Field(
        default=None,
        description="spread each model's layers over the devices of one process instead of `device`: auto, balanced, "
        "balanced_low_0 or sequential, as transformers' from_pretrained takes it; needs accelerate",
    )
    attn_implementation: str | None = Field(
        default=None,
        description="attention of every loaded model: eager, sdpa, flash_attention_2 (needs flash-attn and bfloat16) "
        "... (default: transformers chooses)",
    )


class ComputeConfig(LoadingConfig):
    """Device, precision, memory and processes."""

    device: str = Field(default="cpu", description="torch device of the policy")
    dtype: Literal["float32", "bfloat16"] = Field(
        default="float32",
        description="precision of forward and backward passes; trained weights and optimizer stay float32 (bfloat16 is "
        "for GPUs and for CPUs that have it: others are 10 times slower in it)",
    )
    gradient_checkpointing: bool = Field(
        default=False, description="recompute each layer in the backward pass instead of keeping its activations"
    )
    microbatch_tokens: PositiveInt = Field(default=4096, description="padded tokens per forward pass")
    share_prefixes: bool = Field(
        default=False,
        description="compute each common prefix of a micro-batch's rows once, forward and backward (a group's prompt, "
        "the instructions of all); same gradients up to the order of sums; needs attn_implementation sdpa",
    )
    head_tokens: PositiveInt = Field(
        default=1024, description="completion tokens whose logits are computed at a time, to limit memory"
    )
    threads: PositiveInt = Field(default=1, le=1024, description="torch threads")
    sharding: Literal["ddp", "fsdp"] = Field(
        default="ddp",
        description="under accelerate launch; fsdp shards optimizer and passes, a sampler in the process stays whole",
    )
    offload_optimizer: bool = Field(
        default=False,
        description="keep Adam's states in host memory and step there: saves 8 bytes per trained weight on the device",
    )


class CheckpointConfig(Config):
    """Checkpoints of a run, and the time after which it stops with one."""

    save_steps: PositiveInt = Field(default=10, description="steps between checkpoints")
    save_total_limit: PositiveInt = Field(
        default=2, description="newest checkpoints kept beside the best (sampling.keep_tokens keeps all)"
    )
    max_minutes: PositiveFloat | None = Field(
        default=None,
        description="stop after the step that ends this many minutes after the start of this process, with a "
        "checkpoint and the final evaluation; the same command resumes; never changes the schedule",
    )


class EvaluationConfig(Config):
    """Validation during a run."""

    eval_steps: PositiveInt = Field(default=10, description="steps between validations")


class PairsEvaluationConfig(EvaluationConfig):
    """Held-out pairs."""

    data: Path | None = Field(default=None, description="held-out pairs (default: the last fifth of `data`)")
    validation_pairs: NonNegativeInt = Field(default=200, description="most pairs of a validation")


class TaskEvaluationConfig(EvaluationConfig):
    """Held-out tasks."""

    data: str | None = Field(
        default=None,
        description="held-out tasks: a data set's evaluation split, or a task file (default: the test split of "
        "synthetic or babi, a fifth of data otherwise)",
    )
    tasks: PositiveInt = Field(default=200, description="tasks of the evaluations before and after training")
    validation_tasks: NonNegativeInt = Field(default=40, description="tasks of a validation; 0: none")
    stop_below: PositiveFloat | None = Field(
        default=3.0,
        description="stop a run whose validation accuracy falls this many standard errors below the start's (null goes "
        "on)",
    )


HELD_OUT_SEED = -1
"""Seed of generated validation and evaluation tasks: the same in all runs, so that they compare on equal tasks."""


class MemoryEvaluationConfig(TaskEvaluationConfig):
    """Held-out tasks of a memory run."""

    seed: NonNegativeInt | None = Field(
        default=None,
        lt=2**63,
        description="seed of generated validation and held-out conversations (default: the same in all runs)",
    )
    world: WorldConfig | None = Field(default=None, description="held-out world (default: `world` with split=test)")
    babi: BabiConfig | None = Field(default=None, description="held-out streams of another shape (default: `babi`)")


class SFTEvaluationConfig(MemoryEvaluationConfig):
    """Held-out tasks of a supervised run."""

    evaluate: bool = Field(default=True, description="answer questions of held-out tasks before and after training")


class LossConfig(Config):
    """Policy-gradient loss; names follow TRL's `GRPOConfig` where the meaning is the same."""

    loss_type: Literal["grpo", "dapo", "dr_grpo", "cispo"] = Field(
        default="dr_grpo",
        description="divisor of a step's summed loss: each row's length and the rows (grpo), all tokens (dapo, cispo), "
        "or rows x loss_constant (dr_grpo); cispo clips the ratio as a weight of log-probs",
    )
    loss_constant: PositiveFloat | None = Field(
        default=None,
        description="dr_grpo: the constant, in tokens (default: the most new tokens of a reply, as TRL's "
        "max_completion_length; the shipped tiny policies were trained with 16)",
    )
    importance_sampling_level: Literal["token", "sequence"] = Field(
        default="token",
        description="a ratio per token, or one per completion: its geometric mean (GSPO; algorithm=rloo: its product)",
    )
    epsilon: PositiveFloat = Field(default=0.2, description="lower clip range of the ratio")
    epsilon_high: PositiveFloat | None = Field(
        default=None, description="upper clip range (default: epsilon); cispo: the largest weight (default 5)"
    )
    delta: PositiveFloat | None = Field(
        default=None, description="two-sided or dual clip: upper bound of the ratio where the advantage is negative"
    )
    old_logprobs: Literal["sampled", "recomputed"] = Field(
        default="sampled",
        description="denominator of the ratio: the sampler's record, or the learner's forward pass before the "
        "first update of a step (for sampler and learner of different precision or engine, as with dtype=bfloat16 and "
        "all weights trained: these are sampled in float32 unless sampling.dtype=bfloat16)",
    )
    importance_cap: PositiveFloat | None = Field(
        default=None,
        description="old_logprobs=recomputed: weigh each token by old / sampled, at most this (default: no weight; "
        "TRL: vllm_importance_sampling_clip_max)",
    )
    importance_sampling_mode: Literal["token_truncate", "token_mask", "sequence_truncate", "sequence_mask"] = Field(
        default="token_truncate",
        description="importance_cap: that ratio per token or per completion, and above the cap the cap or 0 (TRL: "
        "vllm_importance_sampling_mode)",
    )
    mask_truncated_completions: bool = Field(
        default=False,
        description="no gradient from completions cut at their most tokens; baselines still count them (pays where "
        "many are cut: eval/results/truncated-completions.md)",
    )
    beta: NonNegativeFloat = Field(default=0.0, description="weight of the KL to the frozen start policy")
    kl_estimator: Literal["k1", "k2", "k3"] = Field(default="k3", description="Schulman's estimators of that KL")
    kl_in: Literal["loss", "reward"] = Field(
        default="loss", description="add the KL to each token's loss, or to each turn's reward as a component"
    )
    use_bias_correction_kl: bool = Field(
        default=True, description="kl_in=loss: multiply the estimate by the ratio, which makes its gradient unbiased"
    )
    entropy_coef: NonNegativeFloat = Field(
        default=0.0, description="weight of the entropy bonus, a mean over a step's tokens"
    )
    scale_rewards: Literal["group", "batch", "none"] = Field(
        default="group",
        description="divide advantages by the standard deviation of rewards in the group, in the whole step, or not",
    )
    advantage_floor: PositiveFloat = Field(default=0.01, description="added to the standard deviation of scale_rewards")


class DatasetConfig(Config):
    """Location of the text tasks of `data` and the columns to read."""

    folder: str | None = Field(
        default=None, description="folder or file with the set, instead of the model hub (gsm8k, math and hub ids)"
    )
    columns: dict[str, str] = Field(
        default_factory=dict, description="column names, ours to theirs: {prompt: question, answer: target}"
    )
    limit: PositiveInt | None = Field(default=None, description="only the first tasks of data")


_GROUPED: Mapping[str, str] = {
    "optimizer": "learning_rate adam_betas weight_decay max_grad_norm warmup_steps decay_fraction schedule_steps "
    "epochs batch_rows batch_pairs num_iterations minibatches target_kl",
    "compute": "load_in_4bit device_map attn_implementation device dtype gradient_checkpointing microbatch_tokens "
    "share_prefixes head_tokens threads sharding offload_optimizer",
    "checkpoint": "save_steps save_total_limit max_minutes",
    "evaluation": "eval_steps validation_pairs validation_tasks stop_below evaluate",
    "sampling": "batch_tokens decode_rows stop_repeats group_size temperature tasks_per_step top_p top_k resample_flat "
    "stop_unreadable staleness sampler written_tasks keep_tokens thinking_tokens chat_template_kwargs max_new_tokens "
    "groups conversation_share questions_per_task curriculum",
    "loss": "loss_type loss_constant importance_sampling_level epsilon epsilon_high delta old_logprobs importance_cap "
    "importance_sampling_mode mask_truncated_completions beta kl_estimator kl_in use_bias_correction_kl entropy_coef "
    "scale_rewards advantage_floor",
    "dataset": "columns limit",
}
"""Settings whose short name is their name without the group."""
SHORT_NAMES: Mapping[str, str] = {
    **{name: f"{group}.{name}" for group, names in _GROUPED.items() for name in names.split()},
    "data_folder": "dataset.folder",
    "eval_babi": "evaluation.babi",
    "eval_data": "evaluation.data",
    "eval_tasks": "evaluation.tasks",
    "eval_world": "evaluation.world",
    "feedback_func": "erl.feedback_func",
    "keep_checkpoints": "checkpoint.save_total_limit",
    "sample_dtype": "sampling.dtype",
    "save_every": "checkpoint.save_steps",
    "tell_answer": "erl.tell_answer",
    "training_reader": "reward.reader",
    "validate_every": "evaluation.eval_steps",
}
"""Setting by its short name -> its full name."""


def expand_short_names(data: Mapping[str, Any], kind: type[BaseModel]) -> dict[str, Any]:
    """Return the settings of a training run with every short name moved into its group.

    Args:
        data: Settings as a file, the command line or Python gives them. Values of a group may be a mapping or a model.
        kind: Configuration class; names of groups that it does not have stay as they are.

    Raises:
        ValueError: A setting is given by its short and its full name with two values.
    """
    short_names = {
        key: SHORT_NAMES[key]
        for key in data
        if key in SHORT_NAMES and key not in kind.model_fields and SHORT_NAMES[key].split(".")[0] in kind.model_fields
    }
    expanded: dict[str, Any] = {key: value for key, value in data.items() if key not in short_names}
    for short, full in short_names.items():
        value = data[short]
        group, leaf = full.split(".")
        members = expanded.get(group, {})
        members = members.model_dump(exclude_unset=True) if isinstance(members, BaseModel) else dict(members or {})
        if leaf in members and members[leaf] != value:
            raise ValueError(f"{short}: is {group}.{leaf}, which is given too: leave one of them out")
        expanded[group] = {**members, leaf: value}
    return expanded
