"""Training tasks step by step, and the curriculum: accuracy on the newest level unlocks the next.

After each step, the attempts at tasks of the newest level are appended to its last `window` outcomes. The next level is
unlocked when the window is full and its accuracy is at least `threshold`; counting then starts anew. A share `review`
of the tasks comes from earlier levels, so that they are not forgotten. The tasks of a step follow from seed, step and
state. The state is JSON and part of every checkpoint, so a resumed run draws the same tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any, Protocol

from memalpha.config import CurriculumConfig
from memalpha.errors import ConfigError
from memalpha.qa.report import Record
from memalpha.types import AnyTask, Task, TextTask


class TrainingTasks(Protocol[AnyTask]):
    """The training tasks of a run. Implementations inherit the defaults: tasks that depend on no outcome."""

    state: dict[str, Any] = {}  # noqa: RUF012  # never changed in place
    """State in every checkpoint, by name; JSON."""

    def batch(self, position: int) -> list[AnyTask]:
        """Return the `tasks_per_step` training tasks from index `position` on; changes no state."""
        ...

    def record_outcomes(self, position: int, records: Sequence[Record]) -> dict[str, Any]:
        """Take note of a finished step and return metrics.

        Args:
            position: Position of the step's batch.
            records: Records of all its attempts.
        """
        return {}


class Curriculum(TrainingTasks[AnyTask]):
    """Training tasks of the unlocked levels, drawn from another source.

    Args:
        config: Levels in order, column that names a task's level, window, threshold and review share.
        tasks_of_level: Takes (level, first, count) and returns `count` tasks of the level's endless stream.
        tasks_per_step: Number of tasks of a batch.
        seed: Seed of the draws.

    Attributes:
        state: Number of unlocked levels, recent outcomes and number of drawn tasks per level, under `curriculum`.
    """

    def __init__(
        self,
        config: CurriculumConfig,
        tasks_of_level: Callable[[str, int, int], list[AnyTask]],
        tasks_per_step: int,
        seed: int,
    ) -> None:
        self.config, self.tasks_of_level, self.tasks_per_step, self.seed = config, tasks_of_level, tasks_per_step, seed
        self.state = {"curriculum": {"unlocked": 1, "recent": [], "drawn": dict.fromkeys(config.order, 0)}}

    @property
    def level(self) -> str:
        """Newest unlocked level."""
        return self.config.order[self.state["curriculum"]["unlocked"] - 1]

    def batch(self, position: int) -> list[AnyTask]:
        config, state = self.config, self.state["curriculum"]
        earlier = config.order[: state["unlocked"] - 1]
        rng = Random(f"{self.seed}|curriculum|{position // self.tasks_per_step}")
        counts = dict(state["drawn"])
        tasks = []
        for _ in range(self.tasks_per_step):
            level = rng.choice(earlier) if earlier and rng.random() < config.review else self.level
            tasks += self.tasks_of_level(level, counts[level], 1)
            counts[level] += 1
        return tasks

    def record_outcomes(self, position: int, records: Sequence[Record]) -> dict[str, Any]:
        """Record the attempts of a finished step and unlock the next level if it is due.

        Returns:
            Metrics `level`, `unlocked` and `level_accuracy`, as before this step's unlock.
        """
        config, state = self.config, self.state["curriculum"]
        counts = dict(state["drawn"])
        tasks = self.batch(position)
        levels: Mapping[str, str] = {task.id: task_level(task, config.column) for task in tasks}
        for task in tasks:
            counts[levels[task.id]] += 1
        outcomes = [int(record.correct) for record in records if levels[record.task] == self.level]
        recent = [*state["recent"], *outcomes][-config.window :]
        accuracy = sum(recent) / len(recent) if recent else None
        metrics = {"level": self.level, "unlocked": state["unlocked"], "level_accuracy": accuracy}
        unlocked = state["unlocked"]
        is_mastered = len(recent) == config.window and accuracy is not None and accuracy >= config.threshold
        if is_mastered and unlocked < len(config.order):
            unlocked, recent = unlocked + 1, []
        self.state = {"curriculum": {"unlocked": unlocked, "recent": recent, "drawn": counts}}
        return metrics


def group_by_level(tasks: Sequence[AnyTask], config: CurriculumConfig) -> dict[str, list[AnyTask]]:
    """Return the tasks of each level, in the order of the levels.

    Raises:
        ConfigError: A task has no level or an unknown one, or a level has no task.
    """
    tasks_by_level: dict[str, list[AnyTask]] = {level: [] for level in config.order}
    for task in tasks:
        if config.column not in _columns(task):
            raise ConfigError(f"curriculum.column: task {task.id!r} has no column {config.column!r}")
        level = task_level(task, config.column)
        if level not in tasks_by_level:
            raise ConfigError(
                f"curriculum.order: {level!r}, the level of task {task.id!r}, is not in it: name every level"
            )
        tasks_by_level[level].append(task)
    if empty := [level for level, tasks in tasks_by_level.items() if not tasks]:
        raise ConfigError(f"curriculum.order: no training task has level {empty[0]!r}")
    return tasks_by_level


def task_level(task: Task | TextTask, column: str) -> str:
    """Return the level of a task: a column of a text task, an entry of a memory task's `meta`."""
    return str(_columns(task)[column])


def _columns(task: Task | TextTask) -> Mapping[str, Any]:
    return task.meta if isinstance(task, Task) else task.columns
