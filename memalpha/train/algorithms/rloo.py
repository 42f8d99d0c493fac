"""RLOO: REINFORCE with a leave-one-out baseline (Ahmadian et al. 2024, arXiv 2402.14740).

    A_{g,t} = r_{g,t} - mean_{h != g} r_{h,t} = G / (G - 1) x (r_{g,t} - mean r_t)
    loss    = - sum_{g,t,tokens} min(rho A, clip(rho, 1 - eps, 1 + eps_high) A) / (rows x constant)

The baseline is an unbiased one: no rollout is compared with itself, and nothing divides by the spread of the group.
With the first update of a step the ratio rho is 1 and this is REINFORCE, as published; further ones (`minibatches`,
`num_iterations`) are clipped.

* `importance_sampling_level="token"`: a ratio a token, as in GRPO; "sequence": that of the whole completion, the
  product over its tokens, and a mean over completions, as in TRL's `RLOOTrainer` (a completion is a row: one turn);
* the KL to the start policy is a cost of each turn's reward with `kl_in="reward"` `kl_estimator="k1"`, as in the paper
  and in TRL (whose `beta` is 0.05); the default here is none, and `kl_in="loss"` is possible too;
* shared reward components are compared over rollouts, turn components at the same chunk index (`train.advantages`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from memalpha.train.algorithms.advantages import group_advantages
from memalpha.train.algorithms.base import (
    Algorithm,
    Scorer,
    add_reference_kl,
    build_rows,
    set_advantages,
    turn_penalties,
)
from memalpha.train.data.samples import TrainingSample
from memalpha.types import TrajectoryGroup


class RLOO(Algorithm):
    """One sample per turn, weighed by how its rollout compares with the others of the group. No state."""

    def annotate(self, groups: Sequence[TrajectoryGroup[Any]], score: Scorer) -> list[TrainingSample]:
        """One sample per turn, in the order of groups, trajectories, turns. `score` is called where `beta` is not 0."""
        rows, costs = add_reference_kl(build_rows(groups, self.config.entropy_coef), score, self.config)
        advantages = [
            value
            for group, group_extra in zip(groups, turn_penalties(groups, costs), strict=True)
            for turn_advantages in group_advantages(
                group, baseline="leave_one_out", scale="none", extra_rewards=group_extra
            )
            for value in turn_advantages
        ]
        return set_advantages(rows, advantages)
