"""Configurations of training runs, from what the learner itself reads to reinforcement and supervised runs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ModelWrapValidatorHandler, model_validator

from memalpha.config.algorithms import VETTED, DPOConfig, ERLConfig, PPOConfig, RolloutDPOConfig
from memalpha.config.common import (
    AgentConfig,
    BabiConfig,
    Config,
    EndpointConfig,
    ReaderConfig,
    RewardConfig,
    WorldConfig,
)
from memalpha.config.files import build_config, merge, read_config

POLICY_GRADIENT = (
    *("loss_type", "loss_constant", "importance_sampling_level", "epsilon", "epsilon_high", "delta"),
    *("old_logprobs", "importance_cap", "beta", "kl_estimator", "kl_in", "use_bias_correction_kl", "entropy_coef"),
    *("scale_rewards", "advantage_floor"),
)
"""Settings of `TrainConfig` that only a policy gradient reads."""


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


class RunConfig(LearnerConfig):
    """Tasks, writer, reader and reward of a training run, whatever it learns from."""

    data: str = Field(default="synthetic", description="synthetic, babi, or a task file (JSON Lines)")
    eval_data: str | None = Field(
        default=None,
        description="held-out tasks; default: the test split of synthetic or babi, or the last fifth of a task file",
    )
    world: WorldConfig = WorldConfig()
    eval_world: WorldConfig | None = Field(default=None, description="held-out world; default: world with split=test")
    babi: BabiConfig = BabiConfig()
    eval_babi: BabiConfig | None = Field(default=None, description="held-out streams of another shape (default: babi)")
    agent: AgentConfig = AgentConfig()
    reader: ReaderConfig = ReaderConfig()
    reward: RewardConfig = RewardConfig()
    endpoint: EndpointConfig = Field(default=EndpointConfig(), description="how a reader behind an endpoint is asked")
    group_size: int = Field(default=8, gt=0, description="rollouts per task (TRL: num_generations)")
    temperature: float = Field(default=1.0, gt=0.0)
    eval_tasks: int = Field(default=200, gt=0, description="held-out tasks of the evaluation before and after")
    validation_tasks: int = Field(default=40, ge=0)

    @model_validator(mode="after")
    def _a_reply_to_score(self) -> RunConfig:
        if self.reward.metric == "cited" and not self.reader.cite:
            raise ValueError("reward.metric: cited scores replies that name their evidence: set reader.cite=true")
        return self

    @model_validator(mode="after")
    def _a_group(self) -> RunConfig:
        if self.group_size < 2 and not self._alone():
            raise ValueError("group_size: rollouts of a task are compared, so at least 2 are needed")
        return self

    def _alone(self) -> bool:
        """Whether a rollout can be learnt from without others of its task."""
        return False


class TrainConfig(RunConfig):
    """One reinforcement-learning run. Names follow TRL's `GRPOConfig` where the meaning is the same.

    Picking an `algorithm` and nothing else is its vetted setting (`config.algorithms.VETTED`).
    """

    training_reader: ReaderConfig | None = Field(
        default=None, description="another reader for the reward only; evaluations keep `reader` (default: the same)"
    )
    algorithm: Literal["grpo", "rloo", "ppo", "dpo", "erl"] = Field(
        default="grpo", description="see memalpha.train.algorithms"
    )
    tasks_per_step: int = Field(default=8, gt=0)
    top_p: float = 1.0
    top_k: int = 0
    loss_type: Literal["grpo", "dapo", "dr_grpo", "cispo"] = Field(
        default="dr_grpo",
        description="what a step's summed loss is divided by: each row's length and the rows (grpo), all tokens (dapo, "
        "cispo), or rows x loss_constant (dr_grpo); cispo clips the ratio as a weight of log-probs",
    )
    loss_constant: float = Field(
        default=16.0, gt=0.0, description="dr_grpo: the constant, in tokens (TRL: max_completion_length)"
    )
    importance_sampling_level: Literal["token", "sequence"] = Field(
        default="token",
        description="a ratio a token, or one a completion: its geometric mean (GSPO), with algorithm=rloo its product",
    )
    epsilon: float = Field(default=0.2, gt=0.0, description="lower clip range of the ratio")
    epsilon_high: float | None = Field(
        default=None, gt=0.0, description="upper clip range (default: epsilon); cispo: the largest weight (default 5)"
    )
    delta: float | None = Field(
        default=None, gt=0.0, description="also bounds the ratio of bad tokens (two-sided clip; default: it does not)"
    )
    old_logprobs: Literal["sampled", "recomputed"] = Field(
        default="sampled",
        description="denominator of the ratio: the sampler's own record, or the learner's pass before the first update "
        "of a step (where sampler and learner differ in precision or engine, as with dtype=bfloat16 and all weights "
        "trained: they are sampled from as float32 unless sample_dtype=bfloat16)",
    )
    importance_cap: float | None = Field(
        default=None,
        gt=0.0,
        description="old_logprobs=recomputed: weigh each token by min(old / sampled, cap) (default: no such weight)",
    )
    beta: float = Field(default=0.0, ge=0.0, description="weight of the KL to the frozen start policy")
    kl_estimator: Literal["k1", "k2", "k3"] = Field(default="k3", description="Schulman's estimators of that KL")
    kl_in: Literal["loss", "reward"] = Field(
        default="loss", description="where it acts: on each token's loss, or as a component of each turn's reward"
    )
    use_bias_correction_kl: bool = Field(
        default=True, description="kl_in=loss: the estimate times the ratio, whose gradient is unbiased (as in TRL)"
    )
    entropy_coef: float = Field(
        default=0.0, ge=0.0, description="weight of the entropy bonus, a mean over a step's tokens (as in TRL)"
    )
    scale_rewards: Literal["group", "batch", "none"] = Field(
        default="group",
        description="divide advantages by the standard deviation of rewards in the group, in the whole step, or not",
    )
    advantage_floor: float = Field(default=0.01, gt=0.0, description="added to the standard deviation of scale_rewards")
    num_iterations: int = Field(default=1, gt=0, description="passes over a step's samples (TRL: inner epochs)")
    minibatches: int = Field(default=2, gt=0, description="optimizer steps per pass")
    overlap: int = Field(
        default=1,
        gt=0,
        description="a step's tasks in so many parts: while a reader or judge behind an endpoint is asked about one, "
        "others are sampled and learnt from (each adds to one optimizer step with minibatches=1, or is one of its own)",
    )
    ppo: PPOConfig | None = Field(default=None, description="algorithm=ppo: its own settings (default: theirs)")
    dpo: RolloutDPOConfig | None = Field(default=None, description="algorithm=dpo: its own settings (default: theirs)")
    erl: ERLConfig | None = Field(default=None, description="algorithm=erl: its own settings (default: theirs)")

    keep_tokens: bool = Field(
        default=False, description="write turns.jsonl and a checkpoint per step, for outside checks"
    )
    sample_dtype: Literal["bfloat16", "float32", "float64"] | None = Field(
        default=None, description="precision of the sampler (default: the policy's); float64 for exact log-probs on CPU"
    )

    def _alone(self) -> bool:
        return self.algorithm == "ppo"

    @model_validator(mode="wrap")
    @classmethod
    def _vetted(cls, given: Any, handler: ModelWrapValidatorHandler[TrainConfig]) -> TrainConfig:
        """What the algorithm brings along, under what is named; it does not count as set."""
        if not isinstance(given, Mapping):
            return handler(given)
        brought = dict(VETTED.get(str(given.get("algorithm", "grpo")), {}))
        if given.get("algorithm") == "rloo" and given.get("importance_sampling_level") == "sequence":
            brought["loss_type"] = "grpo"
        if given.get("algorithm") == "erl" and _erl_algorithm(given.get("erl")) == 1:
            brought["scale_rewards"] = "batch"
        made = handler({**brought, **given})
        made.model_fields_set.difference_update(set(brought) - set(given))
        return made

    @model_validator(mode="after")
    def _possible(self) -> TrainConfig:
        if self.top_p != 1.0 or self.top_k != 0:
            raise ValueError(
                "top_p/top_k: truncated sampling biases every importance ratio; training samples with temperature only "
                "(top_p=1, top_k=0)"
            )
        if self.importance_cap is not None and self.old_logprobs == "sampled":
            raise ValueError(
                "importance_cap: with old_logprobs=sampled the ratio itself corrects for the sampler; set "
                "old_logprobs=recomputed, or leave importance_cap out"
            )
        if self.kl_estimator == "k1" and self.kl_in == "loss" and self.beta and not self.use_bias_correction_kl:
            raise ValueError(
                "kl_estimator: k1's gradient in the loss is 0 on average without the ratio, so nothing is held back; "
                "set use_bias_correction_kl=true, kl_in=reward or another estimator"
            )
        if self.erl is not None and self.algorithm != "erl":
            raise ValueError(f"erl: has no effect with algorithm={self.algorithm}; leave it out")
        if self.algorithm == "rloo":
            if self.scale_rewards != "none":
                raise ValueError("scale_rewards: rloo compares with the mean of the others and divides by nothing")
            if self.importance_sampling_level == "sequence" and self.loss_type != "grpo":
                raise ValueError(
                    "loss_type: with one ratio a completion rloo's loss is a mean over completions: leave it out"
                )
        if self.algorithm == "ppo":
            if self.scale_rewards != "none":
                raise ValueError("scale_rewards: ppo compares no rollouts of a group; see ppo.whiten_advantages")
            if self.importance_sampling_level == "sequence":
                raise ValueError("importance_sampling_level: ppo has an advantage a token, so a ratio a token")
            if self.loss_type != "dapo":
                raise ValueError(
                    f"loss_type: ppo's clipped loss is a mean over tokens, as its value loss is, not {self.loss_type}: "
                    "leave it out"
                )
            if self.ppo is not None and self.ppo.kl_target is not None and not self.beta:
                raise ValueError("ppo.kl_target: beta follows it and must start above 0")
        elif self.ppo is not None:
            raise ValueError(f"ppo: has no effect with algorithm={self.algorithm}; leave it out")
        if self.delta is not None and self.delta <= 1 + (self.epsilon_high or self.epsilon):
            raise ValueError("delta: bounds the ratio above what the clip does: it must be above 1 + epsilon_high")
        for name, wherefore in self._without_effect():
            if getattr(self, name) != type(self).model_fields[name].default:
                raise ValueError(f"{name}: has no effect {wherefore}; leave it out")
        return self

    @model_validator(mode="after")
    def _in_parts(self) -> TrainConfig:
        """What of a step can be learnt before the rest of it has its rewards."""
        if self.overlap == 1:
            return self
        if self.overlap > self.tasks_per_step:
            raise ValueError(f"overlap: {self.overlap} parts need a task each, tasks_per_step is {self.tasks_per_step}")
        if self.minibatches not in (1, self.overlap):
            raise ValueError(
                f"overlap: a minibatch is a part or the whole step: set minibatches={self.overlap} or minibatches=1"
            )
        whole = {
            f"algorithm={self.algorithm}": self.algorithm not in ("grpo", "rloo"),
            f"num_iterations={self.num_iterations}": self.num_iterations > 1,
            "scale_rewards=batch": self.scale_rewards == "batch",
        }
        for setting, needs in whole.items():
            if needs:
                raise ValueError(f"overlap: {setting} needs all rewards of a step at once: set overlap=1")
        return self

    def _without_effect(self) -> list[tuple[str, str]]:
        """Settings that nothing reads in this configuration, and why."""
        if self.algorithm == "dpo":
            return [
                (name, "with algorithm=dpo, whose loss has settings of its own (dpo.*)") for name in POLICY_GRADIENT
            ]
        found = [("dpo", f"with algorithm={self.algorithm}")]
        if not self.beta:
            found += [(name, "with beta=0, which asks for no KL") for name in ("kl_in", "kl_estimator")]
        if not self.beta or self.kl_in == "reward":
            found.append(("use_bias_correction_kl", "where no KL is in the loss"))
        if self.loss_type != "dr_grpo":
            found.append(("loss_constant", f"with loss_type={self.loss_type}"))
        if self.loss_type == "cispo":
            found += [
                (name, "with loss_type=cispo, which clips weights at epsilon_high") for name in ("epsilon", "delta")
            ]
        if self.scale_rewards == "none":
            found.append(("advantage_floor", "with scale_rewards=none, which divides by nothing"))
        return found


def _erl_algorithm(given: Any) -> Any:
    return given.get("algorithm") if isinstance(given, Mapping) else getattr(given, "algorithm", None)


class SFTConfig(RunConfig):
    """One supervised run: the learner imitates rows (`train.demonstrations`)."""

    algorithm: Literal["sft"] = "sft"
    source: str = Field(
        default="gold",
        description="rows to imitate: gold (each task's operations), scripted:KIND, best (the policy's best rollout "
        "of group_size by reward), erl (second attempts and reflections: train.lessons), a run directory with "
        "turns.jsonl (its best rollouts), or a .jsonl file of rows",
    )
    erl: ERLConfig | None = Field(default=None, description="source=erl: as in the run that is to follow")
    tasks: int = Field(
        default=256, gt=0, description="gold, scripted, best, erl: training tasks of a round (of a file: all at most)"
    )
    rounds: int = Field(default=1, gt=0, description="best: sample new rows so often, with the weights of then")
    batch_rows: int = Field(default=32, gt=0, description="rows of an optimizer step")
    epochs: float | None = Field(
        default=None, gt=0.0, description="passes over the rows, in the place of schedule_steps"
    )
    evaluate: bool = Field(default=True, description="answer questions of held-out tasks before and after")

    @property
    def tasks_per_step(self) -> int:
        """How many tasks are taken at a time: all of a round."""
        return self.tasks

    @model_validator(mode="after")
    def _within_schedule(self) -> SFTConfig:
        """Overrides the base's check, which does not hold where `epochs` sets the length of the schedule."""
        if self.epochs is None:
            super()._within_schedule()  # type: ignore[operator]
        if self.rounds > 1 and self.source != "best":
            raise ValueError(
                f"rounds: only source=best samples rows anew, {self.source!r} has the same ones every time"
            )
        if self.erl is not None and self.source != "erl":
            raise ValueError(f"erl: has no effect with source={self.source}; leave it out")
        for name in ("enable_reflection", "enable_internalization", "internalization_coef", "internalization_margin"):
            if self.erl is not None and getattr(self.erl, name) != ERLConfig.model_fields[name].default:
                raise ValueError(
                    f"erl.{name}: has no effect with source=erl, whose rows teach to reflect and to take advice; leave "
                    "it out"
                )
        _one_length(self)
        if self.source == "best" and self.epochs is not None:
            raise ValueError("epochs: how many rows source=best will find is not known: set schedule_steps")
        if self.rounds > self.schedule_steps:
            raise ValueError(f"rounds: {self.rounds} rounds need at least as many schedule_steps")
        return self


class PreferenceConfig(LearnerConfig):
    """One run on plain preference data (`train.preferences`). Names follow TRL's `DPOConfig`."""

    algorithm: Literal["preferences"] = "preferences"
    data: Path = Field(description="JSON Lines of prompt, chosen, rejected (or of chats: chosen, rejected)")
    eval_data: Path | None = Field(
        default=None, description="pairs that validate, in such a file (default: the last fifth of `data`)"
    )
    validation_pairs: int = Field(default=200, ge=0, description="how many pairs validate at most")
    dpo: DPOConfig = DPOConfig()
    batch_pairs: int = Field(default=16, gt=0, description="pairs of an optimizer step")
    epochs: float | None = Field(
        default=1.0, gt=0.0, description="passes over the pairs, unless schedule_steps alone is given"
    )
    learning_rate: float = Field(default=1e-6, gt=0.0, description="for 100 million weights and more")

    @model_validator(mode="before")
    @classmethod
    def _so_many_steps(cls, given: Any) -> Any:
        if isinstance(given, Mapping) and given.get("schedule_steps") is not None and "epochs" not in given:
            return {**given, "epochs": None}
        return given

    @model_validator(mode="after")
    def _within_schedule(self) -> PreferenceConfig:
        """Overrides the base's check, which does not hold where `epochs` sets the length of the schedule."""
        if self.epochs is None:
            super()._within_schedule()  # type: ignore[operator]
        if self.eval_data is not None and not self.validation_pairs:
            raise ValueError("eval_data: has no effect with validation_pairs=0; leave one of them out")
        _one_length(self)
        return self


def _one_length(config: SFTConfig | PreferenceConfig) -> None:
    steps = config.schedule_steps
    if config.epochs is not None and steps != LearnerConfig.model_fields["schedule_steps"].default:
        raise ValueError(f"schedule_steps: {steps} has no effect with epochs={config.epochs}; leave one of them out")


AnyTraining = TrainConfig | SFTConfig | PreferenceConfig
KINDS: Mapping[str, type[AnyTraining]] = {"sft": SFTConfig, "preferences": PreferenceConfig}
"""Configurations by `algorithm`; every other algorithm has a `TrainConfig`."""


def training_config(config: AnyTraining | str | Path, overrides: Mapping[str, Any] | None = None) -> AnyTraining:
    """The configuration of a training run, with overrides on top: of the kind that its `algorithm` has.

    An override of `init_from` takes the place of the configuration's `policy`, and the other way round; so do `epochs`
    and `schedule_steps`.
    """
    over = dict(overrides or {})
    if isinstance(config, AnyTraining):
        base, label = config.model_dump(exclude_unset=True), "overrides"  # what was not set stays so, as if from a file
    else:
        base, label = read_config(config), str(config)
    for pair in (("init_from", "policy"), ("epochs", "schedule_steps")):
        for one, other in (pair, pair[::-1]):
            if over.get(one) is not None and other not in over:
                base = {key: value for key, value in base.items() if key != other}
    data = merge(base, over)
    kind = type(config) if isinstance(config, AnyTraining) else KINDS.get(str(data.get("algorithm")), TrainConfig)
    return build_config(kind, data, label)
