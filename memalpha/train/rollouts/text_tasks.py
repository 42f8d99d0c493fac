"""Where a text run's tasks come from: sets that are made, data sets, files, or a list given in Python. No torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

from memalpha.config import TextConfig
from memalpha.errors import ConfigError, DataError
from memalpha.tasks.text_tasks import GENERATED, HUB_SETS, load_text_tasks
from memalpha.train.rollouts.epochs import shuffled_item
from memalpha.types import TextTask

HELD_OUT_SEED = -1
"""Seed of made validation and evaluation tasks: the same for every run, so that runs compare on equal tasks."""


class TextTaskSource:
    """A run's tasks: `batch(position)` for training, `validation` and `held_out` fixed.

    `arithmetic`, `programs`: training tasks are made by number from the run's seed and do not come again; held out is
    the test split. `gsm8k`, `math`: their train split to train, their test split held out. Anything else: without
    `eval_data` a fifth is held out, the same every time. A fifth of what is left validates (`eval_tasks` and
    `validation_tasks` at most); the others are shuffled anew each pass, without those whose prompts were kept apart
    (`notes` says how many). `tasks`, `eval_data` given as lists take the
    place of what the configuration names.

    Raises `ConfigError` for settings that do not fit the data, `DataError` for too few tasks.
    """

    def __init__(
        self, config: TextConfig, tasks: Sequence[TextTask] | None = None, eval_data: Sequence[TextTask] | None = None
    ) -> None:
        self.config = config
        self.training_tasks: list[TextTask] = []
        self.notes: list[str] = []
        self._levels: Mapping[str, list[TextTask]] = {}
        self._name = config.data if tasks is None else "tasks"
        if tasks is not None and config.data is not None:
            raise ConfigError("tasks: data names tasks already; give one of the two")
        if self._name is None:
            raise ConfigError("data: name the tasks (arithmetic, programs, gsm8k, math, a file, a folder, a hub id)")
        if config.data_folder is not None and self._name not in HUB_SETS:
            raise ConfigError(f"data_folder: belongs to {', '.join(HUB_SETS)}; give the folder itself as data")
        if config.data_folder is not None and Path(config.data_folder).is_file():
            raise ConfigError(
                f"data_folder: {config.data_folder} is a file, and a file does not say which split it holds: name the "
                "folder, or the file itself as data"
            )
        given = None if eval_data is None else list(eval_data)
        if given is None and config.eval_data is not None:
            given = self._load(config.eval_data, "test", config.eval_tasks)
        self._generator = None if tasks is not None else GENERATED.get(self._name)
        if self._generator is not None:
            if config.columns or config.limit is not None:
                key = "columns" if config.columns else "limit"
                raise ConfigError(f"{key}: {self._name} is made here, without end: leave it out")
            self.validation = self._generator("train", HELD_OUT_SEED, 0, config.validation_tasks)
            self.held_out = given or self._generator("test", HELD_OUT_SEED, 0, config.eval_tasks)
        else:
            rest = list(tasks) if tasks is not None else self._load(self._name, "train", config.limit)
            named = given is not None
            if given is None and tasks is None and self._name in HUB_SETS:
                given = self._load(self._name, "test", config.eval_tasks)
            self._split_tasks(rest, given, named=named)
        if config.curriculum is not None:
            self._group_by_level()

    def _load(self, name: str, split: Any, limit: int | None) -> list[TextTask]:
        folder = self.config.data_folder if name in HUB_SETS else None
        if name in GENERATED:
            return GENERATED[name](split, HELD_OUT_SEED, 0, limit or self.config.eval_tasks)
        return load_text_tasks(name, columns=self.config.columns, split=split, limit=limit, data=folder)

    def _split_tasks(self, rest: list[TextTask], given: list[TextTask] | None, *, named: bool) -> None:
        config = self.config
        needed, why = (5, "of which a fifth is held out (or name other tasks as eval_data)")
        if given is not None:
            needed, why = (2, "of which one validates") if config.validation_tasks else (1, "")
        if len(rest) < needed:
            raise DataError(f"data: {self._name} has {len(rest)} tasks, training needs at least {needed}, {why}")
        _check_ids(rest, f"data: {self._name}")
        rest = list(rest)
        Random(f"fifths|{len(rest)}").shuffle(rest)  # files are sorted by level or subject
        cut = len(rest) if given else len(rest) - min(config.eval_tasks, len(rest) // 5)
        rest, self.held_out = rest[:cut], given or rest[cut:]
        cut = len(rest) - min(config.validation_tasks, max(1, len(rest) // 5))
        train, self.validation = rest[:cut], rest[cut:]
        _check_ids(self.held_out, f"eval_data: {config.eval_data}")
        kept_apart = {_prompt_key(task): task.id for task in [*self.validation, *self.held_out]}
        self.training_tasks = [task for task in train if _prompt_key(task) not in kept_apart]
        if len(self.training_tasks) == len(train):
            return
        if named:
            copy = next(task for task in train if _prompt_key(task) in kept_apart)
            raise ConfigError(
                f"eval_data: the prompt of task {kept_apart[_prompt_key(copy)]!r} is also that of training task "
                f"{copy.id!r}: held-out tasks must be others"
            )
        if not self.training_tasks:
            raise DataError(f"data: every prompt of {self._name} comes so often that none is left to train on")
        left_out = len(train) - len(self.training_tasks)
        self.notes.append(f"data: {left_out} tasks are not trained on: their prompts are among those that are held out")

    def _group_by_level(self) -> None:
        """Training tasks by the curriculum's levels."""
        curriculum = self.config.curriculum
        assert curriculum is not None
        looked_at = self.training_tasks or (self._generator("train", HELD_OUT_SEED, 0, 12) if self._generator else [])
        found: dict[str, list[TextTask]] = {level: [] for level in curriculum.order}
        for task in looked_at:
            if curriculum.column not in task.columns:
                raise ConfigError(f"curriculum.column: task {task.id!r} has no column {curriculum.column!r}")
            level = str(task.columns[curriculum.column])
            if level not in found:
                raise ConfigError(
                    f"curriculum.order: {level!r}, the level of task {task.id!r}, is not in it: name every level"
                )
            found[level].append(task)
        if empty := [level for level, tasks in found.items() if not tasks]:
            raise ConfigError(f"curriculum.order: no training task has level {empty[0]!r}")
        self._levels = found

    def batch(self, position: int) -> list[TextTask]:
        """The `tasks_per_step` tasks from number `position` on."""
        config = self.config
        if self._generator is not None:
            return self._generator("train", config.seed, position, config.tasks_per_step)
        return [
            shuffled_item(self.training_tasks, position + i, str(config.seed)) for i in range(config.tasks_per_step)
        ]

    def tasks_of_level(self, level: str, first: int, count: int) -> list[TextTask]:
        """Training tasks of one level from number `first` on."""
        if self._generator is not None:
            return self._generator("train", self.config.seed, first, count, level)  # type: ignore[call-arg]
        own = self._levels[level]
        return [shuffled_item(own, first + i, f"{self.config.seed}|{level}") for i in range(count)]

    @property
    def known_tasks(self) -> list[TextTask]:
        """Every task that is known now."""
        return [*(self.training_tasks or self.batch(0)), *self.validation, *self.held_out]


def _prompt_key(task: TextTask) -> tuple[tuple[str, str], ...]:
    return tuple((message["role"], message["content"]) for message in task.messages)


def _check_ids(tasks: Sequence[TextTask], where: str) -> None:
    seen: set[str] = set()
    for task in tasks:
        if task.id in seen:
            raise DataError(f"{where}: two tasks have the id {task.id!r}: ids must differ")
        seen.add(task.id)
