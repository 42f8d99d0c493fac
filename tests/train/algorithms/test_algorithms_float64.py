"""Every algorithm and every setting of the loss, from scored groups to the engine's gradient, against `oracle`.

Groups of ragged rollouts, each turn a context of its own. The reference, the sampler and the policy that trains are
three models, so that no two log-probs of a token can be taken for each other, and some tokens are clipped at each side.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import oracle
import pytest
import torch
from oracle import Net64, Row
from tiny import VOCABULARY, nudged, tiny_llama, tiny_model

from memalpha.config import LoraConfig, TrainConfig
from memalpha.train.algorithms import ALGORITHMS
from memalpha.train.algorithms.gae import gae
from memalpha.train.learner.engine import Engine
from memalpha.train.learner.lora import add_lora
from memalpha.train.learner.losses import LossSettings
from memalpha.types import Chunk, Completion, Reward, Task, Trajectory, TrajectoryGroup, Turn

TEMPERATURE, WHOLE, SOME, APART = 0.7, 10**9, 150, 1
SHARED, OWN = ("r1", "r3"), ("r2", "r4")
WEIGHTS = {"r1": 1.0, "r2": 0.5, "r3": 0.05, "r4": 0.1}


def adapted():
    """Low-rank adapters on frozen weights; they start at 0, so the reference is this too."""
    return add_lora(tiny_model(), LoraConfig(r=4, lora_alpha=8), "tiny")


MODELS = {"qwen": tiny_model, "llama": tiny_llama, "adapters": adapted, "roles": tiny_model}
GROUPS = [("a", "attempt", [3, 1, 2]), ("b", "attempt", [2, 4, 2, 1])]
"""Task, role, and how many turns each rollout has."""
ROLES = [("a", "reflection", [1, 1]), ("b", "reflection", [1]), ("a", "retry", [3, 2]), ("b", "retry", [4])]


@functools.cache
def policies(kind: str):
    """The reference, the sampler and the policy that trains."""
    start, size = MODELS[kind](), 0.1 if kind == "adapters" else 0.01
    return start, nudged(start, 1, size), nudged(start, 2, size)


@functools.cache
def nets(kind: str) -> tuple[Net64, ...]:
    return tuple(map(Net64, policies(kind)))


def trajectory(task: Task, rollout: int, turns: Sequence[Turn], role: str, random) -> Trajectory:
    """Rewards made up: two for the whole, two for each turn."""
    shared = {name: (float(random.uniform()),) * len(turns) for name in SHARED}
    own = {name: tuple(random.uniform(size=len(turns)).tolist()) for name in OWN}
    components = {**shared, **own}
    sums = tuple(sum(WEIGHTS[name] * values[t] for name, values in components.items()) for t in range(len(turns)))
    reward = Reward(sums, components, WEIGHTS, float(np.mean(sums)))
    return Trajectory(task, rollout, tuple(turns), (), reward, role)


@functools.cache
def groups(kind: str) -> list[TrajectoryGroup]:
    """Rollouts of random tokens with the sampler's log-probs; with "roles" those of further roles too."""
    random = np.random.default_rng(0)
    found = []
    for name, role, sizes in GROUPS + ROLES * (kind == "roles"):
        task = Task(id=name, chunks=tuple(Chunk(text="x") for _ in range(4)))
        rollouts = []
        for rollout, count in enumerate(sizes):
            turns = []
            for at in range(count):
                prompt = tuple(random.integers(3, VOCABULARY, random.integers(2, 40)).tolist())
                ids = tuple(random.integers(0, VOCABULARY, random.integers(1, 16)).tolist())
                nothing = torch.zeros(len(ids), dtype=torch.float64)
                with torch.no_grad():
                    [old] = oracle.logprobs64(
                        nets(kind)[1], [Row(prompt, ids, nothing, nothing, temperature=TEMPERATURE)]
                    )
                turns.append(Turn(at, Completion("", prompt, ids, tuple(old.tolist()), TEMPERATURE)))
            rollouts.append(trajectory(task, rollout, turns, role, random))
        found.append(TrajectoryGroup(task, tuple(rollouts)))
    return found


@functools.cache
def bare_rows(kind: str) -> list[list[list[Row]]]:
    """The turns as the oracle's rows, by group and rollout, with the reference's log-probs and no advantages."""
    found = []
    for group in groups(kind):
        of_group = []
        for rollout in group.trajectories:
            rows = []
            for turn in rollout.turns:
                c = turn.completion
                old = torch.tensor(c.logprobs, dtype=torch.float64)
                row = Row(c.prompt_ids, c.completion_ids, old, old * 0, temperature=c.temperature)
                with torch.no_grad():
                    [reference] = oracle.logprobs64(nets(kind)[0], [row])
                rows.append(replace(row, reference=reference))
            of_group.append(rows)
        found.append(of_group)
    return found


def weighed(config: TrainConfig, kind: str = "qwen") -> list[Row]:
    """The rows with the advantages that GRPO or RLOO give them."""
    rows = bare_rows(kind)
    rewards = []
    for group, of_group in zip(groups(kind), rows, strict=True):
        of_rollouts = []
        for rollout, its_rows in zip(group.trajectories, of_group, strict=True):
            parts = rollout.reward.components
            turns = [sum(WEIGHTS[name] * parts[name][t] for name in OWN) for t in range(len(its_rows))]
            if config.loss.beta and config.loss.kl_in == "reward":
                costs = oracle.kl_loss([row.old for row in its_rows], its_rows, config.loss.kl_estimator)
                turns = [turn - config.loss.beta * float(cost.sum()) for turn, cost in zip(turns, costs, strict=True)]
            of_rollouts.append((sum(WEIGHTS[name] * parts[name][0] for name in SHARED), turns))
        rewards.append(of_rollouts)
    baseline = "leave_one_out" if config.algorithm == "rloo" else "mean"
    values = oracle.turn_advantages(rewards, baseline, config.loss.scale_rewards, config.loss.advantage_floor)
    return [
        replace(row, advantages=torch.full_like(row.old, value))
        for of_group, advantages in zip(rows, values, strict=True)
        for its_rows, of_turns in zip(of_group, advantages, strict=True)
        for row, value in zip(its_rows, of_turns, strict=True)
    ]


@functools.cache
def scores(kind: str) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Log-probs and entropies of all rows under the policy that trains."""
    rows = [row for group in bare_rows(kind) for rollout in group for row in rollout]
    return oracle.logprobs64(nets(kind)[2], rows), oracle.entropies64(nets(kind)[2], rows)


def policy_loss(config: TrainConfig, rows: Sequence[Row], weights: Sequence | None = None, kind: str = "qwen"):
    """The loss that the settings ask for; `weights` multiply the policy gradient token by token."""
    new, entropies = scores(kind)
    whole = "product" if config.algorithm == "rloo" else "sequence"
    level = "token" if config.loss.importance_sampling_level == "token" else whole
    if config.loss.loss_type == "cispo":
        losses = oracle.cispo_loss(new, rows, config.loss.epsilon_high or 5.0, level=level)
    else:
        high = config.loss.epsilon_high or config.loss.epsilon
        losses = oracle.clip_loss(new, rows, config.loss.epsilon, high, level=level, delta=config.loss.delta)
    if weights is not None:
        losses = [loss * weight for loss, weight in zip(losses, weights, strict=True)]
    if config.loss.beta and config.loss.kl_in == "loss":
        corrected = config.loss.use_bias_correction_kl
        kl = oracle.kl_loss(new, rows, config.loss.kl_estimator, corrected=corrected, level=level)
        losses = oracle.add(losses, kl, weights=(1.0, config.loss.beta))
    loss = oracle.reduce(losses, config.loss.loss_type, config.loss.loss_constant)
    if config.loss.entropy_coef:
        loss = loss - config.loss.entropy_coef * oracle.reduce(entropies, "dapo")
    return loss


def settings(**changes) -> TrainConfig:
    return TrainConfig(
        **{"out": "unused", "warmup_steps": 0, "decay_fraction": 0.0, "temperature": TEMPERATURE, **changes}
    )


def engine(config: TrainConfig, kind: str = "qwen") -> Engine:
    """On the training policy, its reference the start."""
    start, _, current = policies(kind)
    algorithm = ALGORITHMS[config.algorithm](config)
    made = Engine(
        nudged(start, 0, 0.0),
        config,
        LossSettings.from_config(config),
        reference=algorithm.needs_reference,
        value_learning_rate=algorithm.value_learning_rate,
    )
    made.model.load_state_dict(current.state_dict())
    return made


def annotated(config: TrainConfig, made: Engine, kind: str = "qwen"):
    """The rows of one optimizer step over all groups."""
    algorithm = ALGORITHMS[config.algorithm](config)
    return algorithm.refresh(algorithm.annotate(groups(kind), made), made)


def found_gradient(made: Engine, rows, like: Mapping[str, torch.Tensor]) -> torch.Tensor:
    made.optimizer.zero_grad(set_to_none=True)
    made.forward_backward(made.normalized(rows))
    return oracle.flat({name: parameter.grad for name, parameter in made.trainable.items()}, like)


def agree(config: TrainConfig, expected: torch.Tensor, kind: str = "qwen", splits=(WHOLE, SOME)) -> None:
    """The engine's gradient is the oracle's, however the rows are split."""
    for tokens in splits:
        made = engine(config.replace(microbatch_tokens=tokens), kind)
        found = found_gradient(made, annotated(config, made, kind), nets(kind)[2].weights)
        assert oracle.relative_error(found, expected) < 1e-5, tokens


CLIPPED = {"epsilon": 0.1, "epsilon_high": 0.3}
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
    {"loss_type": "grpo", "beta": 0.3, "kl_in": "reward", "kl_estimator": "k1"},
    {"loss_type": "dapo", "beta": 0.3, "kl_in": "reward", "kl_estimator": "k3", "scale_rewards": "batch"},
    {"loss_type": "dr_grpo", "entropy_coef": 0.2},
    {"algorithm": "rloo", **CLIPPED},
    {"algorithm": "rloo", "loss_type": "dapo", **CLIPPED, "entropy_coef": 0.1},
    {"algorithm": "rloo", "importance_sampling_level": "sequence", "epsilon": 0.1, "epsilon_high": 0.3},
    {
        "algorithm": "rloo",
        "importance_sampling_level": "sequence",
        "beta": 0.3,
        "kl_in": "reward",
        "kl_estimator": "k1",
    },
    {"algorithm": "rloo", "beta": 0.3},
]


def named(changes: Mapping[str, object]) -> str:
    return "-".join(f"{value}" if isinstance(value, str) else f"{name}={value}" for name, value in changes.items())


@functools.cache
def policy_gradient(case: int) -> torch.Tensor:
    config = settings(**POLICY_GRADIENT[case])
    return oracle.gradient(policy_loss(config, weighed(config)), nets("qwen")[2].weights)


@pytest.mark.parametrize("case", range(len(POLICY_GRADIENT)), ids=lambda case: named(POLICY_GRADIENT[case]))
def test_policy_gradients(case):
    agree(settings(**POLICY_GRADIENT[case]), policy_gradient(case))


def test_no_two_settings_are_alike():
    """What the comparison would miss if the rows did not reach a setting."""
    every = list(map(policy_gradient, range(len(POLICY_GRADIENT))))
    for i, one in enumerate(every):
        for other in every[:i]:
            assert oracle.relative_error(one, other) > 1e-3, named(POLICY_GRADIENT[i])


@pytest.mark.parametrize("kind", ["llama", "adapters"])
def test_other_models(kind):
    config = settings(loss_type="dapo", beta=0.3, entropy_coef=0.1, **CLIPPED)
    net = nets(kind)[2]
    expected = oracle.gradient(policy_loss(config, weighed(config, kind), kind=kind), net.weights)
    agree(config, expected, kind, (WHOLE, SOME, APART))


@pytest.mark.parametrize("cap", [None, 1.1])
def test_recomputed_denominators(cap):
    """The learner's own log-probs before an update, in the ratio's place and, capped, as weights."""
    config = settings(loss_type="dapo", old_logprobs="recomputed", importance_cap=cap, **CLIPPED)
    made, before, now = engine(config), nudged(policies("qwen")[0], 3, 0.01), policies("qwen")[2]
    made.model.load_state_dict(before.state_dict())
    samples, _ = made.recompute_old_logprobs(annotated(config, made), cap)
    made.model.load_state_dict(now.state_dict())
    rows = weighed(config)
    with torch.no_grad():
        own = oracle.logprobs64(Net64(before), rows)
    weights = None if cap is None else [(o - row.old).exp().clamp(max=cap) for o, row in zip(own, rows, strict=True)]
    rows = [replace(row, old=o) for row, o in zip(rows, own, strict=True)]
    net = nets("qwen")[2]
    expected = oracle.gradient(policy_loss(config, rows, weights), net.weights)
    assert oracle.relative_error(found_gradient(made, samples, net.weights), expected) < 1e-5


# --- PPO --------------------------------------------------------------------------------------------------------------

PPO = [
    ({"lam": 0.9, "gamma": 0.97, "cliprange_value": 0.15}, {"entropy_coef": 0.1}),
    ({"lam": 1.0, "cliprange_value": None}, {"beta": 0.2, "kl_in": "reward", "kl_estimator": "k1"}),
    ({"lam": 0.5, "whiten_advantages": False, "vf_coef": 0.7}, {"beta": 0.2}),
]


@functools.cache
def value_heads() -> tuple[dict[str, torch.Tensor], ...]:
    """Before a step and after some updates of it."""
    torch.manual_seed(9)
    width = policies("qwen")[0].config.hidden_size
    first = {"value_head.weight": torch.randn(1, width) / width**0.5, "value_head.bias": torch.randn(1)}
    moved = {name: part + 0.2 * torch.randn_like(part) for name, part in first.items()}
    return tuple({name: part.double().requires_grad_() for name, part in head.items()} for head in (first, moved))


def earned(config: TrainConfig) -> list[tuple[list[Row], list[np.ndarray]]]:
    """The rows of each rollout and what each of their tokens earned."""
    found = []
    for group, of_group in zip(groups("qwen"), bare_rows("qwen"), strict=True):
        for rollout, rows in zip(group.trajectories, of_group, strict=True):
            parts = rollout.reward.components
            turns = [sum(WEIGHTS[name] * parts[name][t] for name in OWN) for t in range(len(rows))]
            whole = sum(WEIGHTS[name] * parts[name][0] for name in SHARED)
            rewards = oracle.token_rewards([len(row.completion) for row in rows], turns, whole)
            if config.loss.beta and config.loss.kl_in == "reward":
                costs = oracle.kl_loss([row.old for row in rows], rows, config.loss.kl_estimator)
                rewards = [r - config.loss.beta * cost.numpy() for r, cost in zip(rewards, costs, strict=True)]
            found.append((rows, rewards))
    return found


def values(net: Net64, head: Mapping[str, torch.Tensor], level: float, rows: Sequence[Row]) -> list[torch.Tensor]:
    return oracle.values64(net, rows, head["value_head.weight"], head["value_head.bias"] + level)


def valued(config: TrainConfig, before: Net64, head: Mapping[str, torch.Tensor]) -> tuple[list[Row], float]:
    """The rows with PPO's values, returns and advantages, all of the weights before the step, and the values' level:
    the mean over the first step's tokens of all that is still to come."""
    own, found, advantages = config.ppo, [], []
    episodes = earned(config)
    to_come = [oracle.gae([0 * r for r in rewards], rewards, own.gamma, 1.0)[1] for _, rewards in episodes]
    level = float(np.concatenate([row for episode in to_come for row in episode]).mean())
    for rows, rewards in episodes:
        with torch.no_grad():
            old = values(before, head, level, rows)
        gains, returns = oracle.gae([v.numpy() for v in old], rewards, own.gamma, own.lam)
        advantages += gains
        found += [
            replace(row, values=value, returns=torch.from_numpy(target))
            for row, value, target in zip(rows, old, returns, strict=True)
        ]
    if own.whiten_advantages:
        advantages = oracle.whiten(advantages)
    rows = [replace(row, advantages=torch.from_numpy(a)) for row, a in zip(found, advantages, strict=True)]
    return rows, level


@pytest.mark.parametrize(("own", "changes"), PPO, ids=["entropy", "kl-in-reward", "kl-in-loss"])
def test_ppo_after_some_updates(own, changes):
    """Policy, value function and head have all moved since the rows were annotated."""
    config = settings(algorithm="ppo", ppo=own, **CLIPPED, **changes)
    assert config.loss.loss_type == "dapo"
    earlier, (first, moved) = nudged(policies("qwen")[0], 3, 0.01), value_heads()
    net = nets("qwen")[2]
    rows, level = valued(config, Net64(earlier), first)
    losses = oracle.value_loss(values(net, moved, level, rows), rows, config.ppo.cliprange_value)
    loss = policy_loss(config, rows) + config.ppo.vf_coef * oracle.reduce(losses, "dapo")
    weights = {**net.weights, **moved}
    expected = oracle.gradient(loss, weights)
    if config.ppo.cliprange_value is not None:
        free = oracle.reduce(oracle.value_loss(values(net, moved, level, rows), rows), "dapo")
        gap = config.ppo.vf_coef * oracle.gradient(free - oracle.reduce(losses, "dapo"), weights)
        assert float(gap.norm() / expected.norm()) > 1e-3, "some values are clipped"
    for tokens in (WHOLE, SOME, APART):
        made = engine(config.replace(microbatch_tokens=tokens))
        load(made, earlier, first)
        samples = annotated(config, made)
        load(made, policies("qwen")[2], moved)
        assert oracle.relative_error(found_gradient(made, samples, weights), expected) < 1e-5, tokens


def test_gae_by_brute_force():
    random = np.random.default_rng(0)
    for lengths in ([1], [4, 1, 9], [30, 20, 1, 2]):
        values, rewards = ([random.normal(size=n) for n in lengths] for _ in range(2))
        for gamma, lam in ((1.0, 1.0), (0.97, 0.9), (1.0, 0.0)):
            expected = oracle.gae(values, rewards, gamma, lam)
            found = gae(np.concatenate(rewards), np.concatenate(values), gamma=gamma, lam=lam)
            for one, other in zip(found, expected, strict=True):
                assert np.abs(one - np.concatenate(other)).max() < 1e-12


def load(made: Engine, model, head: Mapping[str, torch.Tensor]) -> None:
    """Other weights for model and value head."""
    made.model.load_state_dict(model.state_dict())
    with torch.no_grad():
        for name, part in head.items():
            made.trainable[name].copy_(part)


# --- DPO --------------------------------------------------------------------------------------------------------------

DPO = [
    {"beta": 0.3},
    {"beta": 0.3, "label_smoothing": 0.2},
    {"beta": 0.3, "loss_type": "ipo"},
    {"beta": 0.3, "reference_free": True},
]


@pytest.mark.parametrize("own", DPO, ids=["dpo", "conservative", "ipo", "reference-free"])
def test_dpo_of_whole_rollouts(own):
    """The best rollout of each task against its worst, all turns of each."""
    config = settings(algorithm="dpo", dpo=own)
    pairs = []
    for group, of_group in zip(groups("qwen"), bare_rows("qwen"), strict=True):
        totals = [rollout.reward.total for rollout in group.trajectories]
        pairs.append((of_group[int(np.argmax(totals))], of_group[int(np.argmin(totals))]))
    assert len({len(side) for pair in pairs for side in pair}) > 1, "sides of several lengths"
    loss = oracle.trajectory_preferences(
        nets("qwen")[2],
        pairs,
        own["beta"],
        own.get("loss_type", "sigmoid"),
        smoothing=own.get("label_smoothing", 0.0),
        reference_free=own.get("reference_free", False),
        average=own.get("loss_type") == "ipo",
    )
    agree(config, oracle.gradient(loss, nets("qwen")[2].weights))


# --- ERL --------------------------------------------------------------------------------------------------------------

ERL = [
    ({"loss_type": "dr_grpo", "scale_rewards": "batch"}, {"algorithm": 1}),
    ({"loss_type": "dapo", "beta": 0.3}, {"algorithm": 1, "internalization_coef": 0.7}),
    ({"loss_type": "dr_grpo"}, {"algorithm": 2, "internalization_coef": 0.7}),
]


@pytest.mark.parametrize(("changes", "own"), ERL, ids=["one", "one-tokens", "two"])
def test_erl_of_all_roles(changes, own):
    """GRPO in groups by task and role, a group of one without advantage; and the second attempts' own ids under other
    prompts, imitated: a mean over all attempts (their turns), of which most have nothing to imitate."""
    config, net = settings(algorithm="erl", erl=own, **CLIPPED, **changes), nets("roles")[2]
    retries = [one for group in groups("roles") for one in group.trajectories if one.role == "retry"][1:]
    plain = [
        replace(
            one,
            turns=tuple(
                replace(turn, completion=replace(turn.completion, prompt_ids=(*turn.completion.prompt_ids[::-1], 5)))
                for turn in one.turns
            ),
            reward=None,
            role="internalization",
        )
        for one in retries
    ]
    rows = weighed(config, "roles")
    assert sum(not row.advantages.any() for row in rows) >= 2, "the only ones of their group"
    lone = [
        Row(t.completion.prompt_ids, t.completion.completion_ids, *2 * [rows[0].old]) for o in plain for t in o.turns
    ]
    imitated = [replace(row, temperature=TEMPERATURE) for row in lone]
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
    every = [*groups("roles"), *(TrajectoryGroup(one.task, (one,)) for one in plain)]
    for tokens in (WHOLE, APART):
        made = engine(config.replace(microbatch_tokens=tokens), "roles")
        updates = list(algorithm.updates(algorithm.annotate(every, made)).values())
        for samples, part in zip(updates, parts, strict=True):
            found = found_gradient(made, samples, net.weights)
            assert oracle.relative_error(found, oracle.gradient(part, net.weights)) < 1e-5, tokens
