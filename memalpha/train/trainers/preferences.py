"""Preference optimisation on plain data: `memalpha train preferences`, or `train_on_preferences` from Python.

A step takes `batch_pairs` of the pairs (`train.preference_data`), in a seeded order that is new in every pass, and
lowers the mean of their losses (`train.pairs`: DPO, cDPO, IPO, reference-free) by one update. The reference is the
start policy: adapters off, else a frozen copy. What validates: the loss of pairs that are held out (`eval_data`, or the
last fifth of the file, `validation_pairs` at most). No question is asked; `memalpha eval` does that of the weights.

Loss and gradient equal those of TRL's DPOTrainer on the same token rows (tests/train/algorithms/test_trl_dpo.py).
Where TRL cuts rows that are too long and adds its end token to what it makes of a chat, a row here is refused by name
when the model cannot take it, and a reply ends as the template ends an assistant's turn.
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
    """Make `chosen[i]` likelier and `rejected[i]` less likely as replies to `prompts[i]`; returns the run's summary.

    A prompt is a text, taken as it is, or chat messages; a reply is a text or a list of one assistant message.
    `settings` are keys of `PreferenceConfig` (`dpo={"beta": 0.05}`, `learning_rate=5e-7`, `lora={}`, ...). The pairs
    are kept in the run directory `out`; the same call goes on with a run that was stopped. The trained weights are
    those in `out/checkpoints/best`.

    Raises `ConfigError` for settings, `DataError` for pairs that cannot be learnt from, with their line in
    `out/preferences.jsonl`, and `CheckpointError` where `out` holds another run.
    """
    given = {**settings, "policy": str(policy), "out": Path(out), "data": Path(out) / PAIRS_FILE}
    config = build_config(PreferenceConfig, given, "train_on_preferences")
    return train_on_lists(PreferenceTrainer, config, prompts, chosen, rejected)


class PreferenceTrainer(PairTrainer[PreferenceConfig, Pair]):
    """Each step learns from `batch_pairs` pairs."""

    unit = "pair"

    def __init__(self, config: PreferenceConfig, world: World) -> None:
        super().__init__(config, world)
        self.engine = self._build_engine(LossSettings(ce_normalizer="unit"), reference=not config.dpo.reference_free)
        self.held_out: list[TrainingSample] = []

    def _schedule_steps(self) -> int:
        steps = super()._schedule_steps()
        self.held_out = self._rows_with_reference(self.validation_lines)
        return steps

    def _read_file(self, path: Path) -> list[Pair]:
        return read_pairs(path, self.policy)

    def _fingerprint(self, lines: list[Pair]) -> str:
        return pairs_fingerprint(lines)

    def _check_lines(self, learnt: list[Pair], held_out: list[Pair]) -> None:
        self.display.log(f"{len(learnt)} pairs to learn from, {len(held_out)} to validate")

    def _rows_with_reference(self, pairs: Sequence[Pair]) -> list[TrainingSample]:
        """The rows of pairs, with the reference's log-probs where the loss has them."""
        rows = [row for number, pair in enumerate(pairs) for row in pair.rows(str(number))]
        if not rows or self.config.dpo.reference_free:
            return rows
        references = self.engine.forward(rows, reference=True)
        return [replace(row, reference=reference) for row, reference in zip(rows, references, strict=True)]

    def _prepare_batch(self) -> list[TrainingSample]:
        return self._rows_with_reference(self._batch())

    def _train_on(self, prepared: list[TrainingSample]) -> dict[str, Any]:
        rows, figures = weight_pairs(prepared, self.engine.forward(prepared), self.config.dpo)
        stats = self.engine.update(rows, scheduled_learning_rate(self.step, self.schedule))
        tokens = sum(len(row.completion_ids) for row in rows)
        self.tokens += tokens
        keep = {name: stats[name] for name in ("entropy", "grad_norm", "learning_rate")}
        return {**{name: float(values.mean()) for name, values in figures.items()}, **keep, "tokens": tokens}

    def _validation_metrics(self) -> dict[str, float]:
        """Mean loss, margin and share of rightly ordered pairs, of those held out."""
        if not self.held_out:
            return {}
        _, figures = weight_pairs(self.held_out, self.engine.forward(self.held_out), self.config.dpo)
        means = {name: float(values.mean()) for name, values in figures.items()}
        return {
            "validation_pair_loss": means["loss"],
            "validation_margins": means["margins"],
            "validation_accuracies": means["accuracies"],
        }
