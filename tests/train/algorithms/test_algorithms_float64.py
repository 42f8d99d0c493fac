"""Every algorithm and every setting of the loss, from scored groups to the engine's gradient, against `oracle`.

DPO's is in `test_dpo`.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import oracle
import pytest
import torch
from float64_groups import (
    GROUPS,
    SHARED_NAMES,
    SINGLE_ROWS,
    SMALL,
    TEMPERATURE,
    TURN_NAMES,
    UNSPLIT,
    WEIGHTS,
    annotate_rows,
    assert_gradients_agree,
    engine_gradient,
    groups,
    make_engine,
    nets,
    oracle_rows,
    policies,
    policy_loss,
    rows_with_advantages,
    settings,
)
from oracle import Net64, Row
from tiny import nudged

from memalpha.config import TrainConfig
from memalpha.train.algorithms import ALGORITHMS
from memalpha.train.learner.engine import Engine
from memalpha.types import TrajectoryGroup, Turn

CLIPPED = {"epsilon": 0.1, "epsilon_high": 0.3}
KL_IN_REWARD = {"kl_in": "reward", "kl_estimator": "k1"}
SEQUENCE = {"importance_sampling_level": "sequence", "epsilon": 0.03, "epsilon_high": 0.05}
POLICY_GRADIENT = [
    {},
    {"loss_type": "grpo", **CLIPPED},
    {"loss_type": "dapo", **CLIPPED, "delta": 1.4},
    {"loss_type": "dr_grpo", **CLIPPED, "loss_constant": 7.0, "scale_rewards": "batch"},
    {"loss_type": "dr_grpo", **CLIPPED, "scale_rewards": "none"},
    {"loss_type": "cispo", "epsilon_high": 1.1},
    {"loss_type": "cispo"},
    {"loss_type": "grpo", **SEQUENCE},
    {"loss_type": "dapo", **SEQUENCE, "delta": 1.06},
    {"loss_type": "dr_grpo", **SEQUENCE, "beta": 0.3},
    {"loss_type": "cispo", "importance_sampling_level": "sequence", "epsilon_high": 1.03, "beta": 0.3},
    {"loss_type": "grpo", "beta": 0.3, "use_bias_correction_kl": False},
    {"loss_type": "dapo", "beta": 0.3, "kl_estimator": "k2", "use_bias_correction_kl": False},
    {"loss_type": "dapo", "beta": 0.3, "kl_estimator": "k2"},
    {"loss_type": "dr_grpo", "beta": 0.3, "kl_estimator": "k1"},
    {"loss_type": "cispo", "beta": 0.3, "entropy_coef": 0.2},
    {"loss_type": "grpo", "beta": 0.3, **KL_IN_REWARD},
    {"loss_type": "dapo", "beta": 0.3, "kl_in": "reward", "kl_estimator": "k3", "scale_rewards": "batch"},
    {"loss_type": "dr_grpo", "entropy_coef": 0.2},
    {"algorithm": "rloo", **CLIPPED},
    {"algorithm": "rloo", "loss_type": "dapo", **CLIPPED, "entropy_coef": 0.1},
    {"algorithm": "rloo", "importance_sampling_level": "sequence", **CLIPPED},
    {"algorithm": "rloo", "importance_sampling_level": "sequence", "beta": 0.3, **KL_IN_REWARD},
    {"algorithm": "rloo", "beta": 0.3},
]


def case_id(changes: Mapping[str, object]) -> str:
    return "-".join(f"{value}" if isinstance(value, str) else f"{name}={value}" for name, value in changes.items())


@functools.cache
def policy_gradient(case: int) -> torch.Tensor:
    config = settings(**POLICY_GRADIENT[case])
    return oracle.gradient(policy_loss(config, rows_with_advantages(config)), nets("qwen")[2].weights)


@pytest.mark.parametrize("case", range(len(POLICY_GRADIENT)), ids=lambda case: case_id(POLICY_GRADIENT[case]))
def test_policy_gradients(case):
    assert_gradients_agree(settings(**POLICY_GRADIENT[case]), policy_gradient(case))


def test_every_setting_changes_the_gradient():
    """Every setting changes the gradient, so the comparison covers it."""
    gradients = list(map(policy_gradient, range(len(POLICY_GRADIENT))))
    for i, gradient in enumerate(gradients):
        for other in gradients[:i]:
            assert oracle.relative_error(gradient, other) > 1e-3, case_id(POLICY_GRADIENT[i])


@pytest.mark.parametrize("kind", ["llama", "adapters"])
def test_other_models(kind):
    config = settings(loss_type="dapo", beta=0.3, entropy_coef=0.1, **CLIPPED)
    net = nets(kind)[2]
    expected = oracle.gradient(policy_loss(config, rows_with_advantages(config, kind), kind=kind), net.weights)
    assert_gradients_agree(config, expected, kind, (UNSPLIT, SMALL, SINGLE_ROWS))


@pytest.mark.parametrize(
    ("cap", "mode", "changes"),
    [
        (None, "token_truncate", {"loss_type": "dapo"}),
        (1.1, "token_truncate", {"loss_type": "dapo"}),
        (1.1, "token_truncate", {"beta": 0.3, "kl_in": "reward", "kl_estimator": "k1"}),
        (1.02, "token_mask", {"loss_type": "dapo"}),
        (1.02, "token_mask", {"loss_type": "grpo"}),
        (1.1, "sequence_truncate", {"loss_type": "dapo"}),
        (1.1, "sequence_mask", {"loss_type": "dapo"}),
        (1.1, "sequence_mask", {"loss_type": "grpo"}),
    ],
)
def test_recomputed_denominators(cap, mode, changes):
    """The learner's log-probs before an update are the ratio's denominator and, capped, weights.

    Dropped tokens and completions still count in the divisors, as in TRL.
    """
    changes = changes if cap is None else {**changes, "importance_sampling_mode": mode}
    config = settings(old_logprobs="recomputed", importance_cap=cap, **changes, **CLIPPED)
    engine, before, now = make_engine(config), nudged(policies("qwen")[0], 3, 0.01), policies("qwen")[2]
    engine.model.load_state_dict(before.state_dict())
    samples, mismatch = engine.recompute_old_logprobs(annotate_rows(config, engine), cap, mode=mode)
    engine.model.load_state_dict(now.state_dict())
    rows = rows_with_advantages(config, before=Net64(before))
    with torch.no_grad():
        old = oracle.logprobs64(Net64(before), rows)
    weights, above = None, []
    if cap is not None:
        gaps = [o - row.old for o, row in zip(old, rows, strict=True)]
        ratios = [(gap if "token" in mode else gap.sum() + 0 * gap).exp() for gap in gaps]
        above = torch.cat([ratio > cap for ratio in ratios]).double()
        weights = [r.clamp(max=cap) if "truncate" in mode else r * (r <= cap) for r in ratios]
        assert 0 < above.mean() < 1 and mismatch["mismatch_capped"] == pytest.approx(float(above.mean()))
    else:
        assert "mismatch_capped" not in mismatch
    rows = [replace(row, old=o) for row, o in zip(rows, old, strict=True)]
    net = nets("qwen")[2]
    expected = oracle.gradient(policy_loss(config, rows, weights), net.weights)
    assert oracle.relative_error(engine_gradient(engine, samples, net.weights), expected) < 1e-5


# --- PPO --------------------------------------------------------------------------------------------------------------

PPO = [
    ({"lam": 0.9, "gamma": 0.97, "cliprange_value": 0.15}, {"entropy_coef": 0.1}),
    ({"lam": 1.0, "cliprange_value": None}, {"beta": 0.2, "kl_in": "reward", "kl_estimator": "k1"}),
    ({"lam": 0.5, "vf_coef": 0.7}, {"beta": 0.2}),
]


@functools.cache
def value_heads() -> tuple[dict[str, torch.Tensor], ...]:
    """Return value heads before a step and after some updates."""
    torch.manual_seed(9)
    width = policies("qwen")[0].config.hidden_size
    first = {"value_head.weight": torch.randn(1, width) / width**0.5, "value_head.bias": torch.randn(1)}
    moved = {name: part + 0.2 * torch.randn_like(part) for name, part in first.items()}
    return tuple({name: part.double().requires_grad_() for name, part in head.items()} for head in (first, moved))


def rewarded_rows(config: TrainConfig) -> list[tuple[list[Row], list[np.ndarray]]]:
    """Return each rollout's rows and the rewards of their tokens."""
    result = []
    for group, group_rows in zip(groups("qwen"), oracle_rows("qwen"), strict=True):
        for rollout, rows in zip(group.trajectories, group_rows, strict=True):
            parts = rollout.reward.components
            turns = [sum(WEIGHTS[name] * parts[name][t] for name in TURN_NAMES) for t in range(len(rows))]
            shared = sum(WEIGHTS[name] * parts[name][0] for name in SHARED_NAMES)
            rewards = oracle.token_rewards([len(row.completion) for row in rows], turns, shared)
            if config.loss.beta and config.loss.kl_in == "reward":
                costs = oracle.kl_loss([row.old for row in rows], rows, config.loss.kl_estimator)
                rewards = [r - config.loss.beta * cost.numpy() for r, cost in zip(rewards, costs, strict=True)]
            result.append((rows, rewards))
    return result


def values(net: Net64, head: Mapping[str, torch.Tensor], level: float, rows: Sequence[Row]) -> list[torch.Tensor]:
    return oracle.values64(net, rows, head["value_head.weight"], head["value_head.bias"] + level)


def rows_with_values(config: TrainConfig, before: Net64, head: Mapping[str, torch.Tensor]) -> tuple[list[Row], float]:
    """Return the rows with PPO's values, returns and advantages under the weights before the step, and the value level.

    The level is the mean return over the step's tokens.
    """
    ppo, valued_rows, advantages = config.ppo, [], []
    episodes = rewarded_rows(config)
    returns = [oracle.gae([0 * r for r in rewards], rewards, ppo.gamma, 1.0)[1] for _, rewards in episodes]
    level = float(np.concatenate([row for episode in returns for row in episode]).mean())
    for rows, rewards in episodes:
        with torch.no_grad():
            old = values(before, head, level, rows)
        gains, returns = oracle.gae([v.numpy() for v in old], rewards, ppo.gamma, ppo.lam)
        advantages += gains
        valued_rows += [
            replace(row, values=value, returns=torch.from_numpy(target))
            for row, value, target in zip(rows, old, returns, strict=True)
        ]
    advantages = oracle.whiten(advantages)
    rows = [replace(row, advantages=torch.from_numpy(a)) for row, a in zip(valued_rows, advantages, strict=True)]
    return rows, level


@pytest.mark.parametrize(("ppo", "changes"), PPO, ids=["entropy", "kl-in-reward", "kl-in-loss"])
def test_ppo_after_some_updates(ppo, changes):
    """The gradient is right after policy and value head have moved since annotation."""
    config = settings(algorithm="ppo", ppo=ppo, **CLIPPED, **changes)
    assert config.loss.loss_type == "dapo"
    earlier, (first, moved) = nudged(policies("qwen")[0], 3, 0.01), value_heads()
    net = nets("qwen")[2]
    rows, level = rows_with_values(config, Net64(earlier), first)
    losses = oracle.value_loss(values(net, moved, level, rows), rows, config.ppo.cliprange_value)
    loss = policy_loss(config, rows) + config.ppo.vf_coef * oracle.reduce(losses, "dapo")
    weights = {**net.weights, **moved}
    expected = oracle.gradient(loss, weights)
    if config.ppo.cliprange_value is not None:
        free = oracle.reduce(oracle.value_loss(values(net, moved, level, rows), rows), "dapo")
        gap = config.ppo.vf_coef * oracle.gradient(free - oracle.reduce(losses, "dapo"), weights)
        assert float(gap.norm() / expected.norm()) > 1e-3, "some values are clipped"
    engine = make_engine(config.replace(microbatch_tokens=SMALL))
    load(engine, earlier, first)
    samples = annotate_rows(config, engine)
    load(engine, policies("qwen")[2], moved)
    assert oracle.relative_error(engine_gradient(engine, samples, weights), expected) < 1e-5


def load(engine: Engine, model, head: Mapping[str, torch.Tensor]) -> None:
    """Load weights of model and value head into an engine."""
    engine.model.load_state_dict(model.state_dict())
    with torch.no_grad():
        for name, part in head.items():
            engine.trainable[name].copy_(part)


# --- ERL --------------------------------------------------------------------------------------------------------------

ERL = [
    ({"loss_type": "dr_grpo", "scale_rewards": "batch"}, {"algorithm": 1}),
    ({"loss_type": "dapo", "beta": 0.3}, {"algorithm": 1, "internalization_coef": 0.7}),
    ({"loss_type": "dr_grpo"}, {"algorithm": 2, "internalization_coef": 0.7}),
]


@pytest.mark.parametrize(("changes", "erl"), ERL, ids=["one", "one-tokens", "two"])
def test_erl_of_all_roles(changes, erl):
    """The gradient is GRPO's by task and role plus the imitation of second attempts under other prompts.

    A group of one has no advantage. The imitation is a mean over the turns of all attempts.
    """
    config, net = settings(algorithm="erl", erl=erl, **CLIPPED, **changes), nets("roles")[2]
    retries = [
        trajectory for group in groups("roles") for trajectory in group.trajectories if trajectory.role == "retry"
    ][1:]

    def with_other_prompt(turn: Turn) -> Turn:
        return replace(turn, completion=replace(turn.completion, prompt_ids=(*turn.completion.prompt_ids[::-1], 5)))

    internalized = [
        replace(retry, turns=tuple(map(with_other_prompt, retry.turns)), reward=None, role="internalization")
        for retry in retries
    ]
    rows = rows_with_advantages(config, "roles")
    assert sum(not row.advantages.any() for row in rows) >= 2, "the only ones of their group"
    imitations = [turn.completion for trajectory in internalized for turn in trajectory.turns]
    imitated_rows = [Row(item.prompt_ids, item.completion_ids, *2 * [rows[0].old]) for item in imitations]
    imitated = [replace(row, temperature=TEMPERATURE) for row in imitated_rows]
    attempts = sum(count for _, _, sizes in GROUPS for count in sizes)
    loss = [-n for n in oracle.logprobs64(net, imitated)]
    share = config.erl.internalization_coef * len(imitated) / attempts
    parts = [
        policy_loss(config, rows, kind="roles"),
        share * oracle.reduce(loss, config.loss.loss_type, config.loss.loss_constant),
    ]
    if config.erl.algorithm == 1:
        parts = [parts[0] + parts[1]]
    algorithm = ALGORITHMS["erl"](config)
    all_groups = [*groups("roles"), *(TrajectoryGroup(trajectory.task, (trajectory,)) for trajectory in internalized)]
    engine = make_engine(config.replace(microbatch_tokens=SMALL), "roles")
    updates = list(algorithm.updates(algorithm.annotate(all_groups, engine)).values())
    for samples, part in zip(updates, parts, strict=True):
        gradient = engine_gradient(engine, samples, net.weights)
        assert oracle.relative_error(gradient, oracle.gradient(part, net.weights)) < 1e-5
