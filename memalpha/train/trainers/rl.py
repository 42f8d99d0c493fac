"""Base of reinforcement learning runs: collect rollouts, annotate them, update, write metrics.

A step samples with the weights that it starts from. Subclasses define the tasks, their rewards and evaluations:
`trainers.memory_rl`, `trainers.text_rl`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from random import Random
from typing import Any, TypeVar

from memalpha.config import ReinforcementConfig
from memalpha.qa.records import Record
from memalpha.train.algorithms import build_algorithm
from memalpha.train.algorithms.base import Algorithm, Annotation, annotate
from memalpha.train.data.samples import TrainingSample, policy_gradient_sample
from memalpha.train.learner.engine import scheduled_learning_rate
from memalpha.train.rollouts.worker import RolloutWorker
from memalpha.train.trainers.base import Trainer
from memalpha.train.trainers.checkpoint import append_lines
from memalpha.train.trainers.overlap import OverlapPipeline, Part
from memalpha.types import Trajectory, TrajectoryGroup, Turn

R = TypeVar("R", bound=ReinforcementConfig)
Collected = tuple[list[TrajectoryGroup[Any]], list[Record], Annotation]


class RLTrainer(Trainer[R]):
    """Sample rollouts of some tasks per step and reinforce those with a higher reward than their group.

    A subclass sets `worker` and `algorithm` (see `_build_algorithm`), then calls `_build_engine_and_overlap`.
    """

    log_files = ("metrics.jsonl", "turns.jsonl", "trajectories.jsonl")
    worker: RolloutWorker[Any]
    algorithm: Algorithm
    overlap: OverlapPipeline | None = None

    def _build_algorithm(self) -> Algorithm:
        return build_algorithm(self.config)

    def _build_engine_and_overlap(self) -> None:
        """Build the engine and the overlap; call it after all checks that may refuse the run."""
        config, algorithm = self.config, self.algorithm
        self.engine = self._build_engine(
            algorithm.loss_settings,
            reference=algorithm.needs_reference,
            value_learning_rate=algorithm.value_learning_rate,
        )
        if config.sampling.dtype is not None:  # after the learner has prepared the model
            self.policy.set_sampling_dtype(config.sampling.dtype)
        self.overlap = (
            OverlapPipeline(self.worker, algorithm, self.engine, config) if config.sampling.overlap > 1 else None
        )
        if self.overlap is not None and not self.overlap.has_endpoint:
            self.display.log(
                f"overlap={config.sampling.overlap}: {self.no_endpoint_reason}, so there is nothing to wait for: "
                "the parts of a step are scored and trained on one after the other"
            )

    no_endpoint_reason: str
    """Reason in a message why no reward comes from an endpoint."""

    def train(self) -> dict[str, Any]:
        """Train as every run does, then stop the threads of the overlap."""
        with self.overlap or nullcontext():
            return super().train()

    def _schedule_steps(self) -> int:
        return self.config.optimizer.schedule_steps

    # --------------------------------------------------------------------------------------- defined by subclasses

    @abstractmethod
    def _step_tasks(self) -> list[Any]:
        """Return the tasks of this step."""

    @abstractmethod
    def _attempt_metrics(self, records: Sequence[Record], trajectories: Sequence[Trajectory[Any]]) -> dict[str, Any]:
        """Return metrics of a step's attempts."""

    @abstractmethod
    def _trajectory_fields(self, trajectory: Trajectory[Any]) -> dict[str, Any]:
        """Return the extra fields of a trajectory's line in trajectories.jsonl."""

    def _component_metric(self, name: str) -> str:
        """Return the name of a reward component in metrics.jsonl."""
        return name

    # ------------------------------------------------------------------------------------------------------ one step

    def _prepare_batch(self) -> Collected | list[Part]:
        tasks = self._step_tasks()
        if self.overlap is not None:
            return self.overlap.start_step(tasks, self.step)
        self.worker.scoring_seconds = 0.0
        groups, records = self.algorithm.collect(self.worker, tasks, self.step)
        return groups, records, annotate(self.algorithm, groups, self.engine)

    def _train_on(self, batch: Collected | list[Part]) -> dict[str, Any]:
        if isinstance(batch, list):
            assert self.overlap is not None
            result = self.overlap.learn(batch, scheduled_learning_rate(self.step, self.config))
            groups, records, samples = result.groups, result.records, result.samples
            metrics = {
                **self._rollout_metrics(groups, records),
                **_update_metrics(result.stats, result.mismatch, samples),
            }
            metrics["wait_seconds"] = self.overlap.wait_seconds
        else:
            groups, records, annotation = batch
            samples = annotation.rows
            metrics = {
                **self._rollout_metrics(groups, records),
                **self._update(samples),
                "wait_seconds": self.worker.scoring_seconds,
                **annotation.metrics,
            }
            if annotation.state is not None:
                self.algorithm.state = annotation.state
        self.algorithm.finish_step(metrics)
        if self.world.is_main:
            self._write_trajectories(groups, samples)
        return metrics

    def _checkpoint_state(self) -> dict[str, Any]:
        return {"position": self.step * self.config.tasks_per_step, "algorithm": self.algorithm.state}

    def _restore_state(self, state: dict[str, Any]) -> None:
        self.algorithm.state = state["algorithm"]

    def _should_keep_all_checkpoints(self) -> bool:
        return self.config.sampling.keep_tokens

    def _update(self, samples: Sequence[TrainingSample]) -> dict[str, Any]:
        """Run all optimizer steps on the samples of a step and return their metrics."""
        config = self.config
        mismatch: dict[str, float] = {}
        if config.loss.old_logprobs == "recomputed":
            samples, mismatch = self.engine.recompute_old_logprobs(samples, config.loss.importance_cap)
        rate = scheduled_learning_rate(self.step, config)
        stats: list[dict[str, float]] = []
        extra_losses: dict[str, float] = {}
        for update_index, (name, rows) in enumerate(self.algorithm.updates(samples).items()):
            update_stats: list[dict[str, float]] = []
            units = _rows_by_unit(rows)
            for iteration in range(config.optimizer.num_iterations):
                order = list(range(len(units)))
                Random(f"{config.seed}|{self.step}|{iteration}" + f"|{update_index}" * (update_index > 0)).shuffle(
                    order
                )
                for part in range(config.optimizer.minibatches):
                    minibatch = [rows[i] for unit in order[part :: config.optimizer.minibatches] for i in units[unit]]
                    if minibatch:
                        update_stats.append(self.engine.update(self.algorithm.refresh(minibatch, self.engine), rate))
            if name:
                extra_losses[f"{name}_loss"] = sum(stats["loss"] for stats in update_stats) / len(update_stats)
            else:
                stats = update_stats
        return _update_metrics(stats, mismatch, samples) | extra_losses

    def _rollout_metrics(self, groups: Sequence[TrajectoryGroup[Any]], records: Sequence[Record]) -> dict[str, Any]:
        """Return metrics of the attempts; `sampled_tokens` counts the rollouts of all roles."""
        sampled = [trajectory for group in groups for trajectory in group.trajectories if trajectory.reward is not None]
        trajectories = [trajectory for trajectory in sampled if trajectory.role == "attempt"]
        metrics = self._attempt_metrics(records, trajectories)
        attempts = [group for group in groups if group.trajectories[0].role == "attempt"]
        if groups_of_many := [group for group in attempts if len(group.trajectories) > 1]:
            metrics["flat"] = sum(map(_has_equal_rewards, groups_of_many)) / len(groups_of_many)
        turns = [turn for trajectory in trajectories for turn in trajectory.turns]
        metrics |= self._turn_metrics(turns, len(trajectories))
        metrics["sampled_tokens"] = sum(
            len(turn.completion.completion_ids) for trajectory in sampled for turn in trajectory.turns
        )
        metrics["truncated"] = sum(turn.completion.stop_reason == "length" for turn in turns) / len(turns)
        rewards = [trajectory.reward for trajectory in trajectories if trajectory.reward is not None]
        for name in dict.fromkeys(name for reward in rewards for name in reward.components):
            values = [value for reward in rewards for value in reward.components.get(name, ())]
            metrics[self._component_metric(name)] = sum(values) / len(values)
        return metrics

    def _turn_metrics(self, turns: Sequence[Turn], rollouts: int) -> dict[str, Any]:
        """Return metrics of all turns of `rollouts` attempts."""
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
        """Append to trajectories.jsonl and, if `keep_tokens` is set, to turns.jsonl.

        trajectories.jsonl gets the rollouts of the step's first task as text. turns.jsonl gets the tokens of every turn
        and whether all its calls were executed. `advantage` is that of the turn's first token in the policy gradient,
        if any.
        """
        first_task = groups[0].task.id
        lines = [
            self._trajectory_line(trajectory)
            for group in groups
            if group.task.id == first_task
            for trajectory in group.trajectories
        ]
        append_lines(self.out / "trajectories.jsonl", lines)
        if not self.config.sampling.keep_tokens:
            return
        advantages: dict[tuple[str, int, str, int], list[float]] = {}  # lists: a step may contain a task twice
        for sample in reversed(samples):
            if sample.pg.any():
                advantages.setdefault(_turn_key(sample), []).append(float(sample.advantages[0]))
        turns = (
            (
                policy_gradient_sample(turn, task=group.task.id, rollout=trajectory.rollout, role=trajectory.role),
                turn,
                reward,
            )
            for group in groups
            for trajectory in group.trajectories
            if trajectory.reward
            for turn, reward in zip(trajectory.turns, trajectory.reward.turns, strict=True)
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
                    "advantage": turn_advantages.pop()
                    if (turn_advantages := advantages.get(_turn_key(sample)))
                    else None,
                    "reward": reward,
                    "ok": all(result.ok for result in turn.results),
                }
                for sample, turn, reward in turns
            ),
        )


def _update_metrics(
    stats: Sequence[Mapping[str, float]], mismatch: Mapping[str, float], samples: Sequence[TrainingSample]
) -> dict[str, Any]:
    """Average the metrics of a step's updates; take the maximum of those that are maxima.

    `mismatch_*` compares sampler and learner before the first update: over all rows, or those of the first minibatch.
    Updates without a gradient (`skipped_updates`; for example, all rollouts have equal rewards) count in no other mean.
    A step of nothing else has no `entropy` and no `mismatch_*` (None) unless old log-probs are recomputed.
    """
    counts = {
        "rows_without_weight": int(sum(s["rows_without_weight"] for s in stats)),
        "skipped_updates": sum(not s["tokens"] for s in stats),
    }
    if stats and not any(s["tokens"] for s in stats):
        unmeasured = dict.fromkeys(("entropy", "mismatch_kl", "mismatch_p99", "mismatch_max"))
        return {**stats[0], **unmeasured, **mismatch, "tokens": 0, **counts}
    stats = [s for s in stats if s["tokens"]]
    if not stats:  # no rows at all: DPO without a pair
        return {"tokens": 0, **counts}
    mean = {name: sum(s[name] for s in stats) / len(stats) for name in stats[0]}
    del mean["tokens"], mean["rows_without_weight"]
    maxima = {name: max(s[name] for s in stats) for name in ("old_max", "ratio_deviation")}
    return {
        **mean,
        **maxima,
        **(mismatch or {f"mismatch_{name}": stats[0][f"old_{name}"] for name in ("kl", "p99", "max")}),
        "tokens": sum(len(sample.completion_ids) for sample in samples),
        **counts,
    }


def _rows_by_unit(samples: Sequence[TrainingSample]) -> list[list[int]]:
    """Return the indices of rows that must share an optimizer step: those of a unit, or each row alone."""
    indices_by_unit: dict[str | int, list[int]] = {}
    for i, sample in enumerate(samples):
        indices_by_unit.setdefault(i if sample.unit is None else sample.unit, []).append(i)
    return list(indices_by_unit.values())


def _turn_key(sample: TrainingSample) -> tuple[str, int, str, int]:
    return sample.task, sample.rollout, sample.role, sample.chunk


def _has_equal_rewards(group: TrajectoryGroup[Any]) -> bool:
    """Return True if all rollouts of the group have equal rewards in every turn: there is nothing to prefer."""
    return len({trajectory.reward.turns for trajectory in group.trajectories if trajectory.reward}) == 1
