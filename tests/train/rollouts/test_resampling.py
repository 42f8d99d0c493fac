"""Further tasks in place of groups without spread: which are drawn, which are trained on, where the stream goes on."""

from __future__ import annotations

from types import SimpleNamespace

from run_kinds import text_tasks

from memalpha.train.trainers.rl import is_flat, resample_flat_groups
from memalpha.types import Reward, Trajectory, TrajectoryGroup

TASKS = text_tasks()


def group(number: int, *rewards: float) -> TrajectoryGroup:
    trajectories = [
        Trajectory(TASKS[number], n, (), (), Reward((value,), {}, {}, value)) for n, value in enumerate(rewards)
    ]
    return TrajectoryGroup(TASKS[number], tuple(trajectories))


class Worker:
    """Gives a task with an even number rewards that differ."""

    config = SimpleNamespace(tasks_per_step=3)

    def __init__(self):
        self.calls = []

    def collect_attempts(self, tasks, step, first=0):
        numbers = [int(task.id[1:]) for task in tasks]
        self.calls.append((numbers, step, first))
        return [group(number, 0.0, float(number % 2 == 0)) for number in numbers], list(numbers)


SOURCE = SimpleNamespace(batch=lambda position: TASKS[position : position + 3])


def resample(rounds: int):
    worker = Worker()
    groups, records = worker.collect_attempts(TASKS[3:6], 7)
    return worker, resample_flat_groups(worker, SOURCE, groups, records, position=3, step=7, rounds=rounds)


def test_as_many_tasks_are_drawn_as_groups_are_missing():
    worker, (groups, records, chosen, tasks) = resample(5)
    assert worker.calls == [([3, 4, 5], 7, 0), ([6, 7], 7, 3), ([8], 7, 5)]
    assert [item.task.id for item in chosen] == ["t4", "t6", "t8"]
    assert (tasks, records) == (6, [3, 4, 5, 6, 7, 8]) and len(groups) == 6


def test_flat_groups_stay_when_the_rounds_are_over():
    _, (_, _, chosen, tasks) = resample(1)
    assert [item.task.id for item in chosen] == ["t4", "t6", "t3"] and tasks == 5
    assert [is_flat(item) for item in chosen] == [False, False, True]
    *_, tasks = resample(0)[1]
    assert tasks == 3
