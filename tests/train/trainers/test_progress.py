"""What a person sees, on a terminal and in a log."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from memalpha.train.trainers.progress import Display

LINE = {"reward": 1.5, "accuracy": 0.25, "calls": 4.0, "entropy": 0.31, "validation_accuracy": 0.5}
SHOWN = "reward 1.50  accuracy 0.25  calls 4.0  entropy 0.31  2.0 min left  (validation accuracy 0.50)"


@pytest.fixture
def display() -> Display:
    """A display that writes to a log."""
    display = Display()
    display.console = Console(file=io.StringIO(), force_terminal=False, width=200, highlight=False)
    return display


def shown(display: Display) -> str:
    with display.task_progress("evaluating before") as progress:
        progress(1, 2)
    with display.training_progress(3, 10) as show:
        show(4, LINE, 2.0)
    display.log("[done] at checkpoints/step-4")
    return display.console.file.getvalue()


def test_a_log_has_a_line_a_step(display):
    assert shown(display).splitlines() == ["evaluating before", f"step 4/10  {SHOWN}", "[done] at checkpoints/step-4"]


def test_a_terminal_has_one_live_line(display):
    display.console = Console(file=io.StringIO(), force_terminal=True, width=200, highlight=False)
    text = shown(display)
    assert SHOWN in text and "4/10" in text and "[done] at checkpoints/step-4" in text


@pytest.mark.parametrize(
    ("line", "minutes", "text"),
    [
        (
            {"reward": 1.0, "accuracy": None, "calls": 0.0, "entropy": 1.0},
            0.0,
            "reward 1.00  calls 0.0  entropy 1.00  0.0 min left",
        ),
        (
            {"train_loss": 0.1234, "entropy": 0.5, "validation_loss": 0.25},
            1.0,
            "train loss 0.123  entropy 0.50  1.0 min left  (validation loss 0.250)",
        ),
    ],
    ids=["an accuracy that does not exist", "a supervised run"],
)
def test_a_line_holds_what_there_is(display, line, minutes, text):
    with display.training_progress(0, 1) as show:
        show(1, line, minutes)
    assert display.console.file.getvalue() == f"step 1/1  {text}\n"
