"""What an algorithm hands to the learner: rows with metrics and state, and settings of the loss."""

from __future__ import annotations

import sys
from dataclasses import replace

import numpy as np
import pytest
import torch

from memalpha.config import TrainConfig
from memalpha.errors import TrainingError
from memalpha.train.algorithms import ALGORITHMS, build_algorithm
from memalpha.train.algorithms.base import (
    Algorithm,
    Annotation,
    annotate,
    as_json,
    build_rows,
    finish_step,
    mask_truncated,
)
from memalpha.train.data.samples import cross_entropy_sample
from memalpha.train.learner.engine import normalize
from memalpha.types import Chunk, Completion, Reward, Task, Trajectory, TrajectoryGroup, Turn

ROW = cross_entropy_sample((1,), (2,))
DEFAULTS = TrainConfig(out="unused")
OWN = TrainConfig(out="unused", algorithm="own:Returning")


class Returning(Algorithm):
    """An algorithm of a user that returns what it is told to."""

    value: object = None

    def annotate(self, groups, score):
        return self.value() if callable(self.value) else self.value


@pytest.mark.parametrize("value", [None, ([ROW], {}), np.zeros(3), Annotation([1]), Annotation(None)])
def test_anything_else_is_refused_by_the_algorithm_s_name(value):
    algorithm = Returning(OWN)
    algorithm.value = value
    match = r"own:Returning.*annotate must return an Annotation or a list of TrainingSample, not (?!list$)"
    with pytest.raises(TrainingError, match=match):
        annotate(algorithm, [], None)


TASK = Task(id="t", chunks=(Chunk(text="x"),))
GROUP = TrajectoryGroup(TASK, (Trajectory(TASK, 0, (Turn(0, Completion("", (1,), (2,), (-1.0,), 1.0, "eos")),), ()),))


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (lambda: 1 / 0, r"ZeroDivisionError: division by zero \(.*test_annotation\.py, line \d+\)"),
        ([1, 1], "a list whose item 0 is 1"),
        ([], r"no rows for 1 turn: return Annotation\(\[\]\)"),
        ([ROW, replace(ROW, advantages=ROW.pg * np.nan)], "row 1 .* no finite number"),
        (Annotation([ROW], {"b": "x"}), r"metrics\['b'\]: 'x' is no finite"),
        (Annotation([ROW], {"b": np.float32("inf")}), r"metrics\['b'\].* is no finite"),
        (Annotation([ROW], {}, "abc"), "state must be a mapping"),
        (Annotation([ROW], {}, {"a": {1, 2}}), r"state\['a'\]: \{1, 2\} is not JSON"),
        (Annotation([ROW], {}, {"a": {3: 1}}), r"state\['a'\]: key 3 must be a text"),
    ],
)
def test_what_an_own_algorithm_does_wrong_names_it_and_the_key(value, message):
    algorithm = Returning(OWN)
    algorithm.value = value
    with pytest.raises(TrainingError, match=f"^algorithm own:Returning: .*{message}"):
        annotate(algorithm, [GROUP], None)


def test_scalars_of_numpy_and_torch_become_plain_and_no_row_may_be_meant():
    algorithm = Returning(OWN)
    metrics, state = {"b": np.float32(0.5), "n": np.int64(2), "m": None}, {"a": (torch.tensor(1.0), np.bool_(True))}
    algorithm.value = Annotation([], metrics, state)
    annotation = annotate(algorithm, [GROUP], None)
    assert annotation == Annotation([], {"b": 0.5, "n": 2, "m": None}, {"a": [1.0, True]})
    assert {type(value) for value in annotation.metrics.values()} == {float, int, type(None)}


class Finishing(Returning):
    def finish_step(self, metrics):
        metrics |= self.value
        self.state = {"n": np.int64(1)}


def test_what_finish_step_sets_is_checked():
    algorithm, metrics = Finishing(OWN), {"level": "easy", "loss": 1.0}
    algorithm.value = {"loss": np.float64(2)}
    finish_step(algorithm, metrics)
    assert metrics == {"level": "easy", "loss": 2.0} and type(as_json(algorithm.state, "state")["n"]) is int
    algorithm.value = {"loss": "x"}
    with pytest.raises(TrainingError, match=r"^algorithm own:Returning: metrics\['loss'\]: 'x'"):
        finish_step(algorithm, metrics)
    algorithm.value = None
    with pytest.raises(TrainingError, match=r"^algorithm own:Returning: TypeError: .*test_annotation\.py, line"):
        finish_step(algorithm, metrics)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("def __init__(self, config): self.k = 1 / 0", r"ZeroDivisionError: .*own_init\.py, line \d+\)"),
        ("def __init__(self): pass", "TypeError: .*positional argument"),
        ("def __init__(self, config): pass", r"must call super\(\)\.__init__\(config\)"),
    ],
)
def test_a_constructor_that_fails_is_named(body, message, tmp_path, monkeypatch):
    source = "from memalpha.train.algorithms.base import Algorithm\nclass Own(Algorithm):\n    "
    (tmp_path / "own_init.py").write_text(f"{source}{body}\n    def annotate(self, groups, score): ...\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "own_init", raising=False)
    with pytest.raises(TrainingError, match=f"^algorithm own_init:Own: .*{message}"):
        build_algorithm(TrainConfig(out="unused", algorithm="own_init:Own"))


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
