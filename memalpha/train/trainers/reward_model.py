"""Reward models: `memalpha train reward`, or `train_reward_model` from Python.

A step takes `batch_pairs` lines of the data (`train.reward_data`), in a seeded order that is new in every pass, and
lowers the mean of their losses (`train.reward_engine`) by one update of the trunk, or of adapters in it, and the head.
What validates: the loss of lines that are held out (`eval_data`, or the last fifth of the file).

For plain pairs with `pooling: last` loss and gradient are those of TRL's RewardTrainer, and the files are its too: each
loads what the other wrote, to the same scores. The run itself is not that trainer: it has no other pooling, no
objectives and no ratings, drops rows that are too long where they are refused here, and steps, validation, metrics and
checkpoints that resume bit for bit would be other ones than every run's here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from memalpha.config import RewardModelConfig, build_config
from memalpha.errors import DataError
from memalpha.policy.load import lasting_name
from memalpha.policy.reward_model import Head, with_head
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
    """Train a reward model that puts `chosen[i]` above `rejected[i]` as a reply to `prompts[i]`; returns the run's
    summary. `load_reward_model(out)` gives the model.

    A prompt is a text, taken as it is, or chat messages; a reply is a text or a list of one assistant message.
    `settings` are keys of `RewardModelConfig` (`pooling="mean"`, `epochs=2`, `lora={}`, ...). The pairs are kept in the
    run directory `out`; the same call goes on with a run that was stopped.

    Raises `ConfigError` for settings, `DataError` for pairs that cannot be learnt from, with their line in
    `out/preferences.jsonl`, and `CheckpointError` where `out` holds another run.
    """
    given = {**settings, "policy": str(policy), "out": Path(out), "data": Path(out) / PAIRS_FILE}
    config = build_config(RewardModelConfig, given, "train_reward_model")
    return train_on_lists(RewardModelTrainer, config, prompts, chosen, rejected)


class RewardModelTrainer(PairTrainer[RewardModelConfig, RewardExample]):
    """Each step learns from `batch_pairs` lines."""

    engine: RewardEngine

    def __init__(self, config: RewardModelConfig, world: World) -> None:
        super().__init__(config, world)
        policy = self.policy
        head = Head(config.pooling, config.objectives)
        model = with_head(policy.model, head, policy.tokenizer, config.policy)
        if config.lora is not None:
            whole = ["score", *(["pool"] if head.pooling == "attention" else [])]
            # By peft's task type no library takes a head that pools otherwise for one on the last token.
            task_type = "SEQ_CLS" if head.pooling == "last" else "FEATURE_EXTRACTION"
            name = lasting_name(config.policy)
            model = add_lora(model, config.lora, name, config.seed, modules_to_save=whole, task_type=task_type)
        self.engine = RewardEngine(model, config, head, world)

    def _read_file(self, path: Path) -> list[RewardExample]:
        return read_reward_examples(path, self.policy, list(self.config.objectives))

    def _fingerprint(self, lines: list[RewardExample]) -> str:
        return reward_examples_fingerprint(lines)

    def _check_lines(self, learnt: list[RewardExample], held_out: list[RewardExample]) -> None:
        config, objectives = self.config, list(self.config.objectives)
        for number, name in enumerate(objectives):
            if len(objectives) > 1 and not any(_covers_objective(one, number) for one in learnt):
                raise DataError(
                    f"data: no line of {config.data} that is learnt from says anything of objective {name!r}"
                )
        ratings = sum(not isinstance(one, ComparedReplies) for one in learnt)
        told = f" and {ratings} ratings" if ratings else ""
        self.display.log(f"{len(learnt) - ratings} pairs{told} to learn from, {len(held_out)} lines to validate")

    def _prepare_batch(self) -> list[RewardExample]:
        return self._batch()

    def _train_on(self, prepared: list[RewardExample]) -> dict[str, Any]:
        line = self.engine.update(prepared, scheduled_learning_rate(self.step, self.schedule))
        tokens = sum(len(prompt) + len(reply) for one in prepared for prompt, reply in one.rows)
        self.tokens += tokens
        return {**line, "tokens": tokens}

    def _validation_metrics(self) -> dict[str, float]:
        """The engine's figures of what is held out."""
        if not self.validation_lines:
            return {}
        scores = self.engine.scores(self.validation_lines)
        figures = self.engine.compute_metrics(self.validation_lines, scores)
        figures = {f"validation_{'pair_loss' if name == 'loss' else name}": value for name, value in figures.items()}
        return {name: value for name, value in figures.items() if np.isfinite(value)}


def _covers_objective(one: RewardExample, objective: int) -> bool:
    """Whether an objective's output learns from a line."""
    if isinstance(one, ComparedReplies):
        return one.objective is None or one.objective == objective
    return not np.isnan(one.scores[objective])
