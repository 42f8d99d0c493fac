"""`Run`: what every training run is, whatever a step learns from.

Start or resume, steps, validation, checkpoints, the end. Step n uses the weights of `checkpoints/step-n` and its update
makes those of `step-(n+1)`. Everything a step does is a function of (config, weights, optimizer, step), so a run that
was killed and started again on the same directory ends with the same weights bit for bit. The weights chosen at the end
are those that validated best (the last ones without validation).

Several processes (`train.distributed`) share rollouts and evaluations by task and updates by micro-batch, and all know
all results; the main one alone writes and speaks.
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
from memalpha.policy.load import lasting_name
from memalpha.train.learner.distributed import World, join_world, local_device
from memalpha.train.learner.engine import Engine
from memalpha.train.learner.lora import add_lora
from memalpha.train.learner.losses import LossSettings
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


def launch(kind: Callable[[C, World], Trainer[C]], config: C) -> dict[str, Any]:
    """Check that there can be a run, join the other processes, hold the run directory, go."""
    check_run_directory(config.out)
    config = resolve_init_from(config).model_copy(update={"device": local_device(config.device)})
    check_device(config.device)
    check_trackers(config.report_to)
    world = join_world(config.device)
    run = kind(config, world)
    if world.size > 1:
        run.display.log(f"{world.size} processes ({config.sharding})")
    with lock_run_directory(run.out, world):
        return run.train()


class Trainer(ABC, Generic[C]):
    """One process's work on a run directory, alone or with the others of `world`.

    A subclass sets `engine` (`_new_engine` makes it) and says what a step and a validation are.
    """

    engine: Any
    log_files: ClassVar[tuple[str, ...]] = ("metrics.jsonl",)
    """JSON Lines with a `step`, which a resumed run goes on with."""

    def __init__(self, config: C, world: World) -> None:
        torch.set_num_threads(config.threads)
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
        self.is_consistent = not self.is_distributed  # whether this process may save on its own account, at any time
        self.minutes_before = self.learning_minutes_before = self.learning_minutes = 0.0
        self.best: dict[str, Any] | None = None
        self.final: dict[str, Any] | None = None

    # ---------------------------------------------------------------------------------------------- what is learnt

    @abstractmethod
    def _schedule_steps(self) -> int:
        """Steps of the whole schedule."""

    @abstractmethod
    def _before_training(self) -> None:
        """What a new run does before its first validation and checkpoint."""

    @abstractmethod
    def _prepare_batch(self) -> Any:
        """What the step learns from. A Ctrl-C here is taken at once: nothing may have changed."""

    @abstractmethod
    def _train_on(self, prepared: Any) -> dict[str, Any]:
        """The step's update and its line of metrics.jsonl."""

    @abstractmethod
    def _validation_score(self, metrics: dict[str, Any]) -> float | None:
        """Validate the weights as they are, into `line`; higher is better, None: there is nothing to validate with."""

    @abstractmethod
    def _final_summary(self, chosen: int) -> dict[str, Any]:
        """The run's own part of its summary; the weights are those of step `chosen`."""

    def _checkpoint_state(self) -> dict[str, Any]:
        """What a checkpoint keeps beside the common state."""
        return {}

    def _restore_state(self, state: dict[str, Any]) -> None:
        """Put back what `_state` gave."""

    def _should_keep_all_checkpoints(self) -> bool:
        """Whether every step leaves a checkpoint that stays."""
        return False

    def _build_engine(
        self, loss: LossSettings, *, reference: bool = False, value_learning_rate: float | None = None
    ) -> Engine:
        """The engine of the policy's weights, or of new adapters in its layers."""
        config = self.config
        model: Any = self.policy.model
        if config.lora is not None:
            model = add_lora(model, config.lora, lasting_name(config.policy), config.seed)
        return Engine(
            model, config, loss, reference=reference, value_learning_rate=value_learning_rate, world=self.world
        )

    # ------------------------------------------------------------------------------------------------- the whole run

    def train(self) -> dict[str, Any]:
        """Resume if there is something to resume, train to the end, return the summary."""
        self.world.run_on_main(lambda: check_settings(self.out, self.config))
        try:
            length = self._schedule_steps()
            stop = length if self.config.max_steps is None else self.config.max_steps
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
        except KeyboardInterrupt as stopped:
            self._handle_interrupt(together=isinstance(stopped, CoordinatedInterrupt))
            raise
        self._save()
        return self._finish()

    def _start_fresh(self) -> None:
        self.world.run_on_main(lambda: self._reset_files(0))
        start = Path(lasting_name(self.config.policy))
        if self.config.lora is not None and start.parent.name == "checkpoints":
            self.display.log(
                f"the adapters' base is {start}: keep it (a run that goes on there may delete it), or start from a copy"
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
        """Make the files those of a run that has come to `step`."""
        for name in self.log_files:
            truncate_lines(self.out / name, step)
        write_settings(self.out, self.config)
        if self.best:  # the link may name the end of a shorter run
            link_best(self.out, self.best["step"])

    def _train_until(self, stop: int) -> None:
        first, started = self.step, time.monotonic()
        with (
            open_trackers(self.config, self.step, self.world.is_main) as trackers,
            self.display.training_progress(self.step, stop) as show,
        ):
            while self.step < stop:
                # A process alone may drop what a step learns from at any time; several have to stop together.
                with defer_interrupt(self.display.log, self.world) if self.is_distributed else nullcontext():
                    line = self._run_step(stop, started)
                if trackers is not None:
                    trackers.log(line)
                show(self.step, line, self.learning_minutes / (self.step - first) * (stop - self.step))

    def _run_step(self, stop: int, started: float) -> dict[str, Any]:
        begun = time.monotonic()
        prepared = self._prepare_batch()
        ready = time.monotonic()
        with nullcontext() if self.is_distributed else defer_interrupt(self.display.log):
            self.is_consistent = False
            line = {"step": self.step, **self._train_on(prepared)}
            line |= {"sample_seconds": ready - begun, "train_seconds": time.monotonic() - ready}
            self.step += 1
            if self.step % self.config.validate_every == 0 or self.step == stop:
                self._validate(line)
            if self.world.is_main:
                append_lines(self.out / "metrics.jsonl", [line])
            self.learning_minutes = (time.monotonic() - started) / 60
            if self._should_keep_all_checkpoints() or self.step % self.config.save_every == 0 or self._is_best():
                self._save()
            self.is_consistent = not self.is_distributed
        return line

    def _finish(self) -> dict[str, Any]:
        if self.final is None or self.final["step"] != self.step:
            self._validate({})
        chosen = self.step
        if self.best and self.final:
            chosen = _better_validation(self.best, self.final)["step"]
            if self.world.is_main:
                link_best(self.out, chosen)
        load_weights(checkpoint_path(self.out, chosen), self.engine)
        own = self._final_summary(chosen)
        summary = {
            "seed": self.config.seed,
            "steps": self.step,
            "best_step": chosen,
            "started_from": self.start_fingerprint,
            "policy_parameters": self.policy.parameters,
            "minutes": self._minutes(),
            "learning_minutes": self.learning_minutes_before + self.learning_minutes,
            **own,
        }
        if self.world.is_main:
            write_json(self.out / "summary.json", summary)
        return self.world.run_on_main(lambda: summary)

    # ----------------------------------------------------------------------------------------- validation, checkpoints

    def _validate(self, line: dict[str, Any]) -> None:
        """`best` is the best of the scheduled steps (a tie goes to the later one), `final` the last one.

        Off schedule only the end of a run is validated: it may be chosen there, and is forgotten when the run goes on.
        """
        score = self._validation_score(line)
        if score is not None:
            self.final = {"step": self.step, "score": score}
            if self.step % self.config.validate_every == 0:
                self.best = _better_validation(self.best, self.final)

    def _is_best(self) -> bool:
        return self.best is not None and self.best["step"] == self.step

    def _save(self) -> None:
        state = {
            "seed": self.config.seed,
            "started_from": self.start_fingerprint,
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
            prune_checkpoints(self.out, self.config.keep_checkpoints, [self.best["step"]] if self.best else [])

    def _minutes(self) -> float:
        return self.minutes_before + (time.monotonic() - self.started_at) / 60

    def _handle_interrupt(self, *, together: bool) -> None:
        if (self.is_consistent or together) and self.world.run_on_main(lambda: saved_steps(self.out)):
            self._save()
        steps = saved_steps(self.out)
        if steps:
            self.display.log(f"stopped: {self.out} holds a checkpoint of step {steps[-1]}; the same command resumes it")
        else:
            self.display.log(f"stopped before training began: the same command starts {self.out} again")


def _better_validation(one: dict[str, Any] | None, two: dict[str, Any]) -> dict[str, Any]:
    """The validation with the higher score; `two`, the later one, where they are equal."""
    return two if one is None or two["score"] >= one["score"] else one
