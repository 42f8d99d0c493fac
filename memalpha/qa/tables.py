"""Result tables of all evaluated systems as text, CSV and Markdown, with the provenance of the figures."""

from __future__ import annotations

import csv
import hashlib
import importlib.metadata
import json
import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from memalpha.config import EvalConfig
from memalpha.errors import ConfigError
from memalpha.qa.report import Report, file_stem, format_cell
from memalpha.tasks.catalog import get_data_set, locate
from memalpha.tasks.formats.files import compute_sha256
from memalpha.types import Task

LOW_CEILING = 0.5
"""Accuracy on the evidence itself below which a table says which reader and metric to take."""
SUMMARY = "summary"
"""Name of the file that holds the summaries of all systems."""
COLUMNS = (
    "accuracy", "score", "answerable_accuracy", "stale_rate", "ceiling", "ceiling_n", "ceiling_answered",
    "evidence_recall", "evidence_recall@10", "tokens", "memory_tokens", "searches", "left_out", "reader_truncated",
    "unjudged",
)  # fmt: skip
_TERMINAL_HEADS = {
    "score": "score", "answerable_accuracy": "answerable", "stale_rate": "stale", "ceiling_answered": "of the same",
    "evidence_recall": "evidence", "tokens": "tokens", "memory_tokens": "held", "unjudged": "unjudged",
}  # fmt: skip
"""Columns that a terminal shows beside accuracy, with their headers."""
_PACKAGES = ("memalpha", "numpy", "faiss-cpu", "torch", "transformers", "sentence-transformers")


def table_rows(reports: Sequence[Report]) -> tuple[list[str], list[list[Any]]]:
    """Return header and rows: a row per system, the columns that have values, the score by ability."""
    columns = [name for name in COLUMNS if _has_column(reports, name)]
    abilities = _abilities(reports)
    header = ["system", "questions", *columns[:1], "low", "high", *columns[1:], *abilities]
    rows = []
    for report in reports:
        low, high = report.summary.get("accuracy_interval") or (None, None)
        figures = [report.summary.get(name) for name in columns]
        by_ability = [report.summary["by_ability"].get(ability, {}).get("score") for ability in abilities]
        rows.append([report.name, len(report.records), *figures[:1], low, high, *figures[1:], *by_ability])
    return header, rows


def _has_column(reports: Sequence[Report], name: str) -> bool:
    return any(report.summary.get(name) is not None for report in reports)


def _abilities(reports: Sequence[Report]) -> list[str]:
    return sorted({ability for report in reports for ability in report.summary["by_ability"]})


def as_markdown(reports: Sequence[Report]) -> str:
    """Format the table as Markdown, below a line on the common setup."""
    header, rows = table_rows(reports)
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    lines += ["| " + " | ".join(format_cell(value) for value in row) + " |" for row in rows]
    return "\n\n".join([_common_setup(reports), "\n".join(lines), *warnings_of(reports)]) + "\n"


def print_table(reports: Sequence[Report]) -> None:
    """Print the main metrics and the score by ability; the files hold all of them."""
    from rich.box import SIMPLE
    from rich.console import Console
    from rich.table import Table

    console = Console()
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = 160  # files and pipes need no narrow table
    console.print(_common_setup(reports))
    heads_of = {"accuracy": "accuracy", "": "95 %", **_TERMINAL_HEADS}
    heads_of = {name: label for name, label in heads_of.items() if not name or _has_column(reports, name)}
    if all(report.summary["score"] == report.summary["accuracy"] for report in reports):
        del heads_of["score"]
    if all(report.summary["ceiling_n"] in (None, len(report.records)) for report in reports):
        heads_of.pop("ceiling_answered", None)  # equal to the accuracy
    overall, by_ability_table = (
        Table(box=SIMPLE, pad_edge=False, padding=(0, 1, 0, 0), title=title) for title in (None, "score by ability")
    )
    for grid, heads in ((overall, heads_of.values()), (by_ability_table, _abilities(reports))):
        grid.add_column("system", overflow="fold", min_width=12)
        for head in heads:
            grid.add_column(head, justify="right", overflow="fold", min_width=11 if head == "95 %" else 5)
    for report in reports:
        summary = report.summary
        low, high = summary["accuracy_interval"] or (None, None)
        interval = "-" if low is None else f"{low:.3f}-{high:.3f}"
        overall.add_row(report.name, *(format_cell(summary.get(name)) if name else interval for name in heads_of))
        by_ability = [summary["by_ability"].get(ability, {}).get("score") for ability in _abilities(reports)]
        by_ability_table.add_row(report.name, *map(format_cell, by_ability))
    console.print(overall)
    console.print(by_ability_table)
    for line in warnings_of(reports):
        console.print(line)


def _common_setup(reports: Sequence[Report]) -> str:
    summary = reports[0].summary
    ceiling = ""
    if summary["ceiling"] is not None:
        ceiling_accuracy, ceiling_n = summary["ceiling"], summary["ceiling_n"]
        share = f"{ceiling_accuracy:.3f} of the {ceiling_n:,} questions"
        ceiling = f"; shown the raw evidence it is right in {share} that name some"
    reader, metric, budget = (summary[name] for name in ("reader", "metric", "budget"))
    rules: dict[str, list[str]] = {}
    for report in reports:
        rules.setdefault(report.summary["conflicts"], []).append(report.name)
    listed = [f"{rule} ({', '.join(names)})" if len(rules) > 1 else rule for rule, names in rules.items()]
    rule = "" if list(rules) == ["keep"] else f"; conflicts: {'; '.join(listed)}"
    return f"reader: {reader}{rule}{ceiling}; metric: {metric}; budget: {budget} tokens of context"


def ceiling_of(reports: Sequence[Report]) -> tuple[float, str] | None:
    """Return the reader's accuracy when shown the best text there is, and what that is; None if unknown.

    Where no question names evidence, the system `full` is the ceiling: the reader sees the whole conversation.
    """
    if (ceiling := reports[0].summary.get("ceiling")) is not None:
        return ceiling, "the evidence itself"
    full_accuracies = [report.summary["accuracy"] for report in reports if report.name == "full" and report.summary]
    return (full_accuracies[0], "the whole conversation (full)") if full_accuracies else None


def warnings_of(reports: Sequence[Report]) -> list[str]:
    """Return what a reader of the figures has to know: a low ceiling, what has no verdict, was cut off or left out.

    Args:
        reports: Reports of all systems; the summary of a report may be empty.
    """
    notes, summary = [], reports[0].summary
    ceiling, view = ceiling_of(reports) or (1.0, "")
    if ceiling < LOW_CEILING:
        is_floor = "(floor)" in summary["reader"]
        reader = "a language model (reader.kind=policy reader.policy=MODEL)" if is_floor else "a stronger reader"
        metric = " and a metric that takes other words for the same (metric=f1 or judge)"
        notes.append(
            f"shown {view}, the reader is right in less than {LOW_CEILING:.0%} of the questions: most errors "
            f"are its own. To compare memories, take {reader}{metric if summary['metric'] == 'exact' else ''}"
        )
    notes += [
        f"{report.name}: no judge gave a readable verdict on {unjudged:,} of {unjudged + len(report.records):,} "
        f"answers; they are in no figure and no denominator (eval/{file_stem(report.name)}.unjudged.json)"
        for report in reports
        if (unjudged := report.summary.get("unjudged"))
    ]
    notes += [
        f"{report.name}: {truncated:,} of {len(report.records):,} answers were cut at reader.max_new_tokens, "
        "which may make them wrong: raise it, or set reader.thinking_tokens for a model that thinks first"
        for report in reports
        if report.summary.get("reader_truncated") and (truncated := sum(record.truncated for record in report.records))
    ]
    return notes + [
        f"{report.name}: at {len(counts):,} of {len(report.records):,} questions the oldest entries were left out, "
        f"{max(counts):,} at most: raise reader.context_tokens if the reader's context has room"
        for report in reports
        if (counts := [record.left_out for record in report.records if record.left_out])
    ]


def save_results(folder: Path, reports: Sequence[Report], source: Mapping[str, Any]) -> None:
    """Write `summary.json`, `systems.csv` and `systems.md` into `folder`.

    Args:
        folder: The `eval` folder.
        reports: Reports of all systems.
        source: Provenance of the evaluation; see `provenance`.
    """
    summary = {**source, "systems": {report.name: report.summary for report in reports}}
    (folder / f"{SUMMARY}.json").write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")
    header, rows = table_rows(reports)
    with (folder / "systems.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(header)
        writer.writerows(rows)
    (folder / "systems.md").write_text(as_markdown(reports), encoding="utf-8")


def check_names(systems: Sequence[str]) -> None:
    """Check that no two systems would be written to the same file.

    Raises:
        ConfigError: Two names give one file name, or one gives the summary's.
    """
    by_stem = {SUMMARY: "the summary of the evaluation"}
    for name in dict.fromkeys(systems):
        stem = file_stem(name)
        if stem in by_stem:
            raise ConfigError(
                f"systems: {name!r} and {by_stem[stem]!r} would both be written to eval/{stem}.json: evaluate them "
                "with an out of their own"
            )
        by_stem[stem] = name


def check_folder(folder: Path, systems: Sequence[str], source: Mapping[str, Any]) -> None:
    """Check that `folder` holds no results of other systems on other tasks.

    The report page and `memalpha compare` would read them as one evaluation. The same systems are overwritten.

    Args:
        folder: The `eval` folder.
        systems: Names of the systems to evaluate.
        source: Provenance of the new evaluation; see `provenance`.

    Raises:
        ConfigError: The folder holds other systems on other tasks, or its summary cannot be read.
    """
    try:
        previous = json.loads((folder / f"{SUMMARY}.json").read_text(encoding="utf-8"))
        other_systems = sorted({file.stem for file in folder.glob("*.jsonl")} - {file_stem(name) for name in systems})
        same_tasks = previous["tasks_sha256"] == source["tasks_sha256"]
    except FileNotFoundError:
        return
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"out: {folder / f'{SUMMARY}.json'} is not of an evaluation ({error}): name another"
        ) from error
    if other_systems and not same_tasks:
        raise ConfigError(
            f"out: {folder} holds {', '.join(other_systems)} on other tasks: name another folder, or remove it"
        )


def provenance(config: EvalConfig, tasks: Sequence[Task]) -> dict[str, Any]:
    """Return what is needed to reproduce the figures: configuration, versions, SHA-256 of the data.

    `tasks_sha256` is the hash of the tasks as asked, whatever files they came from.
    """
    digest = hashlib.sha256()
    for task in tasks:
        digest.update(task.model_dump_json().encode("utf-8", "surrogatepass"))
    versions = {"python": platform.python_version()}
    for name in _PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {
        "config": config.model_dump(mode="json"),
        "versions": versions,
        "data_sha256": {str(path): compute_sha256(path) for path in dict.fromkeys(_data_files(config))},
        "tasks_sha256": digest.hexdigest(),
    }


def _data_files(config: EvalConfig) -> Iterator[Path]:
    """Yield the files or folders that the tasks are read from; shipped and generated data has none."""
    path, files = None if config.data is None else Path(config.data), ()
    if config.benchmark != "tasks":
        spec = get_data_set(config.benchmark)
        variant = config.variant or next(iter(spec.variants), None)
        path, files = locate(spec, variant, config.data), spec.files_for(variant)
    # Like the loaders, accept the file name alone for `folder/file`.
    matches = [
        match
        for file in files
        if path is not None and path.is_dir()
        for match in sorted(path.glob(file.path)) or sorted(path.glob(Path(file.path).name))
    ]
    yield from matches or ([path] if path is not None and path.exists() else [])
    for value in config.options.values():  # an option may name a file too: an audit, a table of candidates
        if isinstance(value, str | Path) and Path(value).exists():
            yield Path(value)
