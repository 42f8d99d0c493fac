"""Text runs and evaluations: curves of their training, accuracy by category, rewards by component, some replies."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from memalpha.qa.compare import load_records
from memalpha.qa.report import Record
from memalpha.report.charts import Mark, MarkRow, mark_rows
from memalpha.report.training import Curve

MAX_TASKS = 16
"""Tasks whose replies the page shows, at most."""

COLOURS = ("after", "before", "append_only", "oracle", "extra")
"""Colours of the lines of one chart, in order."""

Summaries = Mapping[str, Mapping[str, Any]]


def load_text_summaries(folder: Path) -> dict[str, dict[str, Any]]:
    """Load the summaries of text evaluations in an `eval` folder by name, `before` and `after` first."""
    summaries = {}
    for path in sorted(folder.glob("*.json")):
        try:
            summary = json.loads(path.read_text(encoding="utf-8"))
        except ValueError:
            continue
        if isinstance(summary, dict) and summary.get("task") == "text":
            summaries[path.stem] = summary
    order = sorted(summaries, key=lambda name: (name != "before", name != "after", name))
    return {name: summaries[name] for name in order}


def text_curves(metrics: Sequence[Mapping[str, Any]]) -> list[Curve]:
    """Return the charts that only text runs have."""
    keys = dict.fromkeys(key for line in metrics for key in line)
    names = [key for key in keys if key.startswith("rewards/")]
    # A chart has five colours; the table below lists all components.
    lines = tuple((key, key.removeprefix("rewards/"), kind) for key, kind in zip(names, COLOURS, strict=False))
    curves: list[Curve] = []
    if len(names) > 1:
        curves.append(("Rewards by component", "Means of a step's replies, before weights.", (None, None), lines))
    curves.append(
        ("Level", "Number of unlocked levels of the curriculum.", (0.0, None), (("unlocked", "levels", "oracle"),))
    )
    if "retry_accuracy" in keys:
        curves.append(
            (
                "Second attempts",
                "Share of right second attempts after feedback on a wrong first one: never a test accuracy.",
                (0.0, 1.0),
                (("accuracy", "first attempts", "before"), ("retry_accuracy", "second attempts", "extra")),
            )
        )
    curves.append(("Length", "Tokens of a reply.", (0.0, None), (("reply_tokens", "tokens", "oracle"),)))
    return curves


def read_text_results(folder: Path, summaries: Summaries) -> dict[str, Any]:
    """Return the charts, the table and some replies of text evaluations.

    Args:
        folder: Folder `eval` with the records.
        summaries: Summaries by name, not empty.

    Returns:
        `accuracy` and `categories` (charts; "" with one category), `legend`, `rows` of the table (label, values by
        system), `replies` (records by system, of each task shown), `task_count`.
    """
    names = list(summaries)
    kinds = {name: name if name in COLOURS else COLOURS[index % len(COLOURS)] for index, name in enumerate(names)}

    def marks(cells: Mapping[str, Mapping[str, Any] | None]) -> tuple[Mark, ...]:
        return tuple(Mark(kinds[name], name, cell["accuracy"], cell.get("se")) for name, cell in cells.items() if cell)

    systems = summaries.values()
    categories = dict.fromkeys(key for values in systems for key in values["by_ability"])
    by_category = [
        MarkRow(category, marks({name: values["by_ability"].get(category) for name, values in summaries.items()}))
        for category in categories
    ]
    components = dict.fromkeys(key for values in systems for key in values["rewards"])
    rows = [(key, [values[key] for values in systems]) for key in ("accuracy", "reward")]
    rows += [(f"… {name}", [values["rewards"].get(name) for values in systems]) for name in components]
    rows += [(key.replace("_", " "), [values.get(key) for values in systems]) for key in ("reply_tokens", "truncated")]
    replies, task_count = choose_replies(folder, names)
    return {
        "accuracy": mark_rows([MarkRow(name, marks({name: values})) for name, values in summaries.items()]),
        "categories": mark_rows(by_category) if len(categories) > 1 else "",
        "legend": [(kinds[name], name, False) for name in names],
        "rows": rows,
        "replies": replies,
        "task_count": task_count,
    }


def choose_replies(folder: Path, names: Sequence[str]) -> tuple[list[dict[str, Record]], int]:
    """Return every system's reply to some tasks, those that training changed first, and the number of tasks.

    Args:
        folder: Folder `eval` with the records.
        names: Systems; those without records are left out.
    """
    paths = {name: path for name in names if (path := folder / f"{name}.jsonl").exists()}
    by_task: dict[str, dict[str, Record]] = {}
    for name, path in paths.items():
        for record in load_records(path):
            by_task.setdefault(record.task, {}).setdefault(name, record)
    complete = [task for task in by_task.values() if len(task) == len(paths)] or list(by_task.values())
    first, last = next(iter(paths), ""), next(reversed(paths), "")

    def change(task: Mapping[str, Record]) -> int:
        if first not in task or last not in task:
            return 2
        return {(False, True): 0, (True, False): 1}.get((task[first].correct, task[last].correct), 2)

    return sorted(complete, key=change)[:MAX_TASKS], len(by_task)
