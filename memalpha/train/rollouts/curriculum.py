"""A difficulty curriculum: training draws from the levels that are unlocked; accuracy at the newest unlocks the next.

After each step the attempts at tasks of the newest level are added to its last `window`; when these are full and their
accuracy is at least `threshold`, the next level is unlocked and counting begins anew. A share `review` of the tasks
comes from earlier levels, so that they are not forgotten. What is drawn follows from (seed, step) and the state, which
is JSON and part of every checkpoint: a run that goes on draws what it would have drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any

from memalpha.config import CurriculumConfig
from memalpha.qa.records import Record
from memalpha.types import TextTask


class Curriculum:
    """`take(level, first, count)` gives so many tasks of a level from number `first` on, without end."""

    def __init__(
        self, config: CurriculumConfig, tasks_of_level: Callable[[str, int, int], list[TextTask]], seed: int
    ) -> None:
        self.config, self.seed, self._tasks_of_level = config, seed, tasks_of_level
        self.state: dict[str, Any] = {"unlocked": 1, "recent": [], "drawn": dict.fromkeys(config.order, 0)}

    @property
    def level(self) -> str:
        """The newest level."""
        return self.config.order[self.state["unlocked"] - 1]

    def draw(self, step: int, count: int) -> list[TextTask]:
        """The tasks of a step; changes nothing."""
        config, earlier = self.config, self.config.order[: self.state["unlocked"] - 1]
        rng = Random(f"{self.seed}|curriculum|{step}")
        drawn = dict(self.state["drawn"])
        found = []
        for _ in range(count):
            level = rng.choice(earlier) if earlier and rng.random() < config.review else self.level
            found += self._tasks_of_level(level, drawn[level], 1)
            drawn[level] += 1
        return found

    def record_outcomes(self, tasks: Sequence[TextTask], records: Sequence[Record]) -> dict[str, Any]:
        """A step on these tasks is done; `records` are of all its attempts. What metrics.jsonl is to know."""
        config, state = self.config, self.state
        drawn = dict(state["drawn"])
        levels: Mapping[str, str] = {task.id: str(task.columns[config.column]) for task in tasks}
        for task in tasks:
            drawn[levels[task.id]] += 1
        own = [int(record.correct) for record in records if levels[record.task] == self.level]
        recent = [*state["recent"], *own][-config.window :]
        accuracy = sum(recent) / len(recent) if recent else None
        line = {"level": self.level, "unlocked": state["unlocked"], "level_accuracy": accuracy}
        unlocked = state["unlocked"]
        passed = len(recent) == config.window and accuracy is not None and accuracy >= config.threshold
        if passed and unlocked < len(config.order):
            unlocked, recent = unlocked + 1, []
        self.state = {"unlocked": unlocked, "recent": recent, "drawn": drawn}
        return line
