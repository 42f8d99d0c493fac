"""The page's part on training: one chart per metric over the steps.

Text runs have curves of their own, accuracy by category, rewards by component, and some replies.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from memalpha.qa.compare import load_records
from memalpha.qa.report import Record
from memalpha.report.charts import Mark, MarkRow, Series, line_chart, mark_rows

Curve = tuple[str, str, tuple[float | None, float | None], tuple[tuple[str, str, str], ...]]
"""Title, caption, range of y, lines as (metric key, label, colour)."""

CURVES: tuple[Curve, ...] = (
    (
        "Reward",
        "Total reward of a step's rollouts: mean, smallest and largest.",
        (None, None),
        (("reward", "mean", "after"), ("reward_min", "smallest", "before"), ("reward_max", "largest", "before")),
    ),
    (
        "Accuracy",
        "Sampled rollouts on training tasks; points: greedy on validation tasks, with 95 % intervals.",
        (0.0, 1.0),
        (("accuracy", "training", "before"), ("validation_accuracy", "validation", "after")),
    ),
    (
        "Cross-entropy",
        "Per completion token, in nats: rows of each step; points: rows held out.",
        (0.0, None),
        (
            ("train_loss", "training", "before"),
            ("validation_loss", "validation", "after"),
            ("validation_content_loss", "validation, contents", "extra"),
        ),
    ),
    (
        "Preferences",
        "Share of pairs whose chosen side the model prefers; points: pairs held out.",
        (0.0, 1.0),
        (("accuracies", "training", "before"), ("validation_accuracies", "validation", "after")),
    ),
    (
        "Parts of the reward",
        "r1 answers, r2 valid calls, r3 compression, r4 content; means of a step.",
        (None, 1.0),
        (("r1", "r1", "after"), ("r2", "r2", "before"), ("r3", "r3", "append_only"), ("r4", "r4", "oracle")),
    ),
    ("Valid calls", "Share of tool calls that executed.", (None, 1.0), (("valid_calls", "valid calls", "after"),)),
    (
        "Updates and deletes",
        "Their share of all calls that changed the memory.",
        (0.0, None),
        (("update_share", "update", "after"), ("delete_share", "delete", "append_only")),
    ),
    (
        "Right updates and deletes",
        "Share of the changes that the conversations ask for which were made to the right entry.",
        (0.0, 1.0),
        (("update_hit", "updates", "after"), ("delete_hit", "deletes", "append_only")),
    ),
    (
        "Nothing to prefer",
        "Share of groups whose rollouts all have equal rewards: they teach nothing.",
        (0.0, 1.0),
        (("flat", "flat groups", "before"),),
    ),
    (
        "Size of a step",
        "KL of an update, in nats per token: how far the policy moved.",
        (0.0, None),
        (("update_kl", "KL", "after"),),
    ),
    (
        "Largest step",
        "Largest change of a token's log-prob from the sampler's.",
        (0.0, None),
        (("old_max", "largest", "before"), ("old_p99", "99th percentile", "after")),
    ),
    (
        "Speed",
        "Tokens per second.",
        (0.0, None),
        (("sampled_tokens_per_second", "sampled", "after"), ("trained_tokens_per_second", "trained", "before")),
    ),
    ("Entropy", "Of the sampled tokens, in nats.", (0.0, None), (("entropy", "entropy", "extra"),)),
    (
        "Value function",
        "Share of the returns' variance that it explains.",
        (None, 1.0),
        (("explained_variance", "explained variance", "after"),),
    ),
    ("Memory", "Mean tokens of the final memory.", (0.0, None), (("memory_tokens", "tokens", "oracle"),)),
)


def draw_training(metrics: Sequence[Mapping[str, Any]], curves: Sequence[Curve]) -> list[tuple[Any, ...]]:
    """Return title, caption, chart and legend of each curve; a metric that is missing has none."""
    figures = []
    for title, about, (low, high), lines in curves:
        series = [line for key, label, kind in lines if (line := _series(metrics, key, label, kind)).points]
        if not series:
            continue
        top = None if high is None else max(high, *(y for line in series for _, y in line.points))
        legend = [
            (line.kind, f"{line.label} {line.points[0][1]:.2f} → {line.points[-1][1]:.2f}", not line.dots)
            for line in series
        ]
        figures.append((title, about, line_chart(series, low=low, high=top), legend))
    return figures


def _series(metrics: Sequence[Mapping[str, Any]], key: str, label: str, kind: str) -> Series:
    lines = [line for line in metrics if isinstance(line.get(key), int | float)]
    points = tuple((float(line["step"]), float(line[key])) for line in lines)
    is_sparse = key.startswith("validation")
    errors = tuple(float(line.get("validation_se") or 0.0) for line in lines) if is_sparse else ()
    return Series(kind, label, points, errors, dots=is_sparse)


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
