"""Reward models: `memalpha train reward`, or `train_reward_model` from Python.

A step takes `batch_pairs` lines of the data (`train.data.rewards`), in a seeded order that changes every epoch. One
update of the trunk (or of adapters in it) and the head lowers the mean of their losses (`train.learner.reward_engine`).
Validation is the loss on held-out lines: `eval_data`, or the last fifth of the file.

For plain pairs with `pooling: last`, loss and gradient equal those of TRL's RewardTrainer. Both write the same files:
each loads the other's models, to the same scores. The run does not use that trainer, which has no other pooling, no
objectives and no ratings, and drops rows that are too long instead of refusing them. Its steps, validation, metrics and
checkpoints would also differ from those of all other runs here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from memalpha.config import RewardModelConfig, build_config
from memalpha.errors import DataError
from memalpha.policy.load import absolute_policy_name
from memalpha.policy.reward_head import Head, add_reward_head
from memalpha.train.data.rewards import (
    ComparedReplies,
    RewardExample,
    read_reward_examples,
    reward_examples_fingerprint,
)
from memalpha.train.learner.distributed import World
from memalpha.train.learner.engine import scheduled_learning_rate
from memalpha.train.learner.lora import add_lora
from memalpha.train.learner.reward_engine import RewardEngine
from memalpha.train.trainers.pairs import PAIRS_FILE, PairTrainer, Texts, train_on_lists


def train_reward_model(
    prompts: Texts,
    chosen: Texts,
    rejected: Texts,
    *,
    policy: str | Path,
    out: str | Path,
    **settings: Any,
) -> dict[str, Any]:
    """Train a reward model that scores `chosen[i]` above `rejected[i]` as a reply to `prompts[i]`.

    The pairs are stored in the run directory; the same call resumes a stopped run. `load_reward_model(out)` loads the
    model.

    Args:
        prompts: Texts, used as they are, or chat messages.
        chosen: Better replies: texts, or lists of one assistant message.
        rejected: Worse replies, in the same formats.
        policy: Model to start from: a shipped name, a path or a hub id.
        out: Run directory.
        settings: Keys of `RewardModelConfig` (`pooling="mean"`, `epochs=2`, `lora={}`, ...).

    Returns:
        Summary of the run.

    Raises:
        ConfigError: A setting is invalid.
        DataError: Training on a pair is impossible; names its line in `out/preferences.jsonl`.
        CheckpointError: `out` holds another run.
    """
    values = {**settings, "policy": str(policy), "out": Path(out), "data": Path(out) / PAIRS_FILE}
    config = build_config(RewardModelConfig, values, "train_reward_model")
    return train_on_lists(RewardModelTrainer, config, prompts, chosen, rejected)


class RewardModelTrainer(PairTrainer[RewardModelConfig, RewardExample]):
    """Train on `batch_pairs` lines per step: pairs, rated replies or both."""

    engine: RewardEngine

    def __init__(self, config: RewardModelConfig, world: World) -> None:
        super().__init__(config, world)
        policy = self.policy
        head = Head(config.pooling, config.objectives)
        model = add_reward_head(policy.model, head, policy.tokenizer, config.policy)
        if config.lora is not None:
            head_modules = ["score", *(["pool"] if head.pooling == "attention" else [])]
            # The task type keeps other libraries from loading a head with other pooling as one on the last token.
            task_type = "SEQ_CLS" if head.pooling == "last" else "FEATURE_EXTRACTION"
            name = absolute_policy_name(config.policy)
            model = add_lora(model, config.lora, name, config.seed, modules_to_save=head_modules, task_type=task_type)
        self.engine = RewardEngine(model, config, head, world)

    def _read_file(self, path: Path) -> list[RewardExample]:
        return read_reward_examples(path, self.policy, list(self.config.objectives))

    def _fingerprint(self, lines: list[RewardExample]) -> str:
        return reward_examples_fingerprint(lines)

    def _check_lines(self, training: list[RewardExample], held_out: list[RewardExample]) -> None:
        config, objectives = self.config, list(self.config.objectives)
        for index, name in enumerate(objectives):
            if len(objectives) > 1 and not any(_covers_objective(example, index) for example in training):
                raise DataError(f"data: no training line of {config.data} says anything of objective {name!r}")
        ratings = sum(not isinstance(example, ComparedReplies) for example in training)
        ratings_text = f" and {ratings} ratings" if ratings else ""
        self.display.log(f"{len(training) - ratings} training pairs{ratings_text}, {len(held_out)} validation lines")

    def _prepare_batch(self) -> list[RewardExample]:
        return self._batch()

    def _train_on(self, batch: list[RewardExample]) -> dict[str, Any]:
        metrics = self.engine.update(batch, scheduled_learning_rate(self.step, self.schedule))
        tokens = sum(len(prompt) + len(reply) for example in batch for prompt, reply in example.rows)
        self.tokens += tokens
        return {**metrics, "tokens": tokens}

    def _validation_metrics(self) -> dict[str, float]:
        """Return the engine's metrics on the held-out lines."""
        if not self.validation_lines:
            return {}
        scores = self.engine.scores(self.validation_lines)
        metrics = self.engine.compute_metrics(self.validation_lines, scores)
        metrics = {f"validation_{'pair_loss' if name == 'loss' else name}": value for name, value in metrics.items()}
        return {name: value for name, value in metrics.items() if np.isfinite(value)}


def _covers_objective(example: RewardExample, objective: int) -> bool:
    """Return True if the output of `objective` (its index) is trained on this example."""
    if isinstance(example, ComparedReplies):
        return example.objective is None or example.objective == objective
    return not np.isnan(example.scores[objective])
