"""Supervised steps and validations on a list of rows: to imitate (`sft`), or to compare and rate (`preferences`)."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Generic, TypeVar

from memalpha.config import SFTConfig
from memalpha.config.training import PairsConfig
from memalpha.errors import CheckpointError, TrainingError
from memalpha.train.learner.engine import BaseEngine, scheduled_learning_rate
from memalpha.train.rollouts.epochs import schedule_steps, shuffled_item
from memalpha.train.trainers.trainer import Evaluations, TrainingStep

L = TypeVar("L")


class RowLearner(ABC, Generic[L]):
    """Learner that trains on rows and measures them. Implementations inherit the defaults.

    Attributes:
        unit: Name of a row in messages.
        counted: Name of the number of rows in the summary.
        loss: Name of the loss among the validation's metrics.
        engine: Updates the weights.
    """

    unit: str
    counted: str = "pairs"
    loss: str = "validation_pair_loss"
    engine: BaseEngine

    def describe(self, training: Sequence[L]) -> str:
        """Return the number of training rows in words; raise `DataError` if they lack something."""
        return f"{len(training)} training {self.unit}s"

    def prepare(self, rows: Sequence[L]) -> Any:
        """Return the rows as the engine takes them; changes no weights."""
        return list(rows)

    @abstractmethod
    def update(self, batch: Any, rate: float) -> dict[str, Any]:
        """Take one optimizer step on prepared rows and return its metrics, with the number of `tokens`."""

    @abstractmethod
    def validation_metrics(self, batch: Any) -> dict[str, float]:
        """Return metrics of prepared held-out rows, `loss` among them."""


class RowStep(TrainingStep, Generic[L]):
    """Train on `batch_rows` or `batch_pairs` rows per step, in a seeded order that changes every epoch.

    Args:
        config: Settings of the run.
        learner: Learns from the rows.
        rows: Rows to train on.
        fingerprint: Hash of all rows of the run; None if a resumed run has the same ones anyway.
    """

    def __init__(
        self, config: SFTConfig | PairsConfig, learner: RowLearner[L], rows: list[L], fingerprint: str | None = None
    ) -> None:
        self.config, self.learner, self.rows, self.fingerprint = config, learner, rows, fingerprint
        is_imitation = isinstance(config, SFTConfig)
        self.batch_size = config.optimizer.batch_rows if is_imitation else config.optimizer.batch_pairs
        self.scheduled_steps = schedule_steps(config, len(rows), self.batch_size)
        self.schedule = config.replace(schedule_steps=self.scheduled_steps)
        self.tokens = 0

    def prepare(self, step: int) -> Any:
        """Return the prepared rows of a step."""
        return self.learner.prepare(self.rows_at(step * self.batch_size, str(self.config.seed)))

    def rows_at(self, first: int, seed: str) -> list[L]:
        """Return `batch_size` rows from index `first` on of the stream that is shuffled by `seed`."""
        return [shuffled_item(self.rows, first + offset, seed) for offset in range(self.batch_size)]

    def train(self, batch: Any, step: int) -> dict[str, Any]:
        """Take one optimizer step on the prepared rows."""
        metrics = self.learner.update(batch, scheduled_learning_rate(step, self.schedule))
        self.tokens += metrics["tokens"]
        return metrics

    def state(self) -> dict[str, Any]:
        """Return the number of trained tokens and the hash of the rows."""
        return {"tokens": self.tokens, "rows": self.fingerprint}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the number of trained tokens.

        Raises:
            CheckpointError: The rows are others.
        """
        if state["rows"] != self.fingerprint:
            raise CheckpointError(
                f"{self.config.out} began with other {self.learner.unit}s than data={self.config.data} (or eval_data) "
                "holds now: put back what was there, or start again in another out"
            )
        self.tokens = state["tokens"]

    def summary(self) -> dict[str, Any]:
        """Return the numbers of rows and of trained tokens."""
        return {self.learner.counted: len(self.rows), "tokens": self.tokens}


class RowEvaluations(Evaluations, Generic[L]):
    """Validates by the loss on held-out rows.

    Args:
        learner: Measures the rows.
        held_out: Rows that validate.
    """

    def __init__(self, learner: RowLearner[L], held_out: list[L]) -> None:
        self.learner, self.count = learner, len(held_out)
        self.held_out = learner.prepare(held_out) if held_out else None
        self.start_metrics: dict[str, float] = {}

    def validate(self, step: int, metrics: dict[str, Any]) -> float | None:
        """Return minus the loss on held-out rows.

        Raises:
            TrainingError: The loss is not finite.
        """
        validation, name = self.measure(), self.learner.loss
        if validation and not math.isfinite(validation[name]):
            raise TrainingError(
                f"{name} is {validation[name]} at step {step}: look for scores or margins that are too large in what "
                "validates, or lower learning_rate"
            )
        metrics |= validation
        if step == 0:
            self.start_metrics = validation
        return -validation[name] if validation else None

    def summary(self) -> dict[str, Any]:
        """Return the metrics of held-out rows before and after."""
        count = {f"validation_{self.learner.counted}": self.count}
        return {**count, "before": self.start_metrics, "after": self.measure()}

    def state(self) -> dict[str, Any]:
        """Return the metrics before training."""
        return {"before": self.start_metrics}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the metrics before training."""
        self.start_metrics = state["before"]

    def measure(self) -> dict[str, float]:
        """Return the metrics of the held-out rows; {} without any."""
        return {} if self.held_out is None else self.learner.validation_metrics(self.held_out)
