"""Shared parts of the recorded measurements: arguments, child runs, spreads, records.

Importing this module sets OMP_NUM_THREADS to 1 unless it is set: CPU-minutes of one thread can be compared.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

PACKAGES = ("torch", "transformers", "numpy", "memalpha")
RESULTS = Path("eval/results")


def make_parser(doc: str | None, **defaults: Any) -> argparse.ArgumentParser:
    """Return a parser whose help is the script's docstring, with the common options that have a default here.

    Args:
        doc: The script's `__doc__`.
        defaults: `out` (folder of the runs), `seeds` (a list), `jobs` (runs at a time), `results` (folder; always
            there, `eval/results` unless given).
    """
    options: dict[str, dict[str, Any]] = {
        "out": {"type": Path, "help": "folder of the runs"},
        "results": {"type": Path, "help": "folder of the records"},
        "seeds": {"type": int, "nargs": "+"},
        "jobs": {"type": int, "help": "runs at a time, a core each"},
    }
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in ({"results": RESULTS} | defaults).items():
        parser.add_argument(f"--{name}", default=default, **options[name])
    return parser


def default_jobs() -> int:
    """Return how many runs go side by side: two, or one on a single core."""
    return min(2, os.cpu_count() or 1)


def run_memalpha(words: Sequence[str], out: Path) -> dict[str, Any]:
    """Run `memalpha WORDS` in its own process unless `out` is complete; return its summary.

    The summary gets `cpu_minutes`, those of child processes included.
    """
    summary, minutes = out / "summary.json", out / "cpu-minutes.json"
    if not (summary.exists() and minutes.exists()):
        process = subprocess.Popen([sys.executable, "-m", "memalpha", *words], stdout=subprocess.DEVNULL)
        _, status, usage = os.wait4(process.pid, 0)
        if status:
            raise SystemExit(f"memalpha {' '.join(words)} ended with {os.waitstatus_to_exitcode(status)}")
        minutes.write_text(json.dumps((usage.ru_utime + usage.ru_stime) / 60), encoding="utf-8")
        print(f"{time.strftime('%H:%M')} finished {out}", file=sys.stderr, flush=True)
    cpu_minutes = json.loads(minutes.read_text(encoding="utf-8"))
    return {**json.loads(summary.read_text(encoding="utf-8")), "cpu_minutes": cpu_minutes}


def read_metrics(out: Path) -> list[dict[str, Any]]:
    """Return the metrics of each step of a run."""
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]


def replace_table(path: Path, mark: str, table: str) -> None:
    """Replace what stands between the two marks of a page.

    Args:
        path: The page.
        mark: Line that stands before and after the table.
        table: The new table.
    """
    before, _, after = path.read_text(encoding="utf-8").split(mark)
    path.write_text(f"{before}{mark}\n\n{table}\n\n{mark}{after}", encoding="utf-8")


def command() -> str:
    """Return the command line of this process."""
    return "python " + " ".join(sys.argv)


def versions(packages: Sequence[str] = PACKAGES) -> str:
    """Return the versions of Python and of the packages as text."""
    return f"Python {platform.python_version()}, " + ", ".join(f"{name} {version(name)}" for name in packages)


def opening(title: str, packages: Sequence[str] = PACKAGES, *, started_by: str | None = None) -> list[str]:
    """Return the first lines of a record's page: title, command (of a script that started this one), versions."""
    return [f"# {title}", "", "```", started_by or command(), "```", "", f"{versions(packages)}."]


def format_deviation(values: Sequence[float]) -> str:
    """Format mean ± standard deviation; a single value stands alone."""
    spread = f" ± {statistics.stdev(values):.3f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.3f}{spread}"


def format_error(values: Sequence[float]) -> str:
    """Format mean ± standard error; a single value stands alone."""
    spread = f" ± {statistics.stdev(values) / len(values) ** 0.5:.3f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.3f}{spread}"


def format_interval(values: Sequence[float]) -> str:
    """Format mean ± half of the mean's 95 % interval (Student's t); a single value stands alone."""
    if len(values) < 2:
        return f"{values[0]:.3f}"
    from scipy.stats import t

    half = float(t.ppf(0.975, len(values) - 1)) * statistics.stdev(values) / len(values) ** 0.5
    return f"{statistics.mean(values):.3f} ± {half:.3f}"


def write_json(path: Path, record: Any) -> None:
    """Write a record as indented JSON, its folder too."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def save(stem: Path, record: Any, page: str) -> None:
    """Write STEM.json and STEM.md, and print the page.

    Args:
        stem: Path without a suffix.
        record: What goes into the JSON file.
        page: Markdown.
    """
    write_json(stem.with_suffix(".json"), record)
    stem.with_suffix(".md").write_text(page.rstrip("\n") + "\n", encoding="utf-8")
    print(page)
