"""What the engine promises for every kind of environment: memories, one reply, conversations, together or alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from tiny import tiny_policy

from memalpha.config import AgentConfig, WorldConfig
from memalpha.environments import MemoryWriting, RolloutEngine, Start, Step
from memalpha.errors import RewardError
from memalpha.rewards.environments import TextGeneration
from memalpha.store.embedding import HashEmbedder
from memalpha.tasks.synthetic import worlds
from memalpha.types import TextTask

PROMPTS = [TextTask(id=f"t{n}", prompt=f"say {n}", columns={"answer": str(n)}) for n in range(4)]


class Talk:
    """A conversation of one to three turns, by the task."""

    def reset(self, task):
        self.left = 1 + int(task.columns["answer"]) % 3
        return task.prompt

    def step(self, reply):
        self.left -= 1
        return Step(len(reply) / 10, self.left == 0, "go on")


class TalkTogether(Talk):
    @staticmethod
    def step_together(environments, replies):
        return [one.step(reply) for one, reply in zip(environments, replies, strict=True)]


class TalkInPlainTuples(Talk):
    def step(self, reply):
        return tuple(super().step(reply))[:3]


class FreshPrompts(Talk):
    def step(self, reply):
        return super().step(reply)._replace(observation=[{"role": "user", "content": f"another, {self.left} left"}])


@dataclass(frozen=True)
class Kind:
    """How an environment is made for a policy, and its tasks."""

    make: Callable[[Any], Any]
    tasks: list[Any]
    has_own_reward: bool = True


def writing(policy):
    agent = AgentConfig(prompt="compact", embedder="hash", max_new_tokens=6)
    return MemoryWriting(agent, policy.count_tokens, HashEmbedder(8))


KINDS = {
    "memory": Kind(writing, worlds.tasks(WorldConfig(), 5, 0, 3), has_own_reward=False),
    "one reply": Kind(lambda policy: TextGeneration(lambda completions: [1.0] * len(completions)), PROMPTS, False),
    "talk": Kind(lambda policy: Talk, PROMPTS),
    "talk together": Kind(lambda policy: TalkTogether, PROMPTS),
    "plain tuples": Kind(lambda policy: TalkInPlainTuples, PROMPTS),
    "fresh prompts": Kind(lambda policy: FreshPrompts, PROMPTS),
}


@pytest.fixture(params=KINDS)
def kind(request) -> Kind:
    return KINDS[request.param]


@pytest.fixture
def engine(kind) -> RolloutEngine:
    policy = tiny_policy()
    return RolloutEngine(policy, kind.make(policy), max_new_tokens=5)


def ids(groups):
    return [[[turn.completion.completion_ids for turn in one.turns] for one in group.trajectories] for group in groups]


def test_rollouts_follow_from_seed_and_step_alone(kind, engine):
    groups = engine.roll_out(kind.tasks, 2, 1.0, seed=1, step=2)
    assert ids(groups) == ids(engine.roll_out(kind.tasks, 2, 1.0, seed=1, step=2))
    assert ids(groups) != ids(engine.roll_out(kind.tasks, 2, 1.0, seed=2, step=2))
    alone = [engine.roll_out([task], 2, 1.0, 1, 2, first_index=n)[0] for n, task in enumerate(kind.tasks)]
    assert ids(groups) == ids(alone), "whoever else is rolled out changes nothing"


def test_a_trajectory_is_whole(kind, engine):
    for group, task in zip(engine.roll_out(kind.tasks, 2, 1.0, seed=1), kind.tasks, strict=True):
        assert [one.rollout for one in group.trajectories] == [0, 1] and group.task is task
        for one in group.trajectories:
            assert len(one.turns) == len(one.states) > 0 and [turn.chunk for turn in one.turns] == [
                *range(len(one.turns))
            ]
            assert all(turn.completion.completion_ids and turn.completion.prompt_ids for turn in one.turns)
            assert (one.reward is not None) == kind.has_own_reward
            if one.reward is not None:
                assert len(one.reward.turns) == len(one.turns) and one.reward.shared == set(one.reward.components)


def test_second_attempts_show_advice_and_draw_noise_of_their_own(kind, engine):
    requests = []
    submit = engine.policy.open_queue

    def open_queue():
        queue = submit()
        inner = queue.submit
        queue.submit = lambda items: requests.extend(items) or inner(items)
        return queue

    engine.policy.open_queue = open_queue
    [retry] = engine.run([Start(kind.tasks[0], 0, 0, "mind the cats")], 1.0, 1, 0, role="retry")
    assert retry.role == "retry" and "mind the cats" in str(requests[0].messages)
    [[attempt]] = [group.trajectories for group in engine.roll_out(kind.tasks[:1], 1, 1.0, 1)]
    assert attempt.turns[0].completion.completion_ids != retry.turns[0].completion.completion_ids


class Broken(Talk):
    def reset(self, task):
        raise KeyError("no dice")


class Number(Talk):
    def step(self, reply):
        return 1.0


class Informed(Talk):
    def step(self, reply):
        return 1.0, False, "next", {"seconds": 1}


class EmptyInformed(Talk):
    def step(self, reply):
        return 1.0, False, "next", {}


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        (Broken, r"environment Broken, task .* raised KeyError: 'no dice'"),
        (Number, r"environment Number, task .*: step gave 1.0: \(reward, done, next"),
        (Informed, r"environment Informed, task .*: step gave \(1.0, .*: \(reward, done, next"),
        (EmptyInformed, r"environment EmptyInformed, task .*: step gave \(1.0, .*: \(reward, done, next"),
    ],
)
def test_foreign_errors_and_results_name_environment_and_task(environment, message):
    with pytest.raises(RewardError, match=message):
        RolloutEngine(tiny_policy(), environment, max_new_tokens=5).roll_out(PROMPTS)
