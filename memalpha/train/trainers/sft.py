"""Supervised fine-tuning: `memalpha train sft`, a warm start for reinforcement learning or its last stage.

Rows come from `train.data.demonstrations`. A step lowers the mean cross-entropy of the completions (never of prompts)
of `batch_rows` rows, in a seeded order that changes every epoch. `source=best` is rejection sampling: each of `rounds`
samples `group_size` rollouts of each task with the current weights and imitates the best rollout of each task.

Rows use the learner's own cross-entropy stream, not another library's trainer. Packing, precision, adapters, processes,
checkpoints and resuming are those of reinforcement learning: the same settings and tests apply, and a checkpoint of one
can start the other. Loss and gradient equal those of TRL's SFTTrainer on the same token rows
(tests/train/trainers/test_sft.py).

Validation is the cross-entropy of held-out rows: those of the validation tasks, or of the last fifth of a file's lines
or of a run's tasks, at most `validation_tasks`. With `source=best` it is the accuracy on the validation tasks, because
the rows are the policy's own. `rows.jsonl` in the run directory stores the rows, so that a resumed run uses the same
ones even if their source has changed.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from memalpha.agent.reader import Reader
from memalpha.config import SFTConfig
from memalpha.environments.engine import RolloutEngine
from memalpha.environments.memory_writing import MemoryWriting, memory_engine
from memalpha.errors import CheckpointError, ConfigError, DataError, TrainingError
from memalpha.policy.scripted import ScriptedPolicy
from memalpha.qa.evaluate import MemoryScorer
from memalpha.train.data.demonstrations import (
    Demonstrator,
    best_rollouts,
    imitation_rows,
    load_best_rollouts,
    load_rows,
)
from memalpha.train.data.samples import TrainingSample, cross_entropy_sample
from memalpha.train.learner.distributed import World
from memalpha.train.learner.engine import scheduled_learning_rate
from memalpha.train.learner.losses import LossSettings
from memalpha.train.rollouts.epochs import schedule_steps, shuffled_item
from memalpha.train.rollouts.memory_tasks import TaskSource
from memalpha.train.rollouts.worker import RolloutWorker
from memalpha.train.trainers.checkpoint import append_lines, read_json, saved_steps
from memalpha.train.trainers.evaluated import EvaluatedTrainer
from memalpha.train.trainers.reflection_demos import reflection_demo_rows
from memalpha.types import Task

TASKS_PER_BATCH = 32
"""Tasks whose rollouts are sampled at a time (`source=best`, `source=erl`)."""
BEFORE_TRAINING = -1
"""Step under which `rows.jsonl` stores rows that exist before the first step."""


class SFTTrainer(EvaluatedTrainer[SFTConfig]):
    """Imitate `batch_rows` rows per step.

    Raises:
        ConfigError: The source is invalid; checked before anything is loaded.
    """

    log_files: ClassVar[tuple[str, ...]] = ("metrics.jsonl", "rows.jsonl")

    def __init__(self, config: SFTConfig, world: World) -> None:
        _check_source(config.source)
        self.is_rejection_sampling = config.source == "best"
        needs_tasks = config.source in ("best", "gold", "erl") or config.source.startswith("scripted:")
        self.source = TaskSource(config) if needs_tasks or config.evaluation.evaluate else None
        super().__init__(config, world)
        config = self.schedule = self.config
        self.writing = MemoryWriting(config.agent, self.policy.count_tokens, self.embedder)
        if self.source is not None:
            self.source.check(self.policy, config.agent, self.writing.schema)
        self.engine = self._build_engine(LossSettings(normalizer="token"))
        self.rows: list[TrainingSample] = []
        self.rows_step = BEFORE_TRAINING
        self.held_out: list[TrainingSample] = []
        self.tokens = 0
        self.start_loss: float | None = None

    @cached_property
    def reader(self) -> Reader:
        """Reader, loaded on first use: it may be a model of its own."""
        return self._load_readers(self.config.reader)[0]

    # ---------------------------------------------------------------------------------------------------- the rows

    def _load_data(self) -> None:
        if not self.is_rejection_sampling:
            self.rows, self.held_out = self.world.run_on_main(self._load_fixed_rows)
            self.rows_step = BEFORE_TRAINING

    def _schedule_steps(self) -> int:
        config = self.config
        if config.optimizer.epochs is None:
            return config.optimizer.schedule_steps
        steps = schedule_steps(config, len(self.rows), config.optimizer.batch_rows)
        self.schedule = config.replace(schedule_steps=steps)
        return steps

    def _load_fixed_rows(self) -> tuple[list[TrainingSample], list[TrainingSample]]:
        """Return training and validation rows of a source that is the same for all steps; store them in rows.jsonl."""
        if saved_steps(self.out):
            return self._read_rows(BEFORE_TRAINING)
        config, left_out = self.config, 0
        if config.source == "erl":
            tasks, validation = self._round_tasks(0), self._task_source.validation
            (rows, left_out), (held_out, _) = (
                self._reflection_rows(tasks, 0),
                self._reflection_rows(validation, len(tasks)),
            )
        elif config.source.endswith(".jsonl"):
            rows, held_out = _split_validation(load_rows(Path(config.source), self.policy), config)
        elif Path(config.source).is_dir():
            rows_per_task, left_out = load_best_rollouts(
                Path(config.source), self.policy, config.agent, self.writing.schema
            )
            rows, held_out = _split_validation(rows_per_task, config)
        else:
            script = ScriptedPolicy("oracle" if config.source == "gold" else config.source.removeprefix("scripted:"))
            demonstrator = Demonstrator(script, self.policy)
            engine = memory_engine(demonstrator, config.agent, self.embedder, self.writing.schema)
            parts = [engine.roll_out(tasks) for tasks in (self._round_tasks(0), self._task_source.validation)]
            (rows, left_out), (held_out, _) = (
                imitation_rows(t for g in part for t in g.trajectories) for part in parts
            )
        if not rows:
            raise DataError(f"source: {config.source} gives no row to imitate ({left_out} turns were left out)")
        (self.out / "rows.jsonl").unlink(missing_ok=True)  # left by a run that stopped before its first checkpoint
        self._write_rows(BEFORE_TRAINING, rows, held_out)
        tokens = sum(len(row.completion_ids) for row in rows)
        note = f"; {left_out} turns left out: a call failed, or the reply was cut off" if left_out else ""
        self.display.log(f"{len(rows)} rows to imitate ({tokens} tokens), {len(held_out)} to validate{note}")
        return rows, held_out

    def _reflection_rows(self, tasks: Sequence[Task], first: int) -> tuple[list[TrainingSample], int]:
        """Return rows for the roles of reflection, and the number of turns that were left out."""
        config, rows, left_out = self.config, [], 0
        for start in range(0, len(tasks), TASKS_PER_BATCH):
            batch = tasks[start : start + TASKS_PER_BATCH]

            batch_rows, batch_left_out = reflection_demo_rows(
                self.policy,
                self.writing,
                MemoryScorer(self.reader, self.rewards, self.embedder),
                batch,
                config,
                first=first + start,
            )
            rows, left_out = rows + batch_rows, left_out + batch_left_out
        return rows, left_out

    def _sample_round(self, number: int) -> dict[str, Any]:
        """Sample a round and keep its best rollouts as rows; return metrics of the round.

        Args:
            number: Index of the round, which starts at the current step.
        """
        config, tasks = self.config, self._round_tasks(number)
        rewards, best_count, rows, left_out = [], 0, [], 0
        scorer = MemoryScorer(self.reader, self.rewards, self.embedder)
        worker = RolloutWorker(RolloutEngine(self.policy, self.writing), scorer, config, self.world)
        for first in range(0, len(tasks), TASKS_PER_BATCH):
            step = number * len(tasks) + first  # seeds the sampling noise
            batch = tasks[first : first + TASKS_PER_BATCH]
            groups, _ = worker.collect_attempts(batch, step)
            rewards += [t.reward.total for group in groups for t in group.trajectories if t.reward is not None]
            best = best_rollouts(groups)
            best_count += len(best)
            batch_rows, batch_left_out = imitation_rows(best)
            rows, left_out = rows + batch_rows, left_out + batch_left_out
        if not rows:
            raise TrainingError(
                f"source=best: of {len(tasks)} tasks none has a rollout that is better than its siblings and has a "
                "turn to imitate: raise tasks, group_size or temperature"
            )
        if self.world.is_main:
            self._write_rows(self.step, rows)
        self.rows, self.rows_step = rows, self.step
        self.display.log(
            f"round {number + 1}/{config.rounds}: {len(rows)} rows of the best rollouts of {best_count} tasks "
            f"({len(tasks) - best_count} without a best one; {left_out} turns left out: a call failed, or was cut off)"
        )
        return {"reward": sum(rewards) / len(rewards), "rows": len(rows), "groups_kept": best_count / len(tasks)}

    @property
    def _task_source(self) -> TaskSource:
        assert self.source is not None
        return self.source

    def _round_tasks(self, number: int) -> list[Task]:
        """Return the tasks of round `number`; each task of a file at most once."""
        source = self._task_source
        count = min(self.config.tasks, len(source.file_tasks) or self.config.tasks)
        return source.batch(number * count)[:count]

    def _current_round(self) -> tuple[int, int]:
        """Return the index of the current round and its first step; the rounds divide the schedule evenly."""
        config = self.config
        starts = [index * config.optimizer.schedule_steps // config.rounds for index in range(config.rounds)]
        return max((index, start) for index, start in enumerate(starts) if start <= self.step)

    def _write_rows(self, step: int, rows: Sequence[TrainingSample], held_out: Sequence[TrainingSample] = ()) -> None:
        """Append rows to rows.jsonl under `step`."""
        append_lines(
            self.out / "rows.jsonl",
            (
                {
                    "step": step,
                    "validation": validation,
                    "task": row.task,
                    "rollout": row.rollout,
                    "chunk": row.chunk,
                    "prompt_ids": list(row.prompt_ids),
                    "completion_ids": list(row.completion_ids),
                }
                for validation, part in ((False, rows), (True, held_out))
                for row in part
            ),
        )

    def _read_rows(self, step: int) -> tuple[list[TrainingSample], list[TrainingSample]]:
        """Return the training and validation rows that `_write_rows` stored for `step`."""
        path = self.out / "rows.jsonl"
        rows_by_split: dict[bool, list[TrainingSample]] = {False: [], True: []}
        try:
            for text in path.read_bytes().splitlines():
                line = json.loads(text)
                if line["step"] == step:
                    origin = {"task": line["task"], "rollout": line["rollout"], "chunk": line["chunk"]}
                    row = cross_entropy_sample(line["prompt_ids"], line["completion_ids"], **origin)
                    rows_by_split[line["validation"]].append(row)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise CheckpointError(f"{path} cannot be read ({error}): start again in another out") from error
        if not rows_by_split[False]:
            raise CheckpointError(f"{path} lacks the rows of this run: start again in another out")
        return rows_by_split[False], rows_by_split[True]

    # ------------------------------------------------------------------------------------------------------- a step

    def _before_training(self) -> None:
        if self.config.evaluation.evaluate:
            held_out = self._task_source.held_out
            for note in self.rewards.notes(held_out, "held-out tasks"):
                self.display.log(note)
            self._evaluate_and_save("before", self.policy, held_out, self.reader)

    def _prepare_batch(self) -> tuple[list[TrainingSample], dict[str, Any]]:
        round_metrics: dict[str, Any] = {}
        if self.is_rejection_sampling:
            round_index, round_start = self._current_round()
            if round_start == self.step:
                round_metrics = self._sample_round(round_index)
            elif self.rows_step != round_start:
                self.rows, _ = self.world.run_on_main(lambda: self._read_rows(round_start))
                self.rows_step = round_start
        count = self.config.optimizer.batch_rows
        first = (self.step - max(self.rows_step, 0)) * count
        key = f"{self.config.seed}|{self.rows_step}"
        return [shuffled_item(self.rows, first + offset, key) for offset in range(count)], round_metrics

    def _train_on(self, batch: tuple[list[TrainingSample], dict[str, Any]]) -> dict[str, Any]:
        rows, round_metrics = batch
        stats = self.engine.update(rows, scheduled_learning_rate(self.step, self.schedule))
        tokens = sum(len(row.completion_ids) for row in rows)
        self.tokens += tokens
        update_metrics = {name: stats[name] for name in ("entropy", "grad_norm", "learning_rate")}
        return {**round_metrics, "train_loss": stats["loss"], **update_metrics, "tokens": tokens}

    def _validation_score(self, metrics: dict[str, Any]) -> float | None:
        if self.is_rejection_sampling:
            tasks = self._task_source.validation
            if not tasks:
                return None
            summary = self._evaluate_on("validation", self.policy, tasks, self.reader).summary
            metrics |= {"validation_accuracy": summary["accuracy"], "validation_se": summary["se"]}
            return summary["accuracy"]
        loss = self._held_out_loss()
        if loss is None:
            return None
        metrics["validation_loss"] = loss
        if self.step == 0:
            self.start_loss = loss
        return -loss

    def _held_out_loss(self) -> float | None:
        """Return the mean cross-entropy per completion token of the validation rows, in nats; None without any."""
        if not self.held_out:
            return None
        logprobs = np.concatenate(self.engine.forward(self.held_out))
        return -float(logprobs.mean(dtype=np.float64))

    def _final_summary(self, best_step: int) -> dict[str, Any]:
        before: dict[str, Any] = {}
        after: dict[str, Any] = {}
        common = {"rows": len(self.rows), "validation_rows": len(self.held_out), "tokens": self.tokens}
        if self.config.evaluation.evaluate:
            tasks = self._task_source.held_out
            report = self._evaluate_and_save("after", self.policy, tasks, self.reader)
            before = self.world.run_on_main(lambda: read_json(self.out / "eval" / "before.json"))
            after = dict(report.summary)
            common |= {"tasks": len(tasks), "questions": len(report.records)}
        if self.held_out:
            before["validation_loss"], after["validation_loss"] = self.start_loss, self._held_out_loss()
        return {**common, "before": before, "after": after}

    def _checkpoint_state(self) -> dict[str, Any]:
        return {"tokens": self.tokens, "start_loss": self.start_loss}

    def _restore_state(self, state: dict[str, Any]) -> None:
        self.tokens, self.start_loss = state["tokens"], state["start_loss"]


def _split_validation(
    units: Sequence[list[TrainingSample]], config: SFTConfig
) -> tuple[list[TrainingSample], list[TrainingSample]]:
    """Split off the rows of the last units for validation.

    Args:
        units: Rows of each line of a file, or of each task of a run.
        config: `validation_tasks` limits the number of units that validate.

    Returns:
        Training rows, validation rows.
    """
    cut = len(units) - min(config.evaluation.validation_tasks, max(1, len(units) // 5))
    if not cut:
        raise DataError(
            f"source: {config.source} has nothing but what validates (1 line, or 1 task that has a best rollout): add "
            "some, or set validation_tasks=0"
        )
    return [row for unit in units[:cut] for row in unit], [row for unit in units[cut:] for row in unit]


def _check_source(source: str) -> None:
    path = Path(source)
    if source in ("gold", "best", "erl") or source.startswith("scripted:") or path.suffix == ".jsonl":
        return
    if not path.is_dir():
        raise ConfigError(
            f"source: {source!r} is none: give gold, scripted:KIND, best, erl, a run directory, or a .jsonl of rows"
        )
    if not (path / "turns.jsonl").is_file():
        raise ConfigError(f"source: {source} holds no turns.jsonl: only a run with keep_tokens=true writes it")
