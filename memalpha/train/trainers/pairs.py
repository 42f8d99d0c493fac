"""Base of runs on a file of preferences: training and held-out lines, their order, their fingerprint."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

from memalpha.config.preferences import PairsConfig
from memalpha.errors import CheckpointError, DataError
from memalpha.train.data.preferences import write_pairs
from memalpha.train.learner.distributed import World
from memalpha.train.rollouts.epochs import schedule_steps, shuffled_item
from memalpha.train.trainers.base import Trainer, launch
from memalpha.train.trainers.checkpoint import check_run_directory, saved_steps

P = TypeVar("P", bound=PairsConfig)
L = TypeVar("L")

Texts = Sequence[str | Sequence[Mapping[str, Any]]]
"""Prompts or replies: texts, or chat messages."""

PAIRS_FILE = "preferences.jsonl"
"""File in the run directory for pairs that were passed from Python."""


def train_on_lists(
    trainer_type: Callable[[P, World], Trainer[P]], config: P, prompts: Texts, chosen: Texts, rejected: Texts
) -> dict[str, Any]:
    """Write pairs to the run directory and train on them.

    Args:
        trainer_type: Trainer class.
        config: Configuration whose `data` is `PAIRS_FILE` in the run directory.
        prompts: Texts or chat messages, one per pair.
        chosen: Better replies, in the order of `prompts`.
        rejected: Worse replies, in the order of `prompts`.

    Returns:
        Summary of the run.
    """
    check_run_directory(config.out)
    config.out.mkdir(parents=True, exist_ok=True)
    write_pairs(config.data, prompts, chosen, rejected, is_resuming=bool(saved_steps(config.out)))
    return launch(trainer_type, config)


class PairTrainer(Trainer[P], Generic[P, L]):
    """Train on `batch_pairs` lines per step, in a seeded order that changes every epoch.

    Validation is the loss on held-out lines: `eval_data`, or the last fifth of the file, at most `validation_pairs`.
    """

    unit: ClassVar[str] = "line"
    """Name of a data line in messages."""

    def __init__(self, config: P, world: World) -> None:
        super().__init__(config, world)
        self.schedule = config
        self.training_lines: list[L] = []
        self.validation_lines: list[L] = []
        self.fingerprint = ""
        self.tokens = 0
        self.before: dict[str, float] = {}

    @abstractmethod
    def _read_file(self, path: Path) -> list[L]:
        """Read the lines of a file."""

    @abstractmethod
    def _fingerprint(self, lines: list[L]) -> str:
        """Return a hash of the lines."""

    @abstractmethod
    def _check_lines(self, training: list[L], held_out: list[L]) -> None:
        """Log the number of lines; raise `DataError` if training on them is impossible."""

    @abstractmethod
    def _validation_metrics(self) -> dict[str, float]:
        """Return metrics of the held-out lines, including `validation_pair_loss`; {} without such lines."""

    def _load_data(self) -> None:
        config = self.config
        self.training_lines, self.validation_lines = self.world.run_on_main(self._read_and_split)
        self.fingerprint = self._fingerprint([*self.training_lines, *self.validation_lines])
        steps = schedule_steps(config, len(self.training_lines), config.optimizer.batch_pairs)
        self.schedule = config.replace(schedule_steps=steps)

    def _schedule_steps(self) -> int:
        return self.schedule.optimizer.schedule_steps

    def _read_and_split(self) -> tuple[list[L], list[L]]:
        config = self.config
        training = self._read_file(config.data)
        if config.evaluation.data is not None:
            held_out = self._read_file(config.evaluation.data)[: config.evaluation.validation_pairs]
        else:
            cut = len(training) - min(config.evaluation.validation_pairs, max(1, len(training) // 5))
            training, held_out = training[:cut], training[cut:]
        if not training:
            raise DataError(
                f"data: {config.data} has one {self.unit}, which validates: add some, or set validation_pairs=0"
            )
        self._check_lines(training, held_out)
        return training, held_out

    def _before_training(self) -> None:
        """Do nothing; only the first validation precedes training."""

    def _batch(self) -> list[L]:
        """Return the lines of this step."""
        config = self.config
        first = self.step * config.optimizer.batch_pairs
        return [
            shuffled_item(self.training_lines, first + offset, str(config.seed))
            for offset in range(config.optimizer.batch_pairs)
        ]

    def _validation_score(self, metrics: dict[str, Any]) -> float | None:
        validation = self._validation_metrics()
        metrics |= validation
        if self.step == 0:
            self.before = validation
        return -validation["validation_pair_loss"] if validation else None

    def _final_summary(self, best_step: int) -> dict[str, Any]:
        return {
            "pairs": len(self.training_lines),
            "validation_pairs": len(self.validation_lines),
            "tokens": self.tokens,
            "before": self.before,
            "after": self._validation_metrics(),
        }

    def _checkpoint_state(self) -> dict[str, Any]:
        return {"tokens": self.tokens, "before": self.before, "pairs": self.fingerprint}

    def _restore_state(self, state: dict[str, Any]) -> None:
        if state["pairs"] != self.fingerprint:
            raise CheckpointError(
                f"{self.out} began with other {self.unit}s than data={self.config.data} (or eval_data) holds now: put "
                "back what was there, or start again in another out"
            )
        self.tokens, self.before = state["tokens"], state["before"]
