"""Sampling ahead of learning: groups wait in a queue, and a step learns from weights of at most `staleness` steps ago.

A step learns from the groups whose oldest token comes from the oldest weights. Groups stay whole. With staleness k at
most (k + 1) x `tasks_per_step` groups are sampled, scored, queued or learned from at any time. The queue is part of
every checkpoint.

On a server sampling goes on while the learner learns, and groups end at their own pace (`episode_sources`). In this
process (`LocalSource`) sampler and learner share the weights and take turns: a step's groups are sampled k steps before
they are learned from. That gains no time; it shows what staleness does to learning, and runs are reproducible bit for
bit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from memalpha.config import ReinforcementConfig
from memalpha.train.rollouts.curriculum import TrainingTasks
from memalpha.train.rollouts.group_codec import (
    ScoredGroup,
    decode_group,
    empty_memory,
    encode_group,
    gather_groups,
    group_number,
)
from memalpha.train.rollouts.questions import draw_questions
from memalpha.train.rollouts.worker import RolloutWorker
from memalpha.types import AnyTask, Completion, TrajectoryGroup


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
        shares = self._token_ages(step) if self.config.sampling.in_flight_updates else {}
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
            **shares,
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
        empty = empty_memory(self.worker.engine.environment)
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

    def _token_ages(self, step: int) -> dict[str, float]:
        """Return the share of the step's tokens by the age of their weights, in steps."""
        counts: Counter[int] = Counter()
        for scored in self._taken:
            for trajectory in scored.group.trajectories:
                for turn in trajectory.turns:
                    counts.update({step - weights: tokens for weights, tokens in token_spans(turn.completion)})
        total = sum(counts.values())
        return {f"tokens_of_age_{age}": counts[age] / total for age in range(self.staleness + 1)}

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
        empty = empty_memory(worker.engine.environment)
        self.scored |= {item.number: item for item in gather_groups(worker.world, scored, self.task, empty)}
        self.next_number = first + self.step_size


def token_spans(completion: Completion) -> Sequence[tuple[int, int]]:
    """Return (step of the weights, number of tokens) of each span of a completion whose weights are recorded."""
    assert completion.weights_step is not None
    return completion.weights_spans or ((completion.weights_step, len(completion.completion_ids)),)


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
