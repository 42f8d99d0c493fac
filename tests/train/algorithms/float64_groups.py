"""Groups of ragged rollouts, each turn a context of its own, and their gradients in float64 and by the engine.

The reference, the sampler and the policy that trains are three models, so that no two log-probs of a token can be taken
for each other, and some tokens are clipped at each side.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import oracle
import torch
from oracle import Net64, Row
from tiny import VOCABULARY, nudged, tiny_llama, tiny_model

from memalpha.config import LoraConfig, TrainConfig
from memalpha.train.algorithms import ALGORITHMS
from memalpha.train.algorithms.base import annotate
from memalpha.train.learner.engine import Engine
from memalpha.train.learner.lora import add_lora
from memalpha.types import Chunk, Completion, Reward, Task, Trajectory, TrajectoryGroup, Turn

TEMPERATURE, UNSPLIT, SMALL, SINGLE_ROWS = 0.7, 10**9, 150, 1
SHARED_NAMES, TURN_NAMES = ("r1", "r3"), ("r2", "r4")
WEIGHTS = {"r1": 1.0, "r2": 0.5, "r3": 0.05, "r4": 0.1}


def tiny_adapters():
    """Return a model with low-rank adapters; they start at 0, so it is its own reference."""
    return add_lora(tiny_model(), LoraConfig(r=4, lora_alpha=8), "tiny")


MODELS = {"qwen": tiny_model, "llama": tiny_llama, "adapters": tiny_adapters, "roles": tiny_model}
GROUPS = [("a", "attempt", [3, 1, 2]), ("b", "attempt", [2, 4, 2, 1])]
"""Task, role, and the number of turns of each rollout."""
ROLES = [("a", "reflection", [1, 1]), ("b", "reflection", [1]), ("a", "retry", [3, 2]), ("b", "retry", [4])]


@functools.cache
def policies(kind: str):
    """Return the reference, the sampler and the trained policy."""
    start, size = MODELS[kind](), 0.1 if kind == "adapters" else 0.01
    return start, nudged(start, 1, size), nudged(start, 2, size)


@functools.cache
def nets(kind: str) -> tuple[Net64, ...]:
    return tuple(map(Net64, policies(kind)))


def trajectory(task: Task, rollout: int, turns: Sequence[Turn], role: str, random) -> Trajectory:
    """Build a trajectory with random rewards, two shared and two per turn."""
    shared = {name: (float(random.uniform()),) * len(turns) for name in SHARED_NAMES}
    turn_components = {name: tuple(random.uniform(size=len(turns)).tolist()) for name in TURN_NAMES}
    components = {**shared, **turn_components}
    sums = tuple(sum(WEIGHTS[name] * values[t] for name, values in components.items()) for t in range(len(turns)))
    reward = Reward(sums, components, WEIGHTS, float(np.mean(sums)), frozenset(SHARED_NAMES))
    return Trajectory(task, rollout, tuple(turns), (), reward, role)


@functools.cache
def groups(kind: str) -> list[TrajectoryGroup]:
    """Build groups of random tokens with the sampler's log-probs; "roles" adds reflections and retries."""
    random = np.random.default_rng(0)
    result = []
    for name, role, sizes in GROUPS + ROLES * (kind == "roles"):
        task = Task(id=name, chunks=tuple(Chunk(text="x") for _ in range(4)))
        rollouts = []
        for rollout, count in enumerate(sizes):
            turns = []
            for index in range(count):
                prompt = tuple(random.integers(3, VOCABULARY, random.integers(2, 40)).tolist())
                ids = tuple(random.integers(0, VOCABULARY, random.integers(1, 16)).tolist())
                zeros = torch.zeros(len(ids), dtype=torch.float64)
                with torch.no_grad():
                    [old] = oracle.logprobs64(nets(kind)[1], [Row(prompt, ids, zeros, zeros, temperature=TEMPERATURE)])
                turns.append(Turn(index, Completion("", prompt, ids, tuple(old.tolist()), TEMPERATURE)))
            rollouts.append(trajectory(task, rollout, turns, role, random))
        result.append(TrajectoryGroup(task, tuple(rollouts)))
    return result


@functools.cache
def oracle_rows(kind: str) -> list[list[list[Row]]]:
    """Convert turns to the oracle's rows by group and rollout, with reference log-probs but no advantages."""
    result = []
    for group in groups(kind):
        group_rows = []
        for rollout in group.trajectories:
            rows = []
            for turn in rollout.turns:
                c = turn.completion
                old = torch.tensor(c.logprobs, dtype=torch.float64)
                row = Row(c.prompt_ids, c.completion_ids, old, old * 0, temperature=c.temperature)
                with torch.no_grad():
                    [reference] = oracle.logprobs64(nets(kind)[0], [row])
                rows.append(replace(row, reference=reference))
            group_rows.append(rows)
        result.append(group_rows)
    return result


def rows_with_advantages(config: TrainConfig, kind: str = "qwen", before: Net64 | None = None) -> list[Row]:
    """Return the rows with the advantages of GRPO or RLOO; a KL in the reward is that of `before`, or the sampler's."""
    rows = oracle_rows(kind)
    rewards = []
    for group, group_rows in zip(groups(kind), rows, strict=True):
        group_rewards = []
        for rollout, rollout_rows in zip(group.trajectories, group_rows, strict=True):
            parts = rollout.reward.components
            turns = [sum(WEIGHTS[name] * parts[name][t] for name in TURN_NAMES) for t in range(len(rollout_rows))]
            if config.loss.beta and config.loss.kl_in == "reward":
                with torch.no_grad():
                    old = oracle.logprobs64(before, rollout_rows) if before else [row.old for row in rollout_rows]
                costs = oracle.kl_loss(old, rollout_rows, config.loss.kl_estimator)
                turns = [turn - config.loss.beta * float(cost.sum()) for turn, cost in zip(turns, costs, strict=True)]
            group_rewards.append((sum(WEIGHTS[name] * parts[name][0] for name in SHARED_NAMES), turns))
        rewards.append(group_rewards)
    baseline = "leave_one_out" if config.algorithm == "rloo" else "mean"
    values = oracle.turn_advantages(rewards, baseline, config.loss.scale_rewards, config.loss.advantage_floor)
    return [
        replace(row, advantages=torch.full_like(row.old, value))
        for group_rows, advantages in zip(rows, values, strict=True)
        for rollout_rows, turn_values in zip(group_rows, advantages, strict=True)
        for row, value in zip(rollout_rows, turn_values, strict=True)
    ]


@functools.cache
def scores(kind: str) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Return log-probs and entropies of all rows under the trained policy."""
    rows = [row for group in oracle_rows(kind) for rollout in group for row in rollout]
    return oracle.logprobs64(nets(kind)[2], rows), oracle.entropies64(nets(kind)[2], rows)


def policy_loss(config: TrainConfig, rows: Sequence[Row], weights: Sequence | None = None, kind: str = "qwen"):
    """Return the oracle's loss for `config`; `weights` multiply the policy gradient token by token."""
    new, entropies = scores(kind)
    sequence_level = "product" if config.algorithm == "rloo" else "sequence"
    level = "token" if config.loss.importance_sampling_level == "token" else sequence_level
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
    base = {"out": "unused", "learning_rate": 4e-4, "loss_constant": 16.0, "warmup_steps": 0, "decay_fraction": 0.0}
    return TrainConfig(**{**base, "temperature": TEMPERATURE, **changes})


def make_engine(config: TrainConfig, kind: str = "qwen") -> Engine:
    """Build an engine on the trained policy with the start as its reference."""
    start, _, current = policies(kind)
    algorithm = ALGORITHMS[config.algorithm](config)
    engine = Engine(
        nudged(start, 0, 0.0),
        config,
        algorithm.loss_settings,
        reference=algorithm.needs_reference,
        value_learning_rate=algorithm.value_learning_rate,
    )
    engine.model.load_state_dict(current.state_dict())
    return engine


def annotate_rows(config: TrainConfig, engine: Engine, kind: str = "qwen"):
    """Return the rows of one optimizer step over all groups."""
    algorithm = ALGORITHMS[config.algorithm](config)
    return algorithm.refresh(annotate(algorithm, groups(kind), engine).rows, engine)


def engine_gradient(engine: Engine, rows, like: Mapping[str, torch.Tensor]) -> torch.Tensor:
    engine.optimizer.zero_grad(set_to_none=True)
    engine.forward_backward(engine.normalized(rows))
    return oracle.flat({name: parameter.grad for name, parameter in engine.trainable.items()}, like)


def assert_gradients_agree(config: TrainConfig, expected: torch.Tensor, kind: str = "qwen", splits=(SMALL,)) -> None:
    """Assert that the engine's gradient equals the oracle's for every split into micro-batches."""
    for tokens in splits:
        engine = make_engine(config.replace(microbatch_tokens=tokens), kind)
        gradient = engine_gradient(engine, annotate_rows(config, engine, kind), nets(kind)[2].weights)
        assert oracle.relative_error(gradient, expected) < 1e-5, tokens
