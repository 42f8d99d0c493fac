"""Preference optimization on plain data: `memalpha train preferences`, or `train_on_preferences` (`train.api`).

A step takes `batch_pairs` pairs (`train.data.preferences`), in a seeded order that changes every epoch. One update
lowers the mean of their losses (`train.algorithms.pairwise`: DPO, cDPO, IPO, reference-free). The reference is the
start policy: the base without adapters, or a frozen copy. Validation is the loss of held-out pairs: `eval_data`, or the
last fifth of the file, at most `validation_pairs`. No question is answered; `memalpha eval` evaluates the weights.

Loss and gradient equal those of TRL's DPOTrainer on the same token rows (tests/train/algorithms/test_trl_dpo.py). TRL
cuts rows that are too long and appends its end token to a rendered chat. Here a row that the model cannot take is
refused by name, and a reply ends with the token that the template writes after an assistant's turn.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from memalpha.config import PreferenceConfig
from memalpha.config.algorithms import DPOConfig
from memalpha.policy.transformers import TransformersPolicy
from memalpha.train.algorithms.pairwise import weight_pairs
from memalpha.train.data.preferences import Pair, pairs_fingerprint, read_pairs
from memalpha.train.data.samples import TrainingSample
from memalpha.train.learner.engine import Engine
from memalpha.train.learner.losses import LossSettings
from memalpha.train.trainers.directory import RunDirectory
from memalpha.train.trainers.pairs import PairLearner, pairs_trainer
from memalpha.train.trainers.progress import Display
from memalpha.train.trainers.start import build_engine, load_start, settle_defaults
from memalpha.train.trainers.trainer import Trainer


def preference_trainer(config: PreferenceConfig, directory: RunDirectory) -> Trainer:
    """Compose a run that makes better replies more likely than worse ones."""
    start, loss = load_start(config), LossSettings(ce_normalizer="unit")
    config = settle_defaults(config, start, Display(quiet=not directory.world.is_main))
    engine = build_engine(start.policy, config, loss, directory.world, reference=not config.dpo.reference_free)
    return pairs_trainer(config, directory, start, PreferenceLearner(engine, config.dpo, start.policy))


class PreferenceLearner(PairLearner[Pair]):
    """Learns from pairs by the loss that `settings` name.

    Args:
        engine: Updates the weights.
        settings: Settings of the loss.
        policy: Policy whose tokenizer encodes the pairs.
    """

    unit = "pair"

    def __init__(self, engine: Engine, settings: DPOConfig, policy: TransformersPolicy) -> None:
        self.engine: Engine = engine
        self.settings, self.policy = settings, policy

    def read(self, path: Path) -> list[Pair]:
        return read_pairs(path, self.policy)

    def describe(self, training: Sequence[Pair]) -> str:
        return f"{len(training)} training pairs"

    def fingerprint(self, lines: Sequence[Pair]) -> str:
        return pairs_fingerprint(lines)

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
        means = {name: float(values.mean()) for name, values in pair_metrics.items()}
        return {
            "validation_pair_loss": means["loss"],
            "validation_margins": means["margins"],
            "validation_accuracies": means["accuracies"],
        }
