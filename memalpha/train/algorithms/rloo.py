"""RLOO: REINFORCE with a leave-one-out baseline (Ahmadian et al. 2024, arXiv 2402.14740).

    A_{g,t} = r_{g,t} - mean_{h != g} r_{h,t} = G / (G - 1) x (r_{g,t} - mean r_t)
    loss    = - sum_{g,t,tokens} min(rho A, clip(rho, 1 - eps, 1 + eps_high) A) / (rows x constant)

The baseline is unbiased: no rollout is compared with itself, and nothing divides by the group's standard deviation. In
the first update of a step the ratio rho is 1, which is REINFORCE as published. Later updates (`minibatches`,
`num_iterations`) are clipped.

Details and deviations:

* `importance_sampling_level="token"` uses one ratio per token, as GRPO does. "sequence" uses the product over the
  completion and a mean over completions, as TRL's `RLOOTrainer` does. A completion is one row, so one turn.
* `kl_in="reward"` with `kl_estimator="k1"` makes the KL a cost of each turn's reward, as in the paper and in TRL
  (`beta` 0.05 there). The default is no KL; `kl_in="loss"` works too.
* Shared reward components are compared over rollouts, turn components at the same chunk index (`advantages`).
"""

from __future__ import annotations

from dataclasses import replace

from memalpha.train.algorithms.grpo import GRPO
from memalpha.train.learner.losses import LossSettings


class RLOO(GRPO):
    """GRPO's rows with advantages that compare a rollout with the others of its group, divided by nothing."""

    baseline = "leave_one_out"  # `scale_rewards` is "none", as the configuration sees to

    @property
    def loss_settings(self) -> LossSettings:
        """Settings of the loss; the ratio of a completion is a product, not a mean."""
        settings = super().loss_settings
        return settings if settings.level == "token" else replace(settings, level="product")
