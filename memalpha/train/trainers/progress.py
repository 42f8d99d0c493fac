"""What a person sees while a run works: one live line on a terminal, one plain line a step elsewhere (on stderr)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn


class Display:
    """Writes progress to stderr; results belong to stdout and are not written here. Of several processes one speaks."""

    def __init__(self, quiet: bool = False) -> None:
        self.console = Console(stderr=True, highlight=False, soft_wrap=True, quiet=quiet)

    def log(self, text: str) -> None:
        """One line that stays."""
        self.console.print(text, markup=False)

    @contextmanager
    def task_progress(self, title: str) -> Iterator[Callable[[int, int], None]]:
        """Show `title` while the block runs; it may report `(done, total)`."""
        if not self.console.is_terminal:
            self.log(title)
            yield lambda done, total: None
            return
        with self._bar() as bar:
            task = bar.add_task(title, total=None, figures="")
            yield lambda done, total: bar.update(task, completed=done, total=total)

    @contextmanager
    def training_progress(self, done: int, total: int) -> Iterator[Callable[[int, Mapping[str, Any], float], None]]:
        """Show training; report `(steps done, metrics, minutes left)` after every step."""
        if not self.console.is_terminal:
            yield lambda step, line, left: self.log(f"step {step}/{total}  {format_metrics(line, left)}")
            return
        with self._bar() as bar:
            task = bar.add_task("training", total=total, completed=done, figures="first rollouts ...")
            yield lambda step, line, left: bar.update(task, completed=step, figures=format_metrics(line, left))

    def _bar(self) -> Progress:
        return Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TextColumn("{task.fields[figures]}"),
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
VALIDATION_METRICS = {"validation_accuracy": ".2f", "validation_loss": ".3f", "validation_pair_loss": ".3f"}


def format_metrics(line: Mapping[str, Any], left: float) -> str:
    """The numbers of one step that a person watches; what a run does not have is left out."""

    def told(names: Mapping[str, str]) -> list[str]:
        there = {name: form for name, form in names.items() if line.get(name) is not None}
        return [f"{name.replace('_', ' ')} {line[name]:{form}}" for name, form in there.items()]

    return "  ".join([*told(STEP_METRICS), f"{left:.1f} min left", *(f"({text})" for text in told(VALIDATION_METRICS))])
