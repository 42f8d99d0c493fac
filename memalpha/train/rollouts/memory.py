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
from memalpha.config import ERLSettings, RunConfig
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
    """Collect memory rollouts (`RolloutCollector`): memories built chunk by chunk, scored by questions."""

    builder: Builder
    reader: Reader
    rewards: MemoryReward
    config: RunConfig
    world: World = SINGLE_PROCESS
    scoring_seconds: float = 0.0

    @property
    def policy(self) -> Policy:
        """The trained policy."""
        return self.builder.policy

    @property
    def embedder(self) -> Embedder:
        """Embedder of the memories."""
        return self.builder.embedder

    def collect_attempts(self, tasks: Sequence[Task], step: int) -> ScoredGroups[Task]:
        """Sample `group_size` rollouts of each task; return all groups with rewards, and their records."""
        groups, records = self.score(self.sample(tasks, step))
        return self.world.gather(groups), self.world.gather(records)

    def score(self, groups: Sequence[TrajectoryGroup]) -> ScoredGroups[Task]:
        """Score this process's groups; return them with rewards, and the records of all their questions."""
        start = time.monotonic()
        scored = score_groups(groups, self.reader, self.rewards, embedder=self.builder.embedder)
        self.scoring_seconds += time.monotonic() - start
        return scored

    def sample(self, tasks: Sequence[Task], step: int, first: int = 0, offset: int = 0) -> list[TrajectoryGroup]:
        """Sample this process's shard of the rollouts, without scoring them.

        Args:
            tasks: Tasks of the step, or of a part of it.
            step: Step number; keys the sampling noise.
            first: Index of `tasks[0]` within the step.
            offset: Process that takes the first shard, as in `World.shard`.

        Returns:
            One group of `group_size` rollouts per task of the shard.
        """
        index, shard = self.world.shard(tasks, offset)
        config = self.config
        return self.builder.build(
            shard,
            config.sampling.group_size,
            config.sampling.temperature,
            seed=config.seed,
            step=step,
            first_index=first + index,
        )

    def background_scoring(self) -> Scoring:
        """Return scoring for another thread.

        Texts that are searched for in a memory are embedded before it starts. A reader in this process reads for one
        thread at a time.
        """
        reader_policy, judge = getattr(self.reader, "policy", None), self.rewards.judge
        judge_policies = judge.policies if judge is not None else []
        clients = [policy.client for policy in (reader_policy, *judge_policies) if isinstance(policy, EndpointPolicy)]
        reader = self.reader if isinstance(reader_policy, EndpointPolicy) else _SerializedReader(self.reader)

        def start(groups: Sequence[TrajectoryGroup]) -> Callable[[], ScoredGroups[Task]]:
            embedder = _PrecomputedEmbedder(self.builder.embedder, texts_to_embed(groups))
            return lambda: score_groups(groups, reader, self.rewards, embedder=embedder)

        def cancel() -> None:
            for client in clients:
                client.give_up()

        side_by_side = all(isinstance(policy, EndpointPolicy) for policy in judge_policies)
        return Scoring(bool(clients), side_by_side, start, cancel)

    def group_records(self, groups: Sequence[TrajectoryGroup], records: Sequence[Record]) -> list[list[list[Record]]]:
        """Group records as [group][trajectory][question]."""
        return group_records(groups, records)

    def accuracy(self, trajectory: Trajectory, records: Sequence[Record]) -> float | None:
        """Return the share of correct answers; None without questions."""
        return accuracy(records)

    def reflection_candidates(
        self, groups: Sequence[TrajectoryGroup], records: Sequence[Record], first: int, settings: ERLSettings
    ) -> list[ReflectionCandidate]:
        """Return the attempts to reflect on; see `reflection.reflection_candidates`.

        Args:
            groups: Scored groups.
            records: Their records, in the same order.
            first: Index of the first group's task within the step.
            settings: Success threshold, feedback budget and the variant of the algorithm.
        """
        return reflection_candidates(groups, records, first, self.builder, settings)

    def reflection_prompt(
        self, candidate: ReflectionCandidate, earlier: Sequence[str]
    ) -> tuple[Mapping[str, str], ...]:
        """Return the prompt of a reflection; see `reflection.reflection_prompt`."""
        return reflection_prompt(self.builder, candidate, earlier)

    def sample_retries(self, starts: Sequence[Start[Task]], step: int) -> list[Trajectory]:
        """Sample second attempts at the tasks, without scoring them."""
        return self.builder.run(starts, self.config.sampling.temperature, self.config.seed, step, role="retry")

    def without_advice(self, trajectory: Trajectory) -> list[SampleRequest]:
        """Return each turn's prompt without advice; see `Builder.without_advice`."""
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
    """Evaluate greedily with several processes; each handles a shard of the tasks, all get the whole report.

    Args:
        name: Name of the report.
        builder: Builder of the memories, with the policy to evaluate.
        tasks: Tasks to evaluate on.
        reader: Reader that answers the questions.
        rewards: Reward of the memories.
        world: Processes that share the tasks.
        progress: Called with `(done, total)` tasks of this process.

    Returns:
        Report over all tasks.
    """
    _, shard = world.shard(tasks)
    groups = builder.build(shard, progress=progress)
    groups, records = score_groups(groups, reader, rewards, embedder=builder.embedder)
    return make_report(name, world.gather(groups), world.gather(records), reader, rewards)


class _SerializedReader:
    """Let one thread at a time use a reader whose model is in this process."""

    def __init__(self, inner: Reader) -> None:
        self.name, self._inner, self._lock = inner.name, inner, Lock()
        self.conflicts: Conflicts = inner.conflicts

    def read(self, items: Sequence[Reading]) -> list[Answer]:
        """Read as the wrapped reader does."""
        with self._lock:
            return self._inner.read(items)

    def answer(self, items: Sequence[Item], *, k: int | None = None) -> list[Answer]:
        """Answer as the wrapped reader does."""
        with self._lock:
            return self._inner.answer(items, k=k)


class _PrecomputedEmbedder:
    """Return precomputed vectors of known texts.

    Results then depend on no batch and no cache, whichever thread searches first.
    """

    def __init__(self, inner: Embedder, texts: Sequence[str]) -> None:
        self.name, self.dim, self._inner = inner.name, inner.dim, inner
        self._vectors = dict(zip(texts, inner.encode(texts), strict=True)) if texts else {}

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        """Return embeddings, float32 of shape `(len(texts), dim)`."""
        if any(text not in self._vectors for text in texts):
            return self._inner.encode(texts)
        return np.array([self._vectors[text] for text in texts], np.float32).reshape(len(texts), self.dim)
