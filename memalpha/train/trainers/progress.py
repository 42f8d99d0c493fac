"""Progress of a run: lines and a bar on stderr, callbacks, TensorBoard and Weights & Biases (`report_to`).

Callbacks are transformers' `TrainerCallback`s, and a function that gets the metrics of every step.

Callbacks run in the main process, on `on_train_begin`, `on_step_begin`, `on_evaluate` (`metrics`: the validation's),
`on_log` (`logs`: the step's line of `metrics.jsonl`), `on_save` (`checkpoint`: its path), `on_step_end` (`metrics`: the
same line) and `on_train_end` (`summary`). `args` is the run's configuration. Of `control` a run obeys
`should_training_stop` and `should_save`; `evaluation.eval_steps` alone says when weights are validated.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from importlib.util import find_spec
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from transformers import TrainerCallback, TrainerControl, TrainerState

from memalpha.config import LearnerConfig
from memalpha.errors import ConfigError
from memalpha.train.trainers.directory import RUN_FILE, RunDirectory


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

            def show_step(step: int, metrics: Mapping[str, Any], minutes_left: float) -> None:
                note = f"{minutes_left:.1f} min left"
                shown = {name: spec for name, spec in STEP_METRICS.items() if metrics.get(name) is not None}
                figures = "  ".join(f"{name.replace('_', ' ')} {metrics[name]:{spec}}" for name, spec in shown.items())
                parts = (f"step {step}/{total}", figures, note, format_validation(metrics, start))
                self.log("  ".join(filter(None, parts)))
                if bar is not None and task is not None:
                    bar.update(task, completed=step, note=note)

            yield show_step

    def _bar(self) -> Progress:
        return Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}"),
            console=self.console,
            transient=True,
        )


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
        ConfigError: A callback is none, or `on_step` cannot be called.
    """

    def __init__(
        self, callbacks: Iterable[TrainerCallback | type[TrainerCallback]] = (), on_step: OnStep | None = None
    ) -> None:
        self.callbacks = [
            callback() if isinstance(callback, type) and issubclass(callback, TrainerCallback) else callback
            for callback in callbacks
        ]
        for callback in self.callbacks:
            if not isinstance(callback, TrainerCallback):
                raise ConfigError(
                    f"callbacks: {callback!r} is none: derive its class from transformers.TrainerCallback"
                )
        if on_step is not None and not callable(on_step):
            raise ConfigError("on_step: give a function of one argument, the metrics of a step")
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
            ConfigError: A callback asks for a validation, which the settings decide.
        """
        for callback in self.callbacks:
            getattr(callback, event)(self.args, self.state, self.control, **self.shared, **values)
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
            raise ConfigError(f"report_to: {name} is not installed: pip install {name}, or leave it out")


@contextmanager
def open_trackers(config: LearnerConfig, step: int, is_main: bool) -> Iterator[Callable[[Mapping[str, Any]], None]]:
    """Open the trackers that `report_to` names, in the main process, and close them after the block.

    A resumed run continues the same charts. TensorBoard's files are in `out/tensorboard`. The id of a Weights & Biases
    run is the one in `out/run.json`: a new run in the same path is another one, a run that was moved is the same. Its
    key, project and mode come from the environment (`WANDB_API_KEY`, `WANDB_PROJECT`, `WANDB_MODE`).

    Args:
        config: `report_to` names the trackers.
        step: Step that the run starts or resumes from.
        is_main: False in all processes but the main one.

    Returns:
        Context manager of a function that logs the numbers of a line of `metrics.jsonl`.
    """
    names = config.report_to if is_main else ()
    writer: Any = None
    run: Any = None
    with ExitStack() as opened:
        if "tensorboard" in names:
            from torch.utils.tensorboard import SummaryWriter

            writer = SummaryWriter(str(config.out / "tensorboard"), purge_step=step)
            opened.callback(writer.close)
        if "wandb" in names:
            import wandb  # type: ignore[import-not-found]

            run = wandb.init(
                id=RunDirectory(config.out).read_json(RUN_FILE)["id"],
                name=config.out.name,
                dir=str(config.out),
                resume="allow",
                config=json.loads(config.model_dump_json()),
            )
            opened.callback(run.finish)

        def log(metrics: Mapping[str, Any]) -> None:
            numbers = {name: float(value) for name, value in metrics.items() if isinstance(value, int | float)}
            step = int(numbers.pop("step"))
            if writer is not None:
                for name, value in numbers.items():
                    writer.add_scalar(name, value, step)
                writer.flush()
            if run is not None:
                run.log(numbers, step=step)

        yield log
