"""GRPO: group-relative policy optimisation (Shao et al. 2024, arXiv 2402.03300) over trajectories of many contexts.

    A_{g,t} = (r_{g,t} - mean_g r_{g,t}) / (std_g r_{g,t} + 0.01)
    loss    = - sum_{g,t,tokens} min(rho A, clip(rho, 1 - eps, 1 + eps_high) A) / (rows x constant)
              [+ beta x KL to the start policy - entropy_coef x entropy, per token likewise]

Departures from the paper, each a setting or measured:

* a rollout is one row per chunk (a fresh context each), and a row's advantage is that of its turn: shared reward
  components are centred over rollouts, turn components at the same chunk index (`train.advantages`);
* `loss_normalizer="constant"` (Dr. GRPO, 2503.20783): no 1/length, which made the tiny policy spam short inserts;
  "row" is the paper's, "token" is DAPO's;
* `epsilon_high` (DAPO, 2503.14476) and `beta` = 0 by default; old log-probs are the sampler's own, or the learner's
  (`old_logprobs`, which the loop sees to);
* `kl_in="reward"`: the KL is no term of the loss but a turn component of the reward, minus `beta` times the sum over
  the turn's tokens of its estimate (k1, whose sum is the log-ratio of the whole completion, is the usual one there);
* `entropy_coef`: an entropy bonus; it shares the normaliser of the policy gradient (TRL: always a mean over tokens);
* `scale_rewards="none"` leaves the standard deviation out; only then may `baseline="leave_one_out"` (RLOO's) be set:
  it multiplies what is centred over all by G / (G - 1), which dividing by the standard deviation would cancel.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from typing import Any, Protocol

import numpy as np
import torch

from memalpha.config import TrainConfig
from memalpha.train.advantages import group_advantages
from memalpha.train.losses import kl_estimate
from memalpha.train.samples import TrainingSample, policy_gradient_sample
from memalpha.types import TrajectoryGroup


class Score(Protocol):
    """A forward pass of the learner: log-probs of each row's completion tokens, of the policy or its reference."""

    def __call__(self, samples: Sequence[TrainingSample], *, reference: bool = False) -> list[np.ndarray]: ...


class GRPO:
    """Annotates groups; has no state of its own."""

    def __init__(self, config: TrainConfig) -> None:
        self.config = config
        self.state: dict[str, Any] = {}

    def annotate(self, groups: Sequence[TrajectoryGroup], score: Score) -> list[TrainingSample]:
        """One sample per turn, in the order of groups, trajectories, turns. `score` is called where `beta` is not 0."""
        config = self.config
        samples = [
            policy_gradient_sample(turn, task=group.task.id, rollout=trajectory.rollout)
            for group in groups
            for trajectory in group.trajectories
            for turn in trajectory.turns
        ]
        if config.entropy_coef:
            samples = [replace(sample, ent=sample.pg * np.float32(config.entropy_coef)) for sample in samples]
        penalties = [0.0] * len(samples)
        if config.beta:
            references = score(samples, reference=True)
            samples = [replace(sample, reference=row) for sample, row in zip(samples, references, strict=True)]
            if config.kl_in == "loss":
                samples = [replace(sample, kl=sample.pg * np.float32(config.beta)) for sample in samples]
            else:
                old = score(samples) if config.old_logprobs == "recomputed" else [row.logprobs for row in samples]
                estimates = [
                    kl_estimate(torch.from_numpy(own), torch.from_numpy(row), config.kl_estimator)
                    for own, row in zip(old, references, strict=True)
                ]
                penalties = [-config.beta * float(estimate.sum()) for estimate in estimates]
        rest = iter(penalties)
        advantages = [
            value
            for group in groups
            for row in group_advantages(
                group,
                baseline=config.baseline,
                scale=config.scale_rewards,
                floor=config.advantage_floor,
                extra=[list(islice(rest, len(trajectory.turns))) for trajectory in group.trajectories],
            )
            for value in row
        ]
        return [
            replace(sample, advantages=sample.pg * np.float32(value))
            for sample, value in zip(samples, advantages, strict=True)
        ]
