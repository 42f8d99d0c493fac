"""Supervised fine-tuning: `memalpha train sft`, a warm start for reinforcement learning or its last stage.

Rows come from `train.data.demonstrations`. A step lowers the mean cross-entropy of the completions (never of prompts)
of `batch_rows` rows, in a seeded order that changes every epoch. `source=best` is rejection sampling: each of `rounds`
samples `group_size` rollouts of each task with the current weights and imitates the best rollout of each task.

Rows use the learner's own cross-entropy stream, not another library's trainer. Packing, precision, adapters, processes,
checkpoints and resuming are those of reinforcement learning: the same settings and tests apply, and a checkpoint of one
can start the other. Loss and gradient equal those of TRL's SFTTrainer on the same token rows
(tests/train/trainers/test_sft.py).

Validation is the cross-entropy of held-out rows: those of the validation tasks, or of the last fifth of a file's lines
or of a run's tasks, at most `validation_tasks`. Beside it stands that of the tokens of contents alone. With
`source=best` it is the accuracy on the validation tasks, because the rows are the policy's own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from memalpha.agent.policy_check import check_policy
from memalpha.config import SFTConfig
from memalpha.environments.engine import RolloutEngine
from memalpha.environments.memory_writing import MemoryWriting
from memalpha.qa.evaluate import Evaluator, MemoryScorer
from memalpha.qa.memory_reward import MemoryReward
from memalpha.store.embedding import load_embedder
from memalpha.train.data.content_tokens import content_tokens
from memalpha.train.data.samples import TrainingSample
from memalpha.train.inputs import check_source
from memalpha.train.learner.engine import Engine, scheduled_learning_rate
from memalpha.train.learner.losses import LossSettings
from memalpha.train.rollouts.epochs import schedule_steps, shuffled_item
from memalpha.train.rollouts.memory_tasks import TaskSource
from memalpha.train.rollouts.worker import RolloutWorker
from memalpha.train.trainers.directory import RunDirectory
from memalpha.train.trainers.evaluations import FrozenPolicies, TaskEvaluations
from memalpha.train.trainers.progress import Display
from memalpha.train.trainers.sft_rows import BEFORE_TRAINING, RejectionSampling, Rows, load_fixed_rows
from memalpha.train.trainers.start import build_engine, load_start, settle_defaults
from memalpha.train.trainers.trainer import Evaluations, Trainer, TrainingStep


def sft_trainer(config: SFTConfig, directory: RunDirectory) -> Trainer:
    """Compose a run that imitates rows.

    Raises:
        ConfigError: The source is invalid; checked before anything is loaded.
    """
    check_source(config.source, is_resuming=bool(directory.saved_steps()))
    is_rejection_sampling, evaluates = config.source == "best", config.evaluation.evaluate
    needs_tasks = config.source in ("best", "gold", "erl") or config.source.startswith("scripted:")
    source = TaskSource(config) if needs_tasks or evaluates else None
    start, world = load_start(config), directory.world
    policy, display = start.policy, Display(quiet=not world.is_main)
    config = settle_defaults(config, start, display)
    policies = FrozenPolicies(config)
    config = policies.with_trained_prompts(config, policy)
    policy.set_prompt_style(config.agent.prompt, config.agent.form)
    embedder = load_embedder(config.agent.embedder)
    writing = MemoryWriting(config.agent, policy.count_tokens, embedder)
    if needs_tasks:
        check_policy(policy, config.agent, writing.schema).raise_if_broken()
    if source is not None:
        source.check(policy, config.agent, writing.schema)
    engine = build_engine(policy, config, LossSettings(normalizer="token"), world)
    rollouts, scorer = RolloutEngine(policy, writing), None
    if evaluates or config.source in ("best", "erl"):
        rewards = MemoryReward(config.reward.kept_in(config.out), policy.count_tokens)
        scorer = MemoryScorer(policies.load_reader(config.reader), rewards, embedder)
    directory.claim(config, None if source is None else source.fingerprint)
    sampling, rows, held_out = None, [], []
    if is_rejection_sampling:
        assert source is not None and scorer is not None
        worker = RolloutWorker(rollouts, scorer, config, world)
        sampling = RejectionSampling(config, directory, source, worker, display)
    else:
        rows, held_out = world.run_on_main(
            lambda: load_fixed_rows(config, directory, policy, writing, source, scorer, display)
        )
    tasks = None
    if source is not None and scorer is not None and (evaluates or is_rejection_sampling):
        tasks = TaskEvaluations(
            Evaluator(rollouts, scorer, world),
            source.validation if is_rejection_sampling else (),
            source.held_out if evaluates else (),
            directory,
            display,
            notes=scorer.rewards.notes(source.held_out, "held-out tasks"),
            stop_below=config.evaluation.stop_below,
        )
    return Trainer(
        config=config,
        directory=directory,
        start=start,
        engine=engine,
        training_step=ImitationStep(config, engine, rows, sampling),
        evaluations=ImitationEvaluations(
            engine, held_out, [content_tokens(policy, row, config.agent.reply_form) for row in held_out], tasks
        ),
        display=display,
    )


class ImitationStep(TrainingStep):
    """Imitate `batch_rows` rows per step, in a seeded order that changes every epoch.

    Args:
        config: Settings of the run.
        engine: Updates the weights.
        rows: Rows to imitate in all steps; [] if `sampling` gives them.
        sampling: Samples rows anew in rounds.
    """

    log_files = ("rows.jsonl",)

    def __init__(
        self, config: SFTConfig, engine: Engine, rows: Rows, sampling: RejectionSampling | None = None
    ) -> None:
        self.config, self.engine, self.rows, self.sampling = config, engine, rows, sampling
        self.scheduled_steps = schedule_steps(config, len(rows), config.optimizer.batch_rows)
        self.schedule = config.replace(schedule_steps=self.scheduled_steps)
        self.tokens = 0

    def prepare(self, step: int) -> tuple[Rows, dict[str, Any]]:
        """Return the rows of a step, and metrics of what was sampled for it."""
        first_step, round_metrics = BEFORE_TRAINING, {}
        if self.sampling is not None:
            round_metrics = self.sampling.advance(step)
            self.rows, first_step = self.sampling.rows, self.sampling.first_step
        count = self.config.optimizer.batch_rows
        first = (step - max(first_step, 0)) * count
        key = f"{self.config.seed}|{first_step}"
        return [shuffled_item(self.rows, first + offset, key) for offset in range(count)], round_metrics

    def train(self, batch: tuple[Rows, dict[str, Any]], step: int) -> dict[str, Any]:
        """Lower the cross-entropy of the rows."""
        rows, round_metrics = batch
        stats = self.engine.update(rows, scheduled_learning_rate(step, self.schedule))
        tokens = sum(len(row.completion_ids) for row in rows)
        self.tokens += tokens
        update_metrics = {name: stats[name] for name in ("entropy", "grad_norm", "learning_rate")}
        return {**round_metrics, "train_loss": stats["loss"], **update_metrics, "tokens": tokens}

    def state(self, step: int) -> dict[str, Any]:
        """Return the number of trained tokens."""
        return {"tokens": self.tokens}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the number of trained tokens."""
        self.tokens = state["tokens"]

    def summary(self) -> dict[str, Any]:
        """Return the numbers of rows and of trained tokens."""
        return {"rows": len(self.rows), "tokens": self.tokens}


class ImitationEvaluations(Evaluations):
    """Validates by the loss on held-out rows, or on tasks; may evaluate tasks before and after.

    Args:
        engine: Measures the loss.
        held_out: Rows that validate.
        content: True (T,) for the completion tokens of each row that hold contents.
        tasks: Evaluations on tasks; validation tasks take the place of rows.
    """

    def __init__(
        self,
        engine: Engine,
        held_out: Sequence[TrainingSample],
        content: Sequence[np.ndarray],
        tasks: TaskEvaluations | None = None,
    ) -> None:
        self.engine, self.held_out, self.content, self.tasks = engine, held_out, content, tasks
        self.start_losses: dict[str, float] = {}

    def before(self) -> None:
        """Evaluate the held-out tasks, if any."""
        if self.tasks is not None and self.tasks.held_out:
            self.tasks.before()

    def validate(self, step: int, metrics: dict[str, Any]) -> float | None:
        """Return minus the loss on held-out rows, or the accuracy on validation tasks."""
        if self.tasks is not None and self.tasks.validation:
            return self.tasks.validate(step, metrics)
        if not self.held_out:
            return None
        losses = self.held_out_losses()
        metrics |= losses
        if step == 0:
            self.start_losses = losses
        return -losses["validation_loss"]

    def held_out_losses(self) -> dict[str, float]:
        """Return the mean cross-entropy of the validation rows per completion token, in nats, by metric.

        `validation_content_loss` is that of the tokens of contents; it is missing if no row has any.
        """
        logprobs, is_content = np.concatenate(self.engine.forward(self.held_out)), np.concatenate(self.content)
        losses = {"validation_loss": -float(logprobs.mean(dtype=np.float64))}
        if is_content.any():
            losses["validation_content_loss"] = -float(logprobs[is_content].mean(dtype=np.float64))
        return losses

    def summary(self) -> dict[str, Any]:
        """Return the evaluations before and after, and the losses on held-out rows."""
        summary: dict[str, Any] = {"validation_rows": len(self.held_out), "before": {}, "after": {}}
        if self.tasks is not None and self.tasks.held_out:
            summary |= self.tasks.summary()
        if self.held_out:
            summary["before"] |= self.start_losses
            summary["after"] |= self.held_out_losses()
        return summary

    def state(self) -> dict[str, Any]:
        """Return the losses before training, and the first validation on tasks."""
        return {"start_losses": self.start_losses, **(self.tasks.state() if self.tasks else {})}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the losses before training, and the first validation on tasks."""
        self.start_losses = state["start_losses"]
        if self.tasks is not None:
            self.tasks.restore(state)

    def check(self, step: int) -> None:
        if self.tasks is not None:
            self.tasks.check(step)
