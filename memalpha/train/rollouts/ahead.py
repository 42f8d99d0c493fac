"""Sampling ahead of learning: groups wait in a queue, and a step learns from weights of at most `staleness` steps ago.

A step learns from the groups whose oldest token comes from the oldest weights. Groups stay whole. With staleness k at
most (k + 1) x `tasks_per_step` groups are sampled, scored, queued or learned from at any time. The queue is part of
every checkpoint.

On a server (`ServerSource`) sampling goes on while the learner learns, and groups end at their own pace. The server
gets new weights between requests: no turn starts until all turns under way have ended. So each completion has one
weight version, and the turns of an episode may have several. A group whose oldest token is more than k steps behind is
dropped; it is counted and not sampled again.

In this process (`GroupSource`) sampler and learner share the weights and take turns: a step's groups are sampled k
steps before they are learned from. That gains no time; it shows what staleness does to learning, and runs are
reproducible bit for bit.
"""

from __future__ import annotations

import base64
import json
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass, replace
from itertools import accumulate
from queue import SimpleQueue
from typing import Any, Generic

import numpy as np
from pydantic import TypeAdapter

from memalpha.environments.engine import EpisodePool, RunningEpisode, Start, is_lock_step, make_environment
from memalpha.environments.memory_writing import MemoryWriting
from memalpha.errors import CheckpointError, ConfigError
from memalpha.policy.server import RequestQueue
from memalpha.policy.vllm.policy import VllmPolicy
from memalpha.qa.report import Record
from memalpha.store.state import MemoryState
from memalpha.train.rollouts.epochs import TrainingTasks
from memalpha.train.rollouts.worker import RolloutWorker
from memalpha.types import AnyTask, Reward, Trajectory, TrajectoryGroup, Turn


@dataclass(frozen=True, slots=True)
class ScoredGroup(Generic[AnyTask]):
    """Rollouts of a task with their rewards.

    Attributes:
        number: Index of the task among all tasks of the run.
        group: The rollouts.
        records: Records of the answers, [trajectory][question].
        oldest: Smallest training step whose weights sampled any of the group's tokens.
    """

    number: int
    group: TrajectoryGroup[AnyTask]
    records: Sequence[Sequence[Record]]
    oldest: int


class GroupSource:
    """Queue of scored groups, sampled in this process a whole step at a time, `staleness` steps before it is learned.

    Args:
        tasks: Training tasks.
        worker: Samples and scores rollouts.

    Attributes:
        scored: Groups that can be learned from, by number.
        next_number: Number of the next task that was never started.
        unfinished: Numbers of tasks whose groups were under way at the last checkpoint; they start first.
    """

    def __init__(self, tasks: TrainingTasks[Any], worker: RolloutWorker[Any]) -> None:
        self.tasks, self.worker, config = tasks, worker, worker.config
        self.staleness, self.step_size = config.sampling.staleness, config.tasks_per_step
        self.limit = config.optimizer.schedule_steps * self.step_size
        self.scored: dict[int, ScoredGroup[Any]] = {}
        self.next_number = 0
        self.unfinished: list[int] = []
        self.wait_seconds = 0.0
        self._learned = 0
        self._taken: list[ScoredGroup[Any]] = []
        self._dropped = 0

    def take(self, step: int) -> list[ScoredGroup[Any]]:
        """Return the groups of a step, oldest first; they stay in the queue until `commit`.

        What the queue lacks is sampled with the current weights, those of `step`.
        """
        worker = self.worker
        worker.scoring_seconds = 0.0
        while self.next_number < min((step + self.staleness + 1) * self.step_size, self.limit):
            first = self.next_number
            shard_start, _ = worker.world.shard(range(self.step_size))
            groups, records = worker.score(worker.sample(self.tasks.batch(first), first // self.step_size))
            answers = worker.scorer.group_records(groups, records)
            scored: list[ScoredGroup[Any]] = []
            for number, (group, records) in enumerate(zip(groups, answers, strict=True), first + shard_start):
                trajectories = []  # with the step of the weights in every completion
                for item in group.trajectories:
                    pairs = [(turn, replace(turn.completion, weights_step=step)) for turn in item.turns]
                    turns = [replace(turn, completion=completion) for turn, completion in pairs]
                    trajectories.append(replace(item, turns=tuple(turns)))
                scored.append(ScoredGroup(number, replace(group, trajectories=tuple(trajectories)), records, step))
            self.scored |= {item.number: item for item in worker.world.gather(scored)}
            self.next_number = first + self.step_size
        self.wait_seconds = worker.scoring_seconds
        return self._choose()

    def commit(self, step: int) -> dict[str, float]:
        """Remove the groups of a step that was learned and return the metrics of its staleness."""
        ages = [step - scored.oldest for scored in self._taken]
        for scored in self._taken:
            del self.scored[scored.number]
        self._learned += len(self._taken)
        self._taken = []
        dropped, self._dropped = self._dropped, 0
        return {
            "staleness_mean": sum(ages) / len(ages),
            "staleness_max": float(max(ages)),
            "dropped_groups": float(dropped),
            "queued_groups": float(len(self.scored)),
            "wait_seconds": self.wait_seconds,
        }

    def state(self) -> dict[str, Any]:
        """Return the queue as JSON."""
        return {
            "learned": self._learned,
            "next": self.next_number,
            "unfinished": sorted(self.unfinished),
            "groups": [encode_group(scored) for scored in self.scored.values()],
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the result of `state`; groups that were under way start anew."""
        environment = self.worker.engine.environment
        is_memory = isinstance(environment, MemoryWriting)
        empty = MemoryState.empty(environment.schema, unique_contents=True) if is_memory else None
        groups = [decode_group(text, self.task, empty) for text in state["groups"]]
        self.scored = {scored.number: scored for scored in groups}
        self._learned, self.next_number = state["learned"], state["next"]
        self.unfinished = list(state["unfinished"])

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Hold back new turns inside the block, which starts when none is under way."""
        yield

    def close(self) -> None:
        """Stop sampling and drop what is under way."""

    def task(self, number: int) -> Any:
        """Return a training task with the questions of its step."""
        step, index = divmod(number, self.step_size)
        return self.worker.ask(self.tasks.batch(step * self.step_size)[index], step, index)

    def _choose(self) -> list[ScoredGroup[Any]]:
        """Return the groups of a step: those of the oldest weights."""
        self._taken = sorted(self.scored.values(), key=lambda scored: (scored.oldest, scored.number))[: self.step_size]
        return self._taken


class ServerSource(GroupSource):
    """Sample and score on a server, in a thread of its own, while the learner learns.

    The thread works until no turn is under way; whoever pauses it waits for that. What it has scored it puts into one
    queue. All else is done in the caller's thread, and episodes are only touched there while the other one rests.

    Args:
        tasks: Training tasks.
        worker: Samples and scores rollouts.
        policy: Policy on the server.
    """

    def __init__(self, tasks: TrainingTasks[Any], worker: RolloutWorker[Any], policy: VllmPolicy) -> None:
        super().__init__(tasks, worker)
        self.policy = policy
        self._requests = RequestQueue(policy)
        self._pool = EpisodePool(self._requests, worker.config.sampling.temperature, worker.config.seed)
        self._running: dict[int, list[RunningEpisode]] = {}  # episodes of the groups that are not in `scored` yet
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="memalpha samples ahead")
        self._sampling: Future[None] | None = None  # work of the thread; None before the first step
        self._results: SimpleQueue[ScoredGroup[Any] | None] = SimpleQueue()  # None: the thread has come to rest

    def take(self, step: int) -> list[ScoredGroup[Any]]:
        """Hand over the weights of the step, drop stale groups and wait until there are enough for the step.

        Raises:
            PolicyError: The server gives no answers, or refuses the weights.
            RewardError: An environment or a reward function fails.
        """
        with self.paused():
            self.policy.refresh()
            self._receive_scored()
            self._drop_stale(step - self.staleness)
        start = time.monotonic()
        self._start_sampling()
        while len(self.scored) < self.step_size:
            self._receive(self._results.get())
        self.wait_seconds = time.monotonic() - start
        return self._choose()

    def commit(self, step: int) -> dict[str, float]:
        """Remove the groups of a step that was learned and return the metrics of its staleness."""
        self._receive_scored()
        return {**super().commit(step), "running_groups": float(len(self._running))}

    def state(self) -> dict[str, Any]:
        """Return the queue as JSON; groups under way are named by number only."""
        self._receive_scored()
        state = super().state()
        return {**state, "unfinished": sorted([*state["unfinished"], *self._running])}

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Hold back new turns inside the block, which starts when the thread rests; after an error for ever."""
        was_paused, self._pool.is_paused = self._pool.is_paused, True
        if self._sampling is not None:
            self._sampling.result()
        yield
        self._pool.is_paused = was_paused
        if self._sampling is not None:
            self._start_sampling()

    def close(self) -> None:
        """Stop sampling and scoring, and drop what is under way."""
        self._pool.is_paused = True
        while self._sampling is not None and not self._sampling.done():
            self._requests.cancel()  # again: the thread may have been about to send some
            self.worker.scorer.cancel()
            wait([self._sampling], timeout=0.05)
        self._thread.shutdown()

    def _start_sampling(self) -> None:
        """Let the thread work on what may be sampled now, unless it does already or is paused."""
        if self._pool.is_paused or (self._sampling is not None and not self._sampling.done()):
            return
        self._admit()
        if self._pool.waiting:
            self._sampling = self._thread.submit(self._sample)
            self._sampling.add_done_callback(lambda sampling: self._results.put(None))

    def _admit(self) -> None:
        """Start groups within the capacity.

        All groups that were started and not dropped are at most those of the steps up to `staleness` after the
        sampler's weights. So a group that is not overtaken is learned from in time.
        """
        assert self.policy.version is not None
        limit = min((self.policy.version + self.staleness + 1) * self.step_size, self.limit)
        while self._learned + len(self.scored) + len(self._running) < limit:
            if self.unfinished:
                number = self.unfinished.pop(0)
            else:
                number, self.next_number = self.next_number, self.next_number + 1
            task, (step, index) = self.task(number), divmod(number, self.step_size)
            self._running[number] = [
                RunningEpisode(self.worker.engine, Start(task, index, rollout), step)
                for rollout in range(self.worker.config.sampling.group_size)
            ]
            self._pool.waiting += self._running[number]

    def _sample(self) -> None:
        """Drive the episodes until no turn is under way, and score the groups whose episodes have all ended."""
        scorer = self.worker.scorer
        self._pool.submit()
        while self._pool.in_flight:
            ended = {episode.step * self.step_size + episode.start.number for episode in self._pool.collect()}
            numbers = sorted(number for number in ended if all(episode.done for episode in self._running[number]))
            if not numbers:
                continue
            sampled = [
                TrajectoryGroup(episodes[0].start.task, tuple(episode.trajectory("attempt") for episode in episodes))
                for episodes in (self._running[number] for number in numbers)
            ]
            groups, records = scorer.score(sampled)
            for number, group, answers in zip(numbers, groups, scorer.group_records(groups, records), strict=True):
                oldest = _oldest_step(self._running[number])
                assert oldest is not None
                self._results.put(ScoredGroup(number, group, answers, oldest))

    def _receive(self, scored: ScoredGroup[Any] | None) -> None:
        """Put a group of the thread among those that can be learned from; raise the thread's error if it had one."""
        if scored is not None:
            del self._running[scored.number]
            self.scored[scored.number] = scored
        elif self._sampling is not None and self._sampling.done():
            self._sampling.result()

    def _receive_scored(self) -> None:
        """Put all groups that are scored by now among those that can be learned from; errors wait for `take`."""
        while not self._results.empty():
            if (scored := self._results.get()) is not None:
                self._receive(scored)

    def _drop_stale(self, first: int) -> None:
        """Drop groups with a token of weights before step `first`; the thread must be at rest."""
        stale = [number for number, scored in self.scored.items() if scored.oldest < first]
        for number in stale:
            del self.scored[number]
        for number, episodes in list(self._running.items()):
            oldest = _oldest_step(episodes)
            if oldest is not None and oldest < first:
                self._pool.drop(episodes)
                del self._running[number]
                stale.append(number)
        self._dropped += len(stale)


def make_source(tasks: TrainingTasks[Any], worker: RolloutWorker[Any]) -> GroupSource | None:
    """Return what samples ahead of learning; None with `sampling.staleness=0`.

    Args:
        tasks: Training tasks.
        worker: Samples and scores rollouts, in this process or on a server.

    Raises:
        ConfigError: The environment cannot run at its own pace, or several processes share what cannot be shared.
    """
    if not worker.config.sampling.staleness:
        return None
    policy = worker.engine.policy
    if not isinstance(policy, VllmPolicy):
        return GroupSource(tasks, worker)
    if worker.world.size > 1:
        raise ConfigError(
            f"sampling.staleness: {worker.world.size} processes cannot learn beside a server yet: set staleness=0, or "
            "start one process"
        )
    if is_lock_step(make_environment(worker.engine.environment)):
        raise ConfigError(
            "sampling.staleness: the environment steps all its episodes together: set lock_step=False in its class, or "
            "staleness=0"
        )
    return ServerSource(tasks, worker, policy)


def _oldest_step(episodes: Sequence[RunningEpisode]) -> int | None:
    """Return the smallest step whose weights sampled a turn; None before the first turn has ended."""
    steps = [turn.completion.weights_step for episode in episodes for turn in episode.turns]
    return min((step for step in steps if step is not None), default=None)


_TURNS, _REWARD = TypeAdapter(tuple[Turn, ...]), TypeAdapter(Reward | None)


def encode_group(scored: ScoredGroup[Any]) -> str:
    """Return a group of attempts as text, compressed JSON: what was sampled and its rewards.

    Left out are its task, which is drawn again by its number, and the memories, which follow from the operations.
    """
    trajectories = scored.group.trajectories
    before = trajectories[0].before if trajectories else ()
    trunk = [
        next(i for i, item in enumerate(trajectories) if item.states[chunk] is state)
        for chunk, state in enumerate(before[1:])
    ]
    value = {
        "number": scored.number,
        "oldest": scored.oldest,
        "task": scored.group.task.id,
        "trajectories": [{"rollout": t.rollout, "reward": t.reward, "turns": t.turns} for t in trajectories],
        "records": [[record.as_json() for record in answers] for answers in scored.records],
        "trunk": trunk if before else None,
    }
    return base64.b64encode(zlib.compress(json.dumps(value, default=_as_json).encode())).decode()


def decode_group(text: str, task_of: Callable[[int], AnyTask], empty: MemoryState | None) -> ScoredGroup[AnyTask]:
    """Return the group that `encode_group` wrote.

    Args:
        text: Result of `encode_group`.
        task_of: Returns the task of a number.
        empty: Memory before the first chunk; None for tasks without a memory, whose trajectories get no states.

    Raises:
        CheckpointError: The text is no group, or one of another task.
    """
    try:
        value = json.loads(zlib.decompress(base64.b64decode(text)))
    except (ValueError, zlib.error) as error:
        raise CheckpointError(f"the checkpoint's queue cannot be read ({error}): delete the checkpoint") from error
    task = task_of(int(value["number"]))
    if value["task"] != task.id:
        raise CheckpointError(
            f"the checkpoint's queue holds rollouts of task {value['task']!r}, where the data now has {task.id!r}: put "
            "the data back, or start again in another out"
        )
    trunk = value["trunk"]
    trajectories = []
    for item in value["trajectories"]:
        turns = _TURNS.validate_python(item["turns"])
        states = () if empty is None or trunk is not None else tuple(accumulate(turns, _apply, initial=empty))[1:]
        trajectories.append(Trajectory(task, item["rollout"], turns, states, _REWARD.validate_python(item["reward"])))
    if empty is not None and trunk is not None:  # a chunk group: the rollout that went on after each chunk but the last
        before, states = [empty], []
        for chunk in range(len(trunk) + 1):
            states.append([_apply(before[chunk], trajectory.turns[chunk]) for trajectory in trajectories])
            before += [states[chunk][trunk[chunk]]] if chunk < len(trunk) else []
        pairs = zip(trajectories, zip(*states, strict=True), strict=True)
        trajectories = [replace(trajectory, states=after, before=tuple(before)) for trajectory, after in pairs]
    records = [[Record.from_json(record) for record in answers] for answers in value["records"]]
    return ScoredGroup(value["number"], TrajectoryGroup(task, tuple(trajectories)), records, value["oldest"])


def _as_json(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return {part.name: getattr(value, part.name) for part in fields(value)}
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, frozenset):
        return sorted(value)
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{type(value).__name__} in a rollout: it cannot stand in a checkpoint")


def _apply(state: MemoryState, turn: Turn) -> MemoryState:
    for operation in turn.operations:
        state = state.apply(operation)
    return state
