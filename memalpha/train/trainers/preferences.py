"""Preference optimization on plain data: `memalpha train preferences`, or `train_on_preferences` from Python.

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

from memalpha.config import PreferenceConfig, build_config
from memalpha.train.algorithms.pairwise import weight_pairs
from memalpha.train.data.preferences import Pair, pairs_fingerprint, read_pairs
from memalpha.train.data.samples import TrainingSample
from memalpha.train.learner.distributed import World
from memalpha.train.learner.engine import scheduled_learning_rate
from memalpha.train.learner.losses import LossSettings
from memalpha.train.trainers.pairs import PAIRS_FILE, PairTrainer, Texts, train_on_lists


def train_on_preferences(
    prompts: Texts,
    chosen: Texts,
    rejected: Texts,
    *,
    policy: str | Path,
    out: str | Path,
    **settings: Any,
) -> dict[str, Any]:
    """Make `chosen[i]` more likely and `rejected[i]` less likely as replies to `prompts[i]`.

    The pairs are stored in the run directory; the same call resumes a stopped run. The trained weights are in
    `out/checkpoints/best`.

    Args:
        prompts: Texts, used as they are, or chat messages.
        chosen: Better replies: texts, or lists of one assistant message.
        rejected: Worse replies, in the same formats.
        policy: Start policy: a shipped name, a path or a hub id.
        out: Run directory.
        settings: Keys of `PreferenceConfig` (`dpo={"beta": 0.05}`, `learning_rate=5e-7`, `lora={}`, ...).

    Returns:
        Summary of the run.

    Raises:
        ConfigError: A setting is invalid.
        DataError: Training on a pair is impossible; names its line in `out/preferences.jsonl`.
        CheckpointError: `out` holds another run.
    """
    values = {**settings, "policy": str(policy), "out": Path(out), "data": Path(out) / PAIRS_FILE}
    config = build_config(PreferenceConfig, values, "train_on_preferences")
    return train_on_lists(PreferenceTrainer, config, prompts, chosen, rejected)


class PreferenceTrainer(PairTrainer[PreferenceConfig, Pair]):
    """Train on `batch_pairs` pairs per step."""

    unit = "pair"

    def __init__(self, config: PreferenceConfig, world: World) -> None:
        super().__init__(config, world)
        self.engine = self._build_engine(LossSettings(ce_normalizer="unit"), reference=not config.dpo.reference_free)
        self.held_out: list[TrainingSample] = []

    def _load_data(self) -> None:
        super()._load_data()
        self.held_out = self._rows_with_reference(self.validation_lines)

    def _read_file(self, path: Path) -> list[Pair]:
        return read_pairs(path, self.policy)

    def _fingerprint(self, lines: list[Pair]) -> str:
        return pairs_fingerprint(lines)

    def _check_lines(self, training: list[Pair], held_out: list[Pair]) -> None:
        self.display.log(f"{len(training)} training pairs, {len(held_out)} validation pairs")

    def _rows_with_reference(self, pairs: Sequence[Pair]) -> list[TrainingSample]:
        """Return the rows of the pairs, with the reference's log-probs if the loss needs them."""
        rows = [row for index, pair in enumerate(pairs) for row in pair.rows(str(index))]
        if not rows or self.config.dpo.reference_free:
            return rows
        references = self.engine.forward(rows, reference=True)
        return [replace(row, reference=reference) for row, reference in zip(rows, references, strict=True)]

    def _prepare_batch(self) -> list[TrainingSample]:
        return self._rows_with_reference(self._batch())

    def _train_on(self, batch: list[TrainingSample]) -> dict[str, Any]:
        rows, pair_metrics = weight_pairs(batch, self.engine.forward(batch), self.config.dpo)
        stats = self.engine.update(rows, scheduled_learning_rate(self.step, self.schedule))
        tokens = sum(len(row.completion_ids) for row in rows)
        self.tokens += tokens
        update_metrics = {name: stats[name] for name in ("entropy", "grad_norm", "learning_rate")}
        return {
            **{name: float(values.mean()) for name, values in pair_metrics.items()},
            **update_metrics,
            "tokens": tokens,
        }

    def _validation_metrics(self) -> dict[str, float]:
        """Return mean loss, mean margin and the share of correctly ordered held-out pairs."""
        if not self.held_out:
            return {}
        _, pair_metrics = weight_pairs(self.held_out, self.engine.forward(self.held_out), self.config.dpo)
        means = {name: float(values.mean()) for name, values in pair_metrics.items()}
        return {
            "validation_pair_loss": means["loss"],
            "validation_margins": means["margins"],
            "validation_accuracies": means["accuracies"],
        }
