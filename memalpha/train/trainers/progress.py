"""Progress of a run on stderr: a live line on a terminal, one plain line per step elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
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
            task = bar.add_task(title, total=None, metrics="")
            yield lambda done, total: bar.update(task, completed=done, total=total)

    @contextmanager
    def training_progress(self, done: int, total: int) -> Iterator[Callable[[int, Mapping[str, Any], float], None]]:
        """Show training; yields a callback for `(steps done, metrics, minutes left)` after every step."""
        if not self.console.is_terminal:
            yield lambda step, metrics, minutes: self.log(f"step {step}/{total}  {format_metrics(metrics, minutes)}")
            return
        with self._bar() as bar:
            task = bar.add_task("training", total=total, completed=done, metrics="first rollouts ...")
            yield lambda step, metrics, minutes: bar.update(
                task, completed=step, metrics=format_metrics(metrics, minutes)
            )

    def _bar(self) -> Progress:
        return Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TextColumn("{task.fields[metrics]}"),
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
VALIDATION_METRICS = {
    "validation_accuracy": ".2f",
    "validation_loss": ".3f",
    "validation_content_loss": ".3f",
    "validation_pair_loss": ".3f",
}


def format_metrics(metrics: Mapping[str, Any], minutes_left: float) -> str:
    """Return the metrics that a person watches, as one line; missing ones are left out."""

    def formatted(formats: Mapping[str, str]) -> list[str]:
        present = {name: spec for name, spec in formats.items() if metrics.get(name) is not None}
        return [f"{name.replace('_', ' ')} {metrics[name]:{spec}}" for name, spec in present.items()]

    return "  ".join(
        [
            *formatted(STEP_METRICS),
            f"{minutes_left:.1f} min left",
            *(f"({text})" for text in formatted(VALIDATION_METRICS)),
        ]
    )
