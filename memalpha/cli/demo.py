"""The demo as a function: train the tiny policy, write the page, say what happened in a newcomer's words."""

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
    """Train, evaluate before and after, write `out/report.html`, and return its path.

    `say` gets one line of text at a time; the live progress line goes to stderr. A run that was interrupted goes on,
    a finished one is only reported again. Raises what `memalpha.train` raises.
    """
    say("memalpha demo: a small language model learns to keep a memory.")
    say("It reads conversations, writes notes with tool calls (insert, update, delete), and is rewarded when questions")
    say("can be answered from its notes. Everything runs on this machine; nothing is downloaded.")
    say("")
    summary = memalpha.train("demo", seed=seed, out=out, policy=policy)
    page = write_report(out)
    for line in outcome(summary):
        say(line)
    say("")
    command = _command()
    say(f"See it:    open {page} in a browser (curves, a conversation walked through, before and after)")
    say("Try next:  a writer that does everything right, a memory of your own in a file, the same with other luck")
    say(f"           {command} eval synthetic systems=scripted:oracle limit=50")
    say(f'           {command} add ana.db "Ana lives in Lisbon."')
    say(f'           {command} search ana.db "Where does Ana live?"')
    say(f"           {command} demo --seed {seed + 1} --out {out}-{seed + 1}")
    return page


def _command() -> str:
    """What to type for `memalpha` here: its path where the shell would not find it (an environment not activated)."""
    beside = Path(sys.executable).with_name("memalpha")
    if shutil.which("memalpha") or not beside.exists():
        return "memalpha"
    return str(beside.relative_to(Path.cwd())) if beside.is_relative_to(Path.cwd()) else shlex.quote(str(beside))


def outcome(summary: Mapping[str, Any]) -> list[str]:
    """What a finished run found, as a few lines of text. Empty where the run stopped before its last evaluation."""
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
    lines.append("updates, deletes: share of changed (taken back) facts whose note was updated (deleted) by its id;")
    lines.append(
        "stale: answers that were true once; append only: never updates or deletes; oracle: does all of it right."
    )
    return lines
