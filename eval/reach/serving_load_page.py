"""Page and picture of `serving_load.py`: times of answers and memory of each run."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def page(runs: dict[str, dict[str, Any]], kinds: Sequence[str], commands: Sequence[str]) -> str:
    """Return the page of all runs.

    Args:
        runs: Figures by name of the run.
        kinds: Kinds of requests.
        commands: Lines that show how the runs were made.
    """
    lines = ["# A server with 64 clients", "", "```", *commands, "```", ""]
    lines += ["![Times of answers and memory of the server over the run](serving-load.svg)", ""]
    columns = ("seconds", "kills", "answers", "errors", "cut off", "acknowledged", "lost", "doubled", "doctor")
    lines += ["| run | " + " | ".join(columns) + " | MB at first, at last | longest outage s |"]
    lines.append("|---" * (len(columns) + 3) + "|")
    for name, run in runs.items():
        cells = [sum(run[key].values()) if key == "errors" else run[key] for key in columns]
        first, last = run["memory MB"]
        lines.append(f"| {name} | {' | '.join(map(str, cells))} | {first}, {last} | {run['longest outage s']} |")
    lines += ["", "Milliseconds, median and 99th percentile:", "", f"| run | {' | '.join(kinds)} |"]
    lines.append("|---" * (len(kinds) + 1) + "|")
    for name, run in runs.items():
        pairs = [
            f"{run['p50 ms'].get(kind)}, {run['p99 ms'].get(kind)}" if kind in run["p50 ms"] else "" for kind in kinds
        ]
        lines.append(f"| {name} | {' | '.join(pairs)} |")
    for name, run in runs.items():
        if run["errors"]:
            lines += [
                "",
                f"Errors of {name}: {', '.join(f'{count} x {what}' for what, count in run['errors'].items())}.",
            ]
    lines += [
        "",
        f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, which clients, stand-in model,",
    ]
    lines.append("server and other work shared. Load average (one minute) before and after each run: ")
    lines.append("; ".join(f"{name} {' and '.join(map(str, run['load average']))}" for name, run in runs.items()) + ".")
    note = Path(__file__).with_name("serving_load.notes.md")
    return "\n".join(lines) + "\n" + (f"\n{note.read_text()}" if note.exists() else "")


WIDTH, PANEL, LEFT, GAP = 820, 120, 60, 34


def picture(runs: dict[str, dict[str, Any]]) -> str:
    """Draw, for each run, median and 99th percentile by time, and the server's memory."""
    height = GAP + len(runs) * (PANEL + GAP)
    parts = [
        f'<svg viewBox="0 0 {WIDTH} {height}" xmlns="http://www.w3.org/2000/svg" font-family="sans-serif" '
        f'font-size="11" fill="#444"><rect width="{WIDTH}" height="{height}" fill="#fff"/>'
    ]
    for index, (name, run) in enumerate(runs.items()):
        top = GAP + index * (PANEL + GAP)
        half = (WIDTH - 2 * LEFT - GAP) / 2
        times = [[row[0], row[1], row[2]] for row in run["over time"]]
        series = [
            (
                LEFT,
                "ms",
                [("p50", "#1a7f64", [(r[0], r[1]) for r in times]), ("p99", "#b5533c", [(r[0], r[2]) for r in times])],
            ),
            (LEFT + half + GAP + 20, "MB", [("memory", "#3b5b92", [tuple(row) for row in run["memory over time"]])]),
        ]
        parts.append(f'<text x="{LEFT}" y="{top - 8}" font-size="13">{name}</text>')
        for left, unit, lines in series:
            highest = max((value for *_, points in lines for _, value in points), default=1) or 1
            for share in (0, 0.5, 1):
                y = top + PANEL * (1 - share)
                parts.append(f'<path d="M{left:.0f} {y:.0f}h{half:.0f}" stroke="#ddd"/>')
                parts.append(
                    f'<text x="{left - 6:.0f}" y="{y + 4:.0f}" text-anchor="end">{highest * share:.0f} {unit}</text>'
                )
            for number, (label, colour, points) in enumerate(lines):
                text = " ".join(
                    f"{left + half * at / run['seconds']:.1f},{top + PANEL * (1 - value / highest):.1f}"
                    for at, value in points
                )
                parts.append(f'<polyline points="{text}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
                x = left + half - 90 + 45 * number
                parts.append(f'<text x="{x:.0f}" y="{top - 8}" fill="{colour}">{label}</text>')
            parts.append(
                f'<text x="{left + half:.0f}" y="{top + PANEL + 14}" text-anchor="end">{run["seconds"]:.0f} s</text>'
            )
    return "\n".join([*parts, "</svg>\n"])
