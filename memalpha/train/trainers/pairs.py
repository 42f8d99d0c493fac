"""Runs on a file of preferences: training and held-out lines, their order, and the step and validation on them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from memalpha.config.preferences import PairsConfig
from memalpha.errors import CheckpointError, DataError
from memalpha.train.learner.engine import scheduled_learning_rate
from memalpha.train.learner.model_state import BaseEngine
from memalpha.train.rollouts.epochs import schedule_steps, shuffled_item, split_last
from memalpha.train.trainers.directory import RunDirectory
from memalpha.train.trainers.progress import Display
from memalpha.train.trainers.start import RunStart
from memalpha.train.trainers.trainer import Evaluations, Trainer, TrainingStep

L = TypeVar("L")


def pairs_trainer(config: PairsConfig, directory: RunDirectory, start: RunStart, learner: PairLearner[L]) -> Trainer:
    """Compose a run on a file of preferences.

    Args:
        config: Settings of the run.
        directory: Run directory; claimed here.
        start: Start policy.
        learner: Reads the lines and learns from them.
    """
    display = Display(quiet=not directory.world.is_main)

    def load() -> tuple[list[L], list[L]]:
        training, held_out = load_lines(config, learner.read, learner.unit)
        display.log(f"{learner.describe(training)}, {len(held_out)} validation {learner.unit}s")
        return training, held_out

    directory.claim(config)
    training, held_out = directory.world.run_on_main(load)
    return Trainer(
        config=config,
        directory=directory,
        start=start,
        engine=learner.engine,
        training_step=PairStep(config, training, learner.fingerprint([*training, *held_out]), learner),
        evaluations=PairEvaluations(held_out, learner),
        display=display,
    )


def load_lines(config: PairsConfig, read: Callable[[Path], list[L]], unit: str) -> tuple[list[L], list[L]]:
    """Read the lines and split off those that validate: `eval_data`, or the last fifth of the file.

    Args:
        config: `data`, `evaluation.data` and `validation_pairs`, the most lines that validate.
        read: Reads the lines of a file.
        unit: Name of a line in messages.

    Returns:
        Training lines, held-out lines.

    Raises:
        DataError: No line is left to train on.
    """
    training = read(config.data)
    if config.evaluation.data is not None:
        held_out = read(config.evaluation.data)[: config.evaluation.validation_pairs]
    else:
        training, held_out = split_last(training, config.evaluation.validation_pairs)
    if not training:
        raise DataError(f"data: {config.data} has one {unit}, which validates: add some, or set validation_pairs=0")
    return training, held_out


class PairLearner(Protocol[L]):
    """Learner that trains on lines and measures them.

    Attributes:
        unit: Name of a line in messages.
        engine: Updates the weights.
    """

    unit: str
    engine: BaseEngine

    def read(self, path: Path) -> list[L]:
        """Read the lines of a file; raise `DataError` if training on one is impossible."""
        ...

    def describe(self, training: Sequence[L]) -> str:
        """Return the number of training lines in words; raise `DataError` if they lack something."""
        ...

    def fingerprint(self, lines: Sequence[L]) -> str:
        """Return a short hash of lines, independent of their file."""
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
        training: Lines to train on.
        fingerprint: Hash of all lines of the run.
        learner: Learns from the lines.
    """

    def __init__(self, config: PairsConfig, training: list[L], fingerprint: str, learner: PairLearner[L]) -> None:
        self.config, self.training, self.fingerprint, self.learner = config, training, fingerprint, learner
        self.scheduled_steps = schedule_steps(config, len(training), config.optimizer.batch_pairs)
        self.schedule = config.replace(schedule_steps=self.scheduled_steps)
        self.tokens = 0

    def prepare(self, step: int) -> Any:
        """Return the prepared lines of a step."""
        count, seed = self.config.optimizer.batch_pairs, str(self.config.seed)
        indices = range(step * count, (step + 1) * count)
        return self.learner.prepare([shuffled_item(self.training, index, seed) for index in indices])

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
                f"{self.config.out} began with other {self.learner.unit}s than data={self.config.data} (or eval_data) "
                "holds now: put back what was there, or start again in another out"
            )
        self.tokens = state["tokens"]

    def summary(self) -> dict[str, Any]:
        """Return the numbers of lines and of trained tokens."""
        return {"pairs": len(self.training), "tokens": self.tokens}


class PairEvaluations(Evaluations, Generic[L]):
    """Validates by the loss on held-out lines.

    Args:
        held_out: Lines that validate.
        learner: Measures the lines.
    """

    def __init__(self, held_out: list[L], learner: PairLearner[L]) -> None:
        self.learner, self.count = learner, len(held_out)
        self.held_out = learner.prepare(held_out) if held_out else None
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
        return {"validation_pairs": self.count, "before": self.start_metrics, "after": self._measure()}

    def state(self) -> dict[str, Any]:
        """Return the metrics before training."""
        return {"before": self.start_metrics}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the metrics before training."""
        self.start_metrics = state["before"]

    def _measure(self) -> dict[str, float]:
        return {} if self.held_out is None else self.learner.validation_metrics(self.held_out)
