"""Supervised fine-tuning: `memalpha train sft`, the warm start before reinforcement learning, or its end.

Rows come from `train.demonstrations`; a step lowers the mean cross-entropy of their completions (never of prompts) over
`batch_rows` of them, in a seeded order that is new in every pass. `source=best` is rejection sampling: in each of
`rounds`, with the weights of then, `group_size` rollouts of each task, of which the best is imitated.

The rows go through the learner's own cross-entropy stream and not through a trainer of another library: packing,
precision, adapters, processes, checkpoints and resuming are those of reinforcement learning, so one set of settings and
of tests holds for both, and a checkpoint of one is a start of the other. Its loss and gradient equal those of TRL's
SFTTrainer on the same token rows (tests/train/trainers/test_sft.py).

What validates: the cross-entropy of rows that are held out (of the validation tasks, or the last fifth of a file's
lines or a run's tasks, `validation_tasks` at most); with `source=best` the accuracy on the validation tasks, because
the rows are its own. `rows.jsonl` in the run directory holds what was imitated, so that a run goes on with the same
rows whatever became of their source.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from memalpha.agent.builder import Builder
from memalpha.agent.reader import Reader
from memalpha.config import SFTConfig
from memalpha.errors import CheckpointError, ConfigError, DataError, TrainingError
from memalpha.policy.scripted import ScriptedPolicy
from memalpha.train.data.demonstrations import Demonstrator, best_of, from_file, imitable, logged
from memalpha.train.data.samples import TrainingSample, cross_entropy_sample
from memalpha.train.learner.distributed import World
from memalpha.train.learner.engine import scheduled_learning_rate
from memalpha.train.learner.losses import LossSettings
from memalpha.train.rollouts.epochs import nth, steps_of
from memalpha.train.rollouts.memory import Collector, TaskSource
from memalpha.train.trainers.checkpoint import append_lines, read_json, saved_steps
from memalpha.train.trainers.evaluated import TaskRun
from memalpha.train.trainers.reflection_demos import lesson_rows
from memalpha.types import Task

TOGETHER = 32
"""Tasks whose rollouts are sampled at a time (`source=best`)."""
BEFORE = -1
"""The step at which rows are noted that are there before the first."""


class SFTRun(TaskRun[SFTConfig]):
    """Each step imitates `batch_rows` rows. Raises `ConfigError` for a source that is none, before all else."""

    files: ClassVar[tuple[str, ...]] = ("metrics.jsonl", "rows.jsonl")

    def __init__(self, config: SFTConfig, world: World) -> None:
        _check_source(config.source)
        self.samples = config.source == "best"
        by_tasks = config.source in ("best", "gold", "erl") or config.source.startswith("scripted:")
        self.source = TaskSource(config) if by_tasks or config.evaluate else None
        super().__init__(config, world)
        config = self.schedule = self.config
        self.builder = Builder(self.policy, config.agent, self.embedder)
        if self.source is not None:
            self.source.check(self.policy, config.agent, self.builder.schema)
        self.engine = self._new_engine(LossSettings(normalizer="token"))
        self.rows: list[TrainingSample] = []
        self.rows_from = BEFORE
        self.held_out: list[TrainingSample] = []
        self.tokens = 0
        self.start_loss: float | None = None

    @cached_property
    def reader(self) -> Reader:
        """Loaded where something is asked: it may be a model of its own."""
        return self._readers(self.config.reader)[0]

    # ---------------------------------------------------------------------------------------------------- the rows

    def _length(self) -> int:
        config = self.config
        if not self.samples:
            self.rows, self.held_out = self.world.run_on_main(self._fixed_rows)
            self.rows_from = BEFORE
        if config.epochs is None:
            return config.schedule_steps
        steps = steps_of(config, len(self.rows), config.batch_rows)
        self.schedule = config.model_copy(update={"schedule_steps": steps})
        return steps

    def _fixed_rows(self) -> tuple[list[TrainingSample], list[TrainingSample]]:
        """Rows to imitate and rows that validate, of a source that gives the same for all steps; noted at the start."""
        if saved_steps(self.out):
            return self._noted(BEFORE)
        config, left_out = self.config, 0
        if config.source == "erl":
            tasks, validation = self._tasks(0), self._task_source.validation
            (rows, left_out), (held_out, _) = self._lessons(tasks, 0), self._lessons(validation, len(tasks))
        elif config.source.endswith(".jsonl"):
            rows, held_out = _split(from_file(Path(config.source), self.policy), config)
        elif Path(config.source).is_dir():
            found, left_out = logged(Path(config.source), self.policy, config.agent, self.builder.schema)
            rows, held_out = _split(found, config)
        else:
            script = ScriptedPolicy("oracle" if config.source == "gold" else config.source.removeprefix("scripted:"))
            builder = Builder(Demonstrator(script, self.policy), config.agent, self.embedder, self.builder.schema)
            parts = [builder.build(tasks) for tasks in (self._tasks(0), self._task_source.validation)]
            (rows, left_out), (held_out, _) = (imitable(t for g in part for t in g.trajectories) for part in parts)
        if not rows:
            raise DataError(f"source: {config.source} gives no row to imitate ({left_out} turns were left out)")
        (self.out / "rows.jsonl").unlink(missing_ok=True)  # of a run that was stopped before its first checkpoint
        self._note(BEFORE, rows, held_out)
        tokens = sum(len(row.completion_ids) for row in rows)
        left = f"; {left_out} turns left out: a call failed, or the reply was cut off" if left_out else ""
        self.display.say(f"{len(rows)} rows to imitate ({tokens} tokens), {len(held_out)} to validate{left}")
        return rows, held_out

    def _lessons(self, tasks: Sequence[Task], first: int) -> tuple[list[TrainingSample], int]:
        """Rows for the roles of reflection, and how many turns were left out."""
        config, rows, left_out = self.config, [], 0
        for start in range(0, len(tasks), TOGETHER):
            some = tasks[start : start + TOGETHER]
            place = {"first": first + start}
            found, more = lesson_rows(self.policy, self.builder, self.reader, self.rewards, some, config, **place)
            rows, left_out = rows + found, left_out + more
        return rows, left_out

    def _sample_rows(self, number: int) -> dict[str, Any]:
        """The best rollouts of round `number`, which begins at this step; figures of what was sampled."""
        config, tasks = self.config, self._tasks(number)
        rewards, kept, rows, left_out = [], 0, [], 0
        collector = Collector(self.builder, self.reader, self.rewards, config, self.world)
        for first in range(0, len(tasks), TOGETHER):
            step = number * len(tasks) + first  # keys the noise
            some = tasks[first : first + TOGETHER]
            groups, _ = collector.attempts(some, step)
            rewards += [t.reward.total for group in groups for t in group.trajectories if t.reward is not None]
            chosen = best_of(groups)
            kept += len(chosen)
            found, more = imitable(chosen)
            rows, left_out = rows + found, left_out + more
        if not rows:
            raise TrainingError(
                f"source=best: of {len(tasks)} tasks none has a rollout that is better than its siblings and has a "
                "turn to imitate: raise tasks, group_size or temperature"
            )
        if self.world.is_main:
            self._note(self.step, rows)
        self.rows, self.rows_from = rows, self.step
        self.display.say(
            f"round {number + 1}/{config.rounds}: {len(rows)} rows of the best rollouts of {kept} tasks "
            f"({len(tasks) - kept} without a best one; {left_out} turns left out: a call failed, or was cut off)"
        )
        return {"reward": sum(rewards) / len(rewards), "rows": len(rows), "groups_kept": kept / len(tasks)}

    @property
    def _task_source(self) -> TaskSource:
        assert self.source is not None
        return self.source

    def _tasks(self, number: int) -> list[Task]:
        """The tasks of round `number`: of a file at most all, once."""
        source = self._task_source
        count = min(self.config.tasks, len(source.file) or self.config.tasks)
        return source.batch(number * count)[:count]

    def _round(self) -> tuple[int, int]:
        """The number, from 0, of the round that this step is in, and its first step: rounds share the schedule."""
        config = self.config
        starts = [number * config.schedule_steps // config.rounds for number in range(config.rounds)]
        return max((number, start) for number, start in enumerate(starts) if start <= self.step)

    def _note(self, step: int, rows: Sequence[TrainingSample], held_out: Sequence[TrainingSample] = ()) -> None:
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

    def _noted(self, step: int) -> tuple[list[TrainingSample], list[TrainingSample]]:
        """What `_note` wrote for `step`."""
        path = self.out / "rows.jsonl"
        found: dict[bool, list[TrainingSample]] = {False: [], True: []}
        try:
            for text in path.read_bytes().splitlines():
                line = json.loads(text)
                if line["step"] == step:
                    place = {"task": line["task"], "rollout": line["rollout"], "chunk": line["chunk"]}
                    row = cross_entropy_sample(line["prompt_ids"], line["completion_ids"], **place)
                    found[line["validation"]].append(row)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise CheckpointError(f"{path} cannot be read ({error}): start again in another out") from error
        if not found[False]:
            raise CheckpointError(f"{path} lacks the rows of this run: start again in another out")
        return found[False], found[True]

    # ------------------------------------------------------------------------------------------------------- a step

    def _begin(self) -> None:
        if self.config.evaluate:
            held_out = self._task_source.held_out
            for note in self.rewards.notes(held_out):
                self.display.say(note)
            self._evaluate("before", self.policy, held_out, self.reader)

    def _prepare(self) -> tuple[list[TrainingSample], dict[str, Any]]:
        sampled: dict[str, Any] = {}
        if self.samples:
            number, begins = self._round()
            if begins == self.step:
                sampled = self._sample_rows(number)
            elif self.rows_from != begins:
                self.rows, _ = self.world.run_on_main(lambda: self._noted(begins))
                self.rows_from = begins
        count = self.config.batch_rows
        first = (self.step - max(self.rows_from, 0)) * count
        key = f"{self.config.seed}|{self.rows_from}"
        return [nth(self.rows, first + number, key) for number in range(count)], sampled

    def _learn(self, prepared: tuple[list[TrainingSample], dict[str, Any]]) -> dict[str, Any]:
        rows, sampled = prepared
        stats = self.engine.update(rows, scheduled_learning_rate(self.step, self.schedule))
        tokens = sum(len(row.completion_ids) for row in rows)
        self.tokens += tokens
        keep = {name: stats[name] for name in ("entropy", "grad_norm", "learning_rate")}
        return {**sampled, "train_loss": stats["loss"], **keep, "tokens": tokens}

    def _score(self, line: dict[str, Any]) -> float | None:
        if self.samples:
            tasks = self._task_source.validation
            if not tasks:
                return None
            summary = self._report("validation", self.policy, tasks, self.reader).summary
            line |= {"validation_accuracy": summary["accuracy"], "validation_se": summary["se"]}
            return summary["accuracy"]
        loss = self._held_out_loss()
        if loss is None:
            return None
        line["validation_loss"] = loss
        if self.step == 0:
            self.start_loss = loss
        return -loss

    def _held_out_loss(self) -> float | None:
        """Mean cross-entropy per completion token of the rows that validate, in nats."""
        if not self.held_out:
            return None
        logprobs = np.concatenate(self.engine.forward(self.held_out))
        return -float(logprobs.mean(dtype=np.float64))

    def _end(self, chosen: int) -> dict[str, Any]:
        before: dict[str, Any] = {}
        after: dict[str, Any] = {}
        common = {"rows": len(self.rows), "validation_rows": len(self.held_out), "tokens": self.tokens}
        if self.config.evaluate:
            tasks = self._task_source.held_out
            report = self._evaluate("after", self.policy, tasks, self.reader)
            before = self.world.run_on_main(lambda: read_json(self.out / "eval" / "before.json"))
            after = dict(report.summary)
            common |= {"tasks": len(tasks), "questions": len(report.records)}
        if self.held_out:
            before["validation_loss"], after["validation_loss"] = self.start_loss, self._held_out_loss()
        return {**common, "before": before, "after": after}

    def _state(self) -> dict[str, Any]:
        return {"tokens": self.tokens, "start_loss": self.start_loss}

    def _restore(self, state: dict[str, Any]) -> None:
        self.tokens, self.start_loss = state["tokens"], state["start_loss"]


def _split(
    units: Sequence[list[TrainingSample]], config: SFTConfig
) -> tuple[list[TrainingSample], list[TrainingSample]]:
    """Rows to imitate, and those of the last units, which validate."""
    cut = len(units) - min(config.validation_tasks, max(1, len(units) // 5))
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
