"""The one loss: a sum over completion tokens of four weighted streams. It knows no algorithm by name.

    loss = sum_t  - pg_t  min(rho_t A_t, clip(rho_t, 1 - low, 1 + high) A_t)     rho_t = pi(t) / pi_old(t)
                  - ce_t  log pi(t)
                  + kl_t  k_t  [rho_t k_t with use_bias_correction_kl]
                  - ent_t H_t                                                     H_t = entropy of pi at t

The clip is PPO's (1707.06347) with DAPO's separate upper range (2503.14476). The estimates k of KL(pi || pi_ref) are
Schulman's ("Approximating KL divergence", 2020), with log r = log pi_ref(t) - log pi(t):

    k1 = -log r       its value is unbiased, but its gradient is zero in expectation: as a loss it does nothing
    k2 = log^2 r / 2  biased, never negative; its expected gradient is that of KL(pi || pi_ref)
    k3 = r - log r - 1  unbiased, never negative; its expected gradient is that of the other KL, KL(pi_ref || pi)

Those gradients leave out that the tokens were sampled from pi. The ratio as a factor (not clipped, as in TRL) puts it
back: rho k1 and rho k3 then have the expected gradient of KL(pi || pi_ref), on old samples too; rho k2 that of E[k2].
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from memalpha.config import TrainConfig
from memalpha.train.samples import MicroBatch

STATS = ("tokens", "entropy", "clipped", "old_kl", "reference_kl")


@dataclass(frozen=True, slots=True)
class LossSettings:
    """Clip range, KL estimator, and how the sum is normalised (`train.normalize`); weights of streams are data."""

    epsilon: float = 0.2
    epsilon_high: float | None = None
    normalizer: Literal["constant", "token", "row"] = "constant"
    constant: float = 16.0
    kl_estimator: Literal["k1", "k2", "k3"] = "k3"
    use_bias_correction_kl: bool = True

    @classmethod
    def of(cls, config: TrainConfig) -> LossSettings:
        """Those of a reinforcement-learning run."""
        return cls(
            epsilon=config.epsilon,
            epsilon_high=config.epsilon_high,
            normalizer=config.loss_normalizer,
            constant=config.loss_constant,
            kl_estimator=config.kl_estimator,
            use_bias_correction_kl=config.use_bias_correction_kl,
        )


def kl_estimate(logprobs: torch.Tensor, reference: torch.Tensor, estimator: Literal["k1", "k2", "k3"]) -> torch.Tensor:
    """k1, k2 or k3 of KL(pi || pi_ref) at tokens sampled from pi, from the log-probs of both."""
    gap = reference - logprobs
    if estimator == "k1":
        return -gap
    return 0.5 * gap * gap if estimator == "k2" else torch.expm1(gap) - gap


def loss_sum(
    logprobs: torch.Tensor, entropy: torch.Tensor, batch: MicroBatch, settings: LossSettings
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The summed loss, the sums of `STATS`, and log rho of the tokens of the policy gradient; the last two detached."""
    low = settings.epsilon
    high = low if settings.epsilon_high is None else settings.epsilon_high
    log_ratio = logprobs - batch.logprobs
    ratio = torch.exp(log_ratio)
    clipped = ratio.clamp(1.0 - low, 1.0 + high)
    surrogate = torch.minimum(ratio * batch.advantages, clipped * batch.advantages)
    loss = -(batch.pg * surrogate).sum() - (batch.ce * logprobs).sum()
    reference_kl = logprobs.new_zeros(())
    if batch.reference is not None:
        estimate = kl_estimate(logprobs, batch.reference, settings.kl_estimator)
        reference_kl = estimate.detach().sum()
        loss = loss + (batch.kl * (estimate * ratio if settings.use_bias_correction_kl else estimate)).sum()
    if batch.ent is not None:
        loss = loss - (batch.ent * entropy).sum()
    with torch.no_grad():
        trained = batch.pg != 0
        outside = trained & (ratio * batch.advantages > clipped * batch.advantages)
        old_kl = (trained * (torch.expm1(log_ratio) - log_ratio)).sum()
        count = logprobs.new_tensor(float(len(logprobs)))
        sums = torch.stack([count, entropy.sum(), outside.sum().to(count), old_kl, reference_kl])
    return loss, sums, log_ratio.detach()[trained]
