"""GRPO: group-relative policy optimisation (Shao et al. 2024, arXiv 2402.03300) over trajectories of many contexts.

    A_{g,t} = (r_{g,t} - mean_g r_{g,t}) / (std_g r_{g,t} + 0.01)
    loss    = - sum_{g,t,tokens} min(rho A, clip(rho, 1 - eps, 1 + eps_high) A) / (rows x constant)  [+ beta k3]

Departures from the paper, each a setting or measured:

* a rollout is one row per chunk (a fresh context each), and a row's advantage is that of its turn: shared reward
  components are centred over rollouts, turn components at the same chunk index (`train.advantages`);
* `loss_normalizer="constant"` (Dr. GRPO, 2503.20783): no 1/length, which made the tiny policy spam short inserts;
  "row" is the paper's, "token" is DAPO's;
* `epsilon_high` (DAPO, 2503.14476) and `beta` = 0 by default; old log-probs are the sampler's own;
* `scale_rewards="none"` leaves the standard deviation out; only then may `baseline="leave_one_out"` (RLOO's) be set:
  it multiplies what is centred over all by G / (G - 1), which dividing by the standard deviation would cancel.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from memalpha.config import TrainConfig
from memalpha.errors import ConfigError
from memalpha.train.advantages import group_advantages
from memalpha.train.samples import TrainingSample, policy_gradient_sample
from memalpha.types import TrajectoryGroup

Score = Callable[[Sequence[TrainingSample]], list[np.ndarray]]
"""A forward pass of the learner: log-probs of each row's completion tokens."""


class GRPO:
    """Annotates groups; has no state of its own. Raises `ConfigError` for settings that cancel each other."""

    def __init__(self, config: TrainConfig) -> None:
        if config.baseline == "leave_one_out" and config.scale_rewards == "group":
            raise ConfigError(
                "baseline: leave_one_out has no effect with scale_rewards=group, which divides it out again; set "
                "scale_rewards=none, or baseline=mean"
            )
        self.config = config
        self.state: dict[str, Any] = {}

    def annotate(self, groups: Sequence[TrajectoryGroup], score: Score) -> list[TrainingSample]:
        """One sample per turn, in the order of groups, trajectories, turns. `score` is not needed here."""
        samples = []
        for group in groups:
            advantages = group_advantages(
                group, baseline=self.config.baseline, scale=self.config.scale_rewards, floor=self.config.advantage_floor
            )
            for trajectory, row in zip(group.trajectories, advantages, strict=True):
                samples += [
                    policy_gradient_sample(
                        turn, value, kl=self.config.beta, task=group.task.id, rollout=trajectory.rollout
                    )
                    for turn, value in zip(trajectory.turns, row, strict=True)
                ]
        return samples
