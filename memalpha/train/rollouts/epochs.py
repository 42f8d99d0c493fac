"""Seeded epoch order over a fixed list, its splits, its fingerprint, and the schedule length that `epochs` implies.

The curriculum: accuracy on the newest level unlocks the next. After each step, the attempts at tasks of the newest
level are appended to its last `window` outcomes. The next level is unlocked when the window is full and its accuracy
is at least `threshold`; counting then starts anew. A share `review` of the tasks comes from earlier levels, so that
they are not forgotten. The tasks of a step follow from seed, step and state. The state is JSON and part of every
checkpoint, so a resumed run draws the same tasks.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from functools import lru_cache
from random import Random
from typing import Any, Protocol, TypeVar

from memalpha.config import CurriculumConfig, SFTConfig
from memalpha.config.training import PairsConfig
from memalpha.errors import ConfigError, DataError
from memalpha.qa.report import Record
from memalpha.types import AnyTask, Task, TextTask

T = TypeVar("T")


def shuffled_item(items: Sequence[T], index: int, seed: str) -> T:
    """Return item `index` of an endless stream that reshuffles `items` every epoch.

    Args:
        items: Items of one epoch; must not be empty.
        index: Position in the stream, from 0. `index // len(items)` is the epoch.
        seed: Seed of the order; each epoch derives its own from it.
    """
    epoch, offset = divmod(index, len(items))
    return items[_epoch_order(f"{seed}|{epoch}", len(items))[offset]]


def split_last(items: Sequence[T], most: int) -> tuple[list[T], list[T]]:
    """Split off the last fifth of a list, to validate or evaluate on.

    Args:
        items: Items in order.
        most: Limit of the part that is split off, which has an item at least; 0 splits off nothing.

    Returns:
        First part, last part.
    """
    cut = len(items) - min(most, max(1, len(items) // 5))
    return list(items[:cut]), list(items[cut:])


def shared_note(training: Iterable[Hashable], held_out: Sequence[Hashable]) -> str:
    """Say how many contents that validate are trained on too; "" if none is."""
    trained = set(training)
    shared = sum(content in trained for content in held_out)
    return f"; {shared} of {len(held_out)} that validate are trained on too, so validation says little" * bool(shared)


def schedule_steps(config: SFTConfig | PairsConfig, item_count: int, batch_size: int) -> int:
    """Return the number of optimizer steps of the whole schedule.

    Args:
        config: `epochs` wins over `schedule_steps` if it is set.
        item_count: Items of one epoch.
        batch_size: Items per step.

    Raises:
        ConfigError: `max_steps` is larger than the steps that `epochs` gives.
    """
    if config.optimizer.epochs is None:
        return config.optimizer.schedule_steps
    steps = math.ceil(config.optimizer.epochs * item_count / batch_size)
    if config.max_steps is not None and config.max_steps > steps:
        raise ConfigError(
            f"max_steps: {config.max_steps} is beyond the {steps} steps of epochs={config.optimizer.epochs}"
        )
    return steps


@lru_cache(maxsize=2)
def _epoch_order(seed: str, count: int) -> list[int]:
    order = list(range(count))
    Random(seed).shuffle(order)
    return order


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


class FileTasks(TrainingTasks[AnyTask]):
    """Tasks of a list, reshuffled every epoch, with those that validate and those that are held out.

    Attributes:
        config: Settings of the run.
        file_tasks: Tasks of the list that are trained on; [] for generated ones.
        levels: The same by level, with a curriculum.
        validation: Tasks that validate.
        held_out: Tasks that are evaluated before and after.
        notes: What to tell of the list.
    """

    validation: list[AnyTask]
    held_out: list[AnyTask]

    def __init__(self, config: Any) -> None:
        self.config = config
        self.file_tasks: list[AnyTask] = []
        self.levels: Mapping[str, list[AnyTask]] = {}
        self.notes: list[str] = []

    def batch(self, position: int) -> list[AnyTask]:
        indices, seed = range(position, position + self.config.tasks_per_step), str(self.config.seed)
        return [shuffled_item(self.file_tasks, index, seed) for index in indices]

    def content(self, task: AnyTask) -> str:
        """Return what two tasks of the list have in common if one may stand for the other."""
        raise NotImplementedError

    def split(self, tasks: Sequence[AnyTask], most: int, purpose: str) -> tuple[list[AnyTask], list[AnyTask]]:
        """Split off a fifth of the tasks by hashes of their contents, to validate or evaluate on.

        Tasks of equal content stay together. A content keeps its side whatever else the list holds: none that was in
        the first part of a shorter list is in the second part of a longer one. Beyond the limit as many contents again
        are in neither part, so that contents that are added later push none into the first part.

        Args:
            tasks: Tasks to split.
            most: Most tasks to split off; 0 splits off none.
            purpose: Name of the split; splits of other names are independent.

        Returns:
            First part, second part. Each has a content at least; of a single one the second part is empty.
        """
        if not most:
            return list(tasks), []
        contents = [self.content(task) for task in tasks]
        ranks = {
            content: hashlib.sha256(f"{purpose}|{content}".encode(errors="surrogatepass")).digest()
            for content in contents
        }
        ordered = sorted(ranks, key=ranks.__getitem__)
        fifth = [content for content in ordered if ranks[content][0] < 51] or ordered[:1]  # 51 of 256
        fifth = fifth[: len(ordered) - 1]
        chosen, dropped = set(fifth[:most]), set(fifth[most : 2 * most])
        pairs = list(zip(tasks, contents, strict=True))
        first = [task for task, content in pairs if content not in chosen and content not in dropped]
        return first, [task for task, content in pairs if content in chosen][:most]

    def divide(self, name: Any, tasks: list[AnyTask], eval_tasks: list[AnyTask] | None, noun: str) -> None:
        """Divide a list into tasks to train on, to validate on and, without `eval_tasks`, to hold out.

        Args:
            name: Name of the list in messages.
            tasks: Its tasks.
            eval_tasks: Held-out tasks from elsewhere.
            noun: Name of what makes the content of a task.

        Raises:
            DataError: There are too few tasks.
        """
        evaluation = self.config.evaluation
        needed, why = 5, "of which a fifth is held out (or name other tasks as eval_data)"
        if eval_tasks is not None:
            needed, why = 2 if evaluation.validation_tasks else 1, "of which one validates (or set validation_tasks=0)"
        repeated = len(tasks) - len(set(map(self.content, tasks)))
        if len(tasks) - repeated < needed:
            others = f", of which {repeated} repeat {noun}" if repeated else ""
            raise DataError(f"data: {name} has {len(tasks)} tasks{others}, training needs at least {needed}, {why}")
        if repeated:
            self.notes.append(
                f"data: {repeated} of {len(tasks)} tasks repeat {noun} under another id; equal ones are on one side"
            )
        self.held_out = eval_tasks or []
        if not eval_tasks:
            tasks, self.held_out = self.split(tasks, evaluation.tasks, "held-out")
        self.file_tasks, self.validation = self.split(tasks, evaluation.validation_tasks, "validation")

    def tasks_of_level(self, level: str, first: int, count: int) -> list[AnyTask]:
        """Return training tasks of one level.

        Args:
            level: Name of the level.
            first: Index of the first task in the level's endless stream.
            count: Number of tasks.
        """
        seed = f"{self.config.seed}|{level}"
        return [shuffled_item(self.levels[level], first + offset, seed) for offset in range(count)]

    @property
    def known_tasks(self) -> list[AnyTask]:
        """Tasks that are known now: those of the list (or the first batch), validation and held-out tasks."""
        return [*(self.file_tasks or self.batch(0)), *self.validation, *self.held_out]

    @property
    def fingerprint(self) -> str:
        """Hash of the tasks of the list, and of what validates and is held out."""
        digest = hashlib.sha256()
        for task in [*self.file_tasks, *self.validation, *self.held_out]:
            text = json.dumps(task.model_dump(), default=lambda value: type(value).__name__)
            digest.update(f"{text}\n".encode())
        return digest.hexdigest()[:16]


class Curriculum(TrainingTasks[AnyTask]):
    """Training tasks of the unlocked levels, drawn from another source.

    Args:
        config: Levels in order, column that names a task's level, window, threshold and review share.
        source: Tasks by level; its settings give the seed and the number of tasks of a batch.

    Attributes:
        state: Number of unlocked levels, recent outcomes and number of drawn tasks per level, under `curriculum`.
    """

    def __init__(self, config: CurriculumConfig, source: FileTasks[AnyTask]) -> None:
        self.config, self.source = config, source
        self.state = {"curriculum": {"unlocked": 1, "recent": [], "drawn": dict.fromkeys(config.order, 0)}}

    @property
    def level(self) -> str:
        """Newest unlocked level."""
        return self.config.order[self.state["curriculum"]["unlocked"] - 1]

    def batch(self, position: int) -> list[AnyTask]:
        config, state = self.config, self.state["curriculum"]
        earlier = config.order[: state["unlocked"] - 1]
        size = self.source.config.tasks_per_step
        rng = Random(f"{self.source.config.seed}|curriculum|{position // size}")
        counts = dict(state["drawn"])
        tasks = []
        for _ in range(size):
            level = rng.choice(earlier) if earlier and rng.random() < config.review else self.level
            tasks += self.source.tasks_of_level(level, counts[level], 1)
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
