"""GRPO: group-relative policy optimisation (Shao et al. 2024, arXiv 2402.03300) over trajectories of many contexts.

    A_{g,t} = (r_{g,t} - mean_g r_{g,t}) / (std_g r_{g,t} + floor)
    loss    = - sum_{g,t,tokens} min(rho A, clip(rho, 1 - eps, 1 + eps_high) A) / (rows x constant)
              [+ beta x KL to the start policy, per token likewise, - entropy_coef x mean entropy]

Departures from the paper, each a setting or measured:

* a rollout is one row per chunk (a fresh context each), and a row's advantage is that of its turn: shared reward
  components are centred over rollouts, turn components at the same chunk index (`train.advantages`);
* `loss_type="dr_grpo"` (2503.20783): no 1/length, which made the tiny policy spam short inserts; "grpo" is the paper's,
  "dapo" (2503.14476) is a mean over tokens, "cispo" (2506.13585) also weighs log-probs in the place of clipping;
* `importance_sampling_level="sequence"` with `loss_type="grpo"` is GSPO (2507.18071), a sequence being a row;
* `epsilon_high` (DAPO), `delta` (INTELLECT-2) and `beta` = 0 by default; old log-probs are the sampler's own, or the
  learner's (`old_logprobs`, which the loop sees to);
* `kl_in="reward"`: the KL is no term of the loss but a turn component of the reward, minus `beta` times the sum over
  the turn's tokens of its estimate (k1, whose sum is the log-ratio of the whole completion, is the usual one there);
* `scale_rewards`: "none" (Dr. GRPO) divides by nothing, "batch" by the standard deviation of rewards over
  all rollouts of the step, as in TRL; both population ones, of rollouts, where TRL takes the sample's, of rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

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
    """One sample per turn, weighed by how its rollout compares with the group. No state."""

    def annotate(self, groups: Sequence[TrajectoryGroup[Any]], score: Scorer) -> list[TrainingSample]:
        """One sample per turn, in the order of groups, trajectories, turns. `score` is called where `beta` is not 0."""
        config = self.config
        rows, costs = add_reference_kl(build_rows(groups, config.entropy_coef), score, config)
        extra_rewards = turn_penalties(groups, costs)
        divisor = None
        if config.scale_rewards == "batch":
            divisor = reward_std(groups, extra_rewards) + config.advantage_floor
        advantages = [
            value
            for group, group_extra in zip(groups, extra_rewards, strict=True)
            for turn_advantages in group_advantages(
                group,
                scale="group" if config.scale_rewards == "group" else "none",
                floor=config.advantage_floor,
                extra_rewards=group_extra,
            )
            for value in turn_advantages
        ]
        return set_advantages(rows, advantages if divisor is None else [value / divisor for value in advantages])
