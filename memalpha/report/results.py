"""Results of a run: each system's accuracy, its difference with an interval, its most frequent error, and charts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from memalpha.qa.report import Record
from memalpha.qa.scoring.stats import MIN_CLUSTERS, ScoredAnswer, compare_paired
from memalpha.report.charts import Z95, Mark, MarkRow, mark_rows
from memalpha.report.evaluation import CLASS_LABELS

RESAMPLES = 2_000
SYSTEMS = {"append_only": "append only", "before": "before training", "after": "after training", "oracle": "oracle"}
"""Label of each system."""
SHORT_LABELS = {name: label.removesuffix(" training") for name, label in SYSTEMS.items()}
CHANGES = {"update_hit": "updated by id", "delete_hit": "deleted by id", "stale_rate": "outdated answers"}
"""Metrics of the chart of changes, and their labels."""

Systems = Mapping[str, Mapping[str, Any]]
RecordsBySystem = Mapping[str, Sequence[Record]]


def systems_of(summary: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Return the systems of a run's summary that have an accuracy, in the order of `SYSTEMS`.

    They have no standard errors below `MIN_CLUSTERS` tasks, where an interval would be too narrow.
    """
    systems = {**summary.get("baselines", {}), "before": summary.get("before"), "after": summary.get("after")}
    present = {name: systems[name] for name in SYSTEMS if "accuracy" in (systems.get(name) or {})}
    if summary.get("tasks", MIN_CLUSTERS) >= MIN_CLUSTERS:
        return present
    return {
        name: values
        | {"se": None, "by_ability": {k: v | {"se": None} for k, v in values.get("by_ability", {}).items()}}
        for name, values in present.items()
    }


def difference_interval(systems: Systems, records: RecordsBySystem) -> tuple[float, float] | None:
    """Return the 95 % interval of the difference in accuracy; None below `MIN_CLUSTERS` conversations.

    It is paired by question if the records of both are there; otherwise it comes from the two standard errors.

    Args:
        systems: Summaries by system, `before` and `after` among them.
        records: Records by system, as far as they were saved.
    """
    first, second = (
        {(record.task, record.rollout, record.question_id): float(record.correct) for record in records.get(name, ())}
        for name in ("before", "after")
    )
    if first and first.keys() == second.keys():
        rows = [[ScoredAnswer(key[0], "", values[key]) for key in first] for values in (first, second)]
        return compare_paired(rows[0], rows[1], resamples=RESAMPLES).difference.interval
    before, after = systems["before"], systems["after"]
    if before.get("se") is None or after.get("se") is None:
        return None
    middle, half = after["accuracy"] - before["accuracy"], Z95 * (before["se"] ** 2 + after["se"] ** 2) ** 0.5
    return middle - half, middle + half


def read_results(systems: Systems, records: RecordsBySystem) -> dict[str, Any]:
    """Return what the page says of a finished run: `interval`, `empty_accuracy`, `error`, `weakest`, `charts`.

    `empty_accuracy` is the accuracy of an empty memory: the share of questions whose right answer is to abstain.

    Args:
        systems: Summaries by system, `before` and `after` among them.
        records: Records by system, as far as they were saved.
    """
    answered = records.get("after") or records.get("before")
    empty_accuracy = sum(not record.gold for record in answered) / len(answered) if answered else None
    answers = records.get("after", ())
    counts = Counter(record.error_class for record in answers if record.error_class)
    error = None
    if counts:
        name, count = counts.most_common(1)[0]
        label = CLASS_LABELS.get(str(name), str(name))
        error = {"label": label, "share": count / len(answers), "share_of_wrong": count / counts.total()}
    cells = systems["after"].get("by_ability", {})
    abilities = {ability: cell["accuracy"] for ability, cell in cells.items() if cell.get("accuracy") is not None}
    return {
        "interval": difference_interval(systems, records),
        "empty_accuracy": empty_accuracy,
        "error": error,
        "weakest": min(abilities.items(), key=lambda item: item[1]) if len(abilities) > 1 else None,
        "charts": draw_results(systems, empty_accuracy),
    }


def draw_results(systems: Systems, empty_accuracy: float | None) -> dict[str, Any]:
    """Return the charts `accuracy`, `changes` and `abilities` ("" without marks), and their `legend` and `counts`.

    Args:
        systems: Summaries by system.
        empty_accuracy: Accuracy of an empty memory, drawn as a line; None if it is unknown.
    """

    def marks(cells: Mapping[str, Mapping[str, Any] | None], key: str = "accuracy") -> tuple[Mark, ...]:
        present = {name: cell for name, cell in cells.items() if cell and cell.get(key) is not None}
        errors = {name: cell.get("se") if key == "accuracy" else None for name, cell in present.items()}
        return tuple(Mark(name, SYSTEMS[name], cell[key], errors[name]) for name, cell in present.items())

    rows = [MarkRow(SHORT_LABELS[name], marks({name: values})) for name, values in systems.items()]
    line = None if empty_accuracy is None else ("empty memory", empty_accuracy)
    changes = [MarkRow(label, row) for key, label in CHANGES.items() if (row := marks(systems, key))]
    by_system = {name: values.get("by_ability", {}) for name, values in systems.items()}
    names = dict.fromkeys(ability for cells in by_system.values() for ability in cells)
    by_ability = {ability: {name: cells.get(ability) for name, cells in by_system.items()} for ability in names}
    abilities = [MarkRow(ability, marks(cells)) for ability, cells in by_ability.items()]
    return {
        "accuracy": mark_rows(rows, line=line),
        "changes": mark_rows(changes) if changes else "",
        "abilities": mark_rows(abilities) if abilities else "",
        "legend": [(name, SHORT_LABELS[name], False) for name in systems],
        "counts": {
            ability: max((cell or {}).get("n", 0) for cell in cells.values()) for ability, cells in by_ability.items()
        },
    }
