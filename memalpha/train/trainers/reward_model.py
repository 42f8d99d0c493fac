"""Reward models: `memalpha train reward`, or `train_reward_model` (`train.api`).

A step takes `batch_pairs` lines of the data (`train.data.rewards`), in a seeded order that changes every epoch. One
update of the trunk (or of adapters in it) and the head lowers the mean of their losses (`train.learner.reward_engine`).
Validation is the loss on held-out lines: `eval_data`, or the last fifth of the file.

For plain pairs with `pooling: last`, loss and gradient equal those of TRL's RewardTrainer. Both write the same files:
each loads the other's models, to the same scores. The run does not use that trainer, which has no other pooling, no
objectives and no ratings, and drops rows that are too long instead of refusing them. Its steps, validation, metrics and
checkpoints would also differ from those of all other runs here.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from memalpha.config import RewardModelConfig
from memalpha.errors import ConfigError, DataError
from memalpha.policy.load import absolute_policy_name
from memalpha.policy.reward_head import Head, add_reward_head
from memalpha.policy.transformers import TransformersPolicy
from memalpha.train.data.rewards import (
    ComparedReplies,
    RewardExample,
    read_reward_examples,
    reward_examples_fingerprint,
)
from memalpha.train.learner.distributed import World
from memalpha.train.learner.lora import add_lora
from memalpha.train.learner.reward_engine import RewardEngine
from memalpha.train.trainers.directory import RunDirectory
from memalpha.train.trainers.pairs import PairLearner, pairs_trainer
from memalpha.train.trainers.progress import Display
from memalpha.train.trainers.start import check_device_map, load_start, settle_defaults
from memalpha.train.trainers.trainer import Trainer


def reward_model_trainer(config: RewardModelConfig, directory: RunDirectory) -> Trainer:
    """Compose a run that trains a reward model on pairs, rated replies or both."""
    start = load_start(config)
    config = settle_defaults(config, start, Display(quiet=not directory.world.is_main))
    engine = build_reward_engine(start.policy, config, directory.world)
    return pairs_trainer(config, directory, start, RewardModelLearner(engine, config, start.policy))


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


class RewardModelLearner(PairLearner[RewardExample]):
    """Learns to score replies.

    Args:
        engine: Updates the weights.
        config: Names the objectives.
        policy: Policy whose tokenizer encodes the replies.
    """

    unit = "line"

    def __init__(self, engine: RewardEngine, config: RewardModelConfig, policy: TransformersPolicy) -> None:
        self.engine: RewardEngine = engine
        self.config, self.policy = config, policy

    def read(self, path: Path) -> list[RewardExample]:
        return read_reward_examples(path, self.policy, list(self.config.objectives))

    def describe(self, training: Sequence[RewardExample]) -> str:
        """Return the numbers of pairs and ratings; each of several objectives needs a training line."""
        objectives = self.config.objectives
        for index, name in enumerate(objectives):
            if len(objectives) > 1 and not any(_covers_objective(example, index) for example in training):
                raise DataError(f"data: no training line of {self.config.data} says anything of objective {name!r}")
        ratings = sum(not isinstance(example, ComparedReplies) for example in training)
        return f"{len(training) - ratings} training pairs" + (f" and {ratings} ratings" if ratings else "")

    def fingerprint(self, lines: Sequence[RewardExample]) -> str:
        return reward_examples_fingerprint(lines)

    def prepare(self, lines: Sequence[RewardExample]) -> list[RewardExample]:
        """Return the examples as they are."""
        return list(lines)

    def update(self, batch: list[RewardExample], rate: float) -> dict[str, Any]:
        """Take one optimizer step and return the engine's metrics and `tokens`."""
        tokens = sum(len(prompt) + len(reply) for example in batch for prompt, reply in example.rows)
        return {**self.engine.update(batch, rate), "tokens": tokens}

    def validation_metrics(self, batch: list[RewardExample]) -> dict[str, float]:
        """Return the engine's metrics that are finite."""
        metrics = self.engine.compute_metrics(batch, self.engine.scores(batch))
        metrics = {f"validation_{'pair_loss' if name == 'loss' else name}": value for name, value in metrics.items()}
        return {name: value for name, value in metrics.items() if np.isfinite(value)}


def _covers_objective(example: RewardExample, objective: int) -> bool:
    """Return True if the output of `objective` (its index) is trained on this example."""
    if isinstance(example, ComparedReplies):
        return example.objective is None or example.objective == objective
    return not np.isnan(example.scores[objective])
