"""GRPO: group-relative policy optimisation (Shao et al. 2024, arXiv 2402.03300) over trajectories of many contexts.

    A_{g,t} = (r_{g,t} - mean_g r_{g,t}) / (std_g r_{g,t} + floor)
    loss    = - sum_{g,t,tokens} min(rho A, clip(rho, 1 - eps, 1 + eps_high) A) / (rows x constant)
              [+ beta x KL to the start policy, per token likewise, - entropy_coef x mean entropy]

Deviations from the paper, each a setting or measured:

* A rollout is one row per chunk, each with a fresh context. A row's advantage is that of its turn: shared reward
  components are centred over rollouts, turn components at the same chunk index (`advantages`).
* `loss_type="dr_grpo"` (2503.20783) does not divide by length; 1/length made the tiny policy spam short inserts. "grpo"
  is the paper's, "dapo" (2503.14476) a mean over tokens. "cispo" (2506.13585) weights log-probs instead of clipping.
* `importance_sampling_level="sequence"` with `loss_type="grpo"` is GSPO (2507.18071); a sequence is a row.
* `epsilon_high` is DAPO's and `delta` the dual clip's, as in INTELLECT-2. `beta` is 0 by default. Old log-probs are the
  sampler's, or the learner's (`old_logprobs`; the training loop recomputes them).
* `kl_in="reward"` makes the KL a turn component of the reward instead of a loss term. It is minus `beta` times the
  estimate, summed over the turn's tokens. k1 is usual there: its sum is the log-ratio of the completion.
* `reward.credit="calls"` adds numbers of the calls to a part of the turn's advantage (`credit`).
* `scale_rewards="none"` (Dr. GRPO) divides by nothing. "batch" divides by the standard deviation over all rollouts of
  the step, as in TRL. Both are population deviations over rollouts; TRL takes the sample's, over rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from memalpha.train.algorithms.advantages import group_advantages, reward_std
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


class GRPO(Algorithm):
    """GRPO with one row per turn; advantages compare a rollout with its group. Keeps no state."""

    baseline: Literal["mean", "leave_one_out"] = "mean"
    """Rewards that a rollout's own are compared with: the mean of all, or of the others."""

    def annotate(self, groups: Sequence[TrajectoryGroup[Any]], score: Scorer) -> list[TrainingSample]:
        """Return one row per turn, in the order of groups, trajectories, turns; `score` is used if `beta` is set."""
        config = self.config
        rows, costs = add_reference_kl(build_rows(groups, config.loss.entropy_coef), score, config)
        extra_rewards = turn_penalties(groups, costs)
        floor = config.loss.advantage_floor
        scale: Literal["group", "none"] = "group" if config.loss.scale_rewards == "group" else "none"
        divisor = reward_std(groups, extra_rewards) + floor if config.loss.scale_rewards == "batch" else 1.0
        advantages: list[float] = []
        for group, extra in zip(groups, extra_rewards, strict=True):
            rollouts = group_advantages(group, baseline=self.baseline, scale=scale, floor=floor, extra_rewards=extra)
            advantages += [value / divisor for turns in rollouts for value in turns]
        return set_advantages(rows, advantages if self.credit is None else self.credit.add_to(advantages, groups))
