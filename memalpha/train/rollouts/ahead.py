"""Sampling ahead of learning: groups wait in a queue, and a step learns from weights of at most `staleness` steps ago.

A step learns from the groups whose oldest token comes from the oldest weights. Groups stay whole. With staleness k at
most (k + 1) x `tasks_per_step` groups are sampled, scored, queued or learned from at any time. The queue is part of
every checkpoint.

On a server (`ServerSource`) sampling goes on while the learner learns. New weights are handed over between requests: no
turn starts until all turns under way have ended, so each completion has one weight version, and the turns of an episode
may have several. A group whose oldest token is more than k steps behind is dropped; it is counted and not sampled
again. In this process (`LocalSource`) sampler and learner share the weights and take turns: a step's groups are sampled
k steps before they are learned from. That gains no time; it shows what staleness does to learning, and runs are
reproducible bit for bit.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from memalpha.config import ReinforcementConfig
from memalpha.environments.episode import RunningEpisode, Start
from memalpha.environments.memory_writing import MemoryWriting
from memalpha.environments.pool import EpisodePool, is_lock_step
from memalpha.errors import ConfigError
from memalpha.policy.base import Policy
from memalpha.policy.vllm.policy import VllmPolicy, VllmQueue
from memalpha.qa.evaluate import ScoredGroups
from memalpha.store.state import MemoryState
from memalpha.train.rollouts.curriculum import TrainingTasks
from memalpha.train.rollouts.group_codec import ScoredGroup, decode_group, encode_group, group_number
from memalpha.train.rollouts.questions import draw_questions
from memalpha.train.rollouts.worker import RolloutWorker
from memalpha.types import AnyTask, TrajectoryGroup


class GroupSource:
    """Queue of scored groups, and what samples them.

    Args:
        config: Settings of the run.
        tasks: Training tasks.
        worker: Samples and scores rollouts.

    Attributes:
        scored: Groups that can be learned from, by number.
        next_number: Number of the next task that was never started.
        unfinished: Numbers of tasks whose groups were under way at the last checkpoint; they start first.
    """

    def __init__(self, config: ReinforcementConfig, tasks: TrainingTasks[Any], worker: RolloutWorker[Any]) -> None:
        self.config, self.tasks, self.worker = config, tasks, worker
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
        """Return the groups of a step, oldest first; they stay in the queue until `commit`."""
        raise NotImplementedError

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
            "unfinished": sorted([*self.unfinished, *self._under_way()]),
            "groups": [encode_group(scored) for scored in self.scored.values()],
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the result of `state`; groups that were under way start anew."""
        environment = self.worker.engine.environment
        empty = MemoryState.empty(environment.schema) if isinstance(environment, MemoryWriting) else None
        groups = [decode_group(text, self.task(group_number(text)), empty) for text in state["groups"]]
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
        task = self.tasks.batch(step * self.step_size)[index]
        return draw_questions(task, self.worker.questions_per_task, self.config.seed, step)

    def _choose(self) -> list[ScoredGroup[Any]]:
        """Return the groups of a step: those of the oldest weights."""
        self._taken = sorted(self.scored.values(), key=lambda scored: (scored.oldest, scored.number))[: self.step_size]
        return self._taken

    def _under_way(self) -> list[int]:
        return []


class LocalSource(GroupSource):
    """Sample in this process, a whole step at a time, `staleness` steps before it is learned from."""

    def take(self, step: int) -> list[ScoredGroup[Any]]:
        """Sample what the queue lacks with the current weights and return the groups of the step."""
        self.worker.scoring_seconds = 0.0
        while self.next_number < min((step + self.staleness + 1) * self.step_size, self.limit):
            self._sample_step(self.next_number // self.step_size, step)
        self.wait_seconds = self.worker.scoring_seconds
        return self._choose()

    def _sample_step(self, index: int, version: int) -> None:
        """Sample the groups of step `index` with the weights of step `version`."""
        worker, first = self.worker, index * self.step_size
        shard_start, _ = worker.world.shard(range(self.step_size))
        groups, records = worker.score(worker.sample(self.tasks.batch(first), index))
        scored = [
            ScoredGroup(number, _with_version(group, version), answers, version)
            for number, (group, answers) in enumerate(
                zip(groups, worker.scorer.group_records(groups, records), strict=True), first + shard_start
            )
        ]
        self.scored |= {item.number: item for item in worker.world.gather(scored)}
        self.next_number = first + self.step_size


@dataclass(slots=True, eq=False)
class _RunningGroup:
    """Episodes of a group that is being sampled or scored."""

    number: int
    episodes: list[RunningEpisode]

    @property
    def oldest(self) -> int | None:
        """Smallest step whose weights sampled a turn; None before the first turn has ended."""
        steps = [turn.completion.weights_step for episode in self.episodes for turn in episode.turns]
        return min((step for step in steps if step is not None), default=None)


class ServerSource(GroupSource):
    """Sample on a server, in a thread of its own, while the learner learns.

    Args:
        config: Settings of the run.
        tasks: Training tasks.
        worker: Samples and scores rollouts.
        policy: Policy on the server.
    """

    def __init__(
        self,
        config: ReinforcementConfig,
        tasks: TrainingTasks[Any],
        worker: RolloutWorker[Any],
        policy: VllmPolicy,
    ) -> None:
        super().__init__(config, tasks, worker)
        self.policy = policy
        self._scoring = worker.scorer.background()
        capacity = (self.staleness + 1) * self.step_size
        self._scorers = ThreadPoolExecutor(
            capacity if self._scoring.is_concurrent else 1, thread_name_prefix="memalpha scores"
        )
        self._queue = VllmQueue(policy)
        self._pool = EpisodePool(self._queue, config.sampling.temperature, config.seed)
        self._changed = threading.Condition()
        self._running: dict[int, _RunningGroup] = {}
        self._pauses = 0
        self._is_idle = True
        self._is_closed = False
        self._failure: BaseException | None = None
        self._thread: threading.Thread | None = None

    def take(self, step: int) -> list[ScoredGroup[Any]]:
        """Hand over the weights of the step, drop stale groups and wait until there are enough for the step.

        Raises:
            PolicyError: The server gives no answers, or refuses the weights.
            RewardError: An environment or a reward function fails.
        """
        with self.paused():
            self.policy.refresh()
            self._drop_stale(step)
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="memalpha samples ahead", daemon=True)
            self._thread.start()
        start = time.monotonic()
        with self._changed:
            self._changed.wait_for(lambda: self._failure is not None or len(self.scored) >= self.step_size)
            self._raise_failure()
            self.wait_seconds = time.monotonic() - start
            return self._choose()

    def commit(self, step: int) -> dict[str, float]:
        """Remove the groups of a step that was learned and return the metrics of its staleness."""
        with self._changed:
            metrics = super().commit(step)
            metrics["running_groups"] = float(len(self._running))
            self._changed.notify_all()
        return metrics

    def state(self) -> dict[str, Any]:
        """Return the queue as JSON; groups under way are named by number only."""
        with self._changed:
            return super().state()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Hold back new turns inside the block, which starts when none is under way."""
        with self._changed:
            self._pauses += 1
            self._pool.is_paused = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._thread is None or self._is_idle or self._failure is not None)
            if self._failure is not None and not self._is_closed:
                self._pauses -= 1
                self._raise_failure()
        try:
            yield
        finally:
            with self._changed:
                self._pauses -= 1
                self._pool.is_paused = bool(self._pauses) or self._is_closed
                self._changed.notify_all()

    def close(self) -> None:
        """Stop sampling and scoring, and drop what is under way."""
        with self._changed:
            self._is_closed = self._pool.is_paused = True
            self._changed.notify_all()
        while self._thread is not None and self._thread.is_alive():
            self._queue.cancel()  # again: the thread may have been about to send some
            self._thread.join(0.05)
        self._scoring.cancel()
        self._scorers.shutdown(cancel_futures=True)

    # -------------------------------------------------------------------------------------------- the sampling thread

    def _work(self) -> None:
        """Start groups as the capacity allows and drive their episodes until `close`."""
        try:
            while (groups := self._next_groups()) is not None:
                self._pool.submit([episode for group in groups for episode in group.episodes])
                ended = self._pool.collect()
                for number in dict.fromkeys(self._number(episode) for episode in ended):
                    self._end_group(number)
        except BaseException as error:  # noqa: BLE001  # the main thread raises it
            self._fail(error)

    def _next_groups(self) -> list[_RunningGroup] | None:
        """Wait until there is something to do; return new groups, or None after `close`."""
        with self._changed:
            while not self._is_closed:
                groups = [] if self._pauses else self._admit()
                if groups or self._pool.in_flight or (self._pool.waiting and not self._pauses):
                    self._is_idle = False
                    return groups
                self._is_idle = True
                self._changed.notify_all()
                self._changed.wait()
            return None

    def _admit(self) -> list[_RunningGroup]:
        """Return new groups within the capacity.

        All groups that were started and not dropped are at most those of the steps up to `staleness` after the server's
        weights. So a group that is not overtaken is learned from in time.
        """
        assert self.policy.version is not None
        limit = min((self.policy.version + self.staleness + 1) * self.step_size, self.limit)
        groups = []
        while self._learned + len(self.scored) + len(self._running) < limit:
            if self.unfinished:
                number = self.unfinished.pop(0)
            else:
                number, self.next_number = self.next_number, self.next_number + 1
            task, (step, index) = self.task(number), divmod(number, self.step_size)
            episodes = [
                RunningEpisode(self.worker.engine, Start(task, index, rollout), step)
                for rollout in range(self.config.sampling.group_size)
            ]
            self._running[number] = group = _RunningGroup(number, episodes)
            groups.append(group)
        return groups

    def _number(self, episode: RunningEpisode) -> int:
        return episode.step * self.step_size + episode.start.number

    def _end_group(self, number: int) -> None:
        """Score a group if none of its episodes is under way any more."""
        group = self._running[number]
        if all(episode.done for episode in group.episodes):
            trajectories = tuple(episode.trajectory("attempt") for episode in group.episodes)
            score = self._scoring.start([TrajectoryGroup(group.episodes[0].start.task, trajectories)])
            self._scorers.submit(self._score, group, score)

    def _score(self, group: _RunningGroup, score: Callable[[], ScoredGroups[Any]]) -> None:
        """Score a group and put it into the queue, unless it has become stale in the meantime."""
        try:
            groups, records = score()
            [answers] = self.worker.scorer.group_records(groups, records)
            oldest = group.oldest
            assert oldest is not None and self.policy.version is not None
            with self._changed:
                del self._running[group.number]
                if oldest < self.policy.version - self.staleness:
                    self._dropped += 1
                else:
                    self.scored[group.number] = ScoredGroup(group.number, groups[0], answers, oldest)
                self._changed.notify_all()
        except BaseException as error:  # noqa: BLE001  # the main thread raises it
            self._fail(error)

    def _drop_stale(self, step: int) -> None:
        """Drop groups with a token of weights more than `staleness` steps before `step`; nothing is under way."""
        with self._changed:
            stale = [number for number, scored in self.scored.items() if scored.oldest < step - self.staleness]
            for number in stale:
                del self.scored[number]
            for number, group in list(self._running.items()):
                is_sampling = any(not episode.done for episode in group.episodes)
                if is_sampling and group.oldest is not None and group.oldest < step - self.staleness:
                    self._pool.drop(group.episodes)
                    del self._running[number]
                    stale.append(number)
            self._dropped += len(stale)

    def _fail(self, error: BaseException) -> None:
        with self._changed:
            self._failure = self._failure or error
            self._is_idle = True
            self._changed.notify_all()

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _under_way(self) -> list[int]:
        return list(self._running)


def make_source(
    config: ReinforcementConfig, tasks: TrainingTasks[Any], worker: RolloutWorker[Any], sampler: Policy
) -> GroupSource | None:
    """Return what samples ahead of learning; None with `sampling.staleness=0`.

    Args:
        config: Settings of the run.
        tasks: Training tasks.
        worker: Samples and scores rollouts.
        sampler: Policy that samples: in this process, or on a server.

    Raises:
        ConfigError: The environment cannot run at its own pace, or several processes learn beside a server.
    """
    if not config.sampling.staleness:
        return None
    if not isinstance(sampler, VllmPolicy):
        return LocalSource(config, tasks, worker)
    if worker.world.size > 1:
        raise ConfigError(
            f"sampling.staleness: {worker.world.size} processes cannot learn beside a server yet: set staleness=0, or "
            "start one process"
        )
    if is_lock_step(worker.engine.make_environment()):
        raise ConfigError(
            "sampling.staleness: the environment steps all its episodes together: set lock_step=False in its class, or "
            "staleness=0"
        )
    return ServerSource(config, tasks, worker, sampler)


def _with_version(group: TrajectoryGroup[AnyTask], version: int) -> TrajectoryGroup[AnyTask]:
    """Return the group with the step of its weights in every completion."""
    trajectories = tuple(
        replace(
            trajectory,
            turns=tuple(
                replace(turn, completion=replace(turn.completion, weights_step=version)) for turn in trajectory.turns
            ),
        )
        for trajectory in group.trajectories
    )
    return replace(group, trajectories=trajectories)
