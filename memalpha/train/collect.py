"""Where tasks come from and how a step's rollouts are collected and scored."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from memalpha.agent.answer import Reader
from memalpha.agent.builder import Builder
from memalpha.config import TrainConfig
from memalpha.errors import ConfigError
from memalpha.qa.evaluator import Record, score_groups
from memalpha.qa.reward import RewardModel
from memalpha.tasks import synthetic
from memalpha.tasks.load import load_tasks
from memalpha.types import Task, TrajectoryGroup

HELD_OUT_SEED = -1
"""Seed of synthetic validation and evaluation tasks: the same for every run, so that runs compare on equal tasks."""


class TaskSource:
    """A run's tasks: `batch(position)` for training, `validation` and `held_out` fixed.

    Synthetic: training tasks are made by number from the run's seed and never repeat; validation tasks come from the
    training split without pseudo-words, held-out tasks from `eval_world` (default: the test split, whose values never
    occur in training). A task file: its last tasks (at most a fifth) validate, the others are shuffled anew each pass.
    """

    def __init__(self, config: TrainConfig) -> None:
        self.config = config
        self.file: list[Task] = []
        if config.data == "synthetic":
            world = config.world.model_copy(update={"pseudo_values": 0.0})
            self.validation = synthetic.tasks(world, HELD_OUT_SEED, 0, config.validation_tasks)
        else:
            everything = load_tasks(config.data)
            kept_back = min(config.validation_tasks, len(everything) // 5)
            cut = len(everything) - kept_back
            self.file, self.validation = everything[:cut], everything[cut:]
        if config.eval_data is not None:
            self.held_out = load_tasks(config.eval_data, limit=config.eval_tasks)
        else:
            test = config.eval_world or config.world.model_copy(update={"split": "test"})
            self.held_out = synthetic.tasks(test, HELD_OUT_SEED, 0, config.eval_tasks)
        if not any(task.questions for task in self.held_out):
            raise ConfigError(f"eval_data: {config.eval_data} holds no question, so nothing can be evaluated")

    def batch(self, position: int) -> list[Task]:
        """The `tasks_per_step` tasks from number `position` on."""
        config = self.config
        if not self.file:
            return synthetic.tasks(config.world, config.seed, position, config.tasks_per_step)
        return [self._from_file(position + i) for i in range(config.tasks_per_step)]

    def _from_file(self, number: int) -> Task:
        turn, place = divmod(number, len(self.file))
        order = list(range(len(self.file)))
        Random(f"{self.config.seed}|{turn}").shuffle(order)
        return self.file[order[place]]


def collect(
    builder: Builder, tasks: Sequence[Task], reader: Reader, rewards: RewardModel, config: TrainConfig, step: int
) -> tuple[list[TrajectoryGroup], list[Record]]:
    """`group_size` sampled rollouts of each task, with rewards, and the records of all their questions."""
    groups = builder.build(
        tasks, rollouts=config.group_size, temperature=config.temperature, seed=config.seed, step=step
    )
    return score_groups(groups, reader, rewards, embedder=builder.embedder)
