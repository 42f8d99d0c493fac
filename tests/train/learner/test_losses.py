"""Every combination of the loss's settings, from rewards to the gradient of the second inner epoch, against float64.

`expected_gradient` is written from the formulas, one row at a time, over the model's own forward pass and whole logits;
it shares no code with what it tests.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from functools import lru_cache

import numpy as np
import oracle
import pytest
import torch
from tiny import tiny_model, tiny_policy

from memalpha.config import LoraConfig, TrainConfig
from memalpha.errors import TrainingError
from memalpha.train.algorithms.grpo import GRPO
from memalpha.train.algorithms.rloo import RLOO
from memalpha.train.data.samples import TrainingSample, pack, policy_gradient_sample
from memalpha.train.learner.engine import Engine
from memalpha.train.learner.lora import add_lora
from memalpha.train.learner.loss_weights import normalize
from memalpha.train.learner.losses import LossSettings, kl_estimate, loss_sum
from memalpha.types import Chunk, Completion, Reward, SampleRequest, Task, Trajectory, TrajectoryGroup, Turn

TEMPERATURE, BETA, BONUS, FLOOR = 0.75, 0.2, 0.05, 0.01
LOW, HIGH, CONSTANT = 0.1, 0.3, 8.0


def settings(**changes) -> TrainConfig:
    base = {"out": "unused", "epsilon": LOW, "epsilon_high": HIGH, "loss_constant": CONSTANT, "warmup_steps": 0}
    return TrainConfig(**{**base, "advantage_floor": FLOOR, "microbatch_tokens": 150, "head_tokens": 7, **changes})


@lru_cache
def sampled_groups() -> tuple[TrajectoryGroup, ...]:
    """Sample two tasks with two rollouts of one or two turns; their recorded log-probs have noise."""
    policy, random = tiny_policy(layers=1), np.random.default_rng(0)
    groups = []
    for number in range(2):
        task, trajectories = Task(id=f"t{number}", chunks=(Chunk(text="x"),)), []
        for rollout in range(2):
            requests = [
                SampleRequest(
                    ({"role": "user", "content": "x" * (50 + 3 * number + 4 * turn)},),
                    key=(number, rollout, turn),
                    temperature=TEMPERATURE,
                    max_new_tokens=4 + rollout,
                )
                for turn in range(1 + rollout)
            ]
            turns = []
            for at, completion in enumerate(policy.sample(requests)):
                noise = 0.3 * random.normal(size=len(completion.logprobs))
                turns.append(Turn(at, replace(completion, logprobs=tuple(np.asarray(completion.logprobs) + noise))))
            r1, turn_rewards = float(random.normal()), random.normal(size=len(turns))
            reward = Reward(
                turns=tuple(r1 + turn_rewards),
                components={"r1": (r1,) * len(turns), "r2": tuple(turn_rewards)},
                weights={"r1": 1.0, "r2": 1.0},
                total=r1 + turn_rewards.mean(),
                shared=frozenset({"r1"}),
            )
            trajectories.append(Trajectory(task, rollout, tuple(turns), (), reward))
        groups.append(TrajectoryGroup(task, tuple(trajectories)))
    return tuple(groups)


def prepared(config: TrainConfig, lora: bool) -> Engine:
    """Return an engine whose weights have moved away from its reference."""
    model = tiny_model(layers=1)
    adapted = add_lora(model, LoraConfig(r=4), "tiny") if lora else model
    learner = Engine(adapted, config, LossSettings.from_config(config.loss, 16), reference=config.loss.beta > 0)
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in learner.trainable.values():
            parameter.add_(0.02 * torch.randn_like(parameter))
    return learner


def score64(model, turn: Turn) -> tuple[torch.Tensor, torch.Tensor]:
    """Return log-probs and entropies of a turn's tokens from full float64 logits."""
    completion = turn.completion
    logits = model(input_ids=torch.tensor([completion.prompt_ids + completion.completion_ids])).logits[0]
    table = torch.log_softmax(logits[len(completion.prompt_ids) - 1 : -1] / TEMPERATURE, -1)
    return table[range(len(table)), completion.completion_ids], -(table.exp() * table).sum(-1)


def schulman(kind: str, logprobs: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    r = (other - logprobs).exp()
    return {"k1": -r.log(), "k2": r.log() ** 2 / 2, "k3": (r - 1) - r.log()}[kind]


@lru_cache
def start_scores() -> dict[tuple[int, int, int], torch.Tensor]:
    """Return float64 log-probs of all turns under the start, the reference."""
    start = tiny_model(layers=1).double()
    with torch.no_grad():
        return {key: score64(start, turn)[0] for key, turn in turns().items()}


def turns() -> dict[tuple[int, int, int], Turn]:
    """Return advantages by task, rollout and chunk."""
    return {
        (g, r, turn.chunk): turn
        for g, group in enumerate(sampled_groups())
        for r, trajectory in enumerate(group.trajectories)
        for turn in trajectory.turns
    }


def expected_gradient(begin, now, config: TrainConfig) -> torch.Tensor:
    """Compute the float64 gradient from the models at the step's start and in its second epoch."""
    groups, reference, old, pull = sampled_groups(), start_scores(), {}, {}
    with torch.no_grad():
        for key, turn in turns().items():
            sampled = torch.tensor(turn.completion.logprobs, dtype=torch.float64)
            recomputed = config.loss.old_logprobs == "recomputed"
            old[key] = score64(begin, turn)[0] if recomputed else sampled
            pull[key] = torch.ones_like(sampled)
            if config.loss.importance_cap is not None:
                pull[key] = (old[key] - sampled).exp().clamp(max=config.loss.importance_cap)
    rewards = {}
    for g, group in enumerate(groups):
        for r, trajectory in enumerate(group.trajectories):
            for at, turn_reward in enumerate(trajectory.reward.components["r2"]):
                if config.loss.kl_in == "reward":
                    turn_reward -= config.loss.beta * float(
                        schulman(config.loss.kl_estimator, old[g, r, at], reference[g, r, at]).sum()
                    )
                rewards[g, r, at] = turn_reward
    loss, bonus = torch.zeros(2, dtype=torch.float64)
    for (g, r, at), turn in turns().items():
        siblings = groups[g].trajectories
        shared = np.array([t.reward.components["r1"][0] for t in siblings])
        there = [i for i, t in enumerate(siblings) if len(t.turns) > at]
        mean = np.mean([rewards[g, i, at] for i in there])
        totals = shared - shared.mean() + np.array([rewards[g, i, at] - mean if i in there else 0.0 for i in range(2)])
        advantage = totals[r] / (totals.std() + FLOOR)
        new, entropy = score64(now, turn)
        ratio = (new - old[g, r, at]).exp()
        surrogate = torch.min(ratio * advantage, ratio.clip(1 - LOW, 1 + HIGH) * advantage)
        loss = loss - (pull[g, r, at] * surrogate).sum()
        bonus = bonus + entropy.sum()
        if config.loss.beta and config.loss.kl_in == "loss":
            estimate = schulman(config.loss.kl_estimator, new, reference[g, r, at])
            loss = (
                loss + config.loss.beta * (ratio * estimate if config.loss.use_bias_correction_kl else estimate).sum()
            )
    bonus = config.loss.entropy_coef * bonus / sum(map(len, old.values()))
    (loss / (len(old) * CONSTANT) - bonus).backward()
    return torch.cat([p.grad.flatten() for p in now.parameters() if p.requires_grad])


KL = [
    *({"kl_in": "loss", "use_bias_correction_kl": corrected} for corrected in (True, False)),
    {"kl_in": "reward"},
]
# All but k1, plain, in the loss, which a configuration refuses: `test_expected_gradients_of_the_estimates` says why.
ESTIMATES = [
    pytest.param(estimator, kl, id=f"{estimator}-{name}")
    for estimator in ("k1", "k2", "k3")
    for name, kl in zip(("corrected", "plain", "reward"), KL, strict=True)
    if (estimator, name) != ("k1", "plain")
]
OLD = [{}, {"old_logprobs": "recomputed"}, {"old_logprobs": "recomputed", "importance_cap": 1.2}]


@pytest.mark.parametrize(
    ("lora", "bonus"),
    [
        pytest.param(False, BONUS, id="full-entropy"),
        pytest.param(True, 0.0, id="lora-no-bonus"),
        pytest.param(False, 0.0, id="full-no-bonus", marks=pytest.mark.slow),
        pytest.param(True, BONUS, id="lora-entropy", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize(("estimator", "kl"), ESTIMATES)
@pytest.mark.parametrize("old", OLD, ids=["sampled", "recomputed", "capped"])
def test_gradient_of_the_second_epoch_equals_float64(lora, estimator, kl, old, bonus):
    config = settings(beta=BETA, kl_estimator=estimator, entropy_coef=bonus, temperature=TEMPERATURE, **kl, **old)
    learner = prepared(config, lora)
    begin = copy.deepcopy(learner.model).double()
    samples = GRPO(config).annotate(sampled_groups(), learner)
    if config.loss.old_logprobs == "recomputed":
        samples, mismatch = learner.recompute_old_logprobs(samples, config.loss.importance_cap)
        assert config.loss.importance_cap is None or 0 < mismatch["mismatch_capped"] < 1
    first = learner.update(samples, 3e-3)
    assert (first["old_max"] < 1e-5) == (config.loss.old_logprobs == "recomputed")
    assert first["reference_kl"] != 0
    second = learner.forward_backward(normalize(samples, "constant", CONSTANT))
    assert second["clipped"] > 0
    actual = torch.cat([parameter.grad.flatten().double() for parameter in learner.trainable.values()])
    expected = expected_gradient(begin, copy.deepcopy(learner.model).double(), config)
    assert float((actual - expected).norm() / expected.norm()) < 1e-5


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


def test_recomputed_log_probs_measure_the_mismatch():
    config = settings(old_logprobs="recomputed", temperature=TEMPERATURE)
    learner = prepared(config, lora=False)
    samples = GRPO(config).annotate(sampled_groups(), learner)
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


def test_a_kl_weight_needs_a_reference():
    row = GRPO(settings()).annotate(sampled_groups(), prepared(settings(), lora=False))[0]
    with pytest.raises(ValueError, match="reference"):
        replace(row, kl=row.pg)
    with pytest.raises(TrainingError, match="reference=True"):
        prepared(settings(), lora=False).forward([row], reference=True)


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
    settings = LossSettings(epsilon=0.05, level=level)
    total = loss_sum(torch.cat(all_new), torch.zeros(10, dtype=torch.float64), pack(samples), settings)[0]
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
    config = settings(beta=BETA, microbatch_tokens=4096)
    engine = prepared(config, lora=False)
    rows = GRPO(config).annotate(sampled_groups(), engine)
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
