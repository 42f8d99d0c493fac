"""Progress of a run: lines and a bar on stderr, callbacks, trackers such as TensorBoard (`report_to`).

Callbacks are transformers' `TrainerCallback`s, and a function that gets the metrics of every step.

Callbacks run in the main process, on `on_train_begin`, `on_step_begin`, `on_evaluate` (`metrics`: the validation's),
`on_log` (`logs`: the step's line of `metrics.jsonl`), `on_save` (`checkpoint`: its path), `on_step_end` (`metrics`: the
same line) and `on_train_end` (`summary`). `args` is the run's configuration. Of `control` a run obeys
`should_training_stop` and `should_save`; `evaluation.eval_steps` alone says when weights are validated.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from html import escape
from importlib.util import find_spec
from statistics import fmean
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from transformers import TrainerCallback, TrainerControl, TrainerState

from memalpha.arguments import check_function
from memalpha.config import LearnerConfig
from memalpha.errors import ConfigError
from memalpha.train.trainers.directory import RUN_FILE, RunDirectory, flatten_settings

LogStep = Callable[[Mapping[str, Any], Sequence[Mapping[str, Any]]], None]
"""Logs a line of `metrics.jsonl`, and rollouts of its step."""
PROJECT = "memalpha"
TRACKED_ROLLOUTS = 4
ROLLOUT_COLUMNS = ("task", "rollout", "reward", "credit", "text")
"""A rollout in a tracker's table. `credit` is each turn's advantage, and after it what each of its calls was given."""


class Display:
    """Writes progress and messages to stderr, which keeps stdout for results.

    With several processes only the main one writes.
    """

    def __init__(self, quiet: bool = False) -> None:
        self.console = Console(stderr=True, highlight=False, soft_wrap=True, quiet=quiet)

    def log(self, text: str) -> None:
        """Print a line that stays."""
        self.console.print(text, markup=False)

    @contextmanager
    def task_progress(self, title: str) -> Iterator[Callable[[int, int], None]]:
        """Show `title` while the block runs; yields a callback for `(done, total)`."""
        if not self.console.is_terminal:
            self.log(title)
            yield lambda done, total: None
            return
        with self._bar() as bar:
            task = bar.add_task(title, total=None, note="")
            yield lambda done, total: bar.update(task, completed=done, total=total)

    @contextmanager
    def training_progress(
        self, done: int, total: int, start: Mapping[str, float]
    ) -> Iterator[Callable[[int, Mapping[str, Any], float], None]]:
        """Show training; yields a callback for `(steps done, metrics, minutes left)` after every step.

        Args:
            done: Steps done before.
            total: Steps of the run.
            start: Validation metrics of the start weights, which later ones are compared with.
        """
        with self._bar() if self.console.is_terminal else nullcontext() as bar:
            task = bar.add_task("training", total=total, completed=done, note="first step ...") if bar else None
            flat: list[float] = []

            def show_step(step: int, metrics: Mapping[str, Any], minutes_left: float) -> None:
                note = f"{minutes_left:.1f} min of steps left"
                shown = {name: spec for name, spec in STEP_METRICS.items() if metrics.get(name) is not None}
                labels = {name: name.replace("_", " ") for name in shown} | {"accuracies": "pairs in order"}
                figures = "  ".join(f"{labels[name]} {metrics[name]:{spec}}" for name, spec in shown.items())
                parts = (f"step {step}/{total}", figures, note, format_validation(metrics, start))
                self.log("  ".join(filter(None, parts)))
                flat.extend(share for share in [metrics.get("flat")] if share is not None)
                if len(flat) == FLAT_STEPS and (share := fmean(flat)) >= MOSTLY_FLAT:
                    self.log(
                        f"in {FLAT_STEPS} steps {share:.0%} of the groups gave all their rollouts the same reward: "
                        "nothing to learn from. Take harder tasks, a higher sampling.temperature, or "
                        "sampling.resample_flat"
                    )
                if bar is not None and task is not None:
                    bar.update(task, completed=step, note=note)

            yield show_step

    def _bar(self) -> Progress:
        columns = (TextColumn("{task.description}"), BarColumn(bar_width=20), MofNCompleteColumn())
        return Progress(*columns, TextColumn("{task.fields[note]}"), console=self.console, transient=True)


FLAT_STEPS = 10
"""Steps of a process after which a run says that most of its groups were flat."""
MOSTLY_FLAT = 0.75

STEP_METRICS = {
    "reward": ".2f",
    "accuracy": ".2f",
    "train_loss": ".3f",
    "accuracies": ".2f",
    "calls": ".1f",
    "entropy": ".2f",
}
VALIDATION_METRICS = ("validation_accuracy", "validation_loss", "validation_content_loss", "validation_pair_loss")


def format_validation(metrics: Mapping[str, Any], start: Mapping[str, float]) -> str:
    """Format validation metrics with standard error and change since the start; "" without any."""
    texts = []
    for name in VALIDATION_METRICS:
        if (value := metrics.get(name)) is None:
            continue
        error = metrics.get("validation_se") if name == "validation_accuracy" else None
        spread = "" if error is None else f" ± {error:.3f}"
        change = "" if start.get(name) is None else f", {value - start[name]:+.3f} since the start"
        texts.append(f"({name.replace('_', ' ')} {value:.3f}{spread}{change})")
    return "  ".join(texts)


OnStep = Callable[[dict[str, Any]], object]
"""Function that is called after every step with its metrics."""


class Callbacks:
    """The callbacks of one run.

    Args:
        callbacks: Callbacks, or classes of them.
        on_step: Called after every step with a copy of its line of `metrics.jsonl`.

    Raises:
        ConfigError: A callback is none, or `on_step` cannot be called with one argument.
    """

    def __init__(
        self, callbacks: Iterable[TrainerCallback | type[TrainerCallback]] = (), on_step: OnStep | None = None
    ) -> None:
        self.callbacks = [
            callback() if isinstance(callback, type) and issubclass(callback, TrainerCallback) else callback
            for callback in (callbacks if isinstance(callbacks, Iterable) else [callbacks])
        ]
        for callback in self.callbacks:
            if not isinstance(callback, TrainerCallback):
                raise ConfigError(f"callbacks: {callback!r}: derive its class from transformers.TrainerCallback")
        if on_step is not None:
            check_function("on_step", on_step, ["the metrics of a step"], error=ConfigError)
        self.on_step = on_step
        self.args: LearnerConfig | None = None
        self.shared: dict[str, Any] = {}
        self.state, self.control = TrainerState(), TrainerControl()

    def begin(self, config: LearnerConfig, step: int, stop: int, **shared: Any) -> None:
        """Note what all events share, and call `on_train_begin`.

        Args:
            config: Configuration of the run, the callbacks' `args`.
            step: Steps that are done.
            stop: Steps of the whole run.
            shared: What every event gets, such as `model`.
        """
        self.args, self.shared = config, shared
        self.state = TrainerState(global_step=step, max_steps=stop, save_steps=config.checkpoint.save_steps)
        self.control = TrainerControl()
        self.call("on_train_begin")

    def call(self, event: str, **values: Any) -> None:
        """Call an event of every callback.

        Raises:
            ConfigError: A callback asks for a validation, which the settings decide, or reads another trainer's
                settings.
        """
        for callback in self.callbacks:
            try:
                getattr(callback, event)(self.args, self.state, self.control, **self.shared, **values)
            except AttributeError as error:
                if error.obj is not self.args:
                    raise
                raise ConfigError(
                    f"callbacks: {type(callback).__name__} reads args.{error.name}, which memalpha's settings lack: "
                    "write a TrainerCallback of your own (to stop, set control.should_training_stop in on_evaluate)"
                ) from error
        if self.control.should_evaluate:
            raise ConfigError("callbacks: should_evaluate has no effect; evaluation.eval_steps says when to validate")

    def end_step(self, step: int, metrics: Mapping[str, Any]) -> tuple[bool, bool]:
        """Call `on_log`, `on_step_end` and `on_step` after a step; return whether to save, and whether to stop."""
        self.state.global_step = step
        self.state.log_history.append(dict(metrics))
        self.call("on_log", logs=dict(metrics))
        self.call("on_step_end", metrics=dict(metrics))
        if self.on_step is not None:
            self.on_step(dict(metrics))
        should_save, self.control.should_save = self.control.should_save, False
        return should_save, self.control.should_training_stop


def check_trackers(names: Iterable[str]) -> None:
    """Raise `ConfigError` if a tracker's package is not installed."""
    for name in names:
        if find_spec(name) is None:
            package = name.replace("_", "-")
            raise ConfigError(f"report_to: {name} is not installed: pip install {package}, or leave it out")


@contextmanager
def open_trackers(config: LearnerConfig, step: int, is_main: bool) -> Iterator[LogStep]:
    """Open the trackers that `report_to` names, in the main process, and close them after the block.

    They are accelerate's. A resumed run continues the charts of TensorBoard, whose files are in `out/tensorboard`, and
    of Weights & Biases; the others begin a new run. The id of a Weights & Biases run is the one in `out/run.json`: a
    new run in the same path is another one, a run that was moved is the same. Keys, modes and servers come from the
    environment, as each tracker documents (`WANDB_API_KEY`, `MLFLOW_TRACKING_URI`, ...). The project is "memalpha"
    unless `WANDB_PROJECT`, `COMET_PROJECT_NAME` or `MLFLOW_EXPERIMENT_NAME` name another.

    Args:
        config: `report_to` names the trackers.
        step: Step that the run starts or resumes from.
        is_main: False in all processes but the main one.

    Returns:
        Context manager of a function that logs the numbers of a line of `metrics.jsonl`, and some rollouts of the step,
        lines of `trajectories.jsonl`, to the trackers that show tables or text.
    """
    with ExitStack() as opened:
        trackers: list[Any] = []
        for name in config.report_to if is_main else ():
            tracker = _make_tracker(name, config, step)
            tracker.start()
            opened.callback(tracker.finish)
            if name != "tensorboard":  # writes a folder for each start
                settings = flatten_settings(json.loads(config.model_dump_json()))
                texts = {name: str(value) for name, value in settings.items() if isinstance(value, list)}
                tracker.store_init_configuration(settings | texts)
            trackers.append(tracker)

        def log(metrics: Mapping[str, Any], rollouts: Sequence[Mapping[str, Any]]) -> None:
            numbers = {name: float(value) for name, value in metrics.items() if isinstance(value, int | float)}
            step = int(numbers.pop("step"))
            rows: list[list[Any]] = []
            for line in rollouts[:TRACKED_ROLLOUTS]:
                credit = [[turn["advantage"], *turn.get("credit", ())] for turn in line["turns"]]
                texts = (" ".join("-" if value is None else f"{value:+.2f}" for value in values) for values in credit)
                replies = "\n".join(turn["text"] for turn in line["turns"])
                rows.append([line["task"], line["rollout"], line["reward"], "; ".join(texts), replies])
            cells = [[escape(str(cell)).replace("|", "&#124;").replace("\n", "<br>") for cell in row] for row in rows]
            cells = [[*ROLLOUT_COLUMNS], ["---"] * len(ROLLOUT_COLUMNS), *cells]
            for tracker in trackers:
                tracker.log(numbers, step=step)
                if rows and tracker.name in ("wandb", "clearml"):
                    tracker.log_table("rollouts", columns=[*ROLLOUT_COLUMNS], data=rows, step=step)
                elif rows and tracker.name == "tensorboard":
                    tracker.log({"rollouts": "\n".join(f"| {' | '.join(line)} |" for line in cells)}, step=step)

        yield log


def _make_tracker(name: str, config: LearnerConfig, step: int) -> Any:
    from accelerate import PartialState
    from accelerate.tracking import LOGGER_TYPE_TO_CLASS  # loads the packages of all trackers that are installed

    PartialState(cpu=config.compute.device == "cpu")  # which the trackers' own log lines need
    kind, out = LOGGER_TYPE_TO_CLASS[name], config.out
    if name == "tensorboard":
        return kind("tensorboard", logging_dir=str(out), purge_step=step)
    if name == "aim":
        return kind(out.name, logging_dir=str(out))
    if name == "dvclive":
        return kind(dir=str(out / "dvclive"), dvcyaml=None)  # else it writes a file where the run was started
    if name == "mlflow":
        return kind(experiment_name=PROJECT, run_name=out.name)
    if name == "wandb":
        id = RunDirectory(out).read_json(RUN_FILE)["id"]
        return kind(os.environ.get("WANDB_PROJECT", PROJECT), id=id, name=out.name, dir=str(out), resume="allow")
    return kind(os.environ.get("COMET_PROJECT_NAME", PROJECT) if name == "comet_ml" else PROJECT)
