"""Preference optimisation on plain data: `memalpha train preferences`, or `train_on_preferences` from Python.

A step takes `batch_pairs` of the pairs (`train.preference_data`), in a seeded order that is new in every pass, and
lowers the mean of their losses (`train.pairs`: DPO, cDPO, IPO, reference-free) by one update. The reference is the
start policy: adapters off, else a frozen copy. What validates: the loss of pairs that are held out (`eval_data`, or the
last fifth of the file, `validation_pairs` at most). No question is asked; `memalpha eval` does that of the weights.

Loss and gradient equal those of TRL's DPOTrainer on the same token rows (tests/train/test_trl_dpo.py). Where TRL cuts
rows that are too long and adds its end token to what it makes of a chat, a row here is refused by name when the model
cannot take it, and a reply ends as the template ends an assistant's turn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from memalpha.config import PreferenceConfig, build_config
from memalpha.errors import CheckpointError, DataError
from memalpha.train.checkpoint import check_out, saved_steps
from memalpha.train.distributed import World
from memalpha.train.engine import learning_rate
from memalpha.train.losses import LossSettings
from memalpha.train.pairs import weigh
from memalpha.train.passes import nth, steps_of
from memalpha.train.preference_data import Pair, pairs_fingerprint, read_pairs, write_pairs
from memalpha.train.run import Run, launch
from memalpha.train.samples import TrainingSample

OWN_DATA = "preferences.jsonl"
"""Where a run directory holds pairs that came from Python."""


def train_on_preferences(
    prompts: Sequence[str | Sequence[Mapping[str, Any]]],
    chosen: Sequence[str | Sequence[Mapping[str, Any]]],
    rejected: Sequence[str | Sequence[Mapping[str, Any]]],
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
    given = {**settings, "policy": str(policy), "out": Path(out), "data": Path(out) / OWN_DATA}
    config = build_config(PreferenceConfig, given, "train_on_preferences")
    check_out(config.out)
    config.out.mkdir(parents=True, exist_ok=True)
    write_pairs(config.out / OWN_DATA, prompts, chosen, rejected, begun=bool(saved_steps(config.out)))
    return launch(PreferenceRun, config)


class PreferenceRun(Run[PreferenceConfig]):
    """Each step learns from `batch_pairs` pairs."""

    def __init__(self, config: PreferenceConfig, world: World) -> None:
        super().__init__(config, world)
        self.schedule = config
        self.engine = self._new_engine(LossSettings(ce_normalizer="unit"), reference=not config.dpo.reference_free)
        self.pairs: list[Pair] = []
        self.held_out: list[TrainingSample] = []
        self.fingerprint = ""
        self.tokens = 0
        self.before: dict[str, float] = {}

    def _length(self) -> int:
        config = self.config
        self.pairs, held_out = self.world.once(self._read)
        self.fingerprint = pairs_fingerprint([*self.pairs, *held_out])
        self.held_out = self._referred(held_out)
        steps = steps_of(config, len(self.pairs), config.batch_pairs)
        self.schedule = config.model_copy(update={"schedule_steps": steps})
        return steps

    def _read(self) -> tuple[list[Pair], list[Pair]]:
        config = self.config
        pairs = read_pairs(config.data, self.policy)
        if config.eval_data is not None:
            held_out = read_pairs(config.eval_data, self.policy)[: config.validation_pairs]
        else:
            cut = len(pairs) - min(config.validation_pairs, max(1, len(pairs) // 5))
            pairs, held_out = pairs[:cut], pairs[cut:]
        if not pairs:
            raise DataError(f"data: {config.data} has one pair, which validates: add some, or set validation_pairs=0")
        self.display.say(f"{len(pairs)} pairs to learn from, {len(held_out)} to validate")
        return pairs, held_out

    def _referred(self, pairs: Sequence[Pair]) -> list[TrainingSample]:
        """The rows of pairs, with the reference's log-probs where the loss has them."""
        rows = [row for number, pair in enumerate(pairs) for row in pair.rows(str(number))]
        if not rows or self.config.dpo.reference_free:
            return rows
        references = self.engine.forward(rows, reference=True)
        return [replace(row, reference=reference) for row, reference in zip(rows, references, strict=True)]

    def _begin(self) -> None:
        """Nothing but the first validation."""

    def _prepare(self) -> list[TrainingSample]:
        config = self.config
        first = self.step * config.batch_pairs
        batch = [nth(self.pairs, first + number, str(config.seed)) for number in range(config.batch_pairs)]
        return self._referred(batch)

    def _learn(self, prepared: list[TrainingSample]) -> dict[str, Any]:
        rows, figures = weigh(prepared, self.engine.forward(prepared), self.config.dpo)
        stats = self.engine.update(rows, learning_rate(self.step, self.schedule))
        tokens = sum(len(row.completion_ids) for row in rows)
        self.tokens += tokens
        keep = {name: stats[name] for name in ("entropy", "grad_norm", "learning_rate")}
        return {**{name: float(values.mean()) for name, values in figures.items()}, **keep, "tokens": tokens}

    def _score(self, line: dict[str, Any]) -> float | None:
        found = self._validation()
        line |= found
        if self.step == 0:
            self.before = found
        return -found["validation_pair_loss"] if found else None

    def _validation(self) -> dict[str, float]:
        """Mean loss, margin and share of rightly ordered pairs, of those held out."""
        if not self.held_out:
            return {}
        _, figures = weigh(self.held_out, self.engine.forward(self.held_out), self.config.dpo)
        means = {name: float(values.mean()) for name, values in figures.items()}
        return {
            "validation_pair_loss": means["loss"],
            "validation_margins": means["margins"],
            "validation_accuracies": means["accuracies"],
        }

    def _end(self, chosen: int) -> dict[str, Any]:
        return {
            "pairs": len(self.pairs),
            "validation_pairs": len(self.held_out) // 2,
            "tokens": self.tokens,
            "before": self.before,
            "after": self._validation(),
        }

    def _state(self) -> dict[str, Any]:
        return {"tokens": self.tokens, "before": self.before, "pairs": self.fingerprint}

    def _restore(self, state: dict[str, Any]) -> None:
        if state["pairs"] != self.fingerprint:
            raise CheckpointError(
                f"{self.out} began with other pairs than data={self.config.data} (or eval_data) holds now: put back "
                "what was there, or start again in another out"
            )
        self.tokens, self.before = state["tokens"], state["before"]
