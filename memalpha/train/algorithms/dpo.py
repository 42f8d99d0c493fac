"""DPO: direct preference optimisation (Rafailov et al. 2023, arXiv 2305.18290) between rollouts of one task.

    chosen, rejected = the rollouts of a task with the highest and the lowest reward
    Delta = sum over ALL completion tokens of ALL turns of (log pi - log pi_ref) of chosen, minus the same of rejected
    loss  = - mean over pairs of log sigma(beta Delta)

Deviations from the paper, which trains on a fixed set of pairs that people compared:

* Each step builds new pairs from rollouts of the current weights, and the reward compares them (online DPO, Guo et al.
  2024, arXiv 2402.04792, where a model compares). Extra epochs over them (`num_iterations`) are off-policy as in the
  paper.
* A side is a whole trajectory of several contexts. The log-probs of its turns add up: the probability of a trajectory
  is their product with the environment's part, which both policies share.
* Each task gives one pair, best against worst, because that difference is clearest. Groups whose totals are equal
  (`TIE_TOLERANCE`) or closer than `dpo.margin` give none. A step without pairs updates nothing.

The reference is the start policy: the model with its adapters off, else a frozen copy.

Preference pairs as weights of the cross-entropy stream: the exact gradient of DPO with one row in memory at a time.

A pair is one `unit`: rows of a chosen and a rejected side, each with one or more contexts (the turns of a trajectory).
Let logr(t) = log pi(t) - log pi_ref(t) of a completion token t (log pi(t) alone if `reference_free`).

    Delta = sum over all tokens of the chosen rows of logr(t)  -  the same of the rejected rows
    sigmoid   -(1 - s) log sigma(beta Delta) - s log sigma(-beta Delta)      s = label_smoothing (0: DPO; else cDPO)
    ipo       (D - 1 / (2 beta))^2            D is Delta with means over a side's tokens instead of sums

The loss is the mean over pairs. A token's part is d loss / d log pi(t) = slope x sign, with one slope per pair. The
summed loss (`learner.losses`) with ce(t) = -slope x sign has the same gradient. The slope comes from a forward pass
with the same weights before the update, so no two rows of a pair ever share a backward pass.

Papers: DPO, Rafailov et al. 2023, arXiv 2305.18290, whose note on noisy labels is cDPO (Mitchell 2023); IPO, Azar et
al. 2023, arXiv 2310.12036. Deviations:

* IPO's means are not in the paper. They follow TRL's `DPOTrainer`, where its authors confirmed them; beta is their tau.
* TRL's `label_smoothing` belongs to another loss (`robust`), which divides by 1 - 2 s. Here it is cDPO's, and IPO
  ignores it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from memalpha.config import DPOConfig, ReinforcementConfig, RolloutDPOConfig
from memalpha.errors import TrainingError
from memalpha.train.algorithms.advantages import TIE_TOLERANCE
from memalpha.train.algorithms.base import Algorithm, Annotation, Scorer
from memalpha.train.data.samples import TrainingSample, cross_entropy_sample
from memalpha.train.learner.losses import LossSettings
from memalpha.types import Trajectory, TrajectoryGroup

MIN_WEIGHT = np.finfo(np.float32).tiny
"""Smallest weight of a token: a pair without gradient still counts among the pairs that the mean is taken over."""


def build_pair_row(row: TrainingSample, unit: str, *, chosen: bool) -> TrainingSample:
    """Make a cross-entropy row one of a pair.

    Args:
        row: Row whose completion tokens are all trained.
        unit: Name of the pair that the row belongs to.
        chosen: The side; stored as the sign of `advantages`, which nothing else reads.
    """
    sign = np.float32(1 if chosen else -1)
    return replace(row, advantages=row.ce * sign, ce=row.ce * sign, unit=unit)


def pair_losses(differences: np.ndarray, config: DPOConfig) -> tuple[np.ndarray, np.ndarray]:
    """Return each pair's loss and its slope d loss / d difference, float64 (P,).

    `differences` (P,) are Delta, or D for IPO.
    """
    if config.loss_type == "ipo":
        errors = differences - 1.0 / (2.0 * config.beta)
        return errors**2, 2.0 * errors
    z, smoothing = config.beta * differences, config.label_smoothing
    losses = (1.0 - smoothing) * np.logaddexp(0.0, -z) + smoothing * np.logaddexp(0.0, z)
    prob_wrong = np.exp(-np.logaddexp(0.0, z))  # sigma(-z), which 1 - sigma(z) would lose for a large z
    prob_right = np.exp(-np.logaddexp(0.0, -z))
    return losses, config.beta * (smoothing * prob_right - (1.0 - smoothing) * prob_wrong)


def weight_pairs(
    rows: Sequence[TrainingSample], logprobs: Sequence[np.ndarray], config: DPOConfig
) -> tuple[list[TrainingSample], dict[str, np.ndarray]]:
    """Weight rows by the gradient of the pair loss at `logprobs`.

    Args:
        rows: Whole pairs from `build_pair_row`, with `reference` log-probs unless `reference_free`.
        logprobs: Log-probs of the rows under the current weights, (T,) per row.
        config: Loss type, beta, label smoothing.

    Returns:
        The weighted rows, and metrics (P,) of each pair in order: `loss`, `margins` (beta Delta, TRL's margin of
        implicit rewards) and `accuracies` (1 if Delta > 0).

    Raises:
        ValueError: A pair has no rows on one side.
    """
    pair_indices = {unit: index for index, unit in enumerate(dict.fromkeys(row.unit for row in rows))}
    sums, tokens = np.zeros((2, len(pair_indices))), np.zeros((2, len(pair_indices)))
    sides = [(0 if row.advantages[0] > 0 else 1, pair_indices[row.unit]) for row in rows]
    for row, row_logprobs, side in zip(rows, logprobs, sides, strict=True):
        log_ratios = row_logprobs.astype(np.float64)
        if not config.reference_free:
            assert row.reference is not None
            log_ratios -= row.reference
        sums[side] += log_ratios.sum()
        tokens[side] += len(log_ratios)
    if not tokens.all():
        raise ValueError("a pair lacks the rows of one of its sides")
    deltas = sums[0] - sums[1]
    counts = tokens if config.loss_type == "ipo" else np.ones_like(tokens)
    means = sums / counts
    losses, slopes = pair_losses(means[0] - means[1], config)
    pair_weights = np.where(slopes > 0, -1.0, 1.0) * np.maximum(np.abs(slopes), MIN_WEIGHT * counts.max(axis=0))
    weights = pair_weights / counts
    weighted = [
        replace(row, ce=row.advantages * np.float32(weights[side])) for row, side in zip(rows, sides, strict=True)
    ]
    metrics = {"loss": losses, "margins": config.beta * deltas, "accuracies": (deltas > 0).astype(np.float64)}
    return weighted, metrics


class DPO(Algorithm):
    """DPO with one row per turn of a chosen or rejected rollout; a pair is one unit. Keeps no state between steps."""

    def __init__(self, config: ReinforcementConfig) -> None:
        super().__init__(config)
        self.settings = config.dpo or RolloutDPOConfig()
        self._update_metrics: list[dict[str, np.ndarray]] = []

    @property
    def loss_settings(self) -> LossSettings:
        """Settings of the loss: a mean over pairs."""
        return LossSettings(ce_normalizer="unit")

    @property
    def needs_reference(self) -> bool:
        """True unless the loss is reference-free."""
        return not self.settings.reference_free

    def annotate(self, groups: Sequence[TrajectoryGroup[Any]], score: Scorer) -> Annotation:
        """Return the rows of all pairs with the reference's log-probs; `refresh` sets their weights."""
        pairs = choose_pairs(groups, self.settings.margin)
        self._update_metrics = []
        rows = []
        for index, pair in enumerate(pairs):
            for side in pair:
                for turn in side.turns:
                    origin = {"task": side.task.id, "rollout": side.rollout, "chunk": turn.chunk}
                    row = cross_entropy_sample(turn.completion.prompt_ids, turn.completion.completion_ids, **origin)
                    row = replace(row, temperature=turn.completion.temperature or 1.0)
                    rows.append(build_pair_row(row, f"pair-{index}", chosen=side is pair[0]))
        if rows and self.needs_reference:
            references = score.forward(rows, reference=True)
            rows = [replace(row, reference=reference) for row, reference in zip(rows, references, strict=True)]
        return Annotation(rows, {"pairs": len(pairs)})

    def refresh(self, samples: Sequence[TrainingSample], score: Scorer) -> Sequence[TrainingSample]:
        """Weight whole pairs by the gradient of the loss at the current weights."""
        weighted, metrics = weight_pairs(samples, score.forward(samples), self.settings)
        self._update_metrics.append(metrics)
        return weighted

    def finish_step(self, metrics: dict[str, Any]) -> None:
        """Add the mean loss, margin and accuracy of the pairs before their update."""
        for name in [name for name in metrics if name.startswith(("clipped", "old_", "ratio_", "mismatch_"))]:
            del metrics[name]  # metrics of a policy gradient, which DPO has not
        for name in self._update_metrics[0] if self._update_metrics else ():
            metrics[name] = float(np.concatenate([update[name] for update in self._update_metrics]).mean())


def choose_pairs(
    groups: Sequence[TrajectoryGroup[Any]], margin: float = 0.0
) -> list[tuple[Trajectory[Any], Trajectory[Any]]]:
    """Return one (chosen, rejected) pair per group, by highest and lowest total reward.

    Among equal totals the first rollout wins. Groups whose totals are equal or less than `margin` apart give no pair.

    Raises:
        TrainingError: A rollout has no reward.
    """
    pairs = []
    for group in groups:
        totals = []
        for trajectory in group.trajectories:
            if trajectory.reward is None:
                raise TrainingError(f"task {group.task.id!r}, rollout {trajectory.rollout}: no reward to compare")
            totals.append(trajectory.reward.total)
        high, low = max(totals), min(totals)
        if high - low > max(TIE_TOLERANCE, margin - TIE_TOLERANCE):
            pairs.append((group.trajectories[totals.index(high)], group.trajectories[totals.index(low)]))
    return pairs
