"""`Trainer`: start or resume a run, steps, validation, checkpoints, the final summary; whatever is trained.

`load_start` and `build_engine` make what a run starts from: the start policy and the engine that trains its weights.

It is composed of parts: a `TrainingStep` prepares batches and updates the weights, `Evaluations` says how good they
are, a `RunDirectory` keeps the files.

Step n uses the weights of `checkpoints/step-n`; its update makes those of `step-(n+1)`. A step depends only on the
config, the weights, the optimizer and the step number. A killed run that is started again on the same directory
therefore ends with the same weights, bit for bit. The final weights are those that validated best, or the last ones
without validation.

Several processes (`train.learner.distributed`) share rollouts and evaluations by task, and updates by micro-batch.
Every process knows all results; only the main process writes files and logs.
"""

from __future__ import annotations

import importlib.metadata
import math
import os
import platform
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch

from memalpha.arguments import counted
from memalpha.config import LearnerConfig, ReinforcementConfig
from memalpha.config.learner import RolloutConfig
from memalpha.errors import (
    CheckpointError,
    ConfigError,
    MemalphaError,
    PolicyError,
    TrainingError,
    describe_exception,
)
from memalpha.policy.load import absolute_policy_name, load_policy
from memalpha.policy.model_files import weights_fingerprint
from memalpha.policy.transformers import TransformersPolicy
from memalpha.text_files import write_bytes, write_json
from memalpha.train.algorithms import find_algorithm
from memalpha.train.learner.distributed import SINGLE_PROCESS, World
from memalpha.train.learner.engine import BaseEngine, Engine
from memalpha.train.learner.lora import add_lora, add_tokens
from memalpha.train.learner.losses import LossSettings
from memalpha.train.trainers.directory import (
    CARD_FILE,
    FORMAT,
    STOP_FILE,
    RunDirectory,
    check_tokenizer,
    load_checkpoint,
    load_weights,
    write_checkpoint,
)
from memalpha.train.trainers.model_card import SMALL_MODEL, render_card
from memalpha.train.trainers.progress import Callbacks, Display, format_validation, open_trackers
from memalpha.types import SampleRequest

C = TypeVar("C", bound=LearnerConfig)

LARGE_MODEL = 300_000_000
"""From here on float32 and a CPU are commented on."""

MAX_RATE_FACTOR = 30
"""Learning rates above this multiple of the default are commented on; supervised rates are up to 20 times higher."""


@dataclass(frozen=True, slots=True)
class RunStart:
    """Hold what a run starts from.

    Attributes:
        policy: Policy that is trained.
        fingerprint: Hash of its weights before training.
        time: Time of the start (`time.monotonic`).
    """

    policy: TransformersPolicy
    fingerprint: str
    time: float


def resolve_init_from(config: C) -> C:
    """Replace `init_from` by a checkpoint path in `policy`; a resumed run keeps the one it started from.

    Raises:
        ConfigError: `init_from` holds no checkpoint, or is this run itself.
    """
    if config.init_from is None or "policy" in config.model_fields_set:  # a run's own config.yaml names both
        return config
    if config.init_from.resolve() == config.out.resolve():
        raise ConfigError(f"init_from: {config.init_from} is this run's own out: name the run before it")
    directory = RunDirectory(config.out)
    recorded = directory.load_settings() if directory.saved_steps() else {}
    if recorded.get("init_from") == str(config.init_from) and isinstance(recorded.get("policy"), str):
        return config.model_copy(update={"policy": recorded["policy"]})
    return config.model_copy(update={"policy": str(RunDirectory(config.init_from).best_checkpoint())})


def load_start(config: LearnerConfig) -> RunStart:
    """Load the start policy on the run's device and hash its weights.

    Raises:
        PolicyError: The policy has no weights.
    """
    started_at, compute = time.monotonic(), config.compute
    dtype = "float32" if config.lora is None else compute.dtype  # trained weights are float32
    batching = config.sampling if isinstance(config, RolloutConfig) else None
    policy = load_policy(config.policy, dtype=dtype, device=compute.device, loading=compute, batching=batching)
    if not isinstance(policy, TransformersPolicy):
        raise PolicyError(f"policy {config.policy!r} has no weights: only a transformers model can be trained")
    if compute.load_in_4bit and any("lora_" in name for name, _ in policy.model.named_parameters()):
        raise ConfigError(
            f"compute.load_in_4bit: policy {config.policy!r} holds adapters, which are not merged into weights in "
            "4 bits: write a merged policy first (memalpha merge POLICY FOLDER) and start from it"
        )
    if config.lora is not None:
        add_tokens(policy, config.lora.trainable_tokens)
    return RunStart(policy, weights_fingerprint(policy.model), started_at)


def load_with_defaults(config: C, display: Display) -> tuple[C, RunStart]:
    """Load the start policy and settle the defaults that depend on it.

    Args:
        config: Settings of the run.
        display: Shows the learning rate if the settings name none, and settings that suit small models only.

    Raises:
        ConfigError: The settings name an algorithm that is none.
        PolicyError: The policy has no weights.
    """
    if isinstance(config, ReinforcementConfig):
        find_algorithm(config.algorithm)
    display.log(f"loading {config.policy}")
    start = load_start(config)
    parameters, settled = start.policy.parameters, config.with_learning_rate(start.policy.parameters)
    if settled is not config:
        trained = "all weights" if config.lora is None else "lora"
        display.log(
            f"learning rate {settled.optimizer.learning_rate:g}: the default for {trained} of a model of "
            f"{parameters:,} (set learning_rate for another)"
        )
    for note in settings_of_small_models(settled, parameters):
        display.log(note)
    return settled, start


def settings_of_small_models(config: LearnerConfig, parameters: int) -> list[str]:
    """Return a sentence for each setting of `config` that suits models of a million weights, not this one.

    Args:
        config: Settings with a learning rate.
        parameters: Weights of the model.
    """
    compute, notes = config.compute, []
    size = f"a model of {parameters / 1e9:.2g} billion weights"
    if parameters >= LARGE_MODEL and torch.device(compute.device).type == "cpu" and compute.device_map is None:
        notes.append(f"device=cpu: a step of {size} takes hours on a CPU: set device=cuda")
    if parameters >= LARGE_MODEL and compute.dtype == "float32":
        notes.append(
            f"dtype=float32: {size} takes {parameters * 4 / 1e9:.0f} GB in float32, and its passes are slow: set "
            "dtype=bfloat16 (trained weights stay float32)"
        )
    dtype = config.sampling.dtype if isinstance(config, ReinforcementConfig) else None
    if parameters >= SMALL_MODEL and dtype == "float64":
        notes.append(f"sampling.dtype=float64: a copy of {size} in float64 samples: leave it out for such a model")
    default = config.replace(learning_rate=None).with_learning_rate(parameters).optimizer.peak_rate
    if parameters >= SMALL_MODEL and config.optimizer.peak_rate > MAX_RATE_FACTOR * default:
        notes.append(
            f"learning_rate={config.optimizer.peak_rate:g}: more than {MAX_RATE_FACTOR} times the {default:g} that "
            f"suits {size}: lower it, or leave it out"
        )
    return notes


def check_device_map(config: LearnerConfig, world: World, *, reference: bool = False) -> None:
    """Check that the run can use a device map, if it sets one.

    Args:
        config: Settings of the run.
        world: Processes of the run.
        reference: True if the run needs a frozen copy of its start.

    Raises:
        ConfigError: There are several processes, or the whole model has to be copied.
    """
    if config.compute.device_map is None:
        return
    if world.size > 1:
        raise ConfigError(
            "compute.device_map: spreads a model over the devices of one process: leave it out under accelerate launch"
        )
    if reference and config.lora is None:
        raise ConfigError(
            "compute.device_map: a KL or preferences need a frozen copy of all weights, which cannot be made of a "
            "spread model: set lora={}, whose reference is the model without adapters"
        )


def check_sampling_dtype(policy: TransformersPolicy, dtype: str) -> None:
    """Raise `ConfigError` if the model cannot sample in this precision; draws one token."""
    request = SampleRequest(messages=({"role": "user", "content": "Hello"},), key=(0,), max_new_tokens=1)
    try:
        policy.sample([request])
    except (RuntimeError, NotImplementedError, ValueError) as error:
        raise ConfigError(
            f"sampling.dtype: {type(policy.model).__name__} cannot sample in {dtype} "
            f"({' '.join(str(error).split())[:160]}): leave it out"
        ) from error


def build_engine(
    policy: TransformersPolicy,
    config: LearnerConfig,
    loss: LossSettings,
    world: World,
    *,
    reference: bool = False,
    value_learning_rate: float | None = None,
) -> Engine:
    """Build the engine of the policy's weights, or of new adapters in its layers.

    Args:
        policy: Policy at its start weights.
        config: Adapters, optimizer, precision and micro-batch settings.
        loss: Settings of the loss.
        world: Processes of the run.
        reference: Keep log-probs of the start weights available.
        value_learning_rate: Learning rate of a value head; None trains none.
    """
    check_device_map(config, world, reference=reference)
    model = policy.model
    if config.lora is not None:
        name, token_ids = absolute_policy_name(config.policy), add_tokens(policy, config.lora.trainable_tokens)
        model = add_lora(model, config.lora, name, config.seed, token_ids=token_ids)
    has_server = isinstance(config, ReinforcementConfig) and config.sampling.sampler is not None
    return Engine(
        model,
        config,
        loss,
        reference=reference,
        value_learning_rate=value_learning_rate,
        world=world,
        keeps_whole=not has_server,
    )


class TrainerPart(Protocol):
    """Part of a run that has a state in every checkpoint. Implementations inherit the defaults."""

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint stores beside weights and optimizer; JSON."""
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore what `state` returned; other keys are ignored."""
        return

    def summary(self) -> dict[str, Any]:
        """Return this part's share of the run's summary. The final weights are loaded."""
        return {}


class TrainingStep(TrainerPart, Protocol):
    """The work of a run in each step. Implementations inherit the defaults.

    Attributes:
        scheduled_steps: Number of steps of the whole schedule.
        keeps_all_checkpoints: True if every step saves a checkpoint that is never pruned.
        log_files: JSON Lines files with a `step` in each line, beside `metrics.jsonl`. A resumed run truncates them to
            its step and appends.
        rollouts: Lines of trajectories.jsonl of the last step, if it has any.
    """

    scheduled_steps: int
    keeps_all_checkpoints: bool = False
    log_files: tuple[str, ...] = ()
    rollouts: Sequence[Mapping[str, Any]] = ()

    def prepare(self, step: int) -> Any:
        """Return the batch of a step; must not change the run's state. A Ctrl-C is taken at once here."""
        ...

    def train(self, batch: Any, step: int) -> dict[str, Any]:
        """Update the weights on the prepared batch and return the step's metrics."""
        ...

    def paused(self) -> AbstractContextManager[None]:
        """Hold back what works in the background inside the block, which evaluates weights."""
        return nullcontext()

    def close(self) -> None:
        """Stop what still works in the background."""
        return


class Evaluations(TrainerPart, Protocol):
    """Measurements of how good the weights are. Implementations inherit the defaults."""

    def before(self) -> None:
        """Evaluate the start weights; called once, before the first validation and checkpoint of a fresh run."""
        return

    def validate(self, step: int, metrics: dict[str, Any]) -> float | None:
        """Validate the weights after `step` steps and add the results to `metrics`.

        Returns:
            Score, higher is better; None if there is nothing to validate on.
        """
        ...

    def check(self, step: int) -> None:
        """Raise `TrainingError` if the last validation says that training should stop."""
        return


class Trainer:
    """One process's work on a run directory, alone or together with the other processes.

    Args:
        config: Settings as they are recorded.
        directory: Directory of the run, claimed with `config`.
        start: Start policy.
        engine: Owner of the weights and the optimizer.
        training_step: Prepares batches and updates the weights.
        evaluations: Says how good the weights are.
        display: Shows progress and messages.
    """

    def __init__(
        self,
        config: LearnerConfig,
        directory: RunDirectory,
        start: RunStart,
        engine: BaseEngine,
        training_step: TrainingStep,
        evaluations: Evaluations,
        display: Display,
    ) -> None:
        self.config, self.directory, self.start, self.engine = config, directory, start, engine
        self.training_step, self.evaluations, self.display = training_step, evaluations, display
        self.world = directory.world
        self.is_distributed = self.world.size > 1
        self.step = 0
        self.is_consistent = False  # True while this process may save a checkpoint on its own
        self.minutes_before = self.learning_minutes_before = self.learning_minutes = 0.0
        self.callbacks = Callbacks()
        self.stopped_by: str | None = None
        self.start_validation: dict[str, float] = {}
        self.best: dict[str, Any] | None = None
        self.final: dict[str, Any] | None = None
        self.unrecorded: dict[str, Any] | None = None  # metrics of the last step until it is validated and logged

    def train(self, callbacks: Callbacks | None = None) -> dict[str, Any]:
        """Resume or start the run, train to its last step and return the summary (also in `summary.json`).

        Args:
            callbacks: What is called while it runs, in the main process.
        """
        directory, out = self.directory, self.directory.path
        self.callbacks = callbacks or self.callbacks
        if self.is_distributed:
            self.display.log(f"{self.world.size} processes ({self.config.compute.sharding})")
        with closing(self.training_step), interrupt_on_sigterm():
            try:
                stop = self.training_step.scheduled_steps if self.config.max_steps is None else self.config.max_steps
                summary = self.world.run_on_main(lambda: directory.load_finished_summary(stop))
                if summary is not None:
                    self.display.log(f"{out}: this run is finished; its summary is in {out / 'summary.json'}")
                    return summary
                steps = self.world.run_on_main(directory.saved_steps)
                if self.world.is_main:
                    shared = {"model": self.start.policy.model, "processing_class": self.start.policy.tokenizer}
                    self.callbacks.begin(self.config, steps[-1] if steps else 0, stop, **shared)
                if steps:
                    self._resume(steps[-1], stop)
                else:
                    self._start_fresh(stop)
                self._train_until(stop)
            except CheckpointError:  # what was there stays as it is
                raise
            except (KeyboardInterrupt, Exception) as error:  # of a server, a reward, a callback, the disk
                self._stop_early(error)
                raise
            self._save()
            with self.training_step.paused():
                return self._finish()

    def _start_fresh(self, stop: int) -> None:
        self.world.run_on_main(lambda: self._reset_files(0, stop))
        self.world.run_on_main(self.directory.begin_run)
        policy = Path(absolute_policy_name(self.config.policy))
        if self.config.lora is not None and policy.parent.name == "checkpoints":
            self.display.log(
                f"the adapters' base is {policy}: keep it (a run resumed there may delete it), or start from a copy"
            )
        self.evaluations.before()
        metrics: dict[str, Any] = {}
        self._validate(metrics)
        self.start_validation = {name: value for name, value in metrics.items() if isinstance(value, int | float)}
        if self.start_validation:
            self.display.log(f"start  {format_validation(metrics, {})}")
        self._save()
        self.is_consistent = not self.is_distributed

    def _resume(self, step: int, stop: int) -> None:
        out = self.directory.path
        if step > stop:
            raise CheckpointError(f"{out} is already at step {step}, beyond max_steps={stop}")
        state = load_checkpoint(self.directory.checkpoint(step), self.engine)
        self.engine.weights_step = step
        if state["started_from"] != self.start.fingerprint:
            raise CheckpointError(
                f"{out} started from other weights than policy={self.config.policy} holds now (a link such as "
                "checkpoints/best moves on; adapters merged on another device differ in last bits): put back what was "
                "there, or start again in another out"
            )
        check_tokenizer(self.directory.checkpoint(step), self.start.policy)
        self.minutes_before, self.learning_minutes_before = state["minutes"], state["learning_minutes"]
        self.best, self.start_validation = state["best"], state["start_validation"]
        self.training_step.restore(state)
        self.evaluations.restore(state)
        self.unrecorded = state.get("unrecorded")  # its validation failed
        self.world.run_on_main(lambda: self._reset_files(step, stop))
        self.step, self.is_consistent = step, not self.is_distributed
        self.display.log(f"resuming {out} at step {self.step}")
        for name in self.directory.changed_code:
            self.display.log(
                f"{name}: its code has changed since the run began: steps before and after may not compare"
            )

    def _reset_files(self, step: int, stop: int) -> None:
        """Truncate the logs to `step`, write the settings and repair the link to the best checkpoint."""
        recorded = step - (self.unrecorded is not None)
        if (lines := self.directory.truncate("metrics.jsonl", recorded)) < recorded:
            self.display.log(f"metrics.jsonl holds {lines} of {counted(recorded, 'step')}: the curves lack the others")
        for name in self.training_step.log_files:
            self.directory.truncate(name, step)
        self.directory.truncate("starts.jsonl", sys.maxsize)
        (self.directory.path / STOP_FILE).unlink(missing_ok=True)
        self.directory.write_settings(self.config)
        start = {"step": step, "scheduled_steps": stop, "time": datetime.now(UTC).isoformat(timespec="seconds")}
        start |= {"host": platform.node(), "pid": os.getpid(), "command": shlex.join(sys.argv), **software_version()}
        self.directory.append("starts.jsonl", [start])
        if self.best:  # the link may point to the last step of a shorter run
            self.directory.link_best(self.best["step"])

    def _train_until(self, stop: int) -> None:
        first_step, start_time = self.step, time.monotonic()
        with (
            open_trackers(self.config, self.step, self.world.is_main) as log_step,
            self.display.training_progress(self.step, stop, self.start_validation) as show_step,
        ):
            while (self.step < stop or self.unrecorded is not None) and self.stopped_by is None:
                # A single process may drop a prepared batch at any time; several processes must stop together.
                with defer_interrupt(self.display.log, self.world) if self.is_distributed else nullcontext():
                    metrics = self._run_step(stop, start_time)
                log_step(metrics, self.training_step.rollouts)
                minutes_left = self.learning_minutes / max(1, self.step - first_step) * (stop - self.step)
                show_step(self.step, metrics, min(minutes_left, self._allowed_minutes_left()))
        if self.stopped_by is not None:
            limit = self.config.checkpoint.max_minutes
            reason = " by a callback" if self.stopped_by == "callback" else f": max_minutes={limit:g} have passed"
            self.display.log(f"stopped after step {self.step} of {stop}{reason}; the same command resumes")

    def _allowed_minutes_left(self) -> float:
        """Return the minutes until `checkpoint.max_minutes`: 0 when they have passed, infinity without a limit."""
        limit = self.config.checkpoint.max_minutes
        return math.inf if limit is None else max(0.0, limit - (time.monotonic() - self.start.time) / 60)

    def _run_step(self, stop: int, start_time: float) -> dict[str, Any]:
        is_resumed, batch, prepare_start = self.unrecorded is not None, None, time.monotonic()
        if not is_resumed:
            self._call("on_step_begin")
            batch = self.training_step.prepare(self.step)
        seconds = time.monotonic() - prepare_start
        with nullcontext() if self.is_distributed else defer_interrupt(self.display.log):
            metrics = self.unrecorded or self._train(batch, seconds)
            if self.step % self.config.evaluation.eval_steps == 0 or self.step == stop:
                self._validate(metrics)
            self.directory.append("metrics.jsonl", [metrics])
            self.unrecorded = None
            if is_resumed:
                state = self.directory.checkpoint(self.step) / "state.json"
                self.world.run_on_main(lambda: write_json(state, {"format": FORMAT, **self._state()}))
            self.learning_minutes = (time.monotonic() - start_time) / 60
            should_save, should_stop = self.world.run_on_main(lambda: self.callbacks.end_step(self.step, metrics))
            is_due = should_save or self.step % self.config.checkpoint.save_steps == 0
            if self.training_step.keeps_all_checkpoints or is_due or self._is_best():
                self._save()
            self.evaluations.check(self.step)  # after the step is on disk
            if should_stop and self.step < stop:
                self.stopped_by = "callback"
            elif self.config.checkpoint.max_minutes is not None and self.step < stop:
                is_out_of_time = self.world.run_on_main(self._allowed_minutes_left) == 0
                self.stopped_by = "max_minutes" if is_out_of_time else None
        return metrics

    def _train(self, batch: Any, sample_seconds: float) -> dict[str, Any]:
        """Update the weights on a batch; return the step's metrics, which checkpoints hold until they are logged."""
        self.is_consistent, start_time = False, time.monotonic()
        metrics = {"step": self.step, **self.training_step.train(batch, self.step)}
        metrics |= {"sample_seconds": sample_seconds, "train_seconds": time.monotonic() - start_time}
        sources = {"sampled": ("sampled_tokens", "sample_seconds"), "trained": ("tokens", "train_seconds")}
        for name, (tokens, seconds) in sources.items():
            if tokens in metrics and metrics[seconds]:
                metrics[f"{name}_tokens_per_second"] = metrics[tokens] / metrics[seconds]
        self.step += 1
        self.engine.weights_step = self.step
        self.unrecorded, self.is_consistent = metrics, not self.is_distributed
        return metrics

    def _call(self, event: str, **values: Any) -> None:
        """Call an event of the callbacks, in the main process."""
        if self.world.is_main:
            self.callbacks.state.global_step = self.step
            self.callbacks.call(event, **values)

    def _finish(self) -> dict[str, Any]:
        if self.final is None or self.final["step"] != self.step:
            self._validate({})
        best_step = self.step
        if self.best and self.final:
            best_step = _better_validation(self.best, self.final)["step"]
            self.directory.link_best(best_step)
        load_weights(self.directory.checkpoint(best_step), self.engine)
        self.engine.weights_step = best_step
        results = {**self.training_step.summary(), **self.evaluations.summary()}
        summary = {
            **self._provenance(),
            "steps": self.step,
            "best_step": best_step,
            "policy_parameters": self.start.policy.parameters,
            "trained_parameters": sum(weight.numel() for weight in self.engine.trainable.values()),
            **({} if self.stopped_by is None else {"stopped_by": self.stopped_by}),
            **results,
        }
        if self.world.is_main:
            write_json(self.directory.path / "summary.json", summary)
            state = self.directory.read_json(f"checkpoints/step-{best_step}/state.json")
            card = render_card(self.config, state, summary).encode(errors="backslashreplace")
            write_bytes(self.directory.checkpoint(best_step) / CARD_FILE, card)
        self._call("on_train_end", summary=summary)
        return self.world.run_on_main(lambda: summary)

    def _validate(self, metrics: dict[str, Any]) -> None:
        """Validate the current weights and update `best` and `final`.

        `best` is the best scheduled validation; a tie goes to the later step. `final` is the last validation. A
        validation off the schedule happens only at the end of a run. It may be chosen there, and a resumed run forgets
        it.
        """
        with self.training_step.paused():
            score = self.evaluations.validate(self.step, metrics)
        if score is not None:
            self.final = {"step": self.step, "score": score}
            if self.step % self.config.evaluation.eval_steps == 0:
                self.best = _better_validation(self.best, self.final)
            self._call("on_evaluate", metrics={k: v for k, v in metrics.items() if k.startswith("validation_")})

    def _is_best(self) -> bool:
        return self.best is not None and self.best["step"] == self.step

    def _save(self) -> None:
        is_new, state = self.world.is_main and self.step not in self.directory.saved_steps(), self._state()
        card = render_card(self.config, state) if is_new else ""
        path = self.directory.checkpoint(self.step)
        write_checkpoint(path, self.start.policy, self.engine, state, card)
        if self._is_best():
            self.directory.link_best(self.step)
            self.callbacks.state.best_model_checkpoint = str(path)
        if is_new:
            self._call("on_save", checkpoint=path)
        if not self.training_step.keeps_all_checkpoints:
            best = [self.best["step"]] if self.best else []
            self.directory.prune_checkpoints(self.config.checkpoint.save_total_limit, best)

    def _state(self) -> dict[str, Any]:
        return {
            "step": self.step,
            "best": self.best,
            **({} if self.unrecorded is None else {"unrecorded": self.unrecorded}),
            **self._provenance(),
            **self.training_step.state(),
            **self.evaluations.state(),
        }

    def _provenance(self) -> dict[str, Any]:
        """Return what checkpoints and the summary both say of the run."""
        return {
            "seed": self.config.seed,
            "started_from": self.start.fingerprint,
            "start_validation": self.start_validation,
            "software": software_version(),
            "minutes": self.minutes_before + (time.monotonic() - self.start.time) / 60,
            "learning_minutes": self.learning_minutes_before + self.learning_minutes,
        }

    def _stop_early(self, error: BaseException) -> None:
        """Record for the run's page why no step comes; save a checkpoint unless training itself failed."""
        out, saved_steps = self.directory.path, self.directory.saved_steps
        if self.world.is_main and out.is_dir():
            reason = str(error) if isinstance(error, MemalphaError) else describe_exception(error)
            if isinstance(error, KeyboardInterrupt):
                reason = "Ctrl-C or SIGTERM interrupted the run"
            write_json(out / STOP_FILE, {"step": self.step, "reason": reason})
        if isinstance(error, TrainingError):
            return
        if (self.is_consistent or isinstance(error, CoordinatedInterrupt)) and self.world.run_on_main(saved_steps):
            self._save()
        steps = saved_steps()
        if steps:
            self.display.log(
                f"stopped: {out} holds a checkpoint of step {steps[-1]}; the same command resumes it, as does memalpha "
                f"train {out}"
            )
        else:
            self.display.log(f"stopped before training began: the same command starts {out} again")


def _better_validation(earlier: dict[str, Any] | None, later: dict[str, Any]) -> dict[str, Any]:
    """Return the validation with the higher score, `later` if both are equal."""
    return later if earlier is None or later["score"] >= earlier["score"] else earlier


class CoordinatedInterrupt(KeyboardInterrupt):
    """Ctrl-C that all processes take at the same point, with a consistent state."""


@contextmanager
def interrupt_on_sigterm() -> Iterator[None]:
    """Take SIGTERM, which schedulers and `docker stop` send, as Ctrl-C until the block ends; another handler stays."""
    is_handled = _in_main_thread() and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    if is_handled:
        signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        if is_handled:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


@contextmanager
def defer_interrupt(log: Callable[[str], None], world: World = SINGLE_PROCESS) -> Iterator[None]:
    """Delay SIGINT, and SIGTERM where it is taken as such, until the block ends; a second one interrupts at once.

    With several processes, all of them stop at the end of the block if one received a signal (`CoordinatedInterrupt`).
    A second one changes nothing there, because launchers pass on their own. torchrun and accelerate wait 30 s and then
    kill the processes: a longer step is lost back to the last checkpoint.

    Args:
        log: Called with a message when the first signal arrives.
        world: Processes that must stop together.
    """
    interrupted = False

    def on_signal(number: int, frame: Any) -> None:
        nonlocal interrupted
        if interrupted and world.size == 1:
            raise KeyboardInterrupt
        if not interrupted:
            hint = "again to stop at once" if world.size == 1 else "a launcher may not wait for its end"
            log(f"{'Ctrl-C' if number == signal.SIGINT else 'SIGTERM'}: finishing this step first; {hint}")
        interrupted = True

    previous: dict[int, Any] = {}
    if _in_main_thread():
        handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        if handlers[signal.SIGINT] != signal.SIG_IGN:  # under nohup or in a background job it stays ignored
            previous[signal.SIGINT] = handlers[signal.SIGINT]
        if handlers[signal.SIGTERM] == signal.default_int_handler:
            previous[signal.SIGTERM] = handlers[signal.SIGTERM]
    for number in previous:
        signal.signal(number, on_signal)
    try:
        yield
        # Interrupts are still deferred here: a process that skipped the gather would hang the others.
        if world.size > 1 and any(world.gather([interrupted])):
            raise CoordinatedInterrupt
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
    if interrupted:
        raise KeyboardInterrupt


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


@cache
def software_version() -> dict[str, str | None]:
    """Return memalpha's `version`, and `commit` where it runs from a git checkout (None elsewhere)."""
    root, commit = Path(__file__).parents[3], None
    if (root / ".git").exists():  # otherwise a checkout around it may be another project's
        with suppress(OSError):
            command = ["git", "-C", str(root), "rev-parse", "HEAD"]
            commit = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip() or None
    return {"version": importlib.metadata.version("memalpha"), "commit": commit}
