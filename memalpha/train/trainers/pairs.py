"""Runs on a file of preferences: training and held-out lines, their order, and the step and validation on them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from memalpha.config.preferences import PairsConfig
from memalpha.errors import CheckpointError, DataError
from memalpha.train.learner.engine import scheduled_learning_rate
from memalpha.train.rollouts.epochs import schedule_steps, shuffled_item
from memalpha.train.trainers.trainer import Evaluations, TrainingStep

L = TypeVar("L")


@dataclass(frozen=True, slots=True)
class PairLines(Generic[L]):
    """Hold the lines of a run.

    Attributes:
        training: Lines to train on.
        held_out: Lines that validate: `eval_data`, or the last fifth of the file, at most `validation_pairs`.
        unit: Name of a line in messages.
    """

    training: list[L]
    held_out: list[L]
    unit: str


def load_lines(config: PairsConfig, read: Callable[[Path], list[L]], unit: str) -> PairLines[L]:
    """Read the lines and split off those that validate.

    Args:
        config: `data`, `evaluation.data` and `validation_pairs` are used.
        read: Reads the lines of a file.
        unit: Name of a line in messages.

    Raises:
        DataError: No line is left to train on.
    """
    training = read(config.data)
    if config.evaluation.data is not None:
        held_out = read(config.evaluation.data)[: config.evaluation.validation_pairs]
    else:
        cut = len(training) - min(config.evaluation.validation_pairs, max(1, len(training) // 5))
        training, held_out = training[:cut], training[cut:]
    if not training:
        raise DataError(f"data: {config.data} has one {unit}, which validates: add some, or set validation_pairs=0")
    return PairLines(training, held_out, unit)


class PairLearner(Protocol[L]):
    """What learns from lines and measures them."""

    def fingerprint(self, lines: list[L]) -> str:
        """Return a hash of the lines."""
        ...

    def prepare(self, lines: Sequence[L]) -> Any:
        """Return the lines as the engine takes them; changes no weights."""
        ...

    def update(self, batch: Any, rate: float) -> dict[str, Any]:
        """Take one optimizer step on prepared lines and return its metrics, with the number of `tokens`."""
        ...

    def validation_metrics(self, batch: Any) -> dict[str, float]:
        """Return metrics of prepared held-out lines, including `validation_pair_loss`."""
        ...


class PairStep(TrainingStep, Generic[L]):
    """Train on `batch_pairs` lines per step, in a seeded order that changes every epoch.

    Args:
        config: Settings of the run.
        lines: Lines of the run.
        learner: Learns from the lines.
    """

    def __init__(self, config: PairsConfig, lines: PairLines[L], learner: PairLearner[L]) -> None:
        self.config, self.lines, self.learner = config, lines, learner
        self.scheduled_steps = schedule_steps(config, len(lines.training), config.optimizer.batch_pairs)
        self.schedule = config.replace(schedule_steps=self.scheduled_steps)
        self.fingerprint = learner.fingerprint([*lines.training, *lines.held_out])
        self.tokens = 0

    def prepare(self, step: int) -> Any:
        """Return the prepared lines of a step."""
        count, training = self.config.optimizer.batch_pairs, self.lines.training
        indices = range(step * count, (step + 1) * count)
        return self.learner.prepare([shuffled_item(training, index, str(self.config.seed)) for index in indices])

    def train(self, batch: Any, step: int) -> dict[str, Any]:
        """Take one optimizer step on the prepared lines."""
        metrics = self.learner.update(batch, scheduled_learning_rate(step, self.schedule))
        self.tokens += metrics["tokens"]
        return metrics

    def state(self, step: int) -> dict[str, Any]:
        """Return the number of trained tokens and the hash of the lines."""
        return {"tokens": self.tokens, "pairs": self.fingerprint}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the number of trained tokens.

        Raises:
            CheckpointError: The lines are others.
        """
        if state["pairs"] != self.fingerprint:
            raise CheckpointError(
                f"{self.config.out} began with other {self.lines.unit}s than data={self.config.data} (or eval_data) "
                "holds now: put back what was there, or start again in another out"
            )
        self.tokens = state["tokens"]

    def summary(self) -> dict[str, Any]:
        """Return the numbers of lines and of trained tokens."""
        lines = self.lines
        return {"pairs": len(lines.training), "validation_pairs": len(lines.held_out), "tokens": self.tokens}


class PairEvaluations(Evaluations, Generic[L]):
    """Validates by the loss on held-out lines.

    Args:
        lines: Lines of the run.
        learner: Measures the lines.
    """

    def __init__(self, lines: PairLines[L], learner: PairLearner[L]) -> None:
        self.learner = learner
        self.held_out = learner.prepare(lines.held_out) if lines.held_out else None
        self.start_metrics: dict[str, float] = {}

    def validate(self, step: int, metrics: dict[str, Any]) -> float | None:
        """Return minus the loss on held-out lines."""
        validation = self._measure()
        metrics |= validation
        if step == 0:
            self.start_metrics = validation
        return -validation["validation_pair_loss"] if validation else None

    def summary(self) -> dict[str, Any]:
        """Return the metrics of held-out lines before and after."""
        return {"before": self.start_metrics, "after": self._measure()}

    def state(self) -> dict[str, Any]:
        """Return the metrics before training."""
        return {"before": self.start_metrics}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the metrics before training."""
        self.start_metrics = state["before"]

    def _measure(self) -> dict[str, float]:
        return {} if self.held_out is None else self.learner.validation_metrics(self.held_out)
