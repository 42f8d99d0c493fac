"""`RolloutWorker`: samples and scores a run's rollouts, for memory tasks and text tasks alike."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice
from random import Random
from typing import Any, Generic

from memalpha.environments.engine import RolloutEngine, Start
from memalpha.environments.memory_writing import ask_at_every_chunk, roll_out_chunks
from memalpha.errors import RewardError
from memalpha.policy.base import Policy
from memalpha.qa.evaluate import RolloutScorer, ScoredGroups
from memalpha.train.learner.distributed import SINGLE_PROCESS, World
from memalpha.train.rollouts.reflection import Reflecting
from memalpha.types import AnyTask, Task, TrajectoryGroup


@dataclass(slots=True)
class RolloutWorker(Generic[AnyTask]):
    """Sample and score rollouts. Each process of `world` handles a shard of the tasks.

    Attributes:
        engine: Engine of the rollouts, with the trained policy.
        scorer: Scores the rollouts.
        config: A `RolloutConfig`; each kind of tasks has its own.
        world: Processes that share the tasks.
        reflecting: Feedback and prompts for second attempts; None if the run makes none.
        questions_per_task: Most questions of a task that a step asks (`draw_questions`); None: all.
        chunk_share: Share of the tasks that are sampled as chunk groups (`environments.memory_writing`).
        scoring_seconds: Time spent on scoring; the trainer resets it every step.
    """

    engine: RolloutEngine[AnyTask]
    scorer: RolloutScorer[AnyTask]
    config: Any
    world: World = SINGLE_PROCESS
    reflecting: Reflecting[AnyTask] | None = None
    questions_per_task: int | None = None
    chunk_share: float = 0.0
    scoring_seconds: float = 0.0

    @property
    def policy(self) -> Policy:
        """The trained policy."""
        return self.engine.policy

    def collect_attempts(self, tasks: Sequence[AnyTask], step: int, first: int = 0) -> ScoredGroups[AnyTask]:
        """Sample `group_size` rollouts of each task; return all groups with rewards, and their records.

        Args:
            tasks: Tasks of the step.
            step: Step number; keys the sampling noise.
            first: Index of `tasks[0]` within the step.
        """
        groups, records = self.score(self.sample(tasks, step, first))
        return drop_unscored(self.world.gather(groups)), self.world.gather(records)

    def score(self, groups: Sequence[TrajectoryGroup[AnyTask]]) -> ScoredGroups[AnyTask]:
        """Score this process's groups; return them with rewards, and the records of all their questions."""
        start = time.monotonic()
        scored = self.scorer.score(groups)
        self.scoring_seconds += time.monotonic() - start
        return scored

    def sample(self, tasks: Sequence[AnyTask], step: int, first: int = 0) -> list[TrajectoryGroup[AnyTask]]:
        """Sample this process's shard of the rollouts, without scoring them.

        Args:
            tasks: Tasks of the step, or of a part of it.
            step: Step number; keys the sampling noise.
            first: Index of `tasks[0]` within the step.

        Returns:
            One group of `group_size` rollouts per task of the shard.
        """
        index, shard = self.world.shard(tasks)
        sampling, seed = self.config.sampling, self.config.seed
        numbers = range(first + index, first + index + len(shard))
        shard = [self.ask(task, step, number) for task, number in zip(shard, numbers, strict=True)]
        chunked, whole = [], []
        for task, number in zip(shard, numbers, strict=True):
            (chunked if self.is_chunked(step, number) else whole).append((task, number))
        starts = [Start(task, number, rollout) for task, number in whole for rollout in range(sampling.group_size)]
        trajectories = iter(self.engine.run(starts, sampling.temperature, seed, step))
        groups: dict[int, TrajectoryGroup[AnyTask]] = {
            number: TrajectoryGroup(task, tuple(islice(trajectories, sampling.group_size))) for task, number in whole
        }
        if chunked:
            engine: Any = self.engine  # of memories: the configuration has chunk groups for these alone
            tasks_by_chunk, chunk_numbers = zip(*chunked, strict=True)
            settings = (sampling.group_size, sampling.temperature, seed, step)
            chunk_groups: list[Any] = roll_out_chunks(engine, tasks_by_chunk, chunk_numbers, *settings)
            groups |= dict(zip(chunk_numbers, chunk_groups, strict=True))
        return [groups[number] for number in numbers]

    def ask(self, task: AnyTask, step: int, number: int) -> AnyTask:
        """Return a task of a step with the questions that its rollouts are asked.

        Args:
            task: The task.
            step: Step number.
            number: Index of the task within the step.
        """
        task = draw_questions(task, self.questions_per_task, self.config.seed, step)
        return ask_at_every_chunk(task) if isinstance(task, Task) and self.is_chunked(step, number) else task

    def is_chunked(self, step: int, number: int) -> bool:
        """Return True if a task of a step is sampled as a chunk group; these are spread evenly over the tasks."""
        before = self.chunk_share * (step * self.config.tasks_per_step + number)
        return int(before + self.chunk_share + 1e-9) > int(before + 1e-9)


def drop_unscored(groups: Sequence[TrajectoryGroup[AnyTask]]) -> list[TrajectoryGroup[AnyTask]]:
    """Remove trajectories whose reward is None, and groups without any other.

    Raises:
        RewardError: No trajectory is left.
    """
    scored = [
        replace(group, trajectories=tuple(trajectory for trajectory in group.trajectories if trajectory.reward))
        for group in groups
    ]
    scored = [group for group in scored if group.trajectories]
    if groups and not scored:
        raise RewardError(
            "none of a step's replies has a reward: no reward function applies to any of them, or none of its judges "
            "gave a readable grade"
        )
    return scored


def draw_questions(task: AnyTask, count: int | None, seed: int, step: int) -> AnyTask:
    """Return the task with at most `count` of its questions, in their order, so that reader calls stay affordable.

    The idea is Mem-alpha's `sub_sample_question_ratio` (arXiv 2509.25911 and its code); here the limit is a number. The
    draw depends on (seed, step, task) alone. So all rollouts of a group are asked the same questions, second attempts
    included, on any number of processes and after a resume.

    Args:
        task: Task of the step; a task without more questions, or a text task, is returned unchanged.
        count: Most questions; None keeps all.
        seed: Seed of the run.
        step: Step number.
    """
    if count is None or not isinstance(task, Task) or len(task.questions) <= count:
        return task
    indices = sorted(Random(f"questions|{seed}|{step}|{task.id}").sample(range(len(task.questions)), count))
    return task.model_copy(update={"questions": tuple(task.questions[index] for index in indices)})
