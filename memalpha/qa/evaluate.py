"""Evaluate a writer: greedy rollouts, scored by questions, one report. The one path of all evaluations.

`evaluate` runs it on memory tasks, `rewards.evaluate.evaluate_text` on text tasks, and training runs before, between
and after their steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from threading import Lock
from types import NoneType
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from memalpha.agent.agent import MemoryAgent
from memalpha.agent.reader import Answer, Conflicts, Item, Reader, Reading, default_reader
from memalpha.arguments import check_flag, check_function, check_items, check_seed, check_type
from memalpha.config import AgentConfig, RewardConfig
from memalpha.environments.engine import RolloutEngine
from memalpha.environments.memory_writing import memory_engine
from memalpha.errors import ConfigError, DataError
from memalpha.policy.base import Policy, is_endpoint, with_prompt_style
from memalpha.qa.memory_reward import MemoryReward
from memalpha.qa.reader import load_reader, with_check
from memalpha.qa.report import Record, Report, estimate_tokens, make_report
from memalpha.qa.scoring.memory import questions_of, score_groups
from memalpha.qa.scoring.states import texts_to_embed
from memalpha.store.embedding import Embedder, check_embedder, load_embedder
from memalpha.types import AnyTask, Task, Trajectory, TrajectoryGroup

T = TypeVar("T")
ScoredGroups = tuple[list[TrajectoryGroup[AnyTask]], list[Record]]
"""Groups with rewards, and the records of all their questions in the same order."""


class Processes(Protocol):
    """Processes that share the tasks of an evaluation (`train.learner.distributed.World`)."""

    def shard(self, values: Sequence[T]) -> tuple[int, Sequence[T]]:
        """Return this process's items and the index of the first."""
        ...

    def gather(self, values: Sequence[T]) -> list[T]:
        """Return the items of all processes, in order."""
        ...


@dataclass(frozen=True, slots=True)
class BackgroundScoring:
    """Score rollouts in another thread, in parallel with sampling and training (`train.rollouts.ahead`).

    Attributes:
        is_concurrent: True if several batches of rollouts may be scored at once.
        start: Takes some rollouts and returns the function that another thread calls to score them.
        cancel: Ends pending scoring with an error.
    """

    is_concurrent: bool
    start: Callable[[Sequence[TrajectoryGroup[Any]]], Callable[[], ScoredGroups[Any]]]
    cancel: Callable[[], None]


class RolloutScorer(Protocol[AnyTask]):
    """Scores rollouts: memories (`MemoryScorer`) or replies (`rewards.evaluate.TextScorer`)."""

    def score(self, groups: Sequence[TrajectoryGroup[AnyTask]]) -> ScoredGroups[AnyTask]:
        """Return the groups with rewards, and the records of all their questions."""
        ...

    def group_records(
        self, groups: Sequence[TrajectoryGroup[AnyTask]], records: Sequence[Record]
    ) -> list[list[list[Record]]]:
        """Group the records of scored groups, which are in the same order, as [group][trajectory][question]."""
        ...

    def accuracy(self, trajectory: Trajectory[AnyTask], records: Sequence[Record]) -> float | None:
        """Return a scored rollout's accuracy, from 0 to 1; None if it cannot be said."""
        ...

    def background(self) -> BackgroundScoring:
        """Return how rollouts are scored in parallel with other work."""
        ...

    def report(self, name: str, groups: Sequence[TrajectoryGroup[AnyTask]], records: Sequence[Record]) -> Report:
        """Return the report of scored groups.

        Args:
            name: Name of the report.
            groups: Groups with rewards.
            records: Records of all their questions.
        """
        ...


@dataclass(frozen=True, slots=True)
class MemoryScorer(RolloutScorer[Task]):
    """Scores memories by the questions of their tasks.

    Attributes:
        reader: Reader that answers the questions.
        rewards: Reward of the memories, with its judge if it has one.
        embedder: Embedder that the memories are searched with.
    """

    reader: Reader
    rewards: MemoryReward
    embedder: Embedder

    def score(self, groups: Sequence[TrajectoryGroup]) -> ScoredGroups[Task]:
        return score_groups(groups, self.reader, self.rewards, embedder=self.embedder)

    def group_records(self, groups: Sequence[TrajectoryGroup], records: Sequence[Record]) -> list[list[list[Record]]]:
        remaining = iter(records)
        return [
            [[next(remaining) for _ in trajectory.task.questions] for trajectory in group.trajectories]
            for group in groups
        ]

    def accuracy(self, trajectory: Trajectory, records: Sequence[Record]) -> float | None:
        """Return the share of correct answers; None without questions."""
        return sum(record.correct for record in records) / len(records) if records else None

    def texts_to_embed(self, groups: Sequence[TrajectoryGroup]) -> list[str]:
        """Return the texts whose vectors the scoring of these groups needs."""
        return texts_to_embed(questions_of(groups))

    def background(self) -> BackgroundScoring:
        """Return scoring for another thread.

        Texts that are searched for in a memory are embedded before it starts. A reader in this process reads for one
        thread at a time.
        """
        reader_policy, judge = getattr(self.reader, "policy", None), self.rewards.judge
        judge_policies = judge.policies if judge is not None else []
        endpoints: list[Any] = [
            policy for policy in (reader_policy, *judge_policies) if policy is not None and is_endpoint(policy)
        ]
        reader = self.reader if reader_policy in endpoints else _SerializedReader(self.reader)

        def start(groups: Sequence[TrajectoryGroup]) -> Callable[[], ScoredGroups[Task]]:
            embedder = _PrecomputedEmbedder(self.embedder, self.texts_to_embed(groups))
            scorer = replace(self, reader=reader, embedder=embedder)
            return lambda: scorer.score(groups)

        def cancel() -> None:
            for policy in endpoints:
                policy.client.give_up()

        side_by_side = all(map(is_endpoint, judge_policies))
        return BackgroundScoring(side_by_side, start, cancel)

    def report(self, name: str, groups: Sequence[TrajectoryGroup], records: Sequence[Record]) -> Report:
        """Return the report of scored groups, each record with its error class.

        Args:
            name: System's name in the report.
            groups: Rollouts, one group a task.
            records: Scored answers to the questions of all groups.
        """
        return make_report(name, groups, records, self.reader, self.rewards)


@dataclass(frozen=True, slots=True)
class Evaluator(Generic[AnyTask]):
    """Evaluate greedily. With several processes each handles a shard of the tasks, and all get the whole report.

    Attributes:
        engine: Engine of the rollouts, with the policy to evaluate.
        scorer: Scores the rollouts.
        world: Processes that share the tasks; None: this one alone.
    """

    engine: RolloutEngine[AnyTask]
    scorer: RolloutScorer[AnyTask]
    world: Processes | None = None

    def evaluate(
        self, name: str, tasks: Sequence[AnyTask], seed: int = 0, progress: Callable[[int, int], None] | None = None
    ) -> Report:
        """Roll out each task once, score the rollouts and report.

        Args:
            name: Name of the report.
            tasks: Tasks to evaluate on.
            seed: Seed of the rollouts.
            progress: Called with (done, all) turns of this process.
        """
        shard = tasks if self.world is None else self.world.shard(tasks)[1]
        groups, records = self.scorer.score(self.engine.roll_out(shard, seed=seed, progress=progress))
        if self.world is not None:
            groups, records = self.world.gather(groups), self.world.gather(records)
        return self.scorer.report(name, groups, records)


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


def evaluate(
    system: MemoryAgent | Policy,
    tasks: Sequence[Task],
    reader: Reader | str | None = None,
    *,
    config: AgentConfig | None = None,
    reward: RewardConfig | None = None,
    count_tokens: Callable[[str], int] = estimate_tokens,
    embedder: Embedder | None = None,
    seed: int = 0,
    name: str | None = None,
    progress: Callable[[int, int], None] | None = None,
    check_reader: bool = True,
) -> Report:
    """Build a fresh memory for every task, greedily, and ask its questions.

    Args:
        system: A policy, or an agent. Of an agent the policy, configuration and reader are used, and its store's schema
            and embedder; the store itself is not touched.
        tasks: Tasks with chunks and questions.
        reader: A reader, "extractive", or a policy's name. Default: the agent's reader, else the policy itself, or the
            extractive reader for a scripted policy.
        config: Prompts, tools and embedder of the writer. Default: the agent's, or the prompt style of the policy.
        reward: Reward preset and metric.
        count_tokens: Counts tokens of memory and conversation; use the same for all compared systems.
        embedder: Embedder of the memories. Default: the agent's store's, else the configuration's.
        seed: Seed of the rollouts.
        name: Name of the report. Default: the policy's.
        progress: Called with (chunks read, all chunks).
        check_reader: Stop if the first answers of the reader's language model are all empty, or most are cut off.

    Raises:
        DataError: No task has a question.
        ConfigError: An argument is of another type.
        EvaluationError: The reader cannot answer (`qa.reader`).
    """
    check_type("system", system, (MemoryAgent, Policy), error=ConfigError)
    tasks = check_items("tasks", tasks, of="tasks", error=DataError)
    for task in tasks:
        check_type("tasks", task, Task, error=DataError)
    check_type("config", config, (AgentConfig, NoneType), error=ConfigError)
    check_type("reward", reward, (RewardConfig, NoneType), error=ConfigError)
    check_type("name", name, (str, NoneType), error=ConfigError)
    check_flag("check_reader", check_reader, error=ConfigError)
    check_function("count_tokens", count_tokens, error=ConfigError)
    check_seed(seed, error=ConfigError)
    if progress is not None:
        check_function("progress", progress, error=ConfigError)
    if embedder is not None:
        check_embedder(embedder)
    if not any(task.questions for task in tasks):
        raise DataError("nothing to evaluate: " + ("no task has a question" if tasks else "the data set is empty"))
    policy = system.policy if isinstance(system, MemoryAgent) else system
    schema = None
    if isinstance(system, MemoryAgent):
        config, reader, schema = config or system.config, reader or system.reader, system.store.schema
        embedder = embedder or system.store.load_embedder()
    config = config or with_prompt_style(AgentConfig(), policy)
    if reader is not None and not isinstance(reader, str):
        check_function("reader: its method answer", getattr(reader, "answer", None), error=ConfigError)
    reader = load_reader(reader) if isinstance(reader, str) else reader or default_reader(policy, config)
    embedder = embedder or load_embedder(config.embedder)
    rewards = MemoryReward(reward or RewardConfig(), count_tokens)
    scorer = MemoryScorer(with_check(reader, check_reader), rewards, embedder)
    engine = memory_engine(policy, config, embedder, schema)
    return Evaluator(engine, scorer).evaluate(name or policy.name, tasks, seed, progress)
