"""`ReinforcementRun`: what every run of an algorithm does, whatever its tasks are: collect, annotate, update, tell.

A step samples with the weights it starts from. What the tasks are, how rollouts are scored and evaluated says a
subclass: `train.memory_run`, `train.text_run`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from random import Random
from typing import Any, TypeVar

from memalpha.config import ReinforcementConfig
from memalpha.qa.records import Record
from memalpha.train.algorithms import ALGORITHMS
from memalpha.train.algorithms.base import Algorithm
from memalpha.train.data.samples import TrainingSample, policy_gradient_sample
from memalpha.train.learner.engine import scheduled_learning_rate
from memalpha.train.learner.losses import LossSettings
from memalpha.train.rollouts.base import RolloutCollector
from memalpha.train.trainers.base import Trainer
from memalpha.train.trainers.checkpoint import append_lines
from memalpha.train.trainers.overlap import OverlapPipeline, Part
from memalpha.types import Trajectory, TrajectoryGroup, Turn

R = TypeVar("R", bound=ReinforcementConfig)
Collected = tuple[list[TrajectoryGroup[Any]], list[Record], list[TrainingSample]]


class RLTrainer(Trainer[R]):
    """Each step samples rollouts of some tasks and makes those more likely that earned more than their siblings.

    A subclass sets `collector`, makes `algorithm` (`_new_algorithm`) and then calls `_ready`.
    """

    log_files = ("metrics.jsonl", "turns.jsonl", "trajectories.jsonl")
    collector: RolloutCollector[Any]
    algorithm: Algorithm
    overlap: OverlapPipeline | None = None

    def _build_algorithm(self) -> Algorithm:
        return ALGORITHMS[self.config.algorithm](self.config)

    def _build_engine_and_overlap(self) -> None:
        """Engine and overlap, once everything that can be refused has been looked at."""
        config, algorithm = self.config, self.algorithm
        self.engine = self._build_engine(
            LossSettings.from_config(config),
            reference=algorithm.needs_reference,
            value_learning_rate=algorithm.value_learning_rate,
        )
        if config.sample_dtype is not None:  # now that the model is what the learner has made of it
            self.policy.sample_in(config.sample_dtype)
        self.overlap = OverlapPipeline(self.collector, algorithm, self.engine, config) if config.overlap > 1 else None
        if self.overlap is not None and not self.overlap.has_endpoint:
            self.display.log(
                f"overlap={config.overlap}: {self.no_endpoint_reason}, nothing is waited for: a step's parts are "
                "scored and learnt from one after the other"
            )

    no_endpoint_reason: str
    """That rewards are made in this process, in words."""

    def train(self) -> dict[str, Any]:
        """As every run; what other threads do ends with it."""
        with self.overlap or nullcontext():
            return super().train()

    def _schedule_steps(self) -> int:
        return self.config.schedule_steps

    # ------------------------------------------------------------------------------------------- what the tasks are

    @abstractmethod
    def _step_tasks(self) -> list[Any]:
        """The tasks of this step."""

    @abstractmethod
    def _attempt_metrics(self, records: Sequence[Record], trajectories: Sequence[Trajectory[Any]]) -> dict[str, Any]:
        """Figures of a step's attempts."""

    @abstractmethod
    def _trajectory_fields(self, trajectory: Trajectory[Any]) -> dict[str, Any]:
        """What a rollout came to, for `trajectories.jsonl`."""

    def _component_metric(self, name: str) -> str:
        """What a reward component is called in metrics.jsonl."""
        return name

    # ------------------------------------------------------------------------------------------------------ one step

    def _prepare_batch(self) -> Collected | list[Part]:
        tasks = self._step_tasks()
        if self.overlap is not None:
            return self.overlap.start_step(tasks, self.step)
        self.collector.scoring_seconds = 0.0
        groups, records = self.algorithm.collect(self.collector, tasks, self.step)
        return groups, records, self.algorithm.annotate(groups, self.engine)

    def _train_on(self, prepared: Collected | list[Part]) -> dict[str, Any]:
        if isinstance(prepared, list):
            assert self.overlap is not None
            learnt = self.overlap.learn(prepared, scheduled_learning_rate(self.step, self.config))
            groups, records, samples = learnt.groups, learnt.records, learnt.samples
            line = {**self._rollout_metrics(groups, records), **_update_metrics(learnt.stats, learnt.mismatch, samples)}
            line["wait_seconds"] = self.overlap.wait_seconds
        else:
            groups, records, samples = prepared
            line = {
                **self._rollout_metrics(groups, records),
                **self._update(samples),
                "wait_seconds": self.collector.scoring_seconds,
            }
        self.algorithm.finish_step(line)
        if self.world.is_main:
            self._write_trajectories(groups, samples)
        return line

    def _checkpoint_state(self) -> dict[str, Any]:
        return {"position": self.step * self.config.tasks_per_step, "algorithm": self.algorithm.state}

    def _restore_state(self, state: dict[str, Any]) -> None:
        self.algorithm.state = state["algorithm"]

    def _should_keep_all_checkpoints(self) -> bool:
        return self.config.keep_tokens

    def _update(self, samples: Sequence[TrainingSample]) -> dict[str, Any]:
        """All optimizer steps on one step's samples, and their figures."""
        config = self.config
        mismatch: dict[str, float] = {}
        if config.old_logprobs == "recomputed":
            samples, mismatch = self.engine.recompute_old_logprobs(samples, config.importance_cap)
        rate = scheduled_learning_rate(self.step, config)
        stats: list[dict[str, float]] = []
        others: dict[str, float] = {}
        for number, (name, rows) in enumerate(self.algorithm.updates(samples).items()):
            found: list[dict[str, float]] = []
            units = _rows_by_unit(rows)
            for iteration in range(config.num_iterations):
                order = list(range(len(units)))
                Random(f"{config.seed}|{self.step}|{iteration}" + f"|{number}" * (number > 0)).shuffle(order)
                for part in range(config.minibatches):
                    chosen = [rows[i] for unit in order[part :: config.minibatches] for i in units[unit]]
                    if chosen:
                        found.append(self.engine.update(self.algorithm.refresh(chosen, self.engine), rate))
            if name:
                others[f"{name}_loss"] = sum(figures["loss"] for figures in found) / len(found)
            else:
                stats = found
        return _update_metrics(stats, mismatch, samples) | others

    def _rollout_metrics(self, groups: Sequence[TrajectoryGroup[Any]], records: Sequence[Record]) -> dict[str, Any]:
        """Figures of the attempts; `sampled_tokens` are those of all roles."""
        sampled = [one for group in groups for one in group.trajectories if one.reward is not None]
        trajectories = [one for one in sampled if one.role == "attempt"]
        line = self._attempt_metrics(records, trajectories)
        attempts = [group for group in groups if group.trajectories[0].role == "attempt"]
        if several := [group for group in attempts if len(group.trajectories) > 1]:
            line["flat"] = sum(map(_has_equal_rewards, several)) / len(several)
        turns = [turn for trajectory in trajectories for turn in trajectory.turns]
        line |= self._turn_metrics(turns, len(trajectories))
        line["sampled_tokens"] = sum(len(turn.completion.completion_ids) for one in sampled for turn in one.turns)
        line["truncated"] = sum(turn.completion.stop_reason == "length" for turn in turns) / len(turns)
        rewards = [trajectory.reward for trajectory in trajectories if trajectory.reward is not None]
        for name in dict.fromkeys(name for reward in rewards for name in reward.components):
            values = [value for reward in rewards for value in reward.components.get(name, ())]
            line[self._component_metric(name)] = sum(values) / len(values)
        return line

    def _turn_metrics(self, turns: Sequence[Turn], rollouts: int) -> dict[str, Any]:
        """Figures of all turns of `rollouts` attempts."""
        return {}

    def _trajectory_line(self, trajectory: Trajectory[Any]) -> Mapping[str, Any]:
        reward = trajectory.reward
        return {
            "step": self.step,
            "task": trajectory.task.id,
            "rollout": trajectory.rollout,
            "role": trajectory.role,
            "reward": reward.total if reward else None,
            "components": {name: list(values) for name, values in reward.components.items()} if reward else {},
            "turns": [
                {"chunk": turn.chunk, "text": turn.completion.text, "results": [result.code for result in turn.results]}
                for turn in trajectory.turns
            ],
            **self._trajectory_fields(trajectory),
        }

    def _write_trajectories(self, groups: Sequence[TrajectoryGroup[Any]], samples: Sequence[TrainingSample]) -> None:
        """trajectories.jsonl: the first task's rollouts, readable. turns.jsonl: every turn's tokens, if kept, and
        whether all its calls were executed; `advantage` is that of its first token in the policy gradient, if any."""
        first = groups[0].task.id
        told = [self._trajectory_line(one) for group in groups if group.task.id == first for one in group.trajectories]
        append_lines(self.out / "trajectories.jsonl", told)
        if not self.config.keep_tokens:
            return
        advantages: dict[tuple[str, int, str, int], list[float]] = {}  # lists: a task may come twice in a step
        for row in reversed(samples):
            if row.pg.any():
                advantages.setdefault(_turn_key(row), []).append(float(row.advantages[0]))
        kept = (
            (policy_gradient_sample(turn, task=group.task.id, rollout=one.rollout, role=one.role), turn, reward)
            for group in groups
            for one in group.trajectories
            if one.reward
            for turn, reward in zip(one.turns, one.reward.turns, strict=True)
        )
        append_lines(
            self.out / "turns.jsonl",
            (
                {
                    "step": self.step,
                    "task": sample.task,
                    "rollout": sample.rollout,
                    "role": sample.role,
                    "chunk": sample.chunk,
                    "prompt_ids": list(sample.prompt_ids),
                    "completion_ids": list(sample.completion_ids),
                    "logprobs": sample.logprobs.tolist(),
                    "temperature": sample.temperature,
                    "advantage": own.pop() if (own := advantages.get(_turn_key(sample))) else None,
                    "reward": reward,
                    "ok": all(result.ok for result in turn.results),
                }
                for sample, turn, reward in kept
            ),
        )


def _update_metrics(
    stats: Sequence[Mapping[str, float]], mismatch: Mapping[str, float], samples: Sequence[TrainingSample]
) -> dict[str, Any]:
    """Means over a step's updates, maxima of what is one.

    `mismatch_*` compares sampler and learner before the first: over all rows, or those of the first minibatch.
    """
    if not stats:  # nothing to learn from, as when all rollouts of a step are worth the same
        return {"tokens": 0}
    mean = {name: sum(s[name] for s in stats) / len(stats) for name in stats[0]}
    mean.pop("tokens")
    worst = {name: max(s[name] for s in stats) for name in ("old_max", "ratio_deviation")}
    return {
        **mean,
        **worst,
        **(mismatch or {f"mismatch_{name}": stats[0][f"old_{name}"] for name in ("kl", "p99", "max")}),
        "tokens": sum(len(sample.completion_ids) for sample in samples),
    }


def _rows_by_unit(samples: Sequence[TrainingSample]) -> list[list[int]]:
    """Indices of the rows that go into the same optimizer step: those of a unit, or each alone."""
    found: dict[str | int, list[int]] = {}
    for i, sample in enumerate(samples):
        found.setdefault(i if sample.unit is None else sample.unit, []).append(i)
    return list(found.values())


def _turn_key(sample: TrainingSample) -> tuple[str, int, str, int]:
    return sample.task, sample.rollout, sample.role, sample.chunk


def _has_equal_rewards(group: TrajectoryGroup[Any]) -> bool:
    """Whether all rollouts earned the same at every turn: then there is nothing to choose from."""
    return len({trajectory.reward.turns for trajectory in group.trajectories if trajectory.reward}) == 1
