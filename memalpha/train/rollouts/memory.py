"""Collect and score the rollouts of a memory run: memories that are built chunk by chunk."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from threading import Lock

import numpy as np

from memalpha.agent.builder import Builder
from memalpha.agent.reader import Answer, Conflicts, Item, Reader, Reading
from memalpha.agent.rollout import Start
from memalpha.config import ERLConfig, RunConfig
from memalpha.policy.base import Policy
from memalpha.policy.endpoints.policy import EndpointPolicy
from memalpha.qa.evaluate import score_groups, texts_to_embed
from memalpha.qa.memory_reward import MemoryReward
from memalpha.qa.records import Record
from memalpha.qa.report import Report, make_report
from memalpha.store.embedding import Embedder
from memalpha.train.learner.distributed import SINGLE_PROCESS, World
from memalpha.train.rollouts.base import ReflectionCandidate, ScoredGroups, Scoring
from memalpha.train.rollouts.reflection import accuracy, group_records, reflection_candidates, reflection_prompt
from memalpha.types import SampleRequest, Task, Trajectory, TrajectoryGroup


@dataclass(slots=True)
class MemoryCollector:
    """The rollouts of a memory run (`RolloutCollector`): memories built chunk by chunk, scored by questions."""

    builder: Builder
    reader: Reader
    rewards: MemoryReward
    config: RunConfig
    world: World = SINGLE_PROCESS
    scoring_seconds: float = 0.0

    @property
    def policy(self) -> Policy:
        """What is trained."""
        return self.builder.policy

    @property
    def embedder(self) -> Embedder:
        """The memories' own."""
        return self.builder.embedder

    def collect_attempts(self, tasks: Sequence[Task], step: int) -> ScoredGroups[Task]:
        """`group_size` sampled rollouts of each task, with rewards, and the records of all their questions."""
        groups, records = self.score(self.sample(tasks, step))
        return self.world.gather(groups), self.world.gather(records)

    def score(self, groups: Sequence[TrajectoryGroup]) -> ScoredGroups[Task]:
        """This process's groups with rewards, and the records of all their questions."""
        begun = time.monotonic()
        found = score_groups(groups, self.reader, self.rewards, embedder=self.builder.embedder)
        self.scoring_seconds += time.monotonic() - begun
        return found

    def sample(self, tasks: Sequence[Task], step: int, first: int = 0, turn: int = 0) -> list[TrajectoryGroup]:
        """This process's share of the rollouts, not yet scored."""
        place, mine = self.world.shard(tasks, turn)
        config = self.config
        return self.builder.build(
            mine, config.group_size, config.temperature, seed=config.seed, step=step, first=first + place
        )

    def background_scoring(self) -> Scoring:
        """What is searched in a memory is embedded before others score it; a model in this process reads for one."""
        reads, judge = getattr(self.reader, "policy", None), self.rewards.judge
        judges = judge.policies if judge is not None else []
        clients = [policy.client for policy in (reads, *judges) if isinstance(policy, EndpointPolicy)]
        reader = self.reader if isinstance(reads, EndpointPolicy) else _SerializedReader(self.reader)

        def begin(groups: Sequence[TrajectoryGroup]) -> Callable[[], ScoredGroups[Task]]:
            embedder = _PrecomputedEmbedder(self.builder.embedder, texts_to_embed(groups))
            return lambda: score_groups(groups, reader, self.rewards, embedder=embedder)

        def give_up() -> None:
            for client in clients:
                client.give_up()

        side_by_side = all(isinstance(policy, EndpointPolicy) for policy in judges)
        return Scoring(bool(clients), side_by_side, begin, give_up)

    def group_records(self, groups: Sequence[TrajectoryGroup], records: Sequence[Record]) -> list[list[list[Record]]]:
        """As [group][trajectory][question]."""
        return group_records(groups, records)

    def accuracy(self, trajectory: Trajectory, records: Sequence[Record]) -> float | None:
        """The share of right answers."""
        return accuracy(records)

    def reflection_candidates(
        self, groups: Sequence[TrajectoryGroup], records: Sequence[Record], first: int, settings: ERLConfig
    ) -> list[ReflectionCandidate]:
        """See `reflection.look_back`."""
        return reflection_candidates(groups, records, first, self.builder, settings)

    def reflection_prompt(self, tried: ReflectionCandidate, earlier: Sequence[str]) -> tuple[Mapping[str, str], ...]:
        """See `reflection.reflection_prompt`."""
        return reflection_prompt(self.builder, tried, earlier)

    def sample_retries(self, starts: Sequence[Start[Task]], step: int) -> list[Trajectory]:
        """Second attempts at the whole tasks."""
        return self.builder.run(starts, self.config.temperature, self.config.seed, step, role="retry")

    def without_advice(self, trajectory: Trajectory) -> list[SampleRequest]:
        """See `Builder.without_advice`."""
        return self.builder.without_advice(trajectory)


def evaluate_distributed(
    name: str,
    builder: Builder,
    tasks: Sequence[Task],
    reader: Reader,
    rewards: MemoryReward,
    world: World = SINGLE_PROCESS,
    progress: Callable[[int, int], None] | None = None,
) -> Report:
    """`evaluate` by several processes: greedy, a share of the tasks each; all of them get the whole report."""
    _, mine = world.shard(tasks)
    groups = builder.build(mine, progress=progress)
    groups, records = score_groups(groups, reader, rewards, embedder=builder.embedder)
    return make_report(name, world.gather(groups), world.gather(records), reader, rewards)


class _SerializedReader:
    """A reader that is asked by one thread at a time: a model in this process does not read for two."""

    def __init__(self, inner: Reader) -> None:
        self.name, self._inner, self._lock = inner.name, inner, Lock()
        self.conflicts: Conflicts = inner.conflicts

    def read(self, items: Sequence[Reading]) -> list[Answer]:
        """As the reader's."""
        with self._lock:
            return self._inner.read(items)

    def answer(self, items: Sequence[Item], *, k: int | None = None) -> list[Answer]:
        """As the reader's."""
        with self._lock:
            return self._inner.answer(items, k=k)


class _PrecomputedEmbedder:
    """An embedder with some texts' vectors taken out in advance: no batch or cache depends on who searches when."""

    def __init__(self, inner: Embedder, texts: Sequence[str]) -> None:
        self.name, self.dim, self._inner = inner.name, inner.dim, inner
        self._vectors = dict(zip(texts, inner.encode(texts), strict=True)) if texts else {}

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        """float32 `(len(texts), dim)`."""
        if any(text not in self._vectors for text in texts):
            return self._inner.encode(texts)
        return np.array([self._vectors[text] for text in texts], np.float32).reshape(len(texts), self.dim)
