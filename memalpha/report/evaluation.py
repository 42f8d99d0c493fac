"""The page's part on an evaluation: metrics of every system, error analysis, and the wrong answers themselves.

Everything is computed from the records (`eval/*.jsonl`). Wrong answers are `<details>` with an anchor each, so the page
needs no script. Of many in one class, the first are shown and the rest counted. Above them stand the results of a run:
each system's accuracy, its difference with an interval, its most frequent error, and charts. An evaluation on texts has
accuracy by category, rewards by component, and some replies instead.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from memalpha.qa.compare import load_records
from memalpha.qa.error_analysis import ERROR_CLASSES, Waterfall, waterfall
from memalpha.qa.report import CHANGED, Record, Report, ceiling_of, scored_answers, warnings_of
from memalpha.qa.scoring.stats import MIN_CLUSTERS, ScoredAnswer, compare_paired, estimate, mean, micro
from memalpha.report.charts import Z95, Bar, Mark, MarkRow, mark_rows, stacked_bars
from memalpha.text_files import parse_json_or_none

MAX_FAILURES = 40  # failures of one class of one system
RESAMPLES = 2_000
MAX_NAMES = 5  # systems that the title names
MAX_LABEL = 17  # characters of a label beside a chart
EMPTY = "empty"
APART = (("after", "answerable", False), ("before", "unanswerable", False))
"""Kind, label and form in a legend of the two kinds of questions: those with an answer, those without."""
RIGHT = "right"
CLASS_LABELS = {
    RIGHT: "answered right",
    **{name: name.replace("_", " ") for name in reversed([*ERROR_CLASSES])},
    "answered_wrong": "retrieved, answered wrong",
    "not_retrieved": "held, not retrieved",
    "not_found": "not among what was retrieved",
    "gold_faulty": "gold answer faulty",
}
"""Label of each part of a bar, from right answers to support that was never written."""

RecordsBySystem = Mapping[str, Sequence[Record]]


def load_systems(folder: Path) -> dict[str, list[Record]]:
    """Load the records of an `eval` folder by file, best mean score first.

    Files with an unclassified wrong answer are left out; the result is {} if all are.
    """
    files = {path.stem: load_records(path) for path in sorted(folder.glob("*.jsonl"))}
    classified = {
        name: records for name, records in files.items() if all(r.correct or r.error_class for r in records) and records
    }
    return dict(sorted(classified.items(), key=lambda item: -micro(scored_answers(item[1], "score"))))


def read_evaluation(folder: Path, systems: RecordsBySystem, provenance: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the page says of an evaluation: its set-up, warnings, a view of each system, charts and labels.

    The system `empty` is no view of its own but the `baseline`, unless it is the only one.

    Args:
        folder: Directory of the evaluation; the summaries are beside the records.
        systems: Records by file name, at least one; `SYSTEMS` labels some, others use the name in their records.
        provenance: Content of `eval/summary.json`; {} if there is none.
    """
    reports, views = list[Report](), dict[str, dict[str, Any]]()
    for file, records in systems.items():
        summary, unjudged = (folder / "eval" / f"{file}{ending}" for ending in (".json", ".unjudged.json"))
        # The summary of a training run is left out.
        figures = json.loads(summary.read_text(encoding="utf-8")) if provenance and summary.exists() else {}
        if unjudged.exists():
            figures["unjudged"] = len(json.loads(unjudged.read_text(encoding="utf-8")))
        reports.append(Report(records[0].system or file, figures, tuple(records)))
        views[file] = _read_system(file, SYSTEMS.get(file) or records[0].system or file, records)
    baseline = views.pop(EMPTY, None) if len(views) > 1 else None
    overall = [view["overall"] for view in views.values()]
    present = {RIGHT, *(error_class for fall in overall for error_class in fall.error_counts)}
    first = next(iter(systems.values()))
    config = provenance.get("config", {})
    data_set = Path(config["data"]).name if config.get("benchmark") == "tasks" else config.get("benchmark")
    names = [view["title"] for view in views.values()]
    names[MAX_NAMES:] = [f"{len(names) - MAX_NAMES} more"] if len(names) > MAX_NAMES else []
    note = provenance.get("note")
    return {
        "title": f"{data_set or folder.name}: {', '.join(names)}",
        "reader": reports[0].summary.get("reader"),
        "metric": reports[0].summary.get("metric"),
        "ceiling": ceiling_of(reports),
        "warnings": [*([note] if note else []), *warnings_of(reports)],
        "systems": list(views.values()),
        "baseline": baseline,
        "has_interval": any(view["plain"].interval for view in views.values()),
        "scores": _draw_scores(list(views.values()), baseline),
        "question_count": len(first),
        "task_count": len({record.task for record in first}),
        "has_ceiling": any(fall.ceiling is not None for fall in overall),
        "present": [error_class for error_class in CLASS_LABELS if error_class in present],
        "bars": stacked_bars([_bar(view["title"], view["overall"]) for view in views.values()]),
        "labels": CLASS_LABELS,
        "error_classes": ERROR_CLASSES,
        "max_failures": MAX_FAILURES,
    }


def _draw_scores(views: Sequence[Mapping[str, Any]], baseline: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the chart `all`, that of questions with and without an answer (`apart`, "" without both), and `empty`.

    `empty` is the score of an empty memory: measured, or else the share of questions whose right answer is to abstain.
    """
    first = views[0]
    empty = baseline["plain"].value if baseline else first["unanswerable_n"] / first["plain"].n
    together, apart = [], []
    for view in views:
        title = view["title"]
        label = title if len(title) <= MAX_LABEL else f"…{title[1 - MAX_LABEL :]}"
        together.append(MarkRow(label, (Mark("after", "score", view["plain"].value),)))
        apart.append(MarkRow(label, tuple(Mark(kind, name, view[name]) for kind, name, _ in APART)))
    return {
        "all": mark_rows(together, line=("empty memory", empty)),
        "apart": mark_rows(apart) if 0 < first["unanswerable_n"] < first["plain"].n else "",
        "legend": APART,
        "empty": empty,
    }


def _read_system(file: str, title: str, records: Sequence[Record]) -> dict[str, Any]:
    falls = waterfall(records)
    recalls = [record.evidence_recall for record in records if record.evidence_recall is not None and record.gold]
    by_class = {name: [record for record in records if record.error_class == name] for name in CLASS_LABELS}
    knows_changes = any(record.kind in CHANGED or record.stale for record in records)  # else none could be found
    return {
        "file": file,
        "title": title,
        "plain": estimate(scored_answers(records, "score"), resamples=RESAMPLES),
        "macro": estimate(scored_answers(records, "score"), macro=True, resamples=RESAMPLES),
        "answerable": mean([record.score for record in records if record.gold]),
        "unanswerable": mean([record.score for record in records if not record.gold]),
        "unanswerable_n": sum(not record.gold for record in records),
        "recall": mean(recalls),
        "tokens": sum(record.tokens for record in records) / len(records),
        "abstained": sum(record.abstained for record in records) / len(records),
        "stale": sum(record.stale for record in records) / len(records) if knows_changes else None,
        "falls": falls,
        "overall": falls[-1],
        "bars": stacked_bars([_bar(fall.ability, fall) for fall in falls[:-1]]) if len(falls) > 2 else "",
        "rule_counts": sorted(Counter(record.rule for record in records if record.rule).items()),
        "failures": {error_class: failed for error_class, failed in by_class.items() if failed},
    }


def anchor(*parts: object) -> str:
    """Return the id of an element: the letters and digits of the parts."""
    return "-".join("".join(c if c.isalnum() else "-" for c in str(part)) for part in parts)


def _bar(label: str, fall: Waterfall) -> Bar:
    counts = {RIGHT: round(fall.answered * fall.n), **fall.error_counts}
    shares = [(f"error-{name}", text, counts[name] / fall.n) for name, text in CLASS_LABELS.items() if counts.get(name)]
    return Bar(f"{label} ({fall.n})", tuple(shares), fall.ceiling if fall.ceiling_n == fall.n else None)


SYSTEMS = {
    "append_only": "append only",
    "add_all": "add all",
    "before": "before training",
    "after": "after training",
    "oracle": "oracle",
}
"""Label of each system."""
SHORT_LABELS = {name: label.removesuffix(" training") for name, label in SYSTEMS.items()}
CHANGES = {"update_hit": "updated by id", "delete_hit": "deleted by id", "stale_rate": "outdated answers"}
"""Metrics of the chart of changes, and their labels."""

Systems = Mapping[str, Mapping[str, Any]]


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


def _draw_accuracies(
    systems: Systems, looks: Mapping[str, tuple[str, str, str]], line: tuple[str, float] | None = None
) -> dict[str, Any]:
    """Return the charts `accuracy` and `abilities` ("" with one kind, which is the first chart again).

    `legend` is theirs, `counts` are questions by ability; `has_intervals` and `has_ability_intervals` say whether the
    charts have error bars.

    Args:
        systems: Summaries by system.
        looks: Colour, label of a mark, and label of a row by system.
        line: Label and value of a dashed line through the accuracies.
    """

    def row(label: str, cells: Mapping[str, Mapping[str, Any]]) -> MarkRow:
        present = {name: cell for name, cell in cells.items() if cell.get("accuracy") is not None}
        marks = (Mark(*looks[name][:2], cell["accuracy"], cell.get("se")) for name, cell in present.items())
        return MarkRow(label, tuple(marks))

    rows = [row(looks[name][2], {name: values}) for name, values in systems.items()]
    by_system = {name: values.get("by_ability", {}) for name, values in systems.items()}
    by_ability = {
        ability: {name: cells.get(ability) or {} for name, cells in by_system.items()}
        for ability in dict.fromkeys(ability for cells in by_system.values() for ability in cells)
    }
    abilities = [row(ability, cells) for ability, cells in by_ability.items()]
    return {
        "accuracy": mark_rows(rows, line=line),
        "has_intervals": any(mark.se for row in rows for mark in row.marks),
        "abilities": mark_rows(abilities) if len(abilities) > 1 else "",
        "has_ability_intervals": any(mark.se for row in abilities for mark in row.marks),
        "legend": [(colour, label, False) for colour, _, label in looks.values()],
        "counts": {ability: max(cell.get("n", 0) for cell in cells.values()) for ability, cells in by_ability.items()},
    }


def read_results(systems: Systems, records: RecordsBySystem) -> dict[str, Any]:
    """Return what the page says of a finished run: `interval`, `empty_accuracy`, `error`, `weakest`, `charts`.

    `empty_accuracy` is the accuracy of an empty memory: the share of questions whose right answer is to abstain. The
    charts are those of `_draw_accuracies`, and `changes` ("" without marks).

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
    accuracies = {ability: cell["accuracy"] for ability, cell in cells.items() if cell.get("accuracy") is not None}

    changes = []
    for key, label in CHANGES.items():
        present = {name: values[key] for name, values in systems.items() if values.get(key) is not None}
        marks = tuple(Mark(name, SYSTEMS[name], value) for name, value in present.items())
        changes += [MarkRow(label, marks)] if marks else []
    looks = {name: (name, SYSTEMS[name], SHORT_LABELS[name]) for name in systems}
    line = None if empty_accuracy is None else ("empty memory", empty_accuracy)
    charts = {**_draw_accuracies(systems, looks, line), "changes": mark_rows(changes) if changes else ""}
    return {
        "interval": difference_interval(systems, records),
        "empty_accuracy": empty_accuracy,
        "error": error,
        "weakest": min(accuracies.items(), key=lambda item: item[1]) if len(accuracies) > 1 else None,
        "charts": charts,
    }


MAX_TASKS = 16
"""Tasks whose replies the page shows, at most."""

COLOURS = ("after", "before", "append_only", "oracle", "extra")
"""Colours of the lines of one chart, in order."""

Summaries = Mapping[str, Mapping[str, Any]]


def load_text_summaries(folder: Path) -> dict[str, dict[str, Any]]:
    """Load the summaries of text evaluations in an `eval` folder by name, `before` and `after` first."""
    summaries = {}
    for path in sorted(folder.glob("*.json")):
        summary = parse_json_or_none(path.read_bytes())
        if isinstance(summary, dict) and summary.get("task") == "text":
            summaries[path.stem] = summary
    return dict(sorted(summaries.items(), key=lambda item: (item[0] != "before", item[0] != "after", item[0])))


def read_text_results(folder: Path, summaries: Summaries) -> dict[str, Any]:
    """Return the charts, the table and some replies of text evaluations.

    Args:
        folder: Folder `eval` with the records.
        summaries: Summaries by name, not empty.

    Returns:
        The charts of `_draw_accuracies`, `rows` of the table (label, values by system), `replies` (records by system,
        of each task shown), `task_count`.
    """
    names, systems = list(summaries), summaries.values()
    colours = {name: name if name in COLOURS else COLOURS[index % len(COLOURS)] for index, name in enumerate(names)}
    components = dict.fromkeys(key for values in systems for key in values["rewards"])
    rows = [(key, [values[key] for values in systems]) for key in ("accuracy", "reward")]
    rows += [(f"… {name}", [values["rewards"].get(name) for values in systems]) for name in components]
    rows += [(key.replace("_", " "), [values.get(key) for values in systems]) for key in ("reply_tokens", "truncated")]
    replies, task_count = choose_replies(folder, names)
    charts = _draw_accuracies(summaries, {name: (colours[name], name, name) for name in names})
    return {**charts, "rows": rows, "replies": replies, "task_count": task_count}


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
