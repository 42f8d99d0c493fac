"""DPO: direct preference optimisation (Rafailov et al. 2023, arXiv 2305.18290) between rollouts of one task.

    chosen, rejected = the rollouts of a task with the highest and the lowest reward
    Delta = sum over ALL completion tokens of ALL turns of (log pi - log pi_ref) of chosen, minus the same of rejected
    loss  = - mean over pairs of log sigma(beta Delta)

`pairwise` has the related losses (cDPO, IPO, reference-free) and computes the exact gradient from single rows.

Deviations from the paper, which trains on a fixed set of pairs that people compared:

* Each step builds new pairs from rollouts of the current weights, and the reward compares them (online DPO, Guo et al.
  2024, arXiv 2402.04792, where a model compares). Extra epochs over them (`num_iterations`) are off-policy as in the
  paper.
* A side is a whole trajectory of several contexts. The log-probs of its turns add up: the probability of a trajectory
  is their product with the environment's part, which both policies share.
* Each task gives one pair, best against worst, because that difference is clearest. Groups whose totals are equal
  (`TIE_TOLERANCE`) or closer than `dpo.margin` give none. A step without pairs updates nothing.

The reference is the start policy: the model with its adapters off, else a frozen copy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from memalpha.config import ReinforcementConfig, RolloutDPOConfig
from memalpha.errors import TrainingError
from memalpha.train.algorithms.advantages import TIE_TOLERANCE
from memalpha.train.algorithms.base import Algorithm, Annotation, Scorer
from memalpha.train.algorithms.pairwise import build_pair_row, weight_pairs
from memalpha.train.data.samples import TrainingSample
from memalpha.train.learner.losses import LossSettings
from memalpha.types import Trajectory, TrajectoryGroup


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
        rows = [
            build_pair_row(
                turn.completion.prompt_ids,
                turn.completion.completion_ids,
                f"pair-{index}",
                chosen=side is pair[0],
                temperature=turn.completion.temperature or 1.0,
                task=side.task.id,
                rollout=side.rollout,
                chunk=turn.chunk,
            )
            for index, pair in enumerate(pairs)
            for side in pair
            for turn in side.turns
        ]
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
