"""Sentence rules beside keeping every turn, on LoCoMo's answerable questions and FriendsQA, by halves.

    python eval/qa/sentence_rules.py DATA

DATA holds the folders `locomo` and `friendsqa` with the official files. The rules were chosen on the conversations of
even index, and the odd ones are reported. The reader copies from the best passage, so no language model runs. The
metric is F1 (LoCoMo's official one there). Writes sentence-rules.json and the table of sentence-rules.md to --results.
"""

from __future__ import annotations

import json
import sys
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import numpy as np

from memalpha.qa.error_analysis import ERROR_CLASSES, waterfall
from memalpha.qa.protocol import run_systems
from memalpha.qa.reader import load_reader
from memalpha.qa.report import Report
from memalpha.tasks.load import load_tasks

sys.path.insert(0, str(Path(__file__).parents[1]))
from common import make_parser, replace_table

SYSTEMS = ("append-only", "sentence-rules", "rag")
SETS = {"locomo": ("locomo/locomo10.json", "locomo-f1"), "friendsqa": ("friendsqa", "f1")}
HALVES = ("even, chosen on", "odd, held out")
RESAMPLES = 10_000
HEAD = (
    "| set | conversations | questions | system | evidence kept | evidence shown | F1 | against append-only | accuracy "
    "| tokens shown | tokens held |"
)
MARK = "<!-- table -->"


def difference(report: Report, base: Report) -> tuple[float, float, float]:
    """Return the difference of the mean scores and its 95 % bootstrap interval over conversations."""
    gains: dict[str, list[float]] = defaultdict(list)
    for record, other in zip(report.records, base.records, strict=True):
        gains[record.task].append(record.score - other.score)
    sums, counts = (np.array([part(gain) for gain in gains.values()]) for part in (sum, len))
    drawn = np.random.default_rng(0).integers(len(sums), size=(RESAMPLES, len(sums)))
    low, high = np.quantile(sums[drawn].sum(1) / counts[drawn].sum(1), [0.025, 0.975])
    return float(sums.sum() / counts.sum()), float(low), float(high)


def measure(data: Path) -> list[dict[str, Any]]:
    """Return a row per set, half and system."""
    rows = []
    for name, (file, metric) in SETS.items():
        tasks = load_tasks(name, data=str(data / file))
        for half, label in enumerate(HALVES):
            base: Report | None = None
            for system in SYSTEMS:
                began = time.process_time()
                [report] = run_systems([system], tasks[half::2], load_reader("copy"), metric=metric)
                base, summary = base or report, report.summary
                gain, low, high = difference(report, base)
                is_live = [record.live for record in report.records if record.live is not None]
                is_shown = [bool(record.support_retrieved) for record in report.records if record.live is not None]
                rows.append(
                    {
                        "set": name,
                        "half": label,
                        "system": system,
                        "questions": len(report.records),
                        **{key: round(summary[key], 4) for key in ("score", "accuracy", "tokens", "memory_tokens")},
                        "known": len(is_live),
                        "kept": round(sum(is_live) / len(is_live), 4),
                        "shown": round(sum(is_shown) / len(is_shown), 4),
                        "difference": round(gain, 4),
                        "low": round(low, 4),
                        "high": round(high, 4),
                        "losses": dict(waterfall(report.records)[-1].error_counts),
                        "cpu_s": round(time.process_time() - began, 1),
                    }
                )
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    """Return the rows as a Markdown table."""
    lines = [HEAD, "|" + "---|" * (HEAD.count("|") - 1)]
    for row in rows:
        gain = (
            "" if row["system"] == SYSTEMS[0] else f"{row['difference']:+.3f} ({row['low']:+.3f} to {row['high']:+.3f})"
        )
        cells = [row["set"], row["half"], f"{row['questions']:,}", row["system"]]
        cells += [f"{row['kept']:.3f}", f"{row['shown']:.3f}", f"{row['score']:.3f}", gain]
        cells += [f"{row['accuracy']:.3f}", f"{row['tokens']:,.0f}", f"{row['memory_tokens']:,.0f}"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def loss_table(rows: list[dict[str, Any]]) -> str:
    """Return the lost answers of both halves by error class as a Markdown table."""
    totals: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    questions: Counter[tuple[str, str]] = Counter()
    for row in rows:
        key = row["set"], row["system"]
        totals[key].update(row["losses"])
        questions[key] += row["questions"]
    names = [name for name in ERROR_CLASSES if any(counts[name] for counts in totals.values())]
    lines = [f"| set | system | questions | {' | '.join(names)} | right |", "|---|---|---|" + "---|" * (len(names) + 1)]
    for key, counts in totals.items():
        cells = [*key, f"{questions[key]:,}", *(f"{counts[name]:,}" for name in names)]
        lines.append(f"| {' | '.join(cells)} | {questions[key] - counts.total():,} |")
    return "\n".join(lines)


def main() -> None:
    """Measure, and write the record and its page."""
    parser = make_parser(__doc__)
    parser.add_argument("data", type=Path)
    options = parser.parse_args()
    rows = measure(options.data)
    (options.results / "sentence-rules.json").write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    tables = f"{table(rows)}\n\n{loss_table(rows)}"
    replace_table(options.results / "sentence-rules.md", MARK, tables)
    print(tables)


if __name__ == "__main__":
    main()
