"""Sources whose groups end at their own pace: on a server while the learner learns, or in this process between steps.

Without `in_flight_updates` a server gets new weights between requests: no turn starts until all turns under way have
ended, so each completion has one weight version, and the turns of an episode may have several. With it, completions go
on under the new weights with keys and values computed anew, and record the version of each span. In this process
(`InFlightSource`) a step then samples until it has its groups; what is under way goes on after the update.

A group whose oldest token is more than k steps behind is dropped; it is counted and not sampled again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from memalpha.config import ReinforcementConfig
from memalpha.environments.episode import RunningEpisode, Start
from memalpha.environments.pool import EpisodePool, is_lock_step
from memalpha.errors import ConfigError
from memalpha.policy.base import Policy
from memalpha.policy.decoding import DecodingQueue
from memalpha.policy.queue import SamplingQueue, open_queue
from memalpha.policy.vllm.in_flight import InFlightRequests
from memalpha.policy.vllm.policy import VllmPolicy, VllmQueue
from memalpha.qa.evaluate import ScoredGroups
from memalpha.train.rollouts.ahead import GroupSource, LocalSource
from memalpha.train.rollouts.curriculum import TrainingTasks
from memalpha.train.rollouts.group_codec import ScoredGroup
from memalpha.train.rollouts.worker import RolloutWorker
from memalpha.types import TrajectoryGroup


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


class EpisodeSource(GroupSource):
    """Groups under way as episodes over one queue.

    Args:
        config: Settings of the run.
        tasks: Training tasks.
        worker: Samples and scores rollouts.
        queue: Queue of the policy that samples.
    """

    def __init__(
        self, config: ReinforcementConfig, tasks: TrainingTasks[Any], worker: RolloutWorker[Any], queue: SamplingQueue
    ) -> None:
        super().__init__(config, tasks, worker)
        self._pool = EpisodePool(queue, config.sampling.temperature, config.seed)
        self._running: dict[int, _RunningGroup] = {}

    def _admit(self, version: int) -> list[_RunningGroup]:
        """Return new groups within the capacity.

        All groups that were started and not dropped are at most those of the steps up to `staleness` after the
        sampler's weights. So a group that is not overtaken is learned from in time.

        Args:
            version: Step of the sampler's weights.
        """
        limit = min((version + self.staleness + 1) * self.step_size, self.limit)
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

    def _ended_rollouts(self, number: int) -> TrajectoryGroup[Any] | None:
        """Return the rollouts of a group if none of its episodes is under way any more."""
        episodes = self._running[number].episodes
        if not all(episode.done for episode in episodes):
            return None
        return TrajectoryGroup(episodes[0].start.task, tuple(episode.trajectory("attempt") for episode in episodes))

    def _enqueue(self, number: int, scored: ScoredGroups[Any], version: int) -> None:
        """Put a scored group into the queue, unless it has become stale in the meantime.

        Args:
            number: Number of the group.
            scored: Its rollouts with rewards, and their records.
            version: Step of the sampler's weights.
        """
        groups, records = scored
        [answers] = self.worker.scorer.group_records(groups, records)
        oldest = self._running.pop(number).oldest
        assert oldest is not None
        if oldest < version - self.staleness:
            self._dropped += 1
        else:
            self.scored[number] = ScoredGroup(number, groups[0], answers, oldest)

    def _drop_scored(self, step: int) -> None:
        """Drop scored groups with a token of weights more than `staleness` steps before `step`."""
        stale = [number for number, scored in self.scored.items() if scored.oldest < step - self.staleness]
        for number in stale:
            del self.scored[number]
        self._dropped += len(stale)

    def _drop_running(self, step: int) -> None:
        """Drop such groups that are under way, by the turns that have ended."""
        for number, group in list(self._running.items()):
            is_sampling = any(not episode.done for episode in group.episodes)
            if is_sampling and group.oldest is not None and group.oldest < step - self.staleness:
                self._pool.drop(group.episodes)
                del self._running[number]
                self._dropped += 1

    def _under_way(self) -> list[int]:
        return list(self._running)


class InFlightSource(EpisodeSource):
    """Sample in this process until a step has its groups; episodes under way go on with the next step's weights.

    Args:
        config: Settings of the run.
        tasks: Training tasks.
        worker: Samples and scores rollouts.
    """

    def __init__(self, config: ReinforcementConfig, tasks: TrainingTasks[Any], worker: RolloutWorker[Any]) -> None:
        queue = open_queue(worker.policy)
        assert isinstance(queue, DecodingQueue)
        super().__init__(config, tasks, worker, queue)
        self._queue = queue

    def take(self, step: int) -> list[ScoredGroup[Any]]:
        """Sample with the current weights until there are enough groups for the step, and drop stale ones."""
        self.worker.scoring_seconds = 0.0
        self._queue.weights_step = step
        self._drop_scored(step)
        self._drop_running(step)
        while len(self.scored) < self.step_size:
            self._pool.submit([episode for group in self._admit(step) for episode in group.episodes])
            assert self._pool.in_flight, "capacity for the step's groups"
            for number in dict.fromkeys(self._number(episode) for episode in self._pool.collect()):
                if (group := self._ended_rollouts(number)) is not None:
                    self._enqueue(number, self.worker.score([group]), step)
        self._queue.break_off()  # the learner gets the memory of their keys and values
        self.wait_seconds = self.worker.scoring_seconds
        return self._choose()

    def commit(self, step: int) -> dict[str, float]:
        """Remove the groups of a step that was learned and return the metrics of its staleness."""
        return {**super().commit(step), "running_groups": float(len(self._running))}

    def close(self) -> None:
        """Drop what is under way."""
        self._pool.close()


class ServerSource(EpisodeSource):
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
        self.policy = policy
        self._in_flight = InFlightRequests(policy) if config.sampling.in_flight_updates else None
        self._queue = VllmQueue(policy, self._in_flight)
        super().__init__(config, tasks, worker, self._queue)
        self._scoring = worker.scorer.background()
        capacity = (self.staleness + 1) * self.step_size
        self._scorers = ThreadPoolExecutor(
            capacity if self._scoring.is_concurrent else 1, thread_name_prefix="memalpha scores"
        )
        self._changed = threading.Condition()
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
        if self._in_flight is None:
            with self.paused():
                self.policy.refresh()
                with self._changed:
                    self._drop_scored(step)
                    self._drop_running(step)
        else:
            self._update_in_flight(self._in_flight, step)
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="memalpha samples ahead", daemon=True)
            self._thread.start()
        start = time.monotonic()
        with self._changed:
            self._changed.wait_for(lambda: self._failure is not None or len(self.scored) >= self.step_size)
            self._raise_failure()
            self.wait_seconds = time.monotonic() - start
            groups = self._choose()
        if self._in_flight is not None:
            self.policy.confirm()
        return groups

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

    def _update_in_flight(self, in_flight: InFlightRequests, step: int) -> None:
        """Hand over the weights of a step while completions are under way, which go on with them.

        Args:
            in_flight: Requests under way.
            step: Number of the step.
        """
        if self.policy.version != step:  # an evaluation may have handed them over
            with in_flight.interrupted():
                if self._thread is not None:
                    self.policy.confirm()
                self.policy.refresh()
        with self._changed:
            self._drop_scored(step)
            self._changed.notify_all()
        self._queue.wake()  # the thread drops stale episodes and starts new groups

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
                assert self.policy.version is not None
                if self._in_flight is not None:
                    self._drop_running(self.policy.version)
                groups = [] if self._pauses else self._admit(self.policy.version)
                if groups or self._pool.in_flight or (self._pool.waiting and not self._pauses):
                    self._is_idle = False
                    return groups
                self._is_idle = True
                self._changed.notify_all()
                self._changed.wait()
            return None

    def _end_group(self, number: int) -> None:
        """Score a group if none of its episodes is under way any more."""
        if (group := self._ended_rollouts(number)) is not None:
            self._scorers.submit(self._score, number, self._scoring.start([group]))

    def _score(self, number: int, score: Callable[[], ScoredGroups[Any]]) -> None:
        """Score a group and put it into the queue, unless it has become stale in the meantime."""
        try:
            scored = score()
            with self._changed:
                assert self.policy.version is not None
                self._enqueue(number, scored, self.policy.version)
                self._changed.notify_all()
        except BaseException as error:  # noqa: BLE001  # the main thread raises it
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        with self._changed:
            self._failure = self._failure or error
            self._is_idle = True
            self._changed.notify_all()

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure


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
        ConfigError: The environment cannot run at its own pace, or several processes share what cannot be shared.
    """
    if not config.sampling.staleness:
        return None
    has_server, is_in_flight = isinstance(sampler, VllmPolicy), config.sampling.in_flight_updates
    if not has_server and not is_in_flight:
        return LocalSource(config, tasks, worker)
    if worker.world.size > 1:
        setting, way = ("staleness", "staleness=0") if has_server else ("in_flight_updates", "in_flight_updates=false")
        place = "learn beside a server" if has_server else "share episodes"
        raise ConfigError(
            f"sampling.{setting}: {worker.world.size} processes cannot {place} yet: set {way}, or start one process"
        )
    if is_lock_step(worker.engine.make_environment()):
        raise ConfigError(
            "sampling.staleness: the environment steps all its episodes together: set lock_step=False in its class, or "
            "staleness=0"
        )
    if isinstance(sampler, VllmPolicy):
        return ServerSource(config, tasks, worker, sampler)
    return InFlightSource(config, tasks, worker)
