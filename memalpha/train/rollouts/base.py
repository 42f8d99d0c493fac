"""`RolloutCollector`: how a run's rollouts are made and scored; of its tasks, algorithms know no more than this.

Memory tasks: `train.collect.Collector`; prompts to complete: `train.text_collect.TextCollector`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from memalpha.agent.rollout import Start
from memalpha.config import ERLConfig
from memalpha.errors import RewardError
from memalpha.policy.base import Policy
from memalpha.qa.records import Record
from memalpha.store.embedding import Embedder
from memalpha.train.learner.distributed import World
from memalpha.types import AnyTask, SampleRequest, Trajectory, TrajectoryGroup

ScoredGroups = tuple[list[TrajectoryGroup[AnyTask]], list[Record]]


@dataclass(frozen=True, slots=True)
class ReflectionCandidate:
    """An attempt, the place of its task among all of the step, the accuracy it came to, what went wrong in words."""

    task_index: int
    attempt: Trajectory[Any]
    accuracy: float
    feedback: str


@dataclass(frozen=True, slots=True)
class Scoring:
    """How rollouts are scored beside sampling and learning (`train.overlap`).

    `waits`: whether somebody else is waited for. `side_by_side`: several may be scored at once. `begin` of some
    rollouts gives the work that another thread is to do. `give_up` ends what is under way, with an error there.
    """

    has_endpoint: bool
    is_concurrent: bool
    start: Callable[[Sequence[TrajectoryGroup[Any]]], Callable[[], ScoredGroups[Any]]]
    cancel: Callable[[], None]


class RolloutCollector(Protocol[AnyTask]):
    """Builds and scores a run's rollouts. Processes of `world` do a share of the tasks each, and all get everything.

    What follows `scoring` is for algorithms that look at attempts again (`train.retries`).
    """

    config: Any  # a RolloutConfig; each kind of tasks has its own
    world: World
    scoring_seconds: float
    """Seconds that scoring has taken."""

    @property
    def policy(self) -> Policy:
        """What is trained."""
        ...

    @property
    def embedder(self) -> Embedder:
        """For texts that are to be found again."""
        ...

    def collect_attempts(self, tasks: Sequence[AnyTask], step: int) -> ScoredGroups[AnyTask]:
        """`group_size` sampled rollouts of each task, with rewards, and the records of all their questions."""
        ...

    def score(self, groups: Sequence[TrajectoryGroup[AnyTask]]) -> ScoredGroups[AnyTask]:
        """This process's groups with rewards, and the records of all their questions."""
        ...

    def sample(
        self, tasks: Sequence[AnyTask], step: int, first: int = 0, turn: int = 0
    ) -> list[TrajectoryGroup[AnyTask]]:
        """This process's share of the rollouts, not yet scored; `first` is the place of `tasks` in the step, `turn` as
        for `World.block`."""
        ...

    def background_scoring(self) -> Scoring:
        """How rollouts are scored beside other work."""
        ...

    def group_records(
        self, groups: Sequence[TrajectoryGroup[AnyTask]], records: Sequence[Record]
    ) -> list[list[list[Record]]]:
        """The records of scored groups, which come in a row, as [group][trajectory][question]."""
        ...

    def accuracy(self, trajectory: Trajectory[AnyTask], records: Sequence[Record]) -> float | None:
        """What a scored attempt with these records has come to, from 0 to 1; None where nothing was asked."""
        ...

    def reflection_candidates(
        self, groups: Sequence[TrajectoryGroup[AnyTask]], records: Sequence[Record], first: int, settings: ERLConfig
    ) -> list[ReflectionCandidate]:
        """The attempts at tasks number `first` and on that are to be reflected on, with feedback."""
        ...

    def reflection_prompt(self, tried: ReflectionCandidate, earlier: Sequence[str]) -> tuple[Mapping[str, str], ...]:
        """The prompt of a reflection, with what earlier ones have said."""
        ...

    def sample_retries(self, starts: Sequence[Start[AnyTask]], step: int) -> list[Trajectory[AnyTask]]:
        """Second attempts, not yet scored."""
        ...

    def without_advice(self, trajectory: Trajectory[AnyTask]) -> list[SampleRequest]:
        """For each turn of a second attempt the prompt it would have had without advice."""
        ...


def drop_unscored(groups: Sequence[TrajectoryGroup[AnyTask]]) -> list[TrajectoryGroup[AnyTask]]:
    """The groups without what has no reward: a rollout of which nothing could be said is not learnt from.

    Raises `RewardError` where nothing is left.
    """
    kept = [replace(group, trajectories=tuple(one for one in group.trajectories if one.reward)) for group in groups]
    kept = [group for group in kept if group.trajectories]
    if groups and not kept:
        raise RewardError("none of a step's replies has a reward: no reward function applies to any of them")
    return kept
