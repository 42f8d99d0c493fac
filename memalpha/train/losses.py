"""The one loss: a sum over completion tokens of three weighted streams. It knows no algorithm by name.

    loss = sum_t  - pg_t min(rho_t A_t, clip(rho_t, 1 - low, 1 + high) A_t)     rho_t = pi(t) / pi_sampled(t)
                  - ce_t log pi(t)
                  + kl_t (q_t - log q_t - 1)                                     q_t = pi_ref(t) / pi(t)   (k3)

The clip is PPO's (1707.06347) with DAPO's separate upper range; the old log-probs are the sampler's, never recomputed.
k3 (Schulman 2020, as in GRPO) is unbiased and never negative.
"""

from __future__ import annotations

import torch

from memalpha.train.samples import MicroBatch

STATS = ("tokens", "entropy", "clipped", "old_kl", "reference_kl", "ratio_deviation")


def token_logprobs(logits: torch.Tensor, batch: MicroBatch) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probs (N,) of the targets at each row's temperature, and the entropies (N,) of those distributions.

    `logits` is (N, vocabulary); float32 throughout. Entropies carry no gradient.
    """
    scaled = logits.float() / batch.temperature[:, None]
    norm = torch.logsumexp(scaled, dim=-1)
    with torch.no_grad():
        entropy = norm - (torch.exp(scaled - norm[:, None]) * scaled).sum(-1)
    return scaled.gather(1, batch.targets[:, None])[:, 0] - norm, entropy


def loss_sum(
    logprobs: torch.Tensor,
    entropy: torch.Tensor,
    batch: MicroBatch,
    low: float,
    high: float,
    reference: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The summed loss and the sums of `STATS` (the last is a maximum), detached.

    `reference` (N,) are the frozen policy's log-probs; needed where `batch.kl` is not zero.
    """
    log_ratio = logprobs - batch.logprobs
    ratio = torch.exp(log_ratio)
    clipped = ratio.clamp(1.0 - low, 1.0 + high)
    surrogate = torch.minimum(ratio * batch.advantages, clipped * batch.advantages)
    loss = -(batch.pg * surrogate).sum() - (batch.ce * logprobs).sum()
    reference_kl = logprobs.new_zeros(())
    if reference is not None:
        gap = reference - logprobs
        k3 = torch.exp(gap) - gap - 1.0
        loss = loss + (batch.kl * k3).sum()
        reference_kl = k3.detach().sum()
    with torch.no_grad():
        trained = batch.pg != 0
        outside = trained & (ratio * batch.advantages > clipped * batch.advantages)
        old_kl = (trained * (ratio - log_ratio - 1.0)).sum()
        deviation = (trained * (ratio - 1.0)).abs().max()
        count = torch.tensor(float(len(logprobs)), device=logprobs.device)
        stats = torch.stack([count, entropy.sum(), outside.sum().float(), old_kl, reference_kl, deviation])
    return loss, stats
