"""Difficulty curriculum: train on unlocked levels; accuracy on the newest level unlocks the next.

After each step, the attempts at tasks of the newest level are appended to its last `window` outcomes. The next level is
unlocked when the window is full and its accuracy is at least `threshold`; counting then starts anew. A share `review`
of the tasks comes from earlier levels, so that they are not forgotten. The tasks of a step follow from seed, step and
state. The state is JSON and part of every checkpoint, so a resumed run draws the same tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any

from memalpha.config import CurriculumConfig
from memalpha.qa.records import Record
from memalpha.types import TextTask


class Curriculum:
    """Draws tasks of the unlocked levels.

    Attributes:
        state: Number of unlocked levels, recent outcomes and number of drawn tasks per level; JSON.
    """

    def __init__(
        self, config: CurriculumConfig, tasks_of_level: Callable[[str, int, int], list[TextTask]], seed: int
    ) -> None:
        """Start with the first level.

        Args:
            config: Levels in order, column that names a task's level, window, threshold and review share.
            tasks_of_level: Takes (level, first, count) and returns `count` tasks of the level's endless stream.
            seed: Seed of the draws.
        """
        self.config, self.seed, self._tasks_of_level = config, seed, tasks_of_level
        self.state: dict[str, Any] = {"unlocked": 1, "recent": [], "drawn": dict.fromkeys(config.order, 0)}

    @property
    def level(self) -> str:
        """Newest unlocked level."""
        return self.config.order[self.state["unlocked"] - 1]

    def draw(self, step: int, count: int) -> list[TextTask]:
        """Return the tasks of a step; changes no state."""
        config, earlier = self.config, self.config.order[: self.state["unlocked"] - 1]
        rng = Random(f"{self.seed}|curriculum|{step}")
        counts = dict(self.state["drawn"])
        tasks = []
        for _ in range(count):
            level = rng.choice(earlier) if earlier and rng.random() < config.review else self.level
            tasks += self._tasks_of_level(level, counts[level], 1)
            counts[level] += 1
        return tasks

    def record_outcomes(self, tasks: Sequence[TextTask], records: Sequence[Record]) -> dict[str, Any]:
        """Record the attempts of a finished step and unlock the next level if it is due.

        Args:
            tasks: Tasks of the step.
            records: Records of all its attempts.

        Returns:
            Metrics `level`, `unlocked` and `level_accuracy`, as before this step's unlock.
        """
        config, state = self.config, self.state
        counts = dict(state["drawn"])
        levels: Mapping[str, str] = {task.id: str(task.columns[config.column]) for task in tasks}
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
        self.state = {"unlocked": unlocked, "recent": recent, "drawn": counts}
        return metrics
