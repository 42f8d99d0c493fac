"""What a person sees, on a terminal and in a log."""

from __future__ import annotations

import io

from rich.console import Console

from memalpha.train.trainers.progress import Display

LINE = {"reward": 1.5, "accuracy": 0.25, "calls": 4.0, "entropy": 0.31, "validation_accuracy": 0.5}
SHOWN = "reward 1.50  accuracy 0.25  calls 4.0  entropy 0.31  2.0 min left  (validation accuracy 0.50)"


def shown(terminal: bool) -> str:
    display = Display()
    display.console = Console(file=io.StringIO(), force_terminal=terminal, width=200, highlight=False)
    with display.task_progress("evaluating before") as progress:
        progress(1, 2)
    with display.training_progress(3, 10) as show:
        show(4, LINE, 2.0)
    display.log("[done] at checkpoints/step-4")
    return display.console.file.getvalue()


def test_a_log_has_a_line_a_step():
    assert shown(False).splitlines() == ["evaluating before", f"step 4/10  {SHOWN}", "[done] at checkpoints/step-4"]


def test_a_terminal_has_one_live_line():
    text = shown(True)
    assert SHOWN in text and "4/10" in text and "[done] at checkpoints/step-4" in text


def test_an_accuracy_that_does_not_exist_is_left_out():
    display = Display()
    display.console = Console(file=io.StringIO(), force_terminal=False)
    with display.training_progress(0, 1) as show:
        show(1, {"reward": 1.0, "accuracy": None, "calls": 0.0, "entropy": 1.0}, 0.0)
    assert "accuracy" not in display.console.file.getvalue()


def test_a_supervised_run_shows_its_losses():
    display = Display()
    display.console = Console(file=io.StringIO(), force_terminal=False, width=200)
    with display.training_progress(0, 1) as show:
        show(1, {"train_loss": 0.1234, "entropy": 0.5, "validation_loss": 0.25}, 1.0)
    assert display.console.file.getvalue() == (
        "step 1/1  train loss 0.123  entropy 0.50  1.0 min left  (validation loss 0.250)\n"
    )
