"""Supervised fine-tuning: `memalpha train sft`, a warm start for reinforcement learning or its last stage.

Rows come from `train.data.demonstrations`. A step lowers the mean cross-entropy of the completions (never of prompts)
of `batch_rows` rows, in a seeded order that changes every epoch. `source=best` is rejection sampling: each of `rounds`
samples `group_size` rollouts of each task with the current weights and imitates the best rollout of each task.

Rows use the learner's own cross-entropy stream, not another library's trainer. Packing, precision, adapters, processes,
checkpoints and resuming are those of reinforcement learning: the same settings and tests apply, and a checkpoint of one
can start the other. Loss and gradient equal those of TRL's SFTTrainer on the same token rows
(tests/train/trainers/test_sft.py).

Validation is the cross-entropy of held-out rows: those of the validation tasks, also in a file whose rows name their
`task`; otherwise of the last fifth of a file's lines or of a run's tasks, at most `validation_tasks`. Beside it stands
that of the tokens of contents alone: most tokens of a call are its form, which a model learns first. The weights are
chosen by that loss in a synthetic world, and without `evaluation.evaluate`. A task file's are chosen by the accuracy
on the validation tasks, because few rows lower the loss of their like while a start that writes well unlearns the
rest; so are those of `source=best`, whose rows are the policy's own.

`rows.jsonl` in the run directory stores the rows, so that a resumed run uses the same ones even if their source has
changed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from memalpha.agent.policy_check import check_policy
from memalpha.arguments import counted
from memalpha.config import SFTConfig
from memalpha.environments.engine import RolloutEngine
from memalpha.environments.memory_writing import MemoryWriting, memory_engine
from memalpha.errors import CheckpointError, DataError, TrainingError
from memalpha.policy.chat.text import OPEN
from memalpha.policy.scripted import ScriptedPolicy
from memalpha.policy.transformers import TransformersPolicy
from memalpha.qa.evaluate import Evaluator, MemoryScorer
from memalpha.qa.memory_reward import MemoryReward
from memalpha.train.data.demonstrations import (
    Demonstrator,
    best_rollouts,
    imitation_rows,
    load_best_rollouts,
    load_rows,
    reflection_demo_rows,
)
from memalpha.train.data.samples import TrainingSample, cross_entropy_sample
from memalpha.train.learner.engine import Engine
from memalpha.train.learner.losses import LossSettings
from memalpha.train.rollouts.epochs import shared_note, split_last
from memalpha.train.rollouts.memory_tasks import TaskSource, check_gold, check_source, needs_gold
from memalpha.train.rollouts.worker import RolloutWorker
from memalpha.train.trainers.directory import RunDirectory
from memalpha.train.trainers.evaluations import TaskEvaluations, load_writer
from memalpha.train.trainers.progress import Display
from memalpha.train.trainers.rows import RowEvaluations, RowLearner, RowStep
from memalpha.train.trainers.trainer import Trainer, build_engine
from memalpha.types import Task

TASKS_PER_BATCH = 32
"""Tasks whose rollouts are sampled at a time (`source=best`, `source=erl`)."""
BEFORE_TRAINING = -1
"""Step under which `rows.jsonl` stores rows that exist before the first step."""
ROW_FIELDS = ("task", "rollout", "chunk", "prompt_ids", "completion_ids")
"""Attributes of a row in `rows.jsonl`."""

Rows = list[TrainingSample]


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
        source: Training and validation tasks, if the run has any.
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
        units, left_out = load_rows(Path(config.source), policy), 0
        # Reinforcement on the same data validates on these tasks: its start must not have imitated them.
        ids = set() if source is None else {task.id for task in source.validation}
        rows = [row for unit in units for row in unit if row.task not in ids]
        held_out = [row for unit in units for row in unit if row.task in ids]
        if not rows or not held_out:
            rows, held_out = _split_validation(units, config)
    elif Path(config.source).is_dir():
        rows_per_task, left_out = load_best_rollouts(Path(config.source), policy, config.agent, writing.schema)
        rows, held_out = _split_validation(rows_per_task, config)
    else:
        assert source is not None
        tasks, validation = _round_tasks(config, source, 0), source.validation
        if source.file_tasks and needs_gold(config.source):
            check_gold([*tasks, *validation], config)
        if scorer is not None and config.source == "erl":

            def reflect(tasks: Sequence[Task], first: int) -> tuple[Rows, int]:
                """Return rows for the roles of reflection, and the number of turns that were left out."""
                rows, left_out = [], 0
                for start in range(0, len(tasks), TASKS_PER_BATCH):
                    batch, number = tasks[start : start + TASKS_PER_BATCH], first + start
                    new_rows, count = reflection_demo_rows(policy, writing, scorer, batch, config, first=number)
                    rows, left_out = rows + new_rows, left_out + count
                return rows, left_out

            (rows, left_out), (held_out, _) = reflect(tasks, 0), reflect(validation, len(tasks))
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
    steps, batch_rows = config.max_steps or config.optimizer.schedule_steps, config.optimizer.batch_rows
    if config.optimizer.epochs is None:
        note = f"; {steps} steps see each {max(1, round(steps * batch_rows / len(rows)))} times{note}"
    note += shared_note(*([(row.prompt_ids, row.completion_ids) for row in part] for part in (rows, held_out)))
    display.log(f"{counted(len(rows), 'row')} to imitate ({tokens} tokens), {len(held_out)} to validate{note}")
    return rows, held_out


def _round_tasks(config: SFTConfig, source: TaskSource, number: int) -> list[Task]:
    """Return the tasks of round `number`; each task of a file at most once."""
    count = min(config.tasks, len(source.file_tasks) or config.tasks)
    return source.batch(number * count)[:count]


def _append_rows(directory: RunDirectory, step: int, rows: Rows, held_out: Sequence[TrainingSample] = ()) -> None:
    """Append rows to rows.jsonl under `step` (main process only)."""
    for is_validation, part in ((False, rows), (True, held_out)):
        origin = {"step": step, "validation": is_validation}
        lines = (origin | {name: getattr(row, name) for name in ROW_FIELDS} for row in part)
        directory.append("rows.jsonl", lines)


def _read_rows(directory: RunDirectory, step: int) -> tuple[Rows, Rows]:
    """Return the training and validation rows that `_append_rows` stored for `step`."""
    path = directory.path / "rows.jsonl"
    rows_by_split: dict[bool, Rows] = {False: [], True: []}
    try:
        for text in path.read_bytes().splitlines():
            line = json.loads(text)
            if line["step"] == step:
                row = cross_entropy_sample(**{name: line[name] for name in ROW_FIELDS})
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


_JSON_CONTENT = re.compile(r'"(?:new_)?content": "((?:[^"\\]|\\.)*)"')
_LINE_CONTENT = re.compile(r"^(?:=|[+~]\S+ (?:@\S+ )?)(.+)$", re.MULTILINE)


def content_spans(text: str, form: str) -> list[tuple[int, int]]:
    """Return the ranges of characters that hold contents.

    Args:
        text: Reply as `agent.replies.format_calls` writes it.
        form: Form of the reply (`config.reply_form`).
    """
    is_lines = form == "lines" and not text.lstrip().startswith(OPEN)
    return [match.span(1) for match in (_LINE_CONTENT if is_lines else _JSON_CONTENT).finditer(text)]


def content_tokens(policy: TransformersPolicy, row: TrainingSample, form: str) -> np.ndarray:
    """Return True (T,) for the completion tokens of a row that hold a character of a content.

    Args:
        policy: Policy whose tokens the row has.
        row: Row with T completion tokens.
        form: Form of the replies.
    """
    ids = list(row.completion_ids)
    prefixes = policy.tokenizer.batch_decode(
        [ids[:count] for count in range(len(ids) + 1)], skip_special_tokens=False, clean_up_tokenization_spaces=False
    )
    # A prefix that ends within a character's bytes decodes to one replacement character for them.
    starts = np.array([len(prefix.rstrip("\ufffd")) for prefix in prefixes[:-1]])
    ends = np.array([len(prefix) for prefix in prefixes[1:]])
    mask = np.zeros(len(ids), dtype=bool)
    for start, end in content_spans(prefixes[-1], form):
        mask |= (ends > start) & (starts < end)
    return mask


def sft_trainer(config: SFTConfig, directory: RunDirectory) -> Trainer:
    """Compose a run that imitates rows.

    Raises:
        ConfigError: The source is invalid; checked before anything is loaded.
    """
    check_source(config.source, is_resuming=bool(directory.saved_steps()))
    is_rejection_sampling, evaluates = config.source == "best", config.evaluation.evaluate
    needs_tasks = config.source in ("best", "gold", "erl") or config.source.startswith("scripted:")
    source = TaskSource(config) if needs_tasks or evaluates else None
    world, display = directory.world, Display(quiet=not directory.world.is_main)
    config, start, policies, writing = load_writer(config, display)
    policy = start.policy
    if needs_tasks:
        check_policy(policy, config.agent, writing.schema).raise_if_broken()
    if source is not None:
        source.check(policy, config.agent, writing.schema)
    engine = build_engine(policy, config, LossSettings(normalizer="token"), world)
    rollouts, scorer = RolloutEngine(policy, writing), None
    if evaluates or config.source in ("best", "erl"):
        rewards = MemoryReward(config.reward.kept_in(config.out), policy.count_tokens)
        scorer = MemoryScorer(policies.load_reader(config.reader), rewards, writing.embedder)
    directory.claim(config, None if source is None else source.fingerprint)
    rows, held_out = [], []
    if not is_rejection_sampling:
        rows, held_out = world.run_on_main(
            lambda: load_fixed_rows(config, directory, policy, writing, source, scorer, display)
        )
    learner = ImitationLearner(engine, [content_tokens(policy, row, config.agent.reply_form) for row in held_out])
    training_step, tasks = ImitationStep(config, learner, rows), None
    if source is not None and scorer is not None and (evaluates or is_rejection_sampling):
        tasks = TaskEvaluations(
            Evaluator(rollouts, scorer, world),
            source.validation if is_rejection_sampling or source.file_tasks else (),
            source.held_out if evaluates else (),
            directory,
            display,
            notes=scorer.rewards.notes(source.held_out, "held-out tasks"),
            stop_below=config.evaluation.stop_below if is_rejection_sampling else None,
        )
        if is_rejection_sampling:
            worker = RolloutWorker(rollouts, scorer, config, world)
            training_step = RejectionSampling(config, learner, directory, source, worker, display)
    evaluations = ImitationEvaluations(learner, held_out, tasks)
    return Trainer(config, directory, start, engine, training_step, evaluations, display)


class ImitationLearner(RowLearner[TrainingSample]):
    """Lowers the cross-entropy of rows.

    Args:
        engine: Updates the weights.
        content: True (T,) for the completion tokens of each held-out row that hold contents.
    """

    unit, counted, loss = "row", "rows", "validation_loss"

    def __init__(self, engine: Engine, content: Sequence[np.ndarray]) -> None:
        self.engine: Engine = engine
        self.content = content

    def update(self, batch: Rows, rate: float) -> dict[str, Any]:
        """Take one optimizer step and return its loss, metrics of the update and the number of tokens."""
        stats = self.engine.update(batch, rate)
        update_metrics = {name: stats[name] for name in ("entropy", "grad_norm", "learning_rate")}
        return {"train_loss": stats["loss"], **update_metrics, "tokens": sum(len(row.completion_ids) for row in batch)}

    def validation_metrics(self, batch: Rows) -> dict[str, float]:
        """Return the mean cross-entropy of the validation rows per completion token, in nats, by metric.

        `validation_content_loss` is that of the tokens of contents; it is missing if no row has any.
        """
        logprobs, is_content = np.concatenate(self.engine.forward(batch)), np.concatenate(self.content)
        losses = {"validation_loss": -float(logprobs.mean(dtype=np.float64))}
        if is_content.any():
            losses["validation_content_loss"] = -float(logprobs[is_content].mean(dtype=np.float64))
        return losses


class ImitationStep(RowStep[TrainingSample]):
    """Imitate `batch_rows` rows per step, in a seeded order that changes every epoch.

    Args:
        config: Settings of the run.
        learner: Lowers the cross-entropy.
        rows: Rows to imitate in all steps; [] if they are sampled.

    Attributes:
        first_step: First step of the rows.
    """

    log_files = ("rows.jsonl",)
    config: SFTConfig
    first_step = BEFORE_TRAINING

    def prepare(self, step: int) -> tuple[Rows, dict[str, Any]]:
        """Return the rows of a step, and metrics of what was sampled for it."""
        first = (step - max(self.first_step, 0)) * self.batch_size
        return self.rows_at(first, f"{self.config.seed}|{self.first_step}"), {}

    def train(self, batch: tuple[Rows, dict[str, Any]], step: int) -> dict[str, Any]:
        """Lower the cross-entropy of the rows."""
        rows, round_metrics = batch
        return {**round_metrics, **super().train(rows, step)}


class RejectionSampling(ImitationStep):
    """Imitate the best rollouts of each task, sampled anew in `rounds` rounds, which divide the schedule evenly.

    Args:
        config: Settings of the run.
        learner: Lowers the cross-entropy.
        directory: Run directory; keeps the rows of each round.
        source: Training tasks.
        worker: Samples and scores rollouts.
        display: Shows what a round gave.
    """

    def __init__(
        self,
        config: SFTConfig,
        learner: ImitationLearner,
        directory: RunDirectory,
        source: TaskSource,
        worker: RolloutWorker[Task],
        display: Display,
    ) -> None:
        super().__init__(config, learner, [])
        self.directory, self.source, self.worker, self.display = directory, source, worker, display

    def prepare(self, step: int) -> tuple[Rows, dict[str, Any]]:
        """Return the rows of a step; sample the round that starts at `step`, if any.

        A resumed run reads the rows of a round under way.
        """
        count, round_metrics = self.config.rounds, {}
        starts = [index * self.config.optimizer.schedule_steps // count for index in range(count)]
        number, round_start = max((index, start) for index, start in enumerate(starts) if start <= step)
        if round_start == step:
            self.rows, round_metrics = self._sample_round(number, step)
        elif self.first_step != round_start:
            self.rows, _ = self.directory.world.run_on_main(lambda: _read_rows(self.directory, round_start))
        self.first_step = round_start
        return super().prepare(step)[0], round_metrics

    def _sample_round(self, number: int, step: int) -> tuple[Rows, dict[str, Any]]:
        """Sample rollouts, keep the best of each task as rows, and return metrics of the round."""
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
        self.display.log(
            f"round {number + 1}/{self.config.rounds}: {len(rows)} rows of the best rollouts of {best_count} tasks "
            f"({len(tasks) - best_count} without a best one; {left_out} turns left out: a call failed, or was cut off)"
        )
        kept = {"rows": len(rows), "groups_kept": best_count / len(tasks)}
        return rows, {"reward": sum(rewards) / len(rewards), **kept}


class ImitationEvaluations(RowEvaluations[TrainingSample]):
    """Validates by the accuracy on tasks, or else by the loss on held-out rows; may evaluate tasks before and after.

    Args:
        learner: Measures the loss.
        held_out: Rows whose loss is measured.
        tasks: Evaluations on tasks; validation tasks choose the weights.
    """

    def __init__(self, learner: ImitationLearner, held_out: Rows, tasks: TaskEvaluations | None = None) -> None:
        super().__init__(learner, held_out)
        self.tasks = tasks

    def before(self) -> None:
        """Evaluate the held-out tasks, if any."""
        if self.tasks is not None and self.tasks.held_out:
            self.tasks.before()

    def validate(self, step: int, metrics: dict[str, Any]) -> float | None:
        """Return the accuracy on validation tasks, or else minus the loss on held-out rows."""
        score = super().validate(step, metrics)
        if self.tasks is not None and self.tasks.validation:
            return self.tasks.validate(step, metrics)
        return score

    def summary(self) -> dict[str, Any]:
        """Return the evaluations before and after, and the losses on held-out rows."""
        summary = super().summary()
        if self.tasks is None or not self.tasks.held_out:
            return summary
        of_tasks = self.tasks.summary()
        return summary | of_tasks | {when: of_tasks[when] | summary[when] for when in ("before", "after")}

    def state(self) -> dict[str, Any]:
        """Return the losses before training, and the first validation on tasks."""
        return {**super().state(), **(self.tasks.state() if self.tasks else {})}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the losses before training, and the first validation on tasks."""
        super().restore(state)
        if self.tasks is not None:
            self.tasks.restore(state)

    def check(self, step: int) -> None:
        if self.tasks is not None:
            self.tasks.check(step)
