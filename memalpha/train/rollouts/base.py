"""`RolloutCollector`: the interface through which algorithms sample and score rollouts.

Implementations: `train.rollouts.memory` for memory tasks, `train.rollouts.text` for prompts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from memalpha.agent.rollout import Start
from memalpha.config import ERLSettings
from memalpha.errors import RewardError
from memalpha.policy.base import Policy
from memalpha.qa.records import Record
from memalpha.store.embedding import Embedder
from memalpha.train.learner.distributed import World
from memalpha.types import AnyTask, SampleRequest, Trajectory, TrajectoryGroup

ScoredGroups = tuple[list[TrajectoryGroup[AnyTask]], list[Record]]
"""Groups with rewards, and the records of all their questions in the same order."""


@dataclass(frozen=True, slots=True)
class ReflectionCandidate:
    """Hold an attempt to reflect on.

    Attributes:
        task_index: Index of its task within the step.
        attempt: The attempt.
        accuracy: Its accuracy, from 0 to 1.
        feedback: Text that says what went wrong.
    """

    task_index: int
    attempt: Trajectory[Any]
    accuracy: float
    feedback: str


@dataclass(frozen=True, slots=True)
class Scoring:
    """Score rollouts in another thread, in parallel with sampling and training (`train.trainers.overlap`).

    Attributes:
        has_endpoint: True if scoring waits for an endpoint.
        is_concurrent: True if several batches of rollouts may be scored at once.
        start: Takes some rollouts and returns the function that another thread calls to score them.
        cancel: Ends pending scoring with an error.
    """

    has_endpoint: bool
    is_concurrent: bool
    start: Callable[[Sequence[TrajectoryGroup[Any]]], Callable[[], ScoredGroups[Any]]]
    cancel: Callable[[], None]


class RolloutCollector(Protocol[AnyTask]):
    """Sample and score a run's rollouts. Each process of `world` handles a shard of the tasks, and all get all results.

    The methods after `background_scoring` are for algorithms that reflect on attempts
    (`train.rollouts.second_attempts`).
    """

    config: Any  # a RolloutConfig; each kind of tasks has its own
    world: World
    scoring_seconds: float
    """Time spent on scoring; the trainer resets it every step."""

    @property
    def policy(self) -> Policy:
        """The trained policy."""
        ...

    @property
    def embedder(self) -> Embedder:
        """Embedder of texts that are searched for."""
        ...

    def collect_attempts(self, tasks: Sequence[AnyTask], step: int) -> ScoredGroups[AnyTask]:
        """Sample `group_size` rollouts of each task; return all groups with rewards, and their records."""
        ...

    def score(self, groups: Sequence[TrajectoryGroup[AnyTask]]) -> ScoredGroups[AnyTask]:
        """Score this process's groups; return them with rewards, and the records of all their questions."""
        ...

    def sample(
        self, tasks: Sequence[AnyTask], step: int, first: int = 0, offset: int = 0
    ) -> list[TrajectoryGroup[AnyTask]]:
        """Sample this process's shard of the rollouts, without scoring them.

        Args:
            tasks: Tasks of the step, or of a part of it.
            step: Step number; keys the sampling noise.
            first: Index of `tasks[0]` within the step.
            offset: Process that takes the first shard, as in `World.shard`.

        Returns:
            One group of `group_size` rollouts per task of the shard.
        """
        ...

    def background_scoring(self) -> Scoring:
        """Return how rollouts are scored in parallel with other work."""
        ...

    def group_records(
        self, groups: Sequence[TrajectoryGroup[AnyTask]], records: Sequence[Record]
    ) -> list[list[list[Record]]]:
        """Group the records of scored groups as [group][trajectory][question]."""
        ...

    def accuracy(self, trajectory: Trajectory[AnyTask], records: Sequence[Record]) -> float | None:
        """Return a scored attempt's accuracy, from 0 to 1; None if it cannot be said."""
        ...

    def reflection_candidates(
        self, groups: Sequence[TrajectoryGroup[AnyTask]], records: Sequence[Record], first: int, settings: ERLSettings
    ) -> list[ReflectionCandidate]:
        """Return the attempts to reflect on, with feedback.

        Args:
            groups: Scored groups.
            records: Their records, in the same order.
            first: Index of the first group's task within the step.
            settings: Success threshold, feedback budget and the variant of the algorithm.

        Returns:
            One candidate per attempt, in the order of groups and rollouts.
        """
        ...

    def reflection_prompt(
        self, candidate: ReflectionCandidate, earlier: Sequence[str]
    ) -> tuple[Mapping[str, str], ...]:
        """Return the prompt of a reflection, with earlier advice."""
        ...

    def sample_retries(self, starts: Sequence[Start[AnyTask]], step: int) -> list[Trajectory[AnyTask]]:
        """Sample second attempts, without scoring them."""
        ...

    def without_advice(self, trajectory: Trajectory[AnyTask]) -> list[SampleRequest]:
        """Return each turn's prompt of a second attempt as it would be without advice."""
        ...


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
        raise RewardError("none of a step's replies has a reward: no reward function applies to any of them")
    return scored
