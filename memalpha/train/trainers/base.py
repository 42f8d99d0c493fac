"""Base of all training runs: start or resume, steps, validation, checkpoints, the final summary.

Step n uses the weights of `checkpoints/step-n`; its update makes those of `step-(n+1)`. A step depends only on the
config, the weights, the optimizer and the step number. A killed run that is started again on the same directory
therefore ends with the same weights, bit for bit. The final weights are those that validated best, or the last ones
without validation.

Several processes (`train.learner.distributed`) share rollouts and evaluations by task, and updates by micro-batch.
Every process knows all results; only the main process writes files and logs.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

import torch

from memalpha.config import LearnerConfig
from memalpha.errors import CheckpointError
from memalpha.policy.load import absolute_policy_name
from memalpha.train.learner.distributed import World, join_world, local_device
from memalpha.train.learner.engine import Engine
from memalpha.train.learner.lora import add_lora
from memalpha.train.learner.losses import LossSettings
from memalpha.train.software import software_version
from memalpha.train.trainers.checkpoint import (
    append_lines,
    check_run_directory,
    checkpoint_path,
    link_best,
    load_checkpoint,
    load_weights,
    lock_run_directory,
    prune_checkpoints,
    save_checkpoint,
    saved_steps,
    truncate_lines,
    weights_fingerprint,
    write_json,
)
from memalpha.train.trainers.directory import (
    CoordinatedInterrupt,
    check_device,
    check_settings,
    defer_interrupt,
    load_finished_summary,
    resolve_init_from,
    trainable_policy,
    write_settings,
)
from memalpha.train.trainers.progress import Display
from memalpha.train.trainers.tracking import check_trackers, open_trackers

C = TypeVar("C", bound=LearnerConfig)


def launch(trainer_type: Callable[[C, World], Trainer[C]], config: C) -> dict[str, Any]:
    """Check the run directory and device, join the other processes, lock the directory and train.

    Args:
        trainer_type: Trainer class, or a function that builds one from the config and the world.
        config: Configuration of the run.

    Returns:
        Summary of the run, as in `summary.json`.
    """
    check_run_directory(config.out)
    config = resolve_init_from(config).replace(device=local_device(config.compute.device))
    check_device(config.compute.device)
    check_trackers(config.report_to)
    world = join_world(config.compute.device)
    trainer = trainer_type(config, world)
    if world.size > 1:
        trainer.display.log(f"{world.size} processes ({config.compute.sharding})")
    with lock_run_directory(trainer.out, world):
        return trainer.train()


class Trainer(ABC, Generic[C]):
    """One process's work on a run directory, alone or together with the other processes of `world`.

    A subclass sets `engine` (see `_build_engine`) and defines the step and the validation.
    """

    engine: Any
    log_files: ClassVar[tuple[str, ...]] = ("metrics.jsonl",)
    """JSON Lines files with a `step` in each line; a resumed run truncates them to its step and appends."""

    def __init__(self, config: C, world: World) -> None:
        torch.set_num_threads(config.compute.threads)
        torch.manual_seed(config.seed)
        self.world = world
        self.is_distributed = world.size > 1
        self.out = config.out
        self.started_at = time.monotonic()
        self.display = Display(quiet=not world.is_main)
        self.policy = trainable_policy(config)
        self.start_fingerprint = weights_fingerprint(self.policy.model)
        self.config: C = config
        self.step = 0
        self.is_consistent = not self.is_distributed  # True while this process may save a checkpoint on its own
        self.minutes_before = self.learning_minutes_before = self.learning_minutes = 0.0
        self.best: dict[str, Any] | None = None
        self.final: dict[str, Any] | None = None

    # --------------------------------------------------------------------------------------- defined by subclasses

    def _load_data(self) -> None:
        """Load the data that the schedule and the steps need."""

    @abstractmethod
    def _schedule_steps(self) -> int:
        """Return the number of steps of the whole schedule; called after `_load_data`."""

    @abstractmethod
    def _before_training(self) -> None:
        """Run what a fresh run does before its first validation and checkpoint."""

    @abstractmethod
    def _prepare_batch(self) -> Any:
        """Return the data of this step; must not change any state.

        A Ctrl-C is taken at once here.
        """

    @abstractmethod
    def _train_on(self, batch: Any) -> dict[str, Any]:
        """Update the weights on the prepared data and return the step's metrics."""

    @abstractmethod
    def _validation_score(self, metrics: dict[str, Any]) -> float | None:
        """Validate the current weights and add the results to `metrics`.

        Returns:
            Score, higher is better; None if there is nothing to validate on.
        """

    @abstractmethod
    def _final_summary(self, best_step: int) -> dict[str, Any]:
        """Return this trainer's part of the summary, with the weights of `best_step` loaded."""

    def _checkpoint_state(self) -> dict[str, Any]:
        """Return the state that a checkpoint stores in addition to the common state."""
        return {}

    def _restore_state(self, state: dict[str, Any]) -> None:
        """Restore the state that `_checkpoint_state` returned."""

    def _should_keep_all_checkpoints(self) -> bool:
        """Return True if every step saves a checkpoint that is never pruned."""
        return False

    def _build_engine(
        self, loss: LossSettings, *, reference: bool = False, value_learning_rate: float | None = None
    ) -> Engine:
        """Build the engine of the policy's weights, or of new adapters in its layers."""
        config = self.config
        model: Any = self.policy.model
        if config.lora is not None:
            model = add_lora(model, config.lora, absolute_policy_name(config.policy), config.seed)
        return Engine(
            model, config, loss, reference=reference, value_learning_rate=value_learning_rate, world=self.world
        )

    # ------------------------------------------------------------------------------------------------------- the run

    def train(self) -> dict[str, Any]:
        """Resume or start the run, train to its last step and return the summary."""
        self.world.run_on_main(lambda: check_settings(self.out, self.config))
        try:
            self._load_data()
            scheduled = self._schedule_steps()
            stop = scheduled if self.config.max_steps is None else self.config.max_steps
            summary = self.world.run_on_main(lambda: load_finished_summary(self.out, stop))
            if summary is not None:
                self.display.log(f"{self.out}: this run is finished; its summary is in {self.out / 'summary.json'}")
                return summary
            steps = self.world.run_on_main(lambda: saved_steps(self.out))
            if steps:
                self._resume(steps[-1], stop)
            else:
                self._start_fresh()
            self._train_until(stop)
        except KeyboardInterrupt as interrupt:
            self._handle_interrupt(is_coordinated=isinstance(interrupt, CoordinatedInterrupt))
            raise
        self._save()
        return self._finish()

    def _start_fresh(self) -> None:
        self.world.run_on_main(lambda: self._reset_files(0))
        start = Path(absolute_policy_name(self.config.policy))
        if self.config.lora is not None and start.parent.name == "checkpoints":
            self.display.log(
                f"the adapters' base is {start}: keep it (a run resumed there may delete it), or start from a copy"
            )
        self._before_training()
        self._validate({})
        self._save()

    def _resume(self, step: int, stop: int) -> None:
        if step > stop:
            raise CheckpointError(f"{self.out} is already at step {step}, beyond max_steps={stop}")
        self.is_consistent = False
        state = load_checkpoint(checkpoint_path(self.out, step), self.engine)
        if state.get("started_from") != self.start_fingerprint:
            raise CheckpointError(
                f"{self.out} started from other weights than policy={self.config.policy} holds now (a link such as "
                "checkpoints/best moves on; adapters merged on another device differ in last bits): put back what was "
                "there, or start again in another out"
            )
        self.minutes_before, self.learning_minutes_before = state["minutes"], state["learning_minutes"]
        self.best = state["best"]
        self._restore_state(state)
        self.world.run_on_main(lambda: self._reset_files(step))
        self.step, self.is_consistent = step, not self.is_distributed
        self.display.log(f"resuming {self.out} at step {self.step}")

    def _reset_files(self, step: int) -> None:
        """Truncate the logs to `step`, write the settings and repair the link to the best checkpoint."""
        for name in self.log_files:
            truncate_lines(self.out / name, step)
        write_settings(self.out, self.config)
        if self.best:  # the link may point to the last step of a shorter run
            link_best(self.out, self.best["step"])

    def _train_until(self, stop: int) -> None:
        first_step, start_time = self.step, time.monotonic()
        with (
            open_trackers(self.config, self.step, self.world.is_main) as trackers,
            self.display.training_progress(self.step, stop) as show_step,
        ):
            while self.step < stop:
                # A single process may drop a prepared batch at any time; several processes must stop together.
                with defer_interrupt(self.display.log, self.world) if self.is_distributed else nullcontext():
                    metrics = self._run_step(stop, start_time)
                if trackers is not None:
                    trackers.log(metrics)
                show_step(self.step, metrics, self.learning_minutes / (self.step - first_step) * (stop - self.step))

    def _run_step(self, stop: int, start_time: float) -> dict[str, Any]:
        step_start = time.monotonic()
        batch = self._prepare_batch()
        batch_ready = time.monotonic()
        with nullcontext() if self.is_distributed else defer_interrupt(self.display.log):
            self.is_consistent = False
            metrics = {"step": self.step, **self._train_on(batch)}
            metrics |= {"sample_seconds": batch_ready - step_start, "train_seconds": time.monotonic() - batch_ready}
            self.step += 1
            if self.step % self.config.evaluation.eval_steps == 0 or self.step == stop:
                self._validate(metrics)
            if self.world.is_main:
                append_lines(self.out / "metrics.jsonl", [metrics])
            self.learning_minutes = (time.monotonic() - start_time) / 60
            if (
                self._should_keep_all_checkpoints()
                or self.step % self.config.checkpoint.save_steps == 0
                or self._is_best()
            ):
                self._save()
            self.is_consistent = not self.is_distributed
        return metrics

    def _finish(self) -> dict[str, Any]:
        if self.final is None or self.final["step"] != self.step:
            self._validate({})
        best_step = self.step
        if self.best and self.final:
            best_step = _better_validation(self.best, self.final)["step"]
            if self.world.is_main:
                link_best(self.out, best_step)
        load_weights(checkpoint_path(self.out, best_step), self.engine)
        trainer_summary = self._final_summary(best_step)
        summary = {
            "seed": self.config.seed,
            "steps": self.step,
            "best_step": best_step,
            "started_from": self.start_fingerprint,
            "software": software_version(),
            "policy_parameters": self.policy.parameters,
            "minutes": self._minutes(),
            "learning_minutes": self.learning_minutes_before + self.learning_minutes,
            **trainer_summary,
        }
        if self.world.is_main:
            write_json(self.out / "summary.json", summary)
        return self.world.run_on_main(lambda: summary)

    # ----------------------------------------------------------------------------------------- validation, checkpoints

    def _validate(self, metrics: dict[str, Any]) -> None:
        """Validate the current weights and update `best` and `final`.

        `best` is the best scheduled validation; a tie goes to the later step. `final` is the last validation. A
        validation off the schedule happens only at the end of a run. It may be chosen there, and a resumed run forgets
        it.
        """
        score = self._validation_score(metrics)
        if score is not None:
            self.final = {"step": self.step, "score": score}
            if self.step % self.config.evaluation.eval_steps == 0:
                self.best = _better_validation(self.best, self.final)

    def _is_best(self) -> bool:
        return self.best is not None and self.best["step"] == self.step

    def _save(self) -> None:
        state = {
            "seed": self.config.seed,
            "started_from": self.start_fingerprint,
            "software": software_version(),
            "best": self.best,
            "minutes": self._minutes(),
            "learning_minutes": self.learning_minutes_before + self.learning_minutes,
            **self._checkpoint_state(),
        }
        save_checkpoint(self.out, self.step, self.policy, self.engine, state)
        if not self.world.is_main:
            return
        if self._is_best():
            link_best(self.out, self.step)
        if not self._should_keep_all_checkpoints():
            prune_checkpoints(
                self.out, self.config.checkpoint.save_total_limit, [self.best["step"]] if self.best else []
            )

    def _minutes(self) -> float:
        return self.minutes_before + (time.monotonic() - self.started_at) / 60

    def _handle_interrupt(self, *, is_coordinated: bool) -> None:
        if (self.is_consistent or is_coordinated) and self.world.run_on_main(lambda: saved_steps(self.out)):
            self._save()
        steps = saved_steps(self.out)
        if steps:
            self.display.log(f"stopped: {self.out} holds a checkpoint of step {steps[-1]}; the same command resumes it")
        else:
            self.display.log(f"stopped before training began: the same command starts {self.out} again")


def _better_validation(earlier: dict[str, Any] | None, later: dict[str, Any]) -> dict[str, Any]:
    """Return the validation with the higher score, `later` if both are equal."""
    return later if earlier is None or later["score"] >= earlier["score"] else earlier
