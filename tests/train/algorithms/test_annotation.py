"""What an algorithm hands to the learner: rows with metrics and state, and settings of the loss."""

from __future__ import annotations

import numpy as np
import pytest

from memalpha.config import TrainConfig
from memalpha.errors import TrainingError
from memalpha.train.algorithms import ALGORITHMS
from memalpha.train.algorithms.base import Algorithm, Annotation, annotate, build_rows, mask_truncated
from memalpha.train.data.samples import cross_entropy_sample
from memalpha.train.learner.engine import normalize
from memalpha.types import Chunk, Completion, Reward, Task, Trajectory, TrajectoryGroup, Turn

ROW = cross_entropy_sample((1,), (2,))
DEFAULTS = TrainConfig(out="unused")


class Returning(Algorithm):
    """An algorithm of a user that returns what it is told to."""

    value: object = None

    def annotate(self, groups, score):
        return self.value


@pytest.mark.parametrize("value", [None, ([ROW], {}), np.zeros(3), Annotation([1]), Annotation(None)])
def test_anything_else_is_refused_by_the_algorithm_s_name(value):
    algorithm = Returning(DEFAULTS)
    algorithm.value = value
    with pytest.raises(TrainingError, match=r"Returning\.annotate must return an Annotation or a list of TrainingSam"):
        annotate(algorithm, [], None)


def test_masking_is_known_before_the_rewards():
    """Training in parts divides by counts of sampled rows, so masked rows must count there as after annotation."""
    config = TrainConfig(out="unused", mask_truncated_completions=True, entropy_coef=0.1)
    turns = [Turn(t, Completion("", (1,), (2, 3), (-1.0, -1.0), 1.0, ("eos", "length")[t % 2])) for t in range(3)]
    task = Task(id="t", chunks=(Chunk(text="x"),))
    rewards = [Reward((r,) * 3, {"r2": (r,) * 3}, {"r2": 1.0}, r) for r in range(2)]
    trajectories = tuple(Trajectory(task, r, tuple(turns), (), reward) for r, reward in enumerate(rewards))
    groups = [TrajectoryGroup(task, trajectories)]
    rows = annotate(ALGORITHMS["grpo"](config), groups, None).rows
    sampled = mask_truncated(build_rows(groups, config.loss.entropy_coef), config)
    for divided in (normalize(rows, "constant", 1.0), normalize(sampled, "constant", 1.0)):
        assert {weight for row in divided for weight in row.pg.tolist()} == {0.0, float(np.float32(1 / 6))}
        assert {weight for row in divided if row.ent is not None for weight in row.ent.tolist()} == {
            float(np.float32(0.1) / np.float32(8))
        }
    assert [row.masked for row in rows] == [False, True, False] * 2
    assert not any(row.masked for row in annotate(ALGORITHMS["grpo"](DEFAULTS), groups, None).rows)
