"""The page's part on an evaluation: metrics of every system, error analysis, and the wrong answers themselves.

Everything is computed from the records (`eval/*.jsonl`). Wrong answers are `<details>` with an anchor each, so the page
needs no script. Of many in one class, the first are shown and the rest counted.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from memalpha.qa.error_analysis import ERROR_CLASSES, Waterfall, waterfall
from memalpha.qa.records import Record
from memalpha.qa.reporting.compare import load_records
from memalpha.qa.scoring.stats import ScoredAnswer, estimate, micro
from memalpha.report.charts import Bar, stacked_bars

MAX_FAILURES = 40  # failures of one class of one system
RESAMPLES = 2_000
RIGHT = "right"
CLASS_LABELS = {
    RIGHT: "answered right",
    "answered_wrong": "retrieved, answered wrong",
    "should_have_abstained": "should have abstained",
    "partly_retrieved": "partly retrieved",
    "not_retrieved": "held, not retrieved",
    "not_found": "not among what was retrieved",
    "overwritten_or_deleted": "overwritten or deleted",
    "written_wrong": "written wrong",
    "never_written": "never written",
    "gold_faulty": "gold answer faulty",
}
"""Label of each part of a bar, from right answers to support that was never written."""

Systems = Mapping[str, Sequence[Record]]


def load_systems(folder: Path) -> dict[str, list[Record]]:
    """Load the records of an `eval` folder by file, best mean score first.

    Files with an unclassified wrong answer are left out; the result is {} if all are.
    """
    files = {path.stem: load_records(path) for path in sorted(folder.glob("*.jsonl"))}
    classified = {
        name: records for name, records in files.items() if all(r.correct or r.error_class for r in records) and records
    }
    return dict(sorted(classified.items(), key=lambda item: -micro(_rows(item[1]))))


def load_unjudged_counts(folder: Path) -> dict[str, int]:
    """Count the answers without a verdict by file of an `eval` folder; no record holds them."""
    suffix = ".unjudged.json"
    return {
        path.name.removesuffix(suffix): len(json.loads(path.read_text(encoding="utf-8")))
        for path in sorted(folder.glob(f"*{suffix}"))
    }


def read_evaluation(systems: Systems, titles: Mapping[str, str], unjudged: Mapping[str, int]) -> dict[str, Any]:
    """Return what the page says of an evaluation: a view of each system, the bars of all, and the labels.

    Args:
        systems: Records by file name.
        titles: Labels of some systems; others use the name in their records.
        unjudged: Number of answers without a verdict, by file name.
    """
    views = {
        file: _read_system(file, titles.get(file) or records[0].system or file, records)
        for file, records in systems.items()
    }
    overall = [view["overall"] for view in views.values()]
    present = {RIGHT, *(error_class for fall in overall for error_class in fall.error_counts)}
    first = next(iter(systems.values()))
    return {
        "systems": list(views.values()),
        "question_count": len(first),
        "task_count": len({record.task for record in first}),
        "unjudged": [(views[file]["title"], count) for file, count in unjudged.items() if file in views],
        "has_ceiling": any(fall.ceiling is not None for fall in overall),
        "present": [error_class for error_class in CLASS_LABELS if error_class in present],
        "bars": stacked_bars([_bar(view["title"], view["overall"]) for view in views.values()]),
        "labels": CLASS_LABELS,
        "error_classes": ERROR_CLASSES,
        "max_failures": MAX_FAILURES,
    }


def _read_system(file: str, title: str, records: Sequence[Record]) -> dict[str, Any]:
    falls = waterfall(records)
    recalls = [record.evidence_recall for record in records if record.evidence_recall is not None and record.gold]
    by_class = {name: [record for record in records if record.error_class == name] for name in CLASS_LABELS}
    return {
        "file": file,
        "title": title,
        "plain": estimate(_rows(records), resamples=RESAMPLES),
        "macro": estimate(_rows(records), macro=True, resamples=RESAMPLES),
        "recall": sum(recalls) / len(recalls) if recalls else None,
        "tokens": sum(record.tokens for record in records) / len(records),
        "abstained": sum(record.abstained for record in records) / len(records),
        "stale": sum(record.stale for record in records) / len(records),
        "falls": falls,
        "overall": falls[-1],
        "bars": stacked_bars([_bar(fall.ability, fall) for fall in falls[:-1]]) if len(falls) > 2 else "",
        "rule_counts": sorted(Counter(record.rule for record in records if record.rule).items()),
        "failures": {error_class: failed for error_class, failed in by_class.items() if failed},
    }


def anchor(*parts: object) -> str:
    """Return the id of an element: the letters and digits of the parts."""
    return "-".join("".join(c if c.isalnum() else "-" for c in str(part)) for part in parts)


def _rows(records: Sequence[Record]) -> list[ScoredAnswer]:
    return [ScoredAnswer(record.task, record.ability, float(record.score)) for record in records]


def _bar(label: str, fall: Waterfall) -> Bar:
    counts = {RIGHT: round(fall.answered * fall.n), **fall.error_counts}
    shares = [(f"error-{name}", text, counts[name] / fall.n) for name, text in CLASS_LABELS.items() if counts.get(name)]
    return Bar(f"{label} ({fall.n})", tuple(shares), fall.ceiling if fall.ceiling_n == fall.n else None)
