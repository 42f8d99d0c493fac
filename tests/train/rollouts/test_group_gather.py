"""Groups between processes: tokens travel, tasks and memories are made again, and nothing is pickled."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from run_kinds import short, text_tasks
from tiny import tiny_policy

from memalpha.environments.engine import rollouts
from memalpha.rewards.environments import TextGeneration
from memalpha.train.learner.distributed import World
from memalpha.train.rollouts.group_codec import ScoredGroup, gather_groups
from memalpha.types import Reward


class TwoProcesses(World):
    """A process whose neighbour has sent its bytes before; what is pickled is an error."""

    sent: list[bytes] = []  # noqa: RUF012

    def gather(self, values, offset=0):
        raise AssertionError("pickled")

    def gather_bytes(self, values):
        self.sent.extend(values)
        return list(self.sent)


@pytest.fixture
def second_of_two():
    """A function: work in a world -> its result in the second process, after the first did its share."""

    def run(work):
        TwoProcesses.sent.clear()
        work(TwoProcesses(0, 2))
        return work(TwoProcesses(1, 2))

    return run


def test_conversations_keep_their_messages_and_numbers_of_numpy(second_of_two):
    tasks = text_tasks(2)
    reward = Reward((np.float32(0.5),), {"short": (0.5,)}, {"short": 1.0}, 0.5)
    groups = rollouts(tiny_policy(), tasks, TextGeneration([short]), 2)
    groups = [replace(g, trajectories=tuple(replace(t, reward=reward) for t in g.trajectories)) for g in groups]

    def gather(world):
        own = [ScoredGroup(world.rank, groups[world.rank], [[], []], 0)]
        return gather_groups(world, own, lambda number: tasks[number], None, with_messages=True)

    gathered = second_of_two(gather)
    assert [scored.group for scored in gathered] == groups
    assert [t.states for t in gathered[0].group.trajectories] == [t.states for t in groups[0].trajectories]
    assert gathered[0].group.trajectories[0].states[0][0]["content"] == tasks[0].prompt
