"""Progress of a run on stderr: one line per step, and on a terminal a bar below them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn


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
                parts = (f"step {step}/{total}", format_metrics(metrics), note, format_validation(metrics, start))
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


def format_metrics(metrics: Mapping[str, Any]) -> str:
    """Format a step's metrics that a person watches; missing ones are left out."""
    present = {name: spec for name, spec in STEP_METRICS.items() if metrics.get(name) is not None}
    return "  ".join(f"{name.replace('_', ' ')} {metrics[name]:{spec}}" for name, spec in present.items())


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
