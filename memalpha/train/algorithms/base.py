"""What an algorithm is: it says what is collected and writes per-token annotations; the engine executes them.

A step of the loop: `collect`, then `annotate` once, then before each optimizer step `refresh` on its rows, at the end
`learnt`. Baselines are over rollouts, never over rows: a rollout is one row a chunk, each with a context of its own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
import torch

from memalpha.config import ReinforcementConfig
from memalpha.qa.records import Record
from memalpha.train.data.samples import TrainingSample, policy_gradient_sample
from memalpha.train.learner.losses import kl_estimate
from memalpha.train.rollouts.base import RolloutCollector
from memalpha.types import TrajectoryGroup


class Scorer(Protocol):
    """Forward passes of the weights as they are; one array of shape (T,) a row, T its completion's tokens."""

    def forward(self, samples: Sequence[TrainingSample], *, reference: bool = False) -> list[np.ndarray]:
        """Log-probs of the completion's tokens, of the policy or of its reference."""
        ...

    def values(self, samples: Sequence[TrainingSample]) -> list[np.ndarray]:
        """What the value head says before each of the completion's tokens."""
        ...


class Algorithm(ABC):
    """Base of all. `state` is JSON and part of every checkpoint."""

    def __init__(self, config: ReinforcementConfig) -> None:
        self.config = config
        self.state: dict[str, Any] = {}

    @property
    def needs_reference(self) -> bool:
        """Whether `annotate` or `refresh` will ask for log-probs of the start policy."""
        return self.config.beta > 0

    @property
    def value_learning_rate(self) -> float | None:
        """That of a value head; None: the algorithm needs no values."""
        return None

    @property
    def advice_tokens(self) -> int:
        """The most advice that a rollout's prompts may carry."""
        return 0

    def collect(
        self, collector: RolloutCollector[Any], tasks: Sequence[Any], step: int
    ) -> tuple[list[TrajectoryGroup[Any]], list[Record]]:
        """The step's scored groups, and the records of their questions."""
        return collector.attempts(tasks, step)

    @abstractmethod
    def annotate(self, groups: Sequence[TrajectoryGroup[Any]], score: Scorer) -> list[TrainingSample]:
        """The rows to train on, with their weights not yet normalised."""

    def updates(self, samples: Sequence[TrainingSample]) -> dict[str, Sequence[TrainingSample]]:
        """The rows of a step's updates, one after the other; each is of minibatches and iterations as configured.

        The step's figures are those of the update named "", of others there is `<name>_loss`.
        """
        return {"": samples}

    def refresh(self, samples: Sequence[TrainingSample], score: Scorer) -> Sequence[TrainingSample]:
        """The rows of one optimizer step, with what depends on the weights of this moment."""
        return samples

    def finish_step(self, metrics: dict[str, Any]) -> None:  # noqa: B027  # most have nothing to do here
        """The step's updates are done; `line` holds their figures and may be added to."""


def build_rows(groups: Sequence[TrajectoryGroup[Any]], entropy_coef: float = 0.0) -> list[TrainingSample]:
    """One row a turn, in the order of groups, trajectories, turns; no advantages yet."""
    rows = [
        policy_gradient_sample(turn, task=group.task.id, rollout=trajectory.rollout, role=trajectory.role)
        for group in groups
        for trajectory in group.trajectories
        for turn in trajectory.turns
    ]
    return [replace(row, ent=row.pg * np.float32(entropy_coef)) for row in rows] if entropy_coef else rows


def compute_old_logprobs(
    rows: Sequence[TrainingSample], score: Scorer, config: ReinforcementConfig
) -> list[np.ndarray]:
    """Log-probs of the policy before a step's updates, as `config.old_logprobs` says: recorded, or the learner's."""
    return score.forward(rows) if config.old_logprobs == "recomputed" else [row.logprobs for row in rows]


def add_reference_kl(
    rows: list[TrainingSample], score: Scorer, config: ReinforcementConfig, old: Sequence[np.ndarray] | None = None
) -> tuple[list[TrainingSample], list[np.ndarray] | None]:
    """The rows with the KL to the reference as `beta` and `kl_in` say.

    In the loss it is a stream of the rows. As a reward it is the second result: each token's `beta` times its estimate
    (from `old_logprobs`: `old`, where they are known already), a cost.
    """
    if not config.beta:
        return rows, None
    references = score.forward(rows, reference=True)
    rows = [replace(row, reference=reference) for row, reference in zip(rows, references, strict=True)]
    if config.kl_in == "loss":
        return [replace(row, kl=row.pg * np.float32(config.beta)) for row in rows], None
    old = compute_old_logprobs(rows, score, config) if old is None else old
    estimates = [
        kl_estimate(torch.from_numpy(logprobs), torch.from_numpy(reference), config.kl_estimator).numpy()
        for logprobs, reference in zip(old, references, strict=True)
    ]
    return rows, [config.beta * estimate for estimate in estimates]


def turn_penalties(
    groups: Sequence[TrajectoryGroup[Any]], costs: Sequence[np.ndarray] | None
) -> list[list[list[float]]]:
    """Minus the costs of each turn's tokens, by group, trajectory and turn; 0 without costs."""
    remaining = iter(costs or ())
    return [
        [
            [0.0 if costs is None else -float(next(remaining).sum()) for _ in trajectory.turns]
            for trajectory in group.trajectories
        ]
        for group in groups
    ]


def set_advantages(rows: Sequence[TrainingSample], values: Sequence[float]) -> list[TrainingSample]:
    """Every token of row i weighed by `values[i]`."""
    return [replace(row, advantages=row.pg * np.float32(value)) for row, value in zip(rows, values, strict=True)]
