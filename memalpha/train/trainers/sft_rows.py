"""Rows to imitate: the same for all steps, or the policy's own best rollouts, sampled in rounds; `rows.jsonl`.

`rows.jsonl` in the run directory stores the rows, so that a resumed run uses the same ones even if their source has
changed.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from memalpha.config import SFTConfig
from memalpha.environments.memory_writing import MemoryWriting, memory_engine
from memalpha.errors import CheckpointError, DataError, TrainingError
from memalpha.policy.scripted import ScriptedPolicy
from memalpha.policy.transformers import TransformersPolicy
from memalpha.qa.evaluate import MemoryScorer
from memalpha.train.data.demonstrations import (
    Demonstrator,
    best_rollouts,
    imitation_rows,
    load_best_rollouts,
    load_rows,
)
from memalpha.train.data.samples import TrainingSample, cross_entropy_sample
from memalpha.train.inputs import check_gold, needs_gold
from memalpha.train.rollouts.epochs import split_last
from memalpha.train.rollouts.memory_tasks import TaskSource
from memalpha.train.rollouts.worker import RolloutWorker
from memalpha.train.trainers.directory import RunDirectory
from memalpha.train.trainers.progress import Display
from memalpha.train.trainers.reflection_demos import reflection_demo_rows
from memalpha.types import Task

TASKS_PER_BATCH = 32
"""Tasks whose rollouts are sampled at a time (`source=best`, `source=erl`)."""
BEFORE_TRAINING = -1
"""Step under which `rows.jsonl` stores rows that exist before the first step."""

Rows = list[TrainingSample]


class RejectionSampling:
    """The best rollouts of each task, sampled anew in each of `rounds` rounds, which divide the schedule evenly.

    Args:
        config: Settings of the run.
        directory: Run directory; keeps the rows of each round.
        source: Training tasks.
        worker: Samples and scores rollouts.
        display: Shows what a round gave.

    Attributes:
        rows: Rows of the current round.
        first_step: First step of the round.
    """

    def __init__(
        self,
        config: SFTConfig,
        directory: RunDirectory,
        source: TaskSource,
        worker: RolloutWorker[Task],
        display: Display,
    ) -> None:
        self.config, self.directory, self.source = config, directory, source
        self.worker, self.display = worker, display
        self.rows: Rows = []
        self.first_step = BEFORE_TRAINING

    def advance(self, step: int) -> dict[str, Any]:
        """Sample the round that starts at `step`; a resumed run reads the rows of a round under way."""
        config = self.config
        starts = [index * config.optimizer.schedule_steps // config.rounds for index in range(config.rounds)]
        number, round_start = max((index, start) for index, start in enumerate(starts) if start <= step)
        if round_start == step:
            return self._sample_round(number, step)
        if self.first_step != round_start:
            self.rows, _ = self.directory.world.run_on_main(lambda: _read_rows(self.directory, round_start))
            self.first_step = round_start
        return {}

    def _sample_round(self, number: int, step: int) -> dict[str, Any]:
        """Sample a round and keep its best rollouts as rows; return metrics of the round.

        Args:
            number: Index of the round.
            step: First step of the round.
        """
        tasks = _round_tasks(self.config, self.source, number)
        rewards, best_count, rows, left_out = [], 0, [], 0
        for first in range(0, len(tasks), TASKS_PER_BATCH):
            batch = tasks[first : first + TASKS_PER_BATCH]
            groups, _ = self.worker.collect_attempts(batch, number * len(tasks) + first)  # seeds the noise
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
        _append_rows(self.directory, step, rows)
        self.rows, self.first_step = rows, step
        self.display.log(
            f"round {number + 1}/{self.config.rounds}: {len(rows)} rows of the best rollouts of {best_count} tasks "
            f"({len(tasks) - best_count} without a best one; {left_out} turns left out: a call failed, or was cut off)"
        )
        return {"reward": sum(rewards) / len(rewards), "rows": len(rows), "groups_kept": best_count / len(tasks)}


def load_fixed_rows(
    config: SFTConfig,
    directory: RunDirectory,
    policy: TransformersPolicy,
    writing: MemoryWriting,
    source: TaskSource | None,
    scorer: MemoryScorer | None,
    display: Display,
) -> tuple[Rows, Rows]:
    """Make the rows of a source that is the same for all steps, or read those that a resumed run began with.

    Args:
        config: Settings of the run.
        directory: Run directory; keeps the rows. Only the main process may call this.
        policy: Policy whose tokenizer encodes the rows.
        writing: Environment of the rollouts.
        source: Training and validation tasks, if the rows come from tasks.
        scorer: Scorer of the rollouts, if reflections are made.
        display: Shows the number of rows.

    Returns:
        Training rows, validation rows.

    Raises:
        DataError: The source gives no row.
    """
    if directory.saved_steps():
        return _read_rows(directory, BEFORE_TRAINING)
    if config.source.endswith(".jsonl"):
        rows, held_out = _split_validation(load_rows(Path(config.source), policy), config)
        left_out = 0
    elif Path(config.source).is_dir():
        rows_per_task, left_out = load_best_rollouts(Path(config.source), policy, config.agent, writing.schema)
        rows, held_out = _split_validation(rows_per_task, config)
    else:
        assert source is not None
        tasks, validation = _round_tasks(config, source, 0), source.validation
        if source.file_tasks and needs_gold(config.source):
            check_gold([*tasks, *validation], config)
        if scorer is not None and config.source == "erl":
            rows, left_out = _reflection_rows(config, policy, writing, scorer, tasks, 0)
            held_out, _ = _reflection_rows(config, policy, writing, scorer, validation, len(tasks))
        else:
            script = ScriptedPolicy("oracle" if config.source == "gold" else config.source.removeprefix("scripted:"))
            engine = memory_engine(
                Demonstrator(script, policy, config.agent.reply_form), config.agent, writing.embedder, writing.schema
            )
            (rows, left_out), (held_out, _) = (
                imitation_rows(trajectory for group in groups for trajectory in group.trajectories)
                for groups in (engine.roll_out(tasks), engine.roll_out(validation))
            )
    if not rows:
        raise DataError(f"source: {config.source} gives no row to imitate ({left_out} turns were left out)")
    (directory.path / "rows.jsonl").unlink(missing_ok=True)  # left by a run that stopped before a checkpoint
    _append_rows(directory, BEFORE_TRAINING, rows, held_out)
    tokens = sum(len(row.completion_ids) for row in rows)
    note = f"; {left_out} turns left out: a call failed, or the reply was cut off" if left_out else ""
    display.log(f"{len(rows)} rows to imitate ({tokens} tokens), {len(held_out)} to validate{note}")
    return rows, held_out


def _reflection_rows(
    config: SFTConfig,
    policy: TransformersPolicy,
    writing: MemoryWriting,
    scorer: MemoryScorer,
    tasks: Sequence[Task],
    first: int,
) -> tuple[Rows, int]:
    """Return rows for the roles of reflection, and the number of turns that were left out."""
    rows, left_out = [], 0
    for start in range(0, len(tasks), TASKS_PER_BATCH):
        batch = tasks[start : start + TASKS_PER_BATCH]
        batch_rows, batch_left_out = reflection_demo_rows(policy, writing, scorer, batch, config, first=first + start)
        rows, left_out = rows + batch_rows, left_out + batch_left_out
    return rows, left_out


def _round_tasks(config: SFTConfig, source: TaskSource, number: int) -> list[Task]:
    """Return the tasks of round `number`; each task of a file at most once."""
    count = min(config.tasks, len(source.file_tasks) or config.tasks)
    return source.batch(number * count)[:count]


def _append_rows(directory: RunDirectory, step: int, rows: Rows, held_out: Sequence[TrainingSample] = ()) -> None:
    """Append rows to rows.jsonl under `step` (main process only)."""
    directory.append(
        "rows.jsonl",
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


def _read_rows(directory: RunDirectory, step: int) -> tuple[Rows, Rows]:
    """Return the training and validation rows that `_append_rows` stored for `step`."""
    path = directory.path / "rows.jsonl"
    rows_by_split: dict[bool, Rows] = {False: [], True: []}
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
    training, held_out = split_last(units, config.evaluation.validation_tasks)
    if not training:
        raise DataError(
            f"source: {config.source} has nothing but what validates (1 line, or 1 task that has a best rollout): add "
            "some, or set validation_tasks=0"
        )
    return [row for unit in training for row in unit], [row for unit in held_out for row in unit]
