"""Reinforcement learning: collect rollouts, annotate them, update, write metrics.

A step samples with the weights that it starts from. Tasks, rewards and evaluations come from `trainers.memory_rl` or
`trainers.text_rl`.

A run whose first steps cannot teach anything stops: replies that nobody can read, or a reader that never answers. Two
steps are checked after every start and every resume. Such a run does not fail by itself: a writer without a readable
call keeps an empty memory, which earns a reward for being short.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import islice
from math import sqrt
from random import Random
from statistics import pstdev
from typing import Any, NamedTuple

import numpy as np

from memalpha.agent.reader import PolicyReader, Reader
from memalpha.agent.tools import CHANGING_CODES
from memalpha.config import ReinforcementConfig, TrainConfig
from memalpha.errors import ConfigError, TrainingError
from memalpha.policy.transformers import TransformersPolicy
from memalpha.qa.reader import MAX_TRUNCATED, AnswerCounts, find_reader_fault
from memalpha.qa.report import Record
from memalpha.qa.scoring.stats import group_values
from memalpha.train.algorithms.base import Algorithm, Annotation, annotate, as_json, finish_step, name_algorithm_errors
from memalpha.train.data.samples import TrainingSample
from memalpha.train.learner.distributed import World
from memalpha.train.learner.engine import Engine, scheduled_learning_rate
from memalpha.train.rollouts.ahead import make_source
from memalpha.train.rollouts.epochs import TrainingTasks
from memalpha.train.rollouts.weight_sync import connect_sampler
from memalpha.train.rollouts.worker import RolloutWorker, drop_unscored
from memalpha.train.trainers.directory import RunDirectory
from memalpha.train.trainers.trainer import TrainingStep, build_engine, check_sampling_dtype
from memalpha.types import Trajectory, TrajectoryGroup, Turn

CHECKED_STEPS = 2
"""Steps after a start or a resume that are checked together."""

UNREADABLE = ("malformed", "unknown_tool")
"""Codes of results whose call nobody could read."""

EXAMPLE_CHARACTERS = 160
"""Characters of a reply that a message shows."""


class EarlyStop:
    """Check the first two steps of a process's run.

    Args:
        config: Settings of the run; `sampling.stop_unreadable` turns the check off.
        reader: Reader that gives the reward; its answers are checked if a policy gives them.
    """

    def __init__(self, config: ReinforcementConfig, reader: Reader | None) -> None:
        self.config, self.reader = config, reader
        self.steps: list[int] = []
        self._turns: list[Turn] = []
        self._records: list[Record] = []

    def check(self, step: int, attempts: Sequence[Trajectory[Any]], records: Sequence[Record]) -> None:
        """Count a step, and raise after the second one if nothing can be learnt.

        Args:
            step: Step number.
            attempts: The step's rollouts without reflections and retries, from all processes.
            records: Records of their questions.

        Raises:
            TrainingError: The two steps hold no readable call, or over 90 % truncated replies or answers, or only
                empty answers.
        """
        if len(self.steps) == CHECKED_STEPS or not self.config.sampling.stop_unreadable:
            return
        self.steps.append(step)
        self._turns += [turn for attempt in attempts for turn in attempt.turns]
        self._records += records
        if len(self.steps) < CHECKED_STEPS:
            return
        if (fault := self._find_fault()) is not None:
            steps = " and ".join(map(str, self.steps))
            replies = (turn.completion.text for turn in self._turns)
            example = " ".join(next(filter(None, replies), "").split())[:EXAMPLE_CHARACTERS]
            raise TrainingError(
                f"stopped after steps {steps}: {fault[0]}. The first reply begins {example!r}. What to change, in a "
                f"new out: {fault[1]}. If it is meant so (random weights), set sampling.stop_unreadable=false"
            )
        self._turns, self._records = [], []

    def _find_fault(self) -> tuple[str, str] | None:
        """Return why nothing can be learnt, and what to change; None if something can."""
        config, replies = self.config, len(self._turns)
        truncated = sum(turn.completion.stop_reason == "length" for turn in self._turns)
        is_readable = any(result.code not in UNREADABLE for turn in self._turns for result in turn.results)
        check = f"see `memalpha check-policy {config.policy}`"
        if replies and truncated > MAX_TRUNCATED * replies:
            if isinstance(config, TrainConfig):
                limit = f"agent.max_new_tokens={config.agent.max_new_tokens}"
                remedy = (
                    "raise agent.max_new_tokens, turn thinking off (agent.thinking_tokens=0) or give it a budget "
                    f"there, read smaller chunks, and {check}"
                )
            else:
                limit = f"sampling.max_new_tokens={config.sampling.max_new_tokens}"  # type: ignore[attr-defined]
                remedy = f"raise sampling.max_new_tokens, turn the model's thinking off, and {check}"
            return f"{truncated} of {replies} replies were cut at {limit} before their end", remedy
        if not isinstance(config, TrainConfig):
            return None
        if replies and not is_readable:
            return (
                f"none of the writer's {replies} replies holds a readable tool call, so nothing was remembered",
                f"{check}, which says how this model must be asked; "
                "agent.thinking_tokens=0 turns thinking off; or teach the calls first (`memalpha train sft`)",
            )
        if not isinstance(self.reader, PolicyReader):
            return None
        key = "reader" if config.reward.reader is None else "reward.reader"
        return find_reader_fault(AnswerCounts.of(self._records), self.reader, key)


KL_ROWS = 8
"""Most rows on which the KL of an update is measured."""

KL_MEMORY = 0.8
"""Weight of the earlier steps in the average that `optimizer.target_kl` goes by."""

MAX_RATE_SCALE = 2.0
"""`optimizer.target_kl` scales the scheduled learning rate up or down by this factor at most."""


LATER_METRICS = (
    *("step", "sample_seconds", "train_seconds", "sampled_tokens_per_second", "trained_tokens_per_second"),
    *("resampled", "level", "unlocked", "level_accuracy"),
)
"""Names that a step's line gets after the algorithm's own metrics, beside `validation_*`."""


class Collected(NamedTuple):
    """Scored rollouts of a step, what the algorithm made of them, and the number of tasks that were drawn."""

    groups: list[TrajectoryGroup[Any]]
    records: list[Record]
    annotation: Annotation
    tasks: int


def build_algorithm_engine(
    policy: TransformersPolicy, config: ReinforcementConfig, algorithm: Algorithm, world: World
) -> Engine:
    """Build the engine with what the algorithm needs, and set the precision that `policy` samples in.

    Args:
        policy: Policy at its start weights.
        config: Settings of the run.
        algorithm: May need a reference and a value head.
        world: Processes of the run.
    """
    engine = build_engine(
        policy,
        config,
        algorithm.loss_settings,
        world,
        reference=algorithm.needs_reference,
        value_learning_rate=algorithm.value_learning_rate,
    )
    if config.sampling.dtype is not None:  # after the learner has prepared the model
        policy.set_sampling_dtype(config.sampling.dtype)
        check_sampling_dtype(policy, config.sampling.dtype)
    return engine


class ReinforcementStep(TrainingStep):
    """Sample rollouts of some tasks and reinforce those with a higher reward than their group.

    Args:
        directory: Run directory; keeps tasks.jsonl, trajectories.jsonl and turns.jsonl.
        tasks: Training tasks.
        worker: Samples and scores rollouts, with the settings of the run.
        algorithm: Turns rollouts into rows to train on.
        engine: Updates the weights.
        reader: Reader that gives the reward; None without one.

    Attributes:
        component_prefix: Prefix of the reward components' names in metrics.jsonl.
    """

    log_files = ("turns.jsonl", "trajectories.jsonl", "tasks.jsonl")
    component_prefix = ""

    def __init__(
        self,
        directory: RunDirectory,
        *,
        tasks: TrainingTasks[Any],
        worker: RolloutWorker[Any],
        algorithm: Algorithm,
        engine: Engine,
        reader: Reader | None = None,
    ) -> None:
        config: ReinforcementConfig = worker.config
        self.config, self.directory, self.tasks = config, directory, tasks
        self.worker, self.algorithm, self.engine = worker, algorithm, engine
        self.early_stop = EarlyStop(config, reader)
        self.source = make_source(tasks, worker)  # None samples at the start of each step
        self.sampler_metrics = connect_sampler(worker, engine, tasks, directory.path)
        self.scheduled_steps = config.optimizer.schedule_steps
        self.keeps_all_checkpoints = config.sampling.keep_tokens
        self.position = 0
        self.kl_per_rate: float | None = None  # KL of an update over the square of its rate, averaged over steps
        for name in ("resample_flat", "staleness"):
            if getattr(config.sampling, name) and type(algorithm).collect is not Algorithm.collect:
                raise ConfigError(f"sampling.{name}: {type(algorithm).__name__} collects its rollouts itself")

    @abstractmethod
    def attempt_metrics(
        self, records: Sequence[Record], attempts: Sequence[Trajectory[Any]], tasks: int
    ) -> dict[str, Any]:
        """Return metrics of a step; called once a step, in every process.

        Args:
            records: Records of the attempts.
            attempts: Attempts with a reward.
            tasks: Number of tasks that were drawn.
        """

    @abstractmethod
    def task_fields(self, task: Any) -> dict[str, Any]:
        """Return what tasks.jsonl keeps of a task."""

    def trajectory_fields(self, trajectory: Trajectory[Any]) -> dict[str, Any]:
        """Return the extra fields of a trajectory's line in trajectories.jsonl."""
        return {}

    def prepare(self, step: int) -> Collected:
        """Sample and score the step's rollouts, or take them from the queue."""
        if self.source is not None:
            scored = self.source.take(step)
            groups = drop_unscored([item.group for item in scored])
            records = [record for item in scored for answers in item.records for record in answers]
            return Collected(groups, records, annotate(self.algorithm, groups, self.engine), len(scored))
        tasks = self.tasks.batch(self.position)
        self.worker.scoring_seconds = 0.0
        groups, records = self.algorithm.collect(self.worker, tasks, step)
        chosen, count = groups, len(tasks)
        if rounds := self.config.sampling.resample_flat:
            groups, records, chosen, count = resample_flat_groups(
                self.worker, self.tasks, groups, records, position=self.position, step=step, rounds=rounds
            )
        return Collected(groups, records, annotate(self.algorithm, chosen, self.engine), count)

    def train(self, batch: Collected, step: int) -> dict[str, Any]:
        """Update the weights, write the trajectories and return the metrics."""
        groups, records, annotation, count = batch
        position, samples = self.position, annotation.rows
        attempts = [item for group in groups for item in group.trajectories if item.role == "attempt"]
        self.early_stop.check(step, attempts, records)  # nothing of this step is on disk yet
        metrics = {
            **self._rollout_metrics(batch),
            **self._update(samples, step),
            "wait_seconds": self.worker.scoring_seconds,
            **self.sampler_metrics(),
        }
        if self.source is not None:
            metrics |= self.source.commit(step)
        for name in annotation.metrics if ":" in self.config.algorithm else ():  # ours are named apart
            if name in metrics or name in LATER_METRICS or name.startswith("validation_"):
                raise TrainingError(
                    f"algorithm {self.config.algorithm}: metrics[{name!r}]: memalpha writes a metric of this name: "
                    "choose another"
                )
        metrics |= annotation.metrics
        if annotation.state is not None:
            self.algorithm.state = annotation.state
        finish_step(self.algorithm, metrics)
        self._write_trajectories(batch, step)
        self.position += count
        if self.config.sampling.resample_flat:
            metrics["resampled"] = count - self.config.tasks_per_step
        return metrics | self.tasks.record_outcomes(position, records)

    def state(self) -> dict[str, Any]:
        """Return the state of the algorithm and of the tasks."""
        state = {"position": self.position, "algorithm": as_json(self.algorithm.state, "state"), **self.tasks.state}
        state |= {"kl_per_rate": self.kl_per_rate}
        return state if self.source is None else {**state, "rollouts": self.source.state()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the state of the algorithm and of the tasks."""
        self.position, self.algorithm.state = state["position"], state["algorithm"]
        self.kl_per_rate = state["kl_per_rate"]
        self.tasks.state = {name: state[name] for name in self.tasks.state}
        if self.source is not None:
            self.source.restore(state["rollouts"])

    def paused(self) -> AbstractContextManager[None]:
        """Hold the sampler back inside the block, so that an evaluation has it for itself."""
        return nullcontext() if self.source is None else self.source.paused()

    def close(self) -> None:
        """Stop the sampler that runs ahead."""
        if self.source is not None:
            self.source.close()

    def _update(self, samples: Sequence[TrainingSample], step: int) -> dict[str, Any]:
        """Run all optimizer steps on the samples of a step and return their metrics."""
        config = self.config
        mismatch: dict[str, float] = {}
        if config.loss.old_logprobs == "recomputed":
            samples, mismatch = self.engine.recompute_old_logprobs(
                samples, config.loss.importance_cap, mode=config.loss.importance_sampling_mode
            )
        target, peak, scale = config.optimizer.target_kl, config.optimizer.peak_rate, 1.0
        if target is not None and self.kl_per_rate:
            # The KL of an update grows with the square of its rate; the estimate of one step would be noisy.
            scale = sqrt(target / self.kl_per_rate) / peak
            scale = min(MAX_RATE_SCALE, max(1 / MAX_RATE_SCALE, scale))
        rate = scheduled_learning_rate(step, config) * scale
        update_kl = UpdateKL(self.engine, samples)
        stats: list[dict[str, float]] = []
        extra_losses: dict[str, float] = {}
        with name_algorithm_errors(config):
            phases = self.algorithm.updates(samples)
        for update_index, (name, rows) in enumerate(phases.items()):
            update_stats: list[dict[str, float]] = []
            # Rows of a unit share an optimizer step.
            units = list(group_values((i if row.unit is None else row.unit, i) for i, row in enumerate(rows)).values())
            for iteration in range(config.optimizer.num_iterations):
                order = list(range(len(units)))
                Random(f"{config.seed}|{step}|{iteration}" + f"|{update_index}" * (update_index > 0)).shuffle(order)
                for part in range(config.optimizer.minibatches):
                    minibatch = [rows[i] for unit in order[part :: config.optimizer.minibatches] for i in units[unit]]
                    if minibatch:
                        with name_algorithm_errors(config):
                            refreshed = self.algorithm.refresh(minibatch, self.engine)
                        update_stats.append(self.engine.update(refreshed, rate))
                        update_kl.measure(update_stats[-1]["tokens"] > 0)
            if name:
                extra_losses[f"{name}_loss"] = sum(stats["loss"] for stats in update_stats) / len(update_stats)
            else:
                stats = update_stats
        metrics = {**_update_metrics(stats, mismatch, samples), **extra_losses, "update_kl": update_kl.mean}
        if target is not None:
            metrics["rate_scale"] = scale
        if update_kl.mean is not None and rate:
            latest = update_kl.mean / rate**2
            earlier = latest if self.kl_per_rate is None else self.kl_per_rate
            self.kl_per_rate = KL_MEMORY * earlier + (1 - KL_MEMORY) * latest
        return metrics

    def _rollout_metrics(self, batch: Collected) -> dict[str, Any]:
        """Return metrics of the attempts; `sampled_tokens` counts the rollouts of all roles."""
        sampled = [item for group in batch.groups for item in group.trajectories if item.reward is not None]
        trajectories = [trajectory for trajectory in sampled if trajectory.role == "attempt"]
        metrics = self.attempt_metrics(batch.records, trajectories, batch.tasks)
        compared = [group for group in batch.groups if len(group.trajectories) > 1]
        compared = [group for group in compared if group.trajectories[0].role == "attempt"]
        if comparisons := [are_equal for group in compared for are_equal in flat_comparisons(group)]:
            metrics["flat"] = sum(comparisons) / len(comparisons)
        turns = [turn for trajectory in trajectories for turn in trajectory.turns]
        metrics["sampled_tokens"] = sum(
            len(turn.completion.completion_ids) for trajectory in sampled for turn in trajectory.turns
        )
        metrics["truncated"] = sum(turn.completion.stop_reason == "length" for turn in turns) / len(turns)
        rewards = [trajectory.reward for trajectory in trajectories if trajectory.reward is not None]
        totals = [reward.total for reward in rewards]
        metrics |= {"reward_min": min(totals), "reward_max": max(totals), "reward_std": pstdev(totals)}
        for name in dict.fromkeys(name for reward in rewards for name in reward.components):
            values = [value for reward in rewards for value in reward.components.get(name, ())]
            metrics[self.component_prefix + name] = sum(values) / len(values)
        return metrics

    def _trajectory_line(
        self, trajectory: Trajectory[Any], step: int, records: Sequence[Record], trained: Mapping[Any, TrainingSample]
    ) -> dict[str, Any]:
        """Return a line of trajectories.jsonl; with credit per call a turn's share of its advantage is shown."""
        reward, credit, turns = trajectory.reward, self.algorithm.credit, []
        for index, turn in enumerate(trajectory.turns):
            numbers, advantage = reward.calls[index] if reward and reward.calls else (), None
            if (sample := trained.get(_turn_key(trajectory, turn))) is not None:
                last = int(np.flatnonzero(sample.pg)[-1]) - len(sample.pg)  # from the end
                of_call = credit.by_token(turn, numbers)[last] if credit and numbers else 0.0
                advantage = float(sample.advantages[last] - of_call)
            fields = {
                "chunk": turn.chunk,
                "text": turn.completion.text,
                "results": [result.code for result in turn.results],
                "changes": [  # id, old and new content; "" is the core memory's id
                    [result.entry_id or "", result.before, result.content] if result.code in CHANGING_CODES else None
                    for result in turn.results
                ],
                "advantage": advantage,
            }
            if reward and reward.calls:
                fields |= {"credit": list(reward.calls[index]), "credit_from": reward.call_sources[index]}
            turns.append(fields)
        return {
            **_origin(trajectory, step),
            "reward": reward.total if reward else None,
            "components": {name: list(values) for name, values in reward.components.items()} if reward else {},
            "turns": turns,
            "answers": [answer_fields(record) for record in records if trajectory.role == "attempt"],
            **self.trajectory_fields(trajectory),
        }

    def _write_trajectories(self, batch: Collected, step: int) -> None:
        """Append to tasks.jsonl, trajectories.jsonl and, if `keep_tokens` is set, turns.jsonl (main process only).

        The first two get some of the step's tasks (`written_tasks`) and their rollouts, in words. turns.jsonl gets the
        tokens of every turn and whether all its calls were executed. There, `advantage` is that of the turn's first
        token in the policy gradient, if any; with credit per call it is a list of all tokens' advantages.
        """
        if not self.directory.world.is_main:
            return
        all_tasks = {group.task.id: group.task for group in batch.groups}
        tasks = dict(islice(all_tasks.items(), self.config.sampling.written_tasks))
        rows = [sample for sample in batch.annotation.rows if sample.pg.any()]
        trained = [((sample.task, sample.rollout, sample.role, sample.chunk), sample) for sample in rows]
        answers, by_turn = group_values(((item.task, item.rollout), item) for item in batch.records), dict(trained)
        self.rollouts = [
            self._trajectory_line(item, step, answers.get((item.task.id, item.rollout), ()), by_turn)
            for group in batch.groups
            for item in group.trajectories
            if group.task.id in tasks
        ]
        task_lines = ({"step": step, "task": id, **self.task_fields(task)} for id, task in tasks.items())
        self.directory.append("tasks.jsonl", task_lines)
        self.directory.append("trajectories.jsonl", self.rollouts)
        if not self.config.sampling.keep_tokens:
            return
        advantages = group_values((key, sample.advantages) for key, sample in reversed(trained))
        lines = (
            self._turn_line(item, turn, reward, step, advantages.get(_turn_key(item, turn), []))
            for group in batch.groups
            for item in group.trajectories
            if item.reward
            for turn, reward in zip(item.turns, item.reward.turns, strict=True)
        )
        self.directory.append("turns.jsonl", lines)

    def _turn_line(
        self, trajectory: Trajectory[Any], turn: Turn, reward: float, step: int, advantages: list[np.ndarray]
    ) -> dict[str, Any]:
        """Return a line of turns.jsonl; its advantage is the last: a task that is drawn twice in a step has two."""
        completion, advantage = turn.completion, advantages.pop().tolist() if advantages else None
        return _origin(trajectory, step) | {
            "chunk": turn.chunk,
            "prompt_ids": list(completion.prompt_ids),
            "completion_ids": list(completion.completion_ids),
            "logprobs": np.asarray(completion.logprobs, dtype=np.float32).tolist(),
            "temperature": completion.temperature or 1.0,
            "advantage": advantage[0] if advantage and not self.algorithm.credit else advantage,
            "reward": reward,
            "ok": all(result.ok for result in turn.results),
            "weights_step": step if completion.weights_step is None else completion.weights_step,
        }


class UpdateKL:
    """Measure the KL of each update: from the policy before it to the policy after it, per token of some rows.

    The estimate is k3 over tokens that the sampler drew. It is exact in expectation for a step's first update, and near
    that for later ones, before which the policy has moved from the sampler's.

    Args:
        engine: Owner of the weights, before the first update.
        samples: Rows of the step.

    Attributes:
        values: KL of each update that changed the weights, in nats per token.
    """

    def __init__(self, engine: Engine, samples: Sequence[TrainingSample]) -> None:
        trained = [sample for sample in samples if sample.pg.any() and sample.advantages.any()]
        self.engine, self.rows = engine, trained[:: max(1, -(-len(trained) // KL_ROWS))]
        self.values: list[float] = []
        self._before = engine.forward(self.rows) if self.rows else []

    @property
    def mean(self) -> float | None:
        """Mean of the step's updates; None for a step without a policy gradient."""
        return sum(self.values) / len(self.values) if self.values else None

    def measure(self, has_changed: bool) -> None:
        """Measure the update that was just made; `has_changed` is False if it had no gradient."""
        if not self.rows or not has_changed:
            return
        after = self.engine.forward(self.rows)
        log_ratio = np.concatenate(
            [(new - old)[row.pg != 0] for new, old, row in zip(after, self._before, self.rows, strict=True)]
        ).astype(np.float64)
        self.values.append(float((np.expm1(log_ratio) - log_ratio).mean()))
        self._before = after


def is_flat(group: TrajectoryGroup[Any]) -> bool:
    """Return True if all rollouts of the group have equal rewards in every turn: there is nothing to prefer."""
    return all(flat_comparisons(group))


def flat_comparisons(group: TrajectoryGroup[Any]) -> list[bool]:
    """Return True for each comparison whose rollouts have equal rewards.

    A group is one comparison; a chunk group (`environments.memory_writing`) is one per chunk.
    """
    rewards = [trajectory.reward.turns for trajectory in group.trajectories if trajectory.reward]
    if group.trajectories[0].before:
        return [len(set(values)) == 1 for values in zip(*rewards, strict=True)]
    return [len(set(rewards)) == 1]


def resample_flat_groups(
    worker: RolloutWorker[Any],
    source: TrainingTasks[Any],
    groups: Sequence[TrajectoryGroup[Any]],
    records: Sequence[Record],
    *,
    position: int,
    step: int,
    rounds: int,
) -> tuple[list[TrajectoryGroup[Any]], list[Record], list[TrajectoryGroup[Any]], int]:
    """Sample as many further tasks as there are flat groups (DAPO, 2503.14476), until none is missing.

    If groups are still missing after `rounds`, flat ones stay in: they have no gradient but count in the loss's
    divisors.

    Args:
        worker: Samples and scores rollouts.
        source: Training tasks.
        groups: Groups of the step's own tasks.
        records: Their records.
        position: Position of the step's first task in the source.
        step: Step number; keys the sampling noise.
        rounds: Further rounds, at most.

    Returns:
        All groups that were sampled, their records, the groups to train on (as many as the step has tasks: those with
        different rewards first), and the number of tasks that were drawn.
    """
    group_count = drawn = worker.config.tasks_per_step
    sampled, answers = list(groups), list(records)
    for _ in range(rounds):
        missing = group_count - sum(not is_flat(group) for group in sampled)
        if missing <= 0:
            break
        tasks = source.batch(position + drawn)[:missing]
        new_groups, new_records = worker.collect_attempts(tasks, step, drawn)
        sampled, answers, drawn = sampled + new_groups, answers + new_records, drawn + len(tasks)
    return sampled, answers, sorted(sampled, key=is_flat)[:group_count], drawn


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


def answer_fields(record: Record) -> list[Any]:
    """Return an answer's question id, text and score in trajectories.jsonl, and "conflict" if that rule refused it."""
    return [record.question_id, record.answer, record.score, *(["conflict"] if record.conflict else [])]


def _turn_key(trajectory: Trajectory[Any], turn: Turn) -> tuple[str, int, str, int]:
    return trajectory.task.id, trajectory.rollout, trajectory.role, turn.chunk


def _origin(trajectory: Trajectory[Any], step: int) -> dict[str, Any]:
    return {"step": step, "task": trajectory.task.id, "rollout": trajectory.rollout, "role": trajectory.role}
