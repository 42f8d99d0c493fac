"""What a person sees, on a terminal and in a log."""

from __future__ import annotations

import io
import os
import pty
import re

import pytest
from rich.console import Console

from memalpha.train.trainers.progress import Display

LINE = {"reward": 1.5, "accuracy": 0.25, "calls": 4.0, "entropy": 0.31}
LINE |= {"validation_accuracy": 0.5, "validation_se": 0.1}
SHOWN = (
    "reward 1.50  accuracy 0.25  calls 4.0  entropy 0.31  2.0 min of steps left  "
    "(validation accuracy 0.500 ± 0.100, +0.300 since the start)"
)


@pytest.fixture
def display() -> Display:
    """A display that writes to a log."""
    display = Display()
    display.console = Console(file=io.StringIO(), force_terminal=False, width=200, highlight=False)
    return display


def show(display: Display, steps: int = 1) -> None:
    """Show an evaluation, some steps and a message."""
    with display.task_progress("evaluating before") as progress:
        progress(1, 2)
    with display.training_progress(0, steps, {"validation_accuracy": 0.2}) as show_step:
        for step in range(1, steps + 1):
            show_step(step, LINE, 2.0)
    display.log("[done] at checkpoints/step-4")


def test_a_log_has_a_line_a_step(display):
    show(display)
    lines = ["evaluating before", f"step 1/1  {SHOWN}", "[done] at checkpoints/step-4"]
    assert display.console.file.getvalue().splitlines() == lines


def test_a_terminal_keeps_the_line_of_every_step(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    master, slave = pty.openpty()
    display = Display()
    with os.fdopen(slave, "w") as terminal:
        display.console = Console(file=terminal, width=200, highlight=False)
        assert display.console.is_terminal
        show(display, steps=12)
    text = b""
    while part := _read(master):
        text += part
    os.close(master)
    rows = [row.rsplit("\r", 1)[-1] for row in re.sub(r"\x1b\[[0-9;?]*\w", "", text.decode()).split("\r\n")]
    assert [row for row in rows if row.startswith("step")] == [f"step {n}/12  {SHOWN}" for n in range(1, 13)]
    assert "[done] at checkpoints/step-4" in rows and "training" in text.decode()


def _read(file: int) -> bytes:
    """Read what a terminal got; b"" when its last writer has closed it."""
    try:
        return os.read(file, 65536)
    except OSError:
        return b""


@pytest.mark.parametrize(
    ("line", "minutes", "text"),
    [
        (
            {"reward": 1.0, "accuracy": None, "calls": 0.0, "entropy": 1.0},
            0.0,
            "reward 1.00  calls 0.0  entropy 1.00  0.0 min of steps left",
        ),
        (
            {"train_loss": 0.1234, "entropy": 0.5, "validation_loss": 0.25, "validation_content_loss": 0.5},
            1.0,
            "train loss 0.123  entropy 0.50  1.0 min of steps left  (validation loss 0.250, -0.500 since the start)  "
            "(validation content loss 0.500)",
        ),
        (
            {"validation_accuracy": 0.5, "validation_se": None},
            1.0,
            "1.0 min of steps left  (validation accuracy 0.500)",
        ),
        ({"accuracy": 0.5, "accuracies": 0.0}, 1.0, "accuracy 0.50  pairs in order 0.00  1.0 min of steps left"),
    ],
    ids=["an accuracy that does not exist", "a supervised run", "a validation without error", "answers and pairs"],
)
def test_a_line_holds_what_there_is(display, line, minutes, text):
    with display.training_progress(0, 1, {"validation_loss": 0.75}) as show_step:
        show_step(1, line, minutes)
    assert display.console.file.getvalue() == f"step 1/1  {text}\n"


@pytest.mark.parametrize(("share", "lines"), [(0.75, 1), (0.7, 0)])
def test_a_run_says_once_that_its_groups_have_nothing_to_prefer(display, share, lines):
    with display.training_progress(0, 15, {}) as show_step:
        for step in range(1, 16):
            show_step(step, {**LINE, "flat": share}, 2.0)
    said = [line for line in display.console.file.getvalue().splitlines() if not line.startswith("step")]
    assert len(said) == lines
    assert all("in 10 steps 75% of the groups gave all their rollouts the same reward" in line for line in said)
