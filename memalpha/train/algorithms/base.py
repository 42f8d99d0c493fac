"""Interface of an algorithm, and the row helpers that several algorithms share.

An algorithm decides what to collect and writes per-token annotations; the engine executes them. The training loop calls
`collect`, then `annotate` once, then `refresh` before each optimizer step, and `finish_step` at the end. Baselines are
over rollouts, never over rows: a rollout is one row per chunk, each with its own context.
"""

from __future__ import annotations

import math
import numbers
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
import torch

from memalpha.arguments import brief_repr, counted, name_errors
from memalpha.config import ReinforcementConfig
from memalpha.errors import TrainingError
from memalpha.qa.report import Record
from memalpha.train.algorithms.credit import CallCredit
from memalpha.train.data.samples import TrainingSample, policy_gradient_sample
from memalpha.train.learner.losses import LossSettings, kl_estimate
from memalpha.train.rollouts.worker import RolloutWorker
from memalpha.types import TrajectoryGroup


class Scorer(Protocol):
    """Forward passes with the current weights; each returns one array (T,) per row of T completion tokens."""

    def forward(self, samples: Sequence[TrainingSample], *, reference: bool = False) -> list[np.ndarray]:
        """Return log-probs of the completion tokens under the policy, or under the reference policy."""
        ...

    def values(self, samples: Sequence[TrainingSample]) -> list[np.ndarray]:
        """Return the value head's estimate before each completion token."""
        ...


@dataclass(frozen=True, slots=True)
class Annotation:
    """Result of `Algorithm.annotate`.

    Attributes:
        rows: Rows to train on, with weights that are not yet normalised.
        metrics: Finite numbers, or None for what was not measured, to add to the step's line in metrics.jsonl.
        state: The algorithm's state after the step, a JSON mapping; None keeps the present one.
    """

    rows: list[TrainingSample]
    metrics: Mapping[str, Any] = field(default_factory=dict)
    state: dict[str, Any] | None = None


class Algorithm(ABC):
    """Base class of all algorithms. `state` is JSON and part of every checkpoint."""

    credit: CallCredit | None = None
    """Adds credit per call to the advantages (`reward.credit: calls`); set by the trainer."""

    def __init__(self, config: ReinforcementConfig) -> None:
        self.config = config
        self.state: dict[str, Any] = {}

    @property
    def loss_settings(self) -> LossSettings:
        """Settings of the learner's loss."""
        return LossSettings.from_config(self.config.loss, self.config.reply_tokens)

    @property
    def needs_reference(self) -> bool:
        """True if `annotate` or `refresh` asks for log-probs of the start policy."""
        return self.config.loss.beta > 0

    @property
    def value_learning_rate(self) -> float | None:
        """Learning rate of a value head; None if the algorithm needs no values."""
        return None

    @property
    def advice_tokens(self) -> int:
        """Maximum number of advice tokens in a rollout's prompt."""
        return 0

    def collect(
        self, worker: RolloutWorker[Any], tasks: Sequence[Any], step: int
    ) -> tuple[list[TrajectoryGroup[Any]], list[Record]]:
        """Sample and score the rollouts of one step.

        Args:
            worker: Samples rollouts and scores them.
            tasks: Tasks of the step; each becomes one group.
            step: Step index; seeds the sampling.

        Returns:
            The scored groups and the evaluation records of their questions.
        """
        return worker.collect_attempts(tasks, step)

    @abstractmethod
    def annotate(self, groups: Sequence[TrajectoryGroup[Any]], score: Scorer) -> Annotation | list[TrainingSample]:
        """Return the rows to train on, alone or with metrics and the next state; changes no state.

        Weights are not yet normalised.
        """

    def updates(self, samples: Sequence[TrainingSample]) -> dict[str, Sequence[TrainingSample]]:
        """Return the rows of each update phase in order, by phase name.

        Each phase runs the configured minibatches and iterations. The phase named "" gives the step's metrics; any
        other phase only adds `<name>_loss`.
        """
        return {"": samples}

    def refresh(self, samples: Sequence[TrainingSample], score: Scorer) -> Sequence[TrainingSample]:
        """Return the rows of one optimizer step, with weights that depend on the current policy recomputed."""
        return samples

    def finish_step(self, metrics: dict[str, Any]) -> None:  # noqa: B027  # most have nothing to do here
        """Update the algorithm's state after the step's last update; may add to `metrics`."""


def annotate(algorithm: Algorithm, groups: Sequence[TrajectoryGroup[Any]], score: Scorer) -> Annotation:
    """Return what `algorithm.annotate` returns, as an `Annotation` with plain numbers and a JSON state.

    Args:
        algorithm: A shipped algorithm or a user's own.
        groups: Scored groups.
        score: Forward passes with the current weights.

    Raises:
        TrainingError: A user's algorithm raised, or returned something else: no `TrainingSample`s, an empty list, an
            advantage or metric that is not finite, a state that is not JSON.
    """
    label = f"algorithm {algorithm.config.algorithm}"
    with name_algorithm_errors(algorithm.config):
        result: Any = algorithm.annotate(groups, score)
    annotation = result if isinstance(result, Annotation) else Annotation(result)
    rows, kind = annotation.rows, type(annotation.rows).__name__
    is_list = isinstance(rows, list | tuple)
    other = next((i for i, row in enumerate(rows) if not isinstance(row, TrainingSample)), None) if is_list else None
    if not is_list or other is not None:
        problem = kind if other is None else f"a {kind} whose item {other} is {brief_repr(rows[other])}"
        raise TrainingError(
            f"{label}: {type(algorithm).__name__}.annotate must return an Annotation or a list of TrainingSample, "
            f"not {problem}"
        )
    turns = sum(len(trajectory.turns) for group in groups for trajectory in group.trajectories)
    if not rows and turns and not isinstance(result, Annotation):
        raise TrainingError(
            f"{label}: annotate returned no rows for {counted(turns, 'turn')}: return Annotation([]) if a step may "
            "have nothing to learn"
        )
    for number, row in enumerate(rows):
        if not np.isfinite(row.advantages).all():
            raise TrainingError(f"{label}: row {number} (task {row.task!r}) has an advantage that is no finite number")
    return Annotation(
        mask_truncated(rows, algorithm.config),
        _check_metrics(annotation.metrics, f"{label}: metrics"),
        None if annotation.state is None else as_json(annotation.state, f"{label}: state"),
    )


def finish_step(algorithm: Algorithm, metrics: dict[str, Any]) -> None:
    """Call `algorithm.finish_step` and check the state and the metrics that it sets.

    Args:
        algorithm: A shipped algorithm or a user's own.
        metrics: Metrics of the step; changed in place.

    Raises:
        TrainingError: A user's algorithm raised, or set a metric that is no number or a state that is not JSON.
    """
    label, before = f"algorithm {algorithm.config.algorithm}", dict(metrics)
    with name_algorithm_errors(algorithm.config):
        algorithm.finish_step(metrics)
    changed = {name: value for name, value in metrics.items() if name not in before or before[name] is not value}
    metrics |= _check_metrics(changed, f"{label}: metrics")
    as_json(algorithm.state, f"{label}: state")


def name_algorithm_errors(config: ReinforcementConfig) -> AbstractContextManager[None]:
    """Re-raise exceptions of a user's algorithm as `TrainingError` with its name and line; full memory stays."""
    is_own, kept = ":" not in config.algorithm, (torch.OutOfMemoryError,)
    return name_errors(f"algorithm {config.algorithm}:", TrainingError, is_own=is_own, kept=kept)


def as_json(state: Any, where: str) -> dict[str, Any]:
    """Return an algorithm's state as a checkpoint gives it back: plain numbers, lists, mappings with text keys.

    Args:
        state: State of an algorithm.
        where: Beginning of error messages.

    Raises:
        TrainingError: It is no mapping, or holds a key or value that JSON cannot hold; names the key.
    """
    if not isinstance(state, Mapping):
        raise TrainingError(f"{where} must be a mapping, not {brief_repr(state)}")
    return _json_value(state, where)


def _json_value(value: Any, where: str) -> Any:
    value = _plain_scalar(value)
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):  # json writes 3 as "3", which a resumed run would not find
                raise TrainingError(f"{where}: key {brief_repr(key)} must be a text")
        return {key: _json_value(item, f"{where}[{key!r}]") for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_json_value(item, f"{where}[{index}]") for index, item in enumerate(value)]
    if value is not None and not isinstance(value, str | int | float):
        raise TrainingError(f"{where}: {brief_repr(value)} is not JSON: use numbers, texts, lists and mappings")
    return value


def _check_metrics(metrics: Any, where: str) -> dict[str, Any]:
    """Return metrics as plain numbers; raises `TrainingError` naming the metric that is none."""
    if not isinstance(metrics, Mapping):
        raise TrainingError(f"{where} must be a mapping, not {brief_repr(metrics)}")
    plain = {name: _plain_scalar(value) for name, value in metrics.items()}
    for name, value in plain.items():
        if not isinstance(name, str):
            raise TrainingError(f"{where}: name {brief_repr(name)} must be a text")
        if value is not None and not (isinstance(value, numbers.Real) and math.isfinite(value)):
            raise TrainingError(f"{where}[{name!r}]: {brief_repr(metrics[name])} is no finite number")
    return {name: value if value is None or isinstance(value, int) else float(value) for name, value in plain.items()}


def _plain_scalar(value: Any) -> Any:
    """Return a number of numpy or torch as Python's, anything else as it is."""
    return value.item() if isinstance(value, np.generic | np.ndarray | torch.Tensor) and value.ndim == 0 else value


def mask_truncated(rows: Sequence[TrainingSample], config: ReinforcementConfig) -> list[TrainingSample]:
    """Take the weights of cut-off completions away if `mask_truncated_completions` is set; imitation stays."""
    if not config.loss.mask_truncated_completions:
        return list(rows)
    return [
        replace(row, pg=0 * row.pg, kl=0 * row.kl, ent=None, vf=None, masked=True)
        if row.truncated and row.pg.any()
        else row
        for row in rows
    ]


def build_rows(groups: Sequence[TrajectoryGroup[Any]], entropy_coef: float = 0.0) -> list[TrainingSample]:
    """Return one row per turn, in the order of groups, trajectories, turns, without advantages."""
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
    """Return log-probs of the policy before the step's first update, recorded or recomputed.

    Args:
        rows: Rows of the step.
        score: Recomputes log-probs for `old_logprobs="recomputed"`.
        config: `old_logprobs` chooses between the sampler's record and the learner's forward pass.

    Returns:
        One array (T,) per row.
    """
    return score.forward(rows) if config.loss.old_logprobs == "recomputed" else [row.logprobs for row in rows]


def add_reference_kl(
    rows: list[TrainingSample], score: Scorer, config: ReinforcementConfig, old: Sequence[np.ndarray] | None = None
) -> tuple[list[TrainingSample], list[np.ndarray] | None]:
    """Add the KL to the reference policy, as `beta` and `kl_in` say.

    Args:
        rows: Rows of the step.
        score: Computes the reference's log-probs.
        config: `kl_in="loss"` adds a KL stream to the rows; `kl_in="reward"` returns a cost per token.
        old: Old log-probs of the rows, if already computed.

    Returns:
        The rows, and for `kl_in="reward"` one array (T,) per row of `beta` times the KL estimate, else None.
    """
    if not config.loss.beta:
        return rows, None
    references = score.forward(rows, reference=True)
    rows = [replace(row, reference=reference) for row, reference in zip(rows, references, strict=True)]
    if config.loss.kl_in == "loss":
        return [replace(row, kl=row.pg * np.float32(config.loss.beta)) for row in rows], None
    old = compute_old_logprobs(rows, score, config) if old is None else old
    estimates = [
        kl_estimate(torch.from_numpy(logprobs), torch.from_numpy(reference), config.loss.kl_estimator).numpy()
        for logprobs, reference in zip(old, references, strict=True)
    ]
    return rows, [config.loss.beta * estimate for estimate in estimates]


def turn_penalties(
    groups: Sequence[TrajectoryGroup[Any]], costs: Sequence[np.ndarray] | None
) -> list[list[list[float]]]:
    """Return minus the summed token costs of each turn, by group, trajectory and turn; 0 without costs."""
    remaining = iter(costs or ())
    return [
        [
            [0.0 if costs is None else -float(next(remaining).sum()) for _ in trajectory.turns]
            for trajectory in group.trajectories
        ]
        for group in groups
    ]


def set_advantages(rows: Sequence[TrainingSample], values: Sequence[float | np.ndarray]) -> list[TrainingSample]:
    """Give the tokens of row i the advantage `values[i]`: one for all, or an array (T,)."""
    return [replace(row, advantages=row.pg * np.float32(value)) for row, value in zip(rows, values, strict=True)]
