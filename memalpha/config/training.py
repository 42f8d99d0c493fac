"""Configurations of training runs, and the choice of the configuration class of a file."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, PositiveFloat, PositiveInt, field_validator, model_validator

from memalpha.arguments import brief_repr, check_path
from memalpha.config.algorithms import DPOConfig, ERLSettings
from memalpha.config.common import (
    UNUSED_BY_READER,
    AgentConfig,
    BabiConfig,
    EndpointConfig,
    ReaderConfig,
    RewardConfig,
    WorldConfig,
    refuse_together,
)
from memalpha.config.files import build_config, merge, read_config, shipped_configs
from memalpha.config.groups import (
    HELD_OUT_SEED,
    MemoryEvaluationConfig,
    PairsEvaluationConfig,
    PairsOptimizerConfig,
    PreferenceOptimizerConfig,
    RewardOptimizerConfig,
    RowsOptimizerConfig,
    SFTEvaluationConfig,
    expand_short_names,
)
from memalpha.config.learner import LearnerConfig, RolloutConfig
from memalpha.config.reinforcement import ReinforcementConfig, TextConfig
from memalpha.config.sampling import MemorySamplingConfig
from memalpha.errors import ConfigError


class PairsConfig(LearnerConfig):
    """Settings shared by runs on a file of pairs."""

    data: Path = Field(description="JSON Lines of prompt, chosen, rejected (or of chats: chosen, rejected)")
    optimizer: PairsOptimizerConfig = PairsOptimizerConfig()
    evaluation: PairsEvaluationConfig = PairsEvaluationConfig()

    @field_validator("optimizer", mode="before")
    @classmethod
    def _schedule_replaces_epochs(cls, optimizer: Any) -> Any:
        if isinstance(optimizer, Mapping) and optimizer.get("schedule_steps") is not None and "epochs" not in optimizer:
            return {**optimizer, "epochs": None}
        return optimizer

    @model_validator(mode="after")
    def _check_validation(self) -> PairsConfig:
        if not self.evaluation.validation_pairs:
            self.evaluation.refuse_unread(["data"], "with validation_pairs=0", group="evaluation.")
        return self


class PreferenceConfig(PairsConfig):
    """Run on plain preference data (`train.trainers.preferences`); names follow TRL's `DPOConfig`."""

    algorithm: Literal["preferences"] = Field(default="preferences", description="marks a preference run")
    dpo: DPOConfig = DPOConfig()
    optimizer: PreferenceOptimizerConfig = PreferenceOptimizerConfig()


class RewardModelConfig(PairsConfig):
    """Run that trains a reward model; names and defaults follow TRL's `RewardConfig`."""

    algorithm: Literal["reward"] = Field(default="reward", description="marks a run that trains a reward model")
    data: Path = Field(
        description="JSON Lines of prompt, chosen, rejected (and margin, objective), or of prompt, completion and its "
        "score (or scores by objective)"
    )
    pooling: Literal["last", "mean", "attention"] = Field(
        default="last", description="hidden state for the head: the last token's, or a mean or attention over the reply"
    )
    objectives: dict[str, float] = Field(
        default={"reward": 1.0},
        description="weight in the score by name of objective; the head has one output for each",
    )
    center_rewards_coefficient: PositiveFloat | None = Field(
        default=None,
        description="weight of (chosen + rejected) squared, which keeps scores around 0 (arXiv 2312.09244; often 0.01)",
    )
    optimizer: RewardOptimizerConfig = RewardOptimizerConfig()

    @model_validator(mode="after")
    def _worth_something(self) -> RewardModelConfig:
        if not self.objectives or not any(self.objectives.values()):
            raise ValueError("objectives: at least one with another weight than 0 is needed")
        for name, weight in self.objectives.items():
            if not name or not math.isfinite(weight):
                raise ValueError(f"objectives: {name!r} with weight {weight}: a name and a finite number are needed")
        self.compute.refuse_unread(["head_tokens"], "with algorithm=reward, which makes no logits", group="compute.")
        return self


class RunConfig(RolloutConfig):
    """Tasks, writer, reader and reward of every training run of a memory writer."""

    data: str = Field(
        default="synthetic",
        description="synthetic, babi, a data set with a training split (see `memalpha data list NAME`), or a task file",
    )
    train_on_evaluation_split: bool = Field(
        default=False, description="train on the evaluation split of a named data set, which is refused otherwise"
    )
    world: WorldConfig = WorldConfig()
    babi: BabiConfig = BabiConfig()
    evaluation: MemoryEvaluationConfig = MemoryEvaluationConfig()
    agent: AgentConfig = AgentConfig()
    reader: ReaderConfig = ReaderConfig()
    reward: RewardConfig = RewardConfig()
    endpoint: EndpointConfig = Field(default=EndpointConfig(), description="calls of a reader behind an endpoint")

    @model_validator(mode="after")
    def _a_reply_to_score(self) -> RunConfig:
        self.reader.refuse_unused()
        if self.reward.metric == "cited" and not self.reader.cite:
            raise ValueError("reward.metric: cited scores replies that name their evidence: set reader.cite=true")
        return self

    @property
    def held_out_world(self) -> WorldConfig:
        """World of the held-out conversations."""
        return self.evaluation.world or self.world.model_copy(update={"split": "test", "drills": 0.0})

    @property
    def held_out_seed(self) -> int:
        """Seed of generated validation and held-out conversations."""
        seed = self.evaluation.seed
        return seed if seed is not None else 0 if self.data == "babi" else HELD_OUT_SEED


WHOLE_CONVERSATIONS = ("ppo", "dpo", "erl")
"""Algorithms that compare or train rollouts of whole conversations."""


class TrainConfig(ReinforcementConfig, RunConfig):
    """One reinforcement-learning run of a memory writer."""

    evaluation: MemoryEvaluationConfig = MemoryEvaluationConfig()
    sampling: MemorySamplingConfig = MemorySamplingConfig()

    @property
    def has_curriculum(self) -> bool:
        return self.sampling.curriculum is not None

    @property
    def reply(self) -> AgentConfig:
        return self.agent

    @model_validator(mode="after")
    def _check_memory_run(self) -> TrainConfig:
        """Refuse settings of text runs, and credit and groups that do not fit the algorithm."""
        _refuse_text_settings(self.erl)
        if self.reward.credit == "calls" and self.algorithm in ("ppo", "dpo"):
            reason = {"ppo": "has a value for each token", "dpo": "compares whole rollouts"}[self.algorithm]
            raise ValueError(f"reward.credit: algorithm={self.algorithm} {reason}; set credit=turn, or grpo, rloo, erl")
        sampling = self.sampling
        if sampling.groups == "conversation":
            sampling.refuse_unread(["conversation_share"], "with groups=conversation", group="sampling.")
            return self
        exclusions = {
            f"algorithm={self.algorithm}": self.algorithm in WHOLE_CONVERSATIONS,
            "reward.model": self.reward.model is not None,
            "reward.functions": bool(self.reward.functions),
            "staleness beside a server (sampler)": sampling.sampler is not None and bool(sampling.staleness),
        }
        refuse_together("sampling.groups", exclusions, "{} needs rollouts of whole conversations")
        return self


def _refuse_text_settings(erl: ERLSettings | None) -> None:
    names = ("reflection_prompt", "retry_prompt", "feedback_func", "tell_answer")
    if erl is not None:
        erl.refuse_unread(names, "on a memory writer, which has its own: it is for text tasks", group="erl.")


class SFTConfig(RunConfig):
    """One supervised run that imitates rows (`train.data.demonstrations`)."""

    algorithm: Literal["sft"] = Field(default="sft", description="marks a supervised run")
    source: str = Field(
        default="gold",
        description="rows to imitate: gold (each task's operations), scripted:KIND, best (the policy's best rollout "
        "of group_size by reward), erl (retries and reflections), a run directory with "
        "turns.jsonl (its best rollouts), or a .jsonl file of rows",
    )
    erl: ERLSettings | None = Field(default=None, description="source=erl: settings of the ERL run that follows")
    tasks: PositiveInt = Field(
        default=256, description="gold, scripted, best, erl: training tasks of a round (of a file: all at most)"
    )
    rounds: PositiveInt = Field(
        default=1, description="best: number of times that rows are sampled anew with the current weights"
    )
    optimizer: RowsOptimizerConfig = RowsOptimizerConfig()
    evaluation: SFTEvaluationConfig = SFTEvaluationConfig()

    @property
    def tasks_per_step(self) -> int:
        """Number of tasks of a round, sampled together."""
        return self.tasks

    @model_validator(mode="after")
    def _check_source(self) -> SFTConfig:
        """Refuse settings that the source of the rows does not have."""
        if self.rounds > 1 and self.source != "best":
            raise ValueError(
                f"rounds: only source=best samples rows anew, {self.source!r} has the same ones every time"
            )
        if self.source != "erl":
            self.refuse_unread(["erl"], f"with source={self.source}")
        elif self.erl is not None:
            names = ("enable_reflection", "enable_internalization", "internalization_coef")
            reason = "with source=erl, whose rows teach to reflect and to take advice"
            self.erl.refuse_unread(names, reason, group="erl.")
            _refuse_text_settings(self.erl)
        self.reward.refuse_unread(["reader", "credit"], "with algorithm=sft", group="reward.")
        if self.source == "best" and self.optimizer.epochs is not None:
            raise ValueError("optimizer.epochs: how many rows source=best will find is not known: set schedule_steps")
        if self.rounds > self.optimizer.schedule_steps:
            raise ValueError(f"rounds: {self.rounds} rounds need at least as many schedule_steps")
        return self


AnyTraining = TrainConfig | TextConfig | SFTConfig | PreferenceConfig | RewardModelConfig
KINDS: Mapping[str, type[AnyTraining]] = {
    "sft": SFTConfig,
    "preferences": PreferenceConfig,
    "reward": RewardModelConfig,
}
"""Configurations by `algorithm`; every other algorithm has a `TrainConfig`, or with `task: text` a `TextConfig`."""


def training_config(config: AnyTraining | str | Path, overrides: Mapping[str, Any] | None = None) -> AnyTraining:
    """Return the configuration of a training run, of the kind that its `algorithm` and `task` have.

    A shipped configuration's learning rate and `loss_constant` hold for its policy: an override of `policy` brings the
    defaults back. Its `sampling.groups` gives way to overrides that need whole conversations. An override of
    `init_from` replaces the configuration's `policy`, and the other way round; so do `optimizer.epochs` and
    `optimizer.schedule_steps`.

    Args:
        config: A shipped configuration's name, a YAML file, a run directory (its recorded settings, with itself as
            `out`), or a configuration.
        overrides: Settings on top of it, by full or short name.

    Raises:
        ConfigError: The configuration does not exist or a setting does not fit.
    """
    if isinstance(config, Mapping):
        raise ConfigError("config: a mapping is no configuration: build one, as in TextConfig(**settings)")
    if not isinstance(config, AnyTraining):
        check_path("config", config, error=ConfigError)
    if isinstance(config, AnyTraining):
        base, label = config.model_dump(exclude_unset=True), "overrides"  # what was not set stays so, as if from a file
    elif str(config) not in shipped_configs() and Path(config).is_dir():
        label = str(Path(config) / "config.yaml")
        if not Path(label).is_file():
            raise ConfigError(f"{config} holds no config.yaml, so it is no training run that could be resumed")
        base = {**read_config(label), "out": str(config)}  # it may have been moved
        drop_unused_settings(base, base)  # earlier versions took them
    else:
        base, label = read_config(config), str(config)
        if "benchmark" in base:
            problem = "configures an evaluation"
            raise ConfigError(f"{label} {problem}: `memalpha eval {label}` runs it; train with another, such as demo")
    named = {**base, **(overrides or {})}
    if isinstance(config, AnyTraining):
        kind = type(config)
    elif "task" not in named:
        kind = KINDS.get(str(named.get("algorithm")), TrainConfig)
    elif named["task"] == "text":
        kind = TextConfig
    else:
        task = brief_repr(named["task"])
        raise ConfigError(f"{label}: task: no task {task}: write text, or leave it out for a memory writer")
    try:
        base, over = expand_short_names(base, kind), expand_short_names(overrides or {}, kind)
    except ValueError as error:
        raise ConfigError(f"{label}: {error}") from error
    if str(config) in shipped_configs():
        if "policy" in base and over.get("policy") not in (None, base["policy"]):
            _drop(base, "optimizer", "learning_rate")  # measured with the configuration's policy, as the next
            _drop(base, "loss", "loss_constant")
        reward, sampling = (over[key] if isinstance(over.get(key), Mapping) else {} for key in ("reward", "sampling"))
        is_ahead = bool(sampling.get("staleness")) and "sampler" in sampling
        asks_for_whole = bool(reward.get("model") or reward.get("functions")) or is_ahead
        if asks_for_whole or over.get("algorithm") in WHOLE_CONVERSATIONS:  # all need rollouts of whole conversations
            _drop(base, "sampling", "groups")
    drop_unused_settings(base, over)
    _replace_counterpart(base, over, "init_from", "policy")
    if isinstance(base.get("optimizer"), Mapping) and isinstance(over.get("optimizer"), Mapping):
        base["optimizer"] = dict(base["optimizer"])
        _replace_counterpart(base["optimizer"], over["optimizer"], "epochs", "schedule_steps")
    overrides = None if isinstance(config, AnyTraining) else over
    return build_config(kind, merge(base, over), label, overrides, (TrainConfig, TextConfig, *KINDS.values()))


def drop_unused_settings(base: dict[str, Any], over: Mapping[str, Any]) -> None:
    """Drop the readers' settings from `base` that the kinds of reader which `over` sets do not read."""
    if isinstance(reader := over.get("reader"), Mapping):
        _drop(base, "reader", *UNUSED_BY_READER.get(str(reader.get("kind")), ()))
    if isinstance(base.get("reward"), Mapping) and isinstance(over.get("reward"), Mapping):
        base["reward"] = dict(base["reward"])
        drop_unused_settings(base["reward"], over["reward"])


def _drop(base: dict[str, Any], group: str, *names: str) -> None:
    if isinstance(base.get(group), Mapping):
        base[group] = {key: value for key, value in base[group].items() if key not in names}


def _replace_counterpart(base: dict[str, Any], over: Mapping[str, Any], first: str, second: str) -> None:
    """Drop from `base` the one of two settings that exclude each other if `over` gives the other alone."""
    for name, counterpart in ((first, second), (second, first)):
        if over.get(name) is not None and counterpart not in over:
            base.pop(counterpart, None)
