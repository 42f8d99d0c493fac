"""Every algorithm raises the reward of a small bandit, from rollouts of two turns to the weights."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tiny import tiny_policy

from memalpha.config import TrainConfig
from memalpha.train.algorithms import ALGORITHMS
from memalpha.train.algorithms.base import annotate
from memalpha.train.learner.engine import Engine
from memalpha.types import Chunk, Reward, SampleRequest, Task, Trajectory, TrajectoryGroup, Turn

TASKS = [Task(id=str(i), chunks=(Chunk(text="?"), Chunk(text="!"))) for i in range(8)]
ROLLOUTS = 8


def rollouts(policy, step: int, role: str = "attempt", advice: str = "") -> list[TrajectoryGroup]:
    """Sample rollouts of two contexts with one token each.

    The reward is the share of tokens in the vocabulary's upper eighth.
    """
    requests = [
        SampleRequest(
            ({"role": "user", "content": chunk.text + task.id + advice},),
            key=(step, int(task.id), rollout, index, len(advice)),
            temperature=1.0,
            max_new_tokens=1,
        )
        for task in TASKS
        for rollout in range(ROLLOUTS)
        for index, chunk in enumerate(task.chunks)
    ]
    answers = iter(policy.sample(requests))
    groups = []
    for task in TASKS:
        trajectories = []
        for rollout in range(ROLLOUTS):
            turns = tuple(Turn(index, next(answers)) for index in range(2))
            total = sum(turn.completion.completion_ids[0] >= 228 for turn in turns) / 2
            reward = Reward((total, total), {"r1": (total, total)}, {"r1": 1.0}, total)
            trajectories.append(Trajectory(task, rollout, turns, (), reward, role))
        groups.append(TrajectoryGroup(task, tuple(trajectories)))
    return groups


def sample_retries(policy, step: int, attempts: list[TrajectoryGroup]) -> list[TrajectoryGroup]:
    """Sample second attempts as ERL does.

    Fully rewarded ones are returned again under the attempts' prompts, to be internalized.
    """
    groups = rollouts(policy, step, "retry", "&")
    imitated = []
    for first, second in zip(attempts, groups, strict=True):
        prompts = [turn.completion.prompt_ids for turn in first.trajectories[0].turns]
        for trajectory in second.trajectories:
            if trajectory.reward and trajectory.reward.total == 1:
                turns = tuple(
                    replace(turn, completion=replace(turn.completion, prompt_ids=prompt))
                    for turn, prompt in zip(trajectory.turns, prompts, strict=True)
                )
                plain = replace(trajectory, turns=turns, reward=None, role="internalization")
                imitated.append(TrajectoryGroup(trajectory.task, (plain,)))
    return groups + imitated


def mean_reward(groups: list[TrajectoryGroup]) -> float:
    return float(
        np.mean([trajectory.reward.total for group in groups for trajectory in group.trajectories if trajectory.reward])
    )


def learn(changes: dict, steps: int = 18) -> tuple[float, float]:
    """Train for `steps` steps and return the mean reward before and after."""
    rate = changes.pop("learning_rate", 1e-2)
    config = TrainConfig(out="unused", learning_rate=rate, **changes)
    policy, algorithm = tiny_policy(3, scale=2.0), ALGORITHMS[config.algorithm](config)
    engine_options = {"reference": algorithm.needs_reference, "value_learning_rate": algorithm.value_learning_rate}
    engine = Engine(policy.model, config, algorithm.loss_settings, **engine_options)
    before = mean_reward(rollouts(policy, 10**6))
    for step in range(steps):
        groups, metrics = rollouts(policy, step), {}
        if config.algorithm == "erl":
            groups += sample_retries(policy, step, groups)
        annotation = annotate(algorithm, groups, engine)
        samples = annotation.rows
        for _ in range(config.optimizer.num_iterations if samples else 0):
            for rows in algorithm.updates(samples).values():
                metrics = engine.update(algorithm.refresh(rows, engine), rate)
        if annotation.state is not None:
            algorithm.state = annotation.state
        algorithm.finish_step(metrics)
    return before, mean_reward(rollouts(policy, 10**6 + 1))


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"loss_type": "grpo", "importance_sampling_level": "sequence", "num_iterations": 2},
        {"loss_type": "cispo", "num_iterations": 2},
        {"algorithm": "rloo"},
        {"algorithm": "rloo", "importance_sampling_level": "sequence", "num_iterations": 2},
        {"algorithm": "ppo"},
        {"algorithm": "dpo"},
        {"algorithm": "dpo", "dpo": {"loss_type": "ipo"}, "num_iterations": 2},
        {"algorithm": "erl"},
        {"algorithm": "erl", "erl": {"algorithm": 1}},
    ],
    ids=["grpo", "gspo", "cispo", "rloo", "rloo-sequence", "ppo", "dpo", "ipo", "erl", "erl-1"],
)
def test_every_algorithm_learns_the_bandit(changes):
    before, after = learn(dict(changes))
    assert before < 0.3
    assert after > 0.8
