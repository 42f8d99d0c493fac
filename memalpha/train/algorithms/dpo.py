"""DPO: direct preference optimisation (Rafailov et al. 2023, arXiv 2305.18290) between rollouts of one task.

    chosen, rejected = the rollouts of a task with the highest and the lowest reward
    Delta = sum over ALL completion tokens of ALL turns of (log pi - log pi_ref) of chosen, minus the same of rejected
    loss  = - mean over pairs of log sigma(beta Delta)

Losses beside it (cDPO, IPO, reference-free) and how the exact gradient comes from single rows: `train.pairs`.

Departures from the paper, which has a fixed set of pairs that people compared:

* pairs are new in every step, of rollouts sampled with the weights of then, and the reward compares (online DPO, Guo
  et al. 2024, arXiv 2402.04792, where a model does); `num_iterations` passes over them are off-policy like the paper's;
* a side is a whole trajectory of several contexts, not one completion: the log-probs of its turns add up, for the
  probability of a trajectory is their product with the environment's own part, which both policies share;
* one pair a task, best against worst: the pair with the clearest difference. Rollouts whose totals are equal give none
  (`TIE`), nor do those that differ by less than `dpo.margin`. A step without any pair updates nothing.

The reference is the start policy: adapters off, else a frozen copy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from memalpha.config import ReinforcementConfig, RolloutDPOConfig
from memalpha.errors import TrainingError
from memalpha.train.algorithms.base import Algorithm, Scorer
from memalpha.train.algorithms.pairwise import build_pair_row, weight_pairs
from memalpha.train.data.samples import TrainingSample
from memalpha.types import Trajectory, TrajectoryGroup

TIE_TOLERANCE = 1e-9
"""Totals closer than this are equal: they may be sums of the same numbers in another order."""


class DPO(Algorithm):
    """One sample per turn of a chosen or rejected rollout; a pair is a unit. No state between steps."""

    def __init__(self, config: ReinforcementConfig) -> None:
        super().__init__(config)
        self.settings = config.dpo or RolloutDPOConfig()
        self._pair_count = 0
        self._update_metrics: list[dict[str, np.ndarray]] = []

    @property
    def needs_reference(self) -> bool:
        """Unless the loss is reference-free."""
        return not self.settings.reference_free

    def annotate(self, groups: Sequence[TrajectoryGroup[Any]], score: Scorer) -> list[TrainingSample]:
        """The rows of all pairs, with the reference's log-probs; `refresh` gives them their weights."""
        pairs = choose_pairs(groups, self.settings.margin)
        self._pair_count, self._update_metrics = len(pairs), []
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
        if not rows or not self.needs_reference:
            return rows
        references = score.forward(rows, reference=True)
        return [replace(row, reference=reference) for row, reference in zip(rows, references, strict=True)]

    def refresh(self, samples: Sequence[TrainingSample], score: Scorer) -> Sequence[TrainingSample]:
        """Whole pairs, weighed by the loss's gradient at the weights of this moment."""
        weighted, metrics = weight_pairs(samples, score.forward(samples), self.settings)
        self._update_metrics.append(metrics)
        return weighted

    def finish_step(self, metrics: dict[str, Any]) -> None:
        """How many tasks gave a pair; loss, margin and share of rightly ordered pairs, each before its update."""
        for name in [name for name in metrics if name.startswith(("clipped", "old_", "ratio_", "mismatch_"))]:
            del metrics[name]  # of a policy gradient, which there is none of
        metrics["pairs"] = self._pair_count
        for name in self._update_metrics[0] if self._pair_count else ():
            metrics[name] = float(np.concatenate([update[name] for update in self._update_metrics]).mean())


def choose_pairs(
    groups: Sequence[TrajectoryGroup[Any]], margin: float = 0.0
) -> list[tuple[Trajectory[Any], Trajectory[Any]]]:
    """(chosen, rejected) of each group in order: the first rollouts with the highest and the lowest total reward.

    None of a group whose totals are equal, or less than `margin` apart. Raises `TrainingError` for a rollout
    without a reward.
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
