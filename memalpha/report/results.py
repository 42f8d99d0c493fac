"""The page's part on the results of a run: accuracy of each system, by kind of question, and all metrics."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

from memalpha.report.charts import Z95, Mark, MarkRow, mark_rows, render_figure, swatch

SYSTEMS = {"append_only": "append only", "before": "before training", "after": "after training", "oracle": "oracle"}
"""Label of each system."""
SHORT_LABELS = {name: label.removesuffix(" training") for name, label in SYSTEMS.items()}

METRICS = (
    ("accuracy", "accuracy", "questions answered right", True),
    ("answerable_accuracy", "… that have an answer", "an empty memory has all others right", True),
    ("update_accuracy", "… where a value changed", "questions about a fact that was updated", True),
    ("retract_accuracy", "… where a fact was taken back", "the right answer is then that it is not known", True),
    (
        "stale_rate",
        "outdated after a change",
        "share of questions about changed facts answered with an old value",
        True,
    ),
    ("update_hit", "updates by the right id", "changes of a stored value that updated just that entry", True),
    ("delete_hit", "deletes by the right id", "retractions of a stored fact that deleted just that entry", True),
    ("valid_calls", "valid calls", "tool calls that executed", True),
    ("memory_tokens", "memory, tokens", "mean size of the final memory", False),
    ("conversation_tokens", "conversation, tokens", "mean size of what was read", False),
)
"""Key of a system's summary, label, explanation, True for a share (else a count)."""

Systems = Mapping[str, Mapping[str, Any]]


def systems_of(summary: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Return the systems of a run's summary that have an accuracy, in the order of `SYSTEMS`."""
    systems = {**summary.get("baselines", {}), "before": summary.get("before"), "after": summary.get("after")}
    return {name: systems[name] for name in SYSTEMS if "accuracy" in (systems.get(name) or {})}


def render_results(systems: Systems, empty_accuracy: float | None = None) -> str:
    """Return the HTML of the results; "" without systems.

    Args:
        systems: Summaries by system.
        empty_accuracy: Accuracy of an empty memory, drawn as a line; None if it is unknown.
    """
    if "before" not in systems or "after" not in systems:
        return ""
    return (
        f'<h2>The results</h2><div class="two">{_accuracy(systems, empty_accuracy)}{_memory_truth(systems)}'
        f"{_abilities(systems)}</div>{_metrics(systems)}"
    )


def _accuracy(systems: Systems, empty_accuracy: float | None) -> str:
    rows = [
        MarkRow(SHORT_LABELS[name], (Mark(name, SYSTEMS[name], values["accuracy"], values.get("se")),))
        for name, values in systems.items()
    ]
    about = f"Bars: 95 % intervals over conversations (± {Z95} standard errors). " + (
        "<em>Append only</em> inserts every fact and never updates or deletes; the <em>oracle</em> does every "
        "operation right."
        if "oracle" in systems
        else "No baselines: not every held-out task carries gold operations."
    )
    line = None
    if empty_accuracy is not None:
        about += f" The dashed line is an empty memory ({empty_accuracy:.2f})."
        line = ("empty memory", empty_accuracy)
    return render_figure("Accuracy on held-out conversations", about, mark_rows(rows, line=line))


def _memory_truth(systems: Systems) -> str:
    """Return the chart of changes and retractions by the right id, and outdated answers."""
    keys = {
        "update_hit": "updated by id",
        "delete_hit": "deleted by id",
        "stale_rate": "outdated answers",
    }
    rows = []
    for key, label in keys.items():
        marks = [
            Mark(name, SYSTEMS[name], values[key]) for name, values in systems.items() if values.get(key) is not None
        ]
        rows += [MarkRow(label, tuple(marks))] if marks else []
    if not rows:
        return ""
    about = (
        "Share of changed and of taken back facts whose stored entry was updated or deleted by its id (more is "
        "better); share of questions about changed facts answered with an old value (less is better)."
    )
    return render_figure("Is the memory kept true?", about, mark_rows(rows), _legend(systems))


def _abilities(systems: Systems) -> str:
    names = list(dict.fromkeys(name for values in systems.values() for name in values.get("by_ability", {})))
    if not names:
        return ""
    rows = []
    for ability in names:
        marks = [
            Mark(name, SYSTEMS[name], cell["accuracy"], cell.get("se"))
            for name, values in systems.items()
            if (cell := values["by_ability"].get(ability)) and cell["accuracy"] is not None
        ]
        count = max(values["by_ability"].get(ability, {}).get("n", 0) for values in systems.values())
        rows.append((MarkRow(ability, tuple(marks)), count))
    counts = ", ".join(f"{row.label} {count}" for row, count in rows if count)
    about = f"With 95 % intervals{'; questions: ' + escape(counts) if counts else ''}."
    return render_figure("By kind of question", about, mark_rows([row for row, _ in rows]), _legend(systems))


def _metrics(systems: Systems) -> str:
    head = "".join(f'<th class="n">{SHORT_LABELS[name]}</th>' for name in systems)
    rows = []
    for key, label, about, is_share in METRICS:
        if not any(key in values for values in systems.values()):
            continue
        cells = "".join(f'<td class="n">{_cell(values.get(key), is_share)}</td>' for values in systems.values())
        rows.append(f'<tr><th scope="row">{label}<br><span class="soft">{about}</span></th>{cells}</tr>')
    return f'<div class="card scroll metrics"><table><tr><th></th>{head}</tr>{"".join(rows)}</table></div>'


def _legend(systems: Systems) -> list[str]:
    return [f"{swatch(name)}{SHORT_LABELS[name]}" for name in systems]


def _cell(value: float | None, is_share: bool) -> str:
    if value is None:
        return "-"
    return f"{value:.3f}" if is_share else f"{value:.0f}"
