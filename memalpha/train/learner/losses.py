"""The one loss: a sum over completion tokens of five weighted streams. It knows no algorithm by name.

    loss = sum_t  - pg_t  min(min(rho_t, delta) A_t, clip(rho_t, 1 - low, 1 + high) A_t)    rho_t = pi(t) / pi_old(t)
                  - ce_t  log pi(t)
                  + kl_t  k_t  [rho_t k_t with use_bias_correction_kl]
                  - ent_t H_t                                                     H_t = entropy of pi at t
                  + vf_t  max((V_t - R_t)^2, (clip(V_t, V_old - c, V_old + c) - R_t)^2) / 2

The clip is PPO's (1707.06347) with DAPO's separate upper range (2503.14476). `delta` (dual clip, 1912.09729;
INTELLECT-2, 2505.07291) bounds a bad token's gradient and is off by default. CISPO (MiniMax-M1, 2506.13585) replaces
the first term by

                  - pg_t  min(sg[rho_t], high) A_t log pi(t)      sg: no gradient; every token keeps its gradient

With `level="mean"` the ratio of the whole completion, a geometric mean, replaces each token's (GSPO, 2507.18071). With
`level="product"` it is the importance weight of the sequence, as in TRL's RLOO. The estimates k of KL(pi || pi_ref) are
Schulman's ("Approximating KL divergence", 2020), with log r = log pi_ref(t) - log pi(t):

    k1 = -log r       its value is unbiased, but its gradient is zero in expectation: as a loss it does nothing
    k2 = log^2 r / 2  biased, never negative; its expected gradient is that of KL(pi || pi_ref)
    k3 = r - log r - 1  unbiased, never negative; its expected gradient is that of the other KL, KL(pi_ref || pi)

These gradients ignore that the tokens were sampled from pi. The ratio as a factor (not clipped, as in TRL) corrects for
it: rho k1 and rho k3 then have the expected gradient of KL(pi || pi_ref), on old samples too; rho k2 that of E[k2].

No rho exceeds e^20, and a larger one has no gradient. The product over a long completion leaves float32's range, and an
infinite ratio has a NaN gradient even where the clip would remove it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch

from memalpha.config.groups import LossConfig
from memalpha.train.data.samples import MicroBatch

NORMALIZERS: Mapping[str, Literal["constant", "token", "row"]] = {
    "grpo": "row",
    "dapo": "token",
    "dr_grpo": "constant",
    "cispo": "token",
}
"""Divisor of the sum, by `TrainConfig.loss_type`.

TRL's `bnpo` averages within a micro-batch; over the whole step it is `dapo`.
"""
CISPO_CAP = 5.0
"""Default largest weight of CISPO, that of ScaleRL (2510.13786), which TRL recommends."""

MAX_LOG_RATIO = 20.0

ImportanceMode = Literal["token_truncate", "token_mask", "sequence_truncate", "sequence_mask"]
"""Level of the ratio of learner and sampler, and what happens above its cap (`importance_weights`)."""

LOSS_SUMS = ("tokens", "entropy", "clipped", "old_kl", "reference_kl", "value_loss")
"""Names of the sums that `loss_sum` returns."""


@dataclass(frozen=True, slots=True)
class LossSettings:
    """Clip range, KL estimator and normalisation (`learner.engine`); stream weights are data.

    With `objective="cispo"`, `epsilon_high` is the largest weight and required; `epsilon` is ignored.
    """

    epsilon: float = 0.2
    epsilon_high: float | None = None
    delta: float | None = None
    objective: Literal["clip", "cispo"] = "clip"
    level: Literal["token", "mean", "product"] = "token"
    normalizer: Literal["constant", "token", "row"] = "constant"
    constant: float = 16.0
    ce_normalizer: Literal["constant", "token", "row", "unit"] | None = None
    kl_estimator: Literal["k1", "k2", "k3"] = "k3"
    use_bias_correction_kl: bool = True
    cliprange_value: float | None = None

    @classmethod
    def from_config(cls, config: LossConfig, reply_tokens: int) -> LossSettings:
        """Return the settings of the group `loss`; a ratio per completion is a geometric mean.

        Args:
            config: Settings of the loss.
            reply_tokens: Most new tokens of a reply: the `loss_constant` of settings that name none.
        """
        cispo = config.loss_type == "cispo"
        return cls(
            epsilon=config.epsilon,
            epsilon_high=config.epsilon_high or (CISPO_CAP if cispo else None),
            delta=config.delta,
            objective="cispo" if cispo else "clip",
            level="token" if config.importance_sampling_level == "token" else "mean",
            normalizer=NORMALIZERS[config.loss_type],
            constant=config.loss_constant or float(reply_tokens),
            kl_estimator=config.kl_estimator,
            use_bias_correction_kl=config.use_bias_correction_kl,
        )


def importance_weights(
    log_ratios: np.ndarray, trained: np.ndarray, cap: float, mode: ImportanceMode
) -> tuple[np.ndarray, np.ndarray]:
    """Return weights that correct a completion's gradient for its sampler, and where the ratio is above `cap`.

    Truncated or masked importance sampling (Yao et al. 2025, "Your efficient RL framework secretly brings you
    off-policy RL training"), with TRL's modes: the ratio pi_learner / pi_sampler of each token, or of all trained
    tokens together; above the cap the weight is the cap (truncate) or 0 (mask).

    Args:
        log_ratios: log pi_learner - log pi_sampler (T,).
        trained: True for tokens of the policy gradient (T,).
        cap: Largest weight.
        mode: Level and what happens above the cap.
    """
    level, action = mode.split("_")
    logs = log_ratios
    if level == "sequence":
        logs = np.full_like(log_ratios, log_ratios[trained].sum(dtype=np.float64))
    is_capped = logs > np.float32(math.log(cap))
    weights = np.minimum(np.exp(np.minimum(logs, np.float32(MAX_LOG_RATIO))), np.float32(cap))
    return np.where(is_capped, np.float32(0.0), weights) if action == "mask" else weights, is_capped


def kl_estimate(logprobs: torch.Tensor, reference: torch.Tensor, estimator: Literal["k1", "k2", "k3"]) -> torch.Tensor:
    """Estimate KL(pi || pi_ref) per token, at tokens sampled from pi.

    Args:
        logprobs: Log-probs under pi.
        reference: Log-probs under pi_ref, same shape.
        estimator: k1, k2 or k3; see the module docstring.
    """
    log_ratio = reference - logprobs
    if estimator == "k1":
        return -log_ratio
    return 0.5 * log_ratio * log_ratio if estimator == "k2" else torch.expm1(log_ratio) - log_ratio


def loss_sum(
    logprobs: torch.Tensor,
    entropy: torch.Tensor,
    batch: MicroBatch,
    settings: LossSettings,
    values: torch.Tensor | None = None,
) -> tuple[torch.Tensor, dict[str, torch.Tensor], torch.Tensor]:
    """Compute the summed loss of a micro-batch with N completion tokens.

    Args:
        logprobs: Log-probs of the tokens (N,).
        entropy: Entropies of their distributions (N,).
        batch: Weights, advantages, old and reference log-probs.
        settings: Clip range, estimator, level.
        values: Value estimates (N,); required if a sample has a weight `vf`.

    Returns:
        The loss with gradient, the sums over tokens by name (`LOSS_SUMS`), and log rho of the policy-gradient tokens;
        the last two are detached.
    """
    log_ratio = logprobs - batch.logprobs
    of_level = log_ratio
    if settings.level != "token":  # of the completion, over its tokens in the policy gradient
        in_gradient, count = (batch.pg != 0).to(log_ratio), int(batch.sample[-1]) + 1
        sums_by_row = log_ratio.new_zeros(count).index_add(0, batch.sample, log_ratio * in_gradient)
        if settings.level == "mean":
            tokens_by_row = log_ratio.new_zeros(count).index_add(0, batch.sample, in_gradient)
            sums_by_row = sums_by_row / tokens_by_row.clamp(min=1.0)
        of_level = sums_by_row[batch.sample]
    ratio = torch.exp(of_level.clamp(max=MAX_LOG_RATIO))
    if settings.objective == "cispo":
        assert settings.epsilon_high is not None
        weight = ratio.detach().clamp(max=settings.epsilon_high)
        surrogate = weight * batch.advantages * logprobs
        is_clipped = ratio.detach() > settings.epsilon_high
    else:
        epsilon_low = settings.epsilon
        epsilon_high = epsilon_low if settings.epsilon_high is None else settings.epsilon_high
        clipped = ratio.clamp(1.0 - epsilon_low, 1.0 + epsilon_high)
        bounded = ratio if settings.delta is None else ratio.clamp(max=settings.delta)
        surrogate = torch.minimum(bounded * batch.advantages, clipped * batch.advantages)
        is_clipped = (bounded * batch.advantages > clipped * batch.advantages).detach()
    loss = -(batch.pg * surrogate).sum() - (batch.ce * logprobs).sum()
    reference_kl = logprobs.new_zeros(())
    if batch.reference is not None:
        reference = torch.where(
            batch.reference.isnan(), logprobs.detach(), batch.reference
        )  # NaN: the row has no reference, so no KL
        estimate = kl_estimate(logprobs, reference, settings.kl_estimator)
        reference_kl = estimate.detach().sum()
        loss = loss + (batch.kl * (estimate * ratio if settings.use_bias_correction_kl else estimate)).sum()
    if batch.ent is not None:
        loss = loss - (batch.ent * entropy).sum()
    value_loss = logprobs.new_zeros(())
    if batch.vf is not None:
        assert values is not None and batch.values is not None and batch.returns is not None
        errors, cliprange = (values - batch.returns) ** 2, settings.cliprange_value
        if cliprange is not None:
            clipped_values = batch.values + (values - batch.values).clamp(-cliprange, cliprange)
            errors = torch.maximum(errors, (clipped_values - batch.returns) ** 2)
        errors = 0.5 * errors
        value_loss = errors.detach().sum()
        loss = loss + (batch.vf * errors).sum()
    elif values is not None:
        loss = loss + 0.0 * values.sum()  # DDP needs a gradient for every weight
    with torch.no_grad():
        trained = batch.pg != 0
        is_clipped = trained & is_clipped
        old_kl = torch.where(trained, torch.expm1(log_ratio) - log_ratio, 0.0).sum()
        sums = {
            "tokens": logprobs.new_tensor(float(len(logprobs))),
            "entropy": entropy.sum(),
            "clipped": is_clipped.sum(),
            "old_kl": old_kl,
            "reference_kl": reference_kl,
            "value_loss": value_loss,
        }
    return loss, sums, log_ratio.detach()[trained]
