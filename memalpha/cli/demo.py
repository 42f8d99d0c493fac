"""The demo as a function: train the tiny policy, write its page, explain the results to a newcomer."""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import memalpha
from memalpha.report.page import write_report


def run_demo(seed: int, out: Path, policy: str = "tiny", say: Callable[[str], None] = print) -> Path:
    """Train, evaluate before and after, and write `out/report.html`.

    Args:
        seed: Seed of tasks, sampling and order.
        out: Run directory. An interrupted run is resumed, a finished one only reported again.
        policy: Policy to start from.
        say: Called with each line of text; the live progress line goes to stderr.

    Returns:
        Path of the page.

    Raises:
        MemalphaError: as `memalpha.train` does.
    """
    say("memalpha demo: a small language model learns to keep a memory.")
    say("It reads conversations, writes notes with tool calls (insert, update, delete), and is rewarded when questions")
    say("can be answered from its notes. Everything runs on this machine; nothing is downloaded.")
    say("")
    summary = memalpha.train("demo", seed=seed, out=out, policy=policy)
    page = write_report(out)
    for line in format_outcome(summary):
        say(line)
    say("")
    command = _shell_command()
    say(f"See it:    open {page} in a browser (curves, one conversation step by step, before and after)")
    say("Try next:  a perfect writer, a memory of your own in a file, the same demo with another seed")
    say(f"           {command} eval synthetic systems=scripted:oracle limit=50")
    say(f'           {command} add ana.db "Ana lives in Lisbon."')
    say(f'           {command} search ana.db "Where does Ana live?"')
    say(f"           {command} demo --seed {seed + 1} --out {out}-{seed + 1}")
    return page


def _shell_command() -> str:
    """Return `memalpha`, or its path if the shell does not find it (an environment that is not activated)."""
    script = Path(sys.executable).with_name("memalpha")
    if shutil.which("memalpha") or not script.exists():
        return "memalpha"
    return str(script.relative_to(Path.cwd())) if script.is_relative_to(Path.cwd()) else shlex.quote(str(script))


def format_outcome(summary: Mapping[str, Any]) -> list[str]:
    """Format the results of a finished run as lines; empty if it stopped before its last evaluation."""
    if not summary.get("before") or not summary.get("after"):
        return []
    systems = {"before training": summary["before"], "after training": summary["after"]}
    systems |= {name.replace("_", " "): values for name, values in summary.get("baselines", {}).items()}
    columns = {"accuracy": "accuracy", "update_hit": "updates", "delete_hit": "deletes", "stale_rate": "stale"}
    lines = [f"{summary['tasks']} conversations it had never seen, {summary['questions']} questions:", ""]
    lines.append(f"{'':<18}" + "".join(f"{label:>10}" for label in columns.values()))
    for name, values in systems.items():
        cells = "".join(f"{'-' if values.get(key) is None else format(values[key], '.2f'):>10}" for key in columns)
        lines.append(f"{name:<18}{cells}")
    lines.append("")
    lines.append("updates, deletes: share of changed (retracted) facts whose note was updated (deleted) by its id;")
    lines.append(
        "stale: answers that are no longer true; append only: never updates or deletes; oracle: a perfect writer."
    )
    return lines
