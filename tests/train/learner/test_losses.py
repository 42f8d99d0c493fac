"""The loss of one row: estimates of the KL, mismatch of the sampler, rows and tokens that must not count."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import oracle
import pytest
import torch
from float64_groups import annotate_rows, make_engine, settings
from tiny import tiny_model

from memalpha.config import TrainConfig
from memalpha.errors import TrainingError
from memalpha.train.algorithms.rloo import RLOO
from memalpha.train.data.samples import TrainingSample, pack, policy_gradient_sample
from memalpha.train.learner.engine import Engine
from memalpha.train.learner.losses import LossSettings, kl_estimate, loss_sum
from memalpha.types import Completion, Turn


def test_kl_estimates():
    """Over the exact distribution k1 and k3 are the KL, k2 nearly; k2 and k3 are never negative."""
    torch.manual_seed(0)
    logprobs, other = torch.randn(2, 50, dtype=torch.float64).mul(0.3).log_softmax(-1)
    kl = (logprobs.exp() * (logprobs - other)).sum()
    for kind, error in (("k1", 1e-12), ("k2", 0.05), ("k3", 1e-12)):
        estimate = kl_estimate(logprobs, other, kind)
        assert float((logprobs.exp() * estimate).sum() / kl) == pytest.approx(1.0, abs=error)
        assert kind == "k1" or estimate.min() >= 0


@pytest.mark.parametrize(
    ("kind", "corrected", "which"),
    [("k1", True, "own"), ("k3", True, "own"), ("k2", False, "own"), ("k3", False, "other"), ("k1", False, None)],
)
def test_expected_gradients_of_the_estimates(kind, corrected, which):
    """Each estimator's expected on-policy gradient is that of the KL which `losses` documents."""
    torch.manual_seed(0)
    theta, other = torch.randn(2, 50, dtype=torch.float64)
    theta, other = theta.requires_grad_(), other.log_softmax(-1)
    logprobs = theta.log_softmax(-1)
    p = logprobs.detach().exp()  # the expectation's weights carry no gradient
    estimate = kl_estimate(logprobs, other, kind)
    (actual,) = torch.autograd.grad(
        (p * estimate * (logprobs.exp() / p if corrected else 1.0)).sum(), theta, retain_graph=True
    )
    kl = {
        "own": (logprobs.exp() * (logprobs - other)).sum(),
        "other": (other.exp() * (other - logprobs)).sum(),
        None: logprobs.sum() * 0,
    }
    (expected,) = torch.autograd.grad(kl[which], theta)
    assert torch.allclose(actual, expected, atol=1e-12)


def test_a_kl_weight_needs_a_reference():
    engine = make_engine(settings())
    row = annotate_rows(settings(), engine)[0]
    with pytest.raises(ValueError, match="reference"):
        replace(row, kl=row.pg)
    with pytest.raises(TrainingError, match="reference=True"):
        engine.forward([row], reference=True)


@pytest.mark.parametrize(("level", "of_oracle"), [("mean", "sequence"), ("product", "product")])
@pytest.mark.parametrize("weight", [1.0, 0.25])
def test_a_completion_s_ratio_is_over_its_trained_tokens(level, of_oracle, weight):
    """Tokens without policy gradient (a tool's output, an imitated half) are no part of GSPO's and RLOO's ratio."""
    random = np.random.default_rng(3)
    trained = [np.array([1, 0, 1, 1, 0]), np.array([0, 1, 1]), np.array([1, 1])]
    samples, rows, all_new = [], [], []
    for mask in trained:
        old, advantages, new = random.normal(size=(3, len(mask)))
        new = torch.tensor(old + 0.1 * new, requires_grad=True)
        all_new.append(new)
        arrays = {"logprobs": old, "advantages": advantages, "pg": weight * mask, "ce": 0 * old, "kl": 0 * old}
        samples.append(TrainingSample((1,), tuple(range(len(mask))), **arrays))
        kept = torch.from_numpy(mask.astype(bool))
        rows.append((oracle.Row((1,), (), *(torch.from_numpy(part)[kept] for part in (old, advantages))), new[kept]))
    loss_settings = LossSettings(epsilon=0.05, level=level)
    total = loss_sum(torch.cat(all_new), torch.zeros(10, dtype=torch.float64), pack(samples), loss_settings)[0]
    expected = oracle.clip_loss([new for _, new in rows], [row for row, _ in rows], 0.05, 0.05, level=of_oracle)
    expected = weight * torch.cat(expected).sum()
    assert total.item() == pytest.approx(expected.item(), rel=1e-12)
    for left, right in zip(*(torch.autograd.grad(loss, all_new) for loss in (total, expected)), strict=True):
        assert torch.allclose(left, right, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("advantage", [1.0, -1.0])
def test_a_ratio_out_of_range_is_silent(advantage):
    """The product over a long completion leaves float32's range; its gradient is 0, never NaN."""
    config = TrainConfig(out="unused", algorithm="rloo", importance_sampling_level="sequence")
    engine = Engine(tiny_model(layers=1), config, RLOO(config).loss_settings)
    completion = Completion("", (1, 2, 3), tuple(range(100)), (0.0,) * 100, 1.0)
    row = policy_gradient_sample(Turn(0, completion), advantage)
    row = replace(row, logprobs=engine.forward([row])[0] - np.float32(1.0))
    engine.forward_backward(engine.normalized([row]))
    assert all((part.grad == 0).all() for part in engine.trainable.values())


def test_rows_without_a_reference_add_no_kl():
    """A row without a reference adds nothing to the KL of a micro-batch, whatever its placeholder."""
    config = settings(beta=0.2, microbatch_tokens=4096)
    engine = make_engine(config)
    rows = annotate_rows(config, engine)
    imitated = [
        replace(row, pg=row.ce, kl=row.ce, ce=row.pg, advantages=row.ce, reference=None, logprobs=row.logprobs - 200)
        for row in rows
    ]
    alone = engine.forward_backward(rows)
    engine.optimizer.zero_grad()
    mixed = engine.forward_backward([*rows, *imitated])
    assert alone["reference_kl"] > 0
    for name in ("reference_kl", "old_kl"):
        assert mixed[name] * mixed["tokens"] == pytest.approx(alone[name] * alone["tokens"], rel=1e-5)
    assert all(torch.isfinite(parameter.grad).all() for parameter in engine.trainable.values())


def test_recomputed_log_probs_measure_the_mismatch():
    config = settings(old_logprobs="recomputed")
    learner = make_engine(config)
    samples = annotate_rows(config, learner)
    rows, stats = learner.recompute_old_logprobs(samples, 1.1)
    gaps = np.concatenate([row.logprobs - sample.logprobs for row, sample in zip(rows, samples, strict=True)])
    ratio = np.exp(gaps.astype(np.float64))
    assert stats["mismatch_kl"] == pytest.approx((ratio - gaps - 1).mean(), rel=1e-5)
    assert stats["mismatch_max"] == pytest.approx(np.abs(gaps).max())
    assert stats["mismatch_p99"] == pytest.approx(np.quantile(np.abs(gaps), 0.99))
    assert stats["mismatch_capped"] == pytest.approx((ratio > 1.1).mean())
    assert np.concatenate([row.advantages for row in rows]) == pytest.approx(
        np.minimum(ratio, 1.1) * np.concatenate([sample.advantages for sample in samples]), rel=1e-5
    )
    assert "mismatch_capped" not in learner.recompute_old_logprobs(samples)[1]
