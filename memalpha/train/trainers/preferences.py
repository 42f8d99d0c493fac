"""Preference optimization on plain data: `memalpha train preferences`, or `train_on_preferences` (`train.api`).

A step takes `batch_pairs` pairs (`train.data.preferences`), in a seeded order that changes every epoch. One update
lowers the mean of their losses (`train.algorithms.dpo`: DPO, cDPO, IPO, reference-free). The reference is the
start policy: the base without adapters, or a frozen copy. Validation is the loss of held-out pairs: `eval_data`, or the
last fifth of the file, at most `validation_pairs`. No question is answered; `memalpha eval` evaluates the weights.

Losses and their settings are those of TRL's DPOTrainer (gradients in float64: tests/train/algorithms/test_dpo.py). TRL
cuts rows that are too long and appends its end token to a rendered chat. Here a row that the model cannot take is
refused by name, and a reply ends with the token that the template writes after an assistant's turn.

Reward models: `memalpha train reward`, or `train_reward_model` (`train.api`).

A step takes `batch_pairs` lines of the data (`train.data.preferences`), in a seeded order that changes every epoch. One
update of the trunk (or of adapters in it) and the head lowers the mean of their losses (`train.learner.reward_engine`).
Validation is the loss on held-out lines: `eval_data`, or the last fifth of the file.

For plain pairs with `pooling: last`, loss and gradient equal those of TRL's RewardTrainer. Both write the same files:
each loads the other's models, to the same scores. The run does not use that trainer, which has no other pooling, no
objectives and no ratings, and drops rows that are too long instead of refusing them. Its steps, validation, metrics and
checkpoints would also differ from those of all other runs here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from memalpha.config import PreferenceConfig, RewardModelConfig
from memalpha.config.algorithms import DPOConfig
from memalpha.config.training import PairsConfig
from memalpha.errors import ConfigError, DataError
from memalpha.policy.load import absolute_policy_name
from memalpha.policy.reward_model import Head, add_reward_head
from memalpha.policy.transformers import TransformersPolicy
from memalpha.train.algorithms.dpo import weight_pairs
from memalpha.train.data.preferences import (
    ComparedReplies,
    Pair,
    RewardExample,
    lines_fingerprint,
    read_pairs,
    read_reward_examples,
)
from memalpha.train.data.samples import TrainingSample
from memalpha.train.learner.distributed import World
from memalpha.train.learner.engine import Engine
from memalpha.train.learner.lora import add_lora
from memalpha.train.learner.losses import LossSettings
from memalpha.train.learner.reward_engine import RewardEngine
from memalpha.train.rollouts.epochs import shared_note, split_last
from memalpha.train.trainers.directory import RunDirectory
from memalpha.train.trainers.progress import Display
from memalpha.train.trainers.rows import RowEvaluations, RowLearner, RowStep
from memalpha.train.trainers.trainer import RunStart, Trainer, build_engine, check_device_map, load_with_defaults

L = TypeVar("L")


def pairs_trainer(
    config: PairsConfig,
    directory: RunDirectory,
    start: RunStart,
    learner: RowLearner[L],
    read: Callable[[Path], list[L]],
) -> Trainer:
    """Compose a run on a file of preferences.

    Args:
        config: Settings of the run.
        directory: Run directory; claimed here.
        start: Start policy.
        learner: Learns from the lines.
        read: Reads the lines of a file; raises `DataError` if training on one is impossible.
    """
    display = Display(quiet=not directory.world.is_main)

    def load() -> tuple[list[L], list[L]]:
        training, held_out = load_lines(config, read, learner.unit)
        note = shared_note(*([lines_fingerprint([line]) for line in part] for part in (training, held_out)))
        display.log(f"{learner.describe(training)}, {len(held_out)} validation {learner.unit}s{note}")
        return training, held_out

    directory.claim(config)
    training, held_out = directory.world.run_on_main(load)
    fingerprint = lines_fingerprint([*training, *held_out])
    training_step, evaluations = RowStep(config, learner, training, fingerprint), RowEvaluations(learner, held_out)
    return Trainer(config, directory, start, learner.engine, training_step, evaluations, display)


def load_lines(config: PairsConfig, read: Callable[[Path], list[L]], unit: str) -> tuple[list[L], list[L]]:
    """Read the lines and split off those that validate: `eval_data`, or the last fifth of the file.

    Args:
        config: `data`, `evaluation.data` and `validation_pairs`, the most lines that validate.
        read: Reads the lines of a file.
        unit: Name of a line in messages.

    Returns:
        Training lines, held-out lines.

    Raises:
        DataError: No line is left to train on.
    """
    training = read(config.data)
    if config.evaluation.data is not None:
        held_out = read(config.evaluation.data)[: config.evaluation.validation_pairs]
    else:
        training, held_out = split_last(training, config.evaluation.validation_pairs)
    if not training:
        raise DataError(f"data: {config.data} has one {unit}, which validates: add some, or set validation_pairs=0")
    return training, held_out


def preference_trainer(config: PreferenceConfig, directory: RunDirectory) -> Trainer:
    """Compose a run that makes better replies more likely than worse ones."""
    loss = LossSettings(ce_normalizer="unit")
    config, start = load_with_defaults(config, Display(quiet=not directory.world.is_main))
    engine = build_engine(start.policy, config, loss, directory.world, reference=not config.dpo.reference_free)
    learner = PreferenceLearner(engine, config.dpo)
    return pairs_trainer(config, directory, start, learner, lambda path: read_pairs(path, start.policy))


class PreferenceLearner(RowLearner[Pair]):
    """Learns from pairs by the loss that `settings` name.

    Args:
        engine: Updates the weights.
        settings: Settings of the loss.
    """

    unit = "pair"

    def __init__(self, engine: Engine, settings: DPOConfig) -> None:
        self.engine: Engine = engine
        self.settings = settings

    def prepare(self, lines: Sequence[Pair]) -> list[TrainingSample]:
        """Return the rows of the pairs, with the reference's log-probs if the loss needs them."""
        rows = [row for index, pair in enumerate(lines) for row in pair.rows(str(index))]
        if self.settings.reference_free:
            return rows
        references = self.engine.forward(rows, reference=True)
        return [replace(row, reference=reference) for row, reference in zip(rows, references, strict=True)]

    def update(self, batch: list[TrainingSample], rate: float) -> dict[str, Any]:
        """Take one optimizer step and return the means over pairs, figures of the update and `tokens`."""
        rows, pair_metrics = weight_pairs(batch, self.engine.forward(batch), self.settings)
        stats = self.engine.update(rows, rate)
        return {
            **{name: float(values.mean()) for name, values in pair_metrics.items()},
            **{name: stats[name] for name in ("entropy", "grad_norm", "learning_rate")},
            "tokens": sum(len(row.completion_ids) for row in rows),
        }

    def validation_metrics(self, batch: list[TrainingSample]) -> dict[str, float]:
        """Return mean loss, mean margin and the share of correctly ordered pairs."""
        _, pair_metrics = weight_pairs(batch, self.engine.forward(batch), self.settings)
        return as_validation({name: float(values.mean()) for name, values in pair_metrics.items()})


def reward_model_trainer(config: RewardModelConfig, directory: RunDirectory) -> Trainer:
    """Compose a run that trains a reward model on pairs, rated replies or both."""
    config, start = load_with_defaults(config, Display(quiet=not directory.world.is_main))
    learner = RewardModelLearner(build_reward_engine(start.policy, config, directory.world), config)
    names = list(config.objectives)
    return pairs_trainer(
        config, directory, start, learner, lambda path: read_reward_examples(path, start.policy, names)
    )


def build_reward_engine(policy: TransformersPolicy, config: RewardModelConfig, world: World) -> RewardEngine:
    """Build the engine of the policy's weights, or of adapters in its layers, and of a new head.

    Args:
        policy: Policy at its start weights.
        config: Pooling, objectives, adapters and optimizer.
        world: Processes of the run.

    Raises:
        ConfigError: A device map with several processes, `share_prefixes`, or trainable tokens.
    """
    check_device_map(config, world)
    if config.compute.share_prefixes:
        raise ConfigError("compute.share_prefixes: a reward model scores whole rows, one by one: leave it out")
    if config.lora is not None and config.lora.trainable_tokens:
        raise ConfigError("lora.trainable_tokens: a reward model is trained on the tokens it has: leave it out")
    head = Head(config.pooling, config.objectives)
    model = add_reward_head(policy.model, head, policy.tokenizer, config.policy)
    if config.lora is not None:
        head_modules = ["score", *(["pool"] if head.pooling == "attention" else [])]
        # The task type keeps other libraries from loading a head with other pooling as one on the last token.
        task_type = "SEQ_CLS" if head.pooling == "last" else "FEATURE_EXTRACTION"
        name = absolute_policy_name(config.policy)
        model = add_lora(model, config.lora, name, config.seed, modules_to_save=head_modules, task_type=task_type)
    return RewardEngine(model, config, head, world)


class RewardModelLearner(RowLearner[RewardExample]):
    """Learns to score replies.

    Args:
        engine: Updates the weights.
        config: Names the objectives.
    """

    unit = "line"

    def __init__(self, engine: RewardEngine, config: RewardModelConfig) -> None:
        self.engine: RewardEngine = engine
        self.config = config

    def describe(self, training: Sequence[RewardExample]) -> str:
        """Return the numbers of pairs and ratings; each of several objectives needs a training line."""
        objectives = self.config.objectives
        covered: set[int] = set()
        for example in training:
            if isinstance(example, ComparedReplies):
                covered |= {*range(len(objectives))} if example.objective is None else {example.objective}
            else:
                covered |= {*np.flatnonzero(~np.isnan(example.scores)).tolist()}
        for index, name in enumerate(objectives):
            if len(objectives) > 1 and index not in covered:
                raise DataError(f"data: no training line of {self.config.data} says anything of objective {name!r}")
        ratings = sum(not isinstance(example, ComparedReplies) for example in training)
        return f"{len(training) - ratings} training pairs" + (f" and {ratings} ratings" if ratings else "")

    def update(self, batch: list[RewardExample], rate: float) -> dict[str, Any]:
        """Take one optimizer step and return the engine's metrics and `tokens`."""
        tokens = sum(len(prompt) + len(reply) for example in batch for prompt, reply in example.rows)
        return {**self.engine.update(batch, rate), "tokens": tokens}

    def validation_metrics(self, batch: list[RewardExample]) -> dict[str, float]:
        """Return the engine's metrics."""
        return as_validation(self.engine.compute_metrics(batch, self.engine.scores(batch)))


def as_validation(metrics: Mapping[str, float]) -> dict[str, float]:
    """Return metrics of held-out lines by their names in metrics.jsonl."""
    return {f"validation_{'pair_loss' if name == 'loss' else name}": value for name, value in metrics.items()}
