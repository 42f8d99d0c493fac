"""What an evaluation leaves: tables of all systems as text, CSV and Markdown, and where the figures come from."""

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
from memalpha.qa.report import Report, figure, file_stem
from memalpha.tasks.catalog import data_set, locate
from memalpha.tasks.sources.files import sha256
from memalpha.types import Task

SUMMARY = "summary"
"""The file beside the systems' own that has all of them."""
COLUMNS = (
    "accuracy", "score", "answerable_accuracy", "stale_rate", "ceiling", "ceiling_n", "ceiling_answered",
    "evidence_recall", "evidence_recall@10", "tokens", "memory_tokens", "unjudged",
)  # fmt: skip
_SHOWN = {
    "score": "score", "answerable_accuracy": "answerable", "stale_rate": "stale", "ceiling_answered": "of the same",
    "evidence_recall": "evidence", "tokens": "tokens", "memory_tokens": "held", "unjudged": "unjudged",
}  # fmt: skip
"""What a terminal shows of `COLUMNS` beside accuracy, and under which head."""
_PACKAGES = ("memalpha", "numpy", "faiss-cpu", "torch", "transformers", "sentence-transformers")


def table(reports: Sequence[Report]) -> tuple[list[str], list[list[Any]]]:
    """Header and rows: a row a system, the columns that any of them has a figure for, then the score by ability."""
    columns = [name for name in COLUMNS if _any(reports, name)]
    abilities = _abilities(reports)
    header = ["system", "questions", *columns[:1], "low", "high", *columns[1:], *abilities]
    rows = []
    for report in reports:
        low, high = report.summary.get("accuracy_interval") or (None, None)
        figures = [report.summary.get(name) for name in columns]
        by_ability = [report.summary["by_ability"].get(ability, {}).get("score") for ability in abilities]
        rows.append([report.name, len(report.records), *figures[:1], low, high, *figures[1:], *by_ability])
    return header, rows


def _any(reports: Sequence[Report], name: str) -> bool:
    return any(report.summary.get(name) is not None for report in reports)


def _abilities(reports: Sequence[Report]) -> list[str]:
    return sorted({ability for report in reports for ability in report.summary["by_ability"]})


def as_markdown(reports: Sequence[Report]) -> str:
    """The table in Markdown, under a line that says what all systems had in common."""
    header, rows = table(reports)
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    lines += ["| " + " | ".join(figure(value) for value in row) + " |" for row in rows]
    return "\n\n".join([_common(reports), "\n".join(lines), *_unjudged(reports)]) + "\n"


def print_table(reports: Sequence[Report]) -> None:
    """Print the figures that matter most, and the score by ability; all are in the files."""
    from rich.box import SIMPLE
    from rich.console import Console
    from rich.table import Table

    console = Console()
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = 160  # a file or a pipe has room
    console.print(_common(reports))
    shown = {"accuracy": "accuracy", "": "95 %", **_SHOWN}
    shown = {name: label for name, label in shown.items() if not name or _any(reports, name)}
    if all(report.summary["score"] == report.summary["accuracy"] for report in reports):
        del shown["score"]
    if all(report.summary["ceiling_n"] in (None, len(report.records)) for report in reports):
        shown.pop("ceiling_answered", None)  # it is the accuracy
    whole, parts = (
        Table(box=SIMPLE, pad_edge=False, padding=(0, 1, 0, 0), title=title) for title in (None, "score by ability")
    )
    for grid, heads in ((whole, shown.values()), (parts, _abilities(reports))):
        grid.add_column("system", overflow="fold", min_width=12)
        for head in heads:
            grid.add_column(head, justify="right", overflow="fold", min_width=11 if head == "95 %" else 5)
    for report in reports:
        summary = report.summary
        low, high = summary["accuracy_interval"] or (None, None)
        interval = "-" if low is None else f"{low:.3f}-{high:.3f}"
        whole.add_row(report.name, *(figure(summary.get(name)) if name else interval for name in shown))
        by_ability = [summary["by_ability"].get(ability, {}).get("score") for ability in _abilities(reports)]
        parts.add_row(report.name, *map(figure, by_ability))
    console.print(whole)
    console.print(parts)
    for line in _unjudged(reports):
        console.print(line)


def _common(reports: Sequence[Report]) -> str:
    summary = reports[0].summary
    ceiling = ""
    if summary["ceiling"] is not None:
        right, asked = summary["ceiling"], summary["ceiling_n"]
        ceiling = f"; shown the raw evidence it is right in {right:.3f} of the {asked:,} questions that name some"
    reader, metric, budget = (summary[name] for name in ("reader", "metric", "budget"))
    rules: dict[str, list[str]] = {}
    for report in reports:
        rules.setdefault(report.summary["conflicts"], []).append(report.name)
    each = [f"{rule} ({', '.join(names)})" if len(rules) > 1 else rule for rule, names in rules.items()]
    rule = "" if list(rules) == ["keep"] else f"; conflicts: {'; '.join(each)}"
    return f"reader: {reader}{rule}{ceiling}; metric: {metric}; budget: {budget} tokens of context"


def _unjudged(reports: Sequence[Report]) -> list[str]:
    """What is said of the answers that are in no figure, a line a system."""
    return [
        f"{report.name}: no judge gave a readable verdict on {left:,} of {left + len(report.records):,} answers; "
        f"they are in no figure and no denominator (eval/{file_stem(report.name)}.unjudged.json)"
        for report in reports
        if (left := report.summary.get("unjudged"))
    ]


def save_results(folder: Path, reports: Sequence[Report], source: Mapping[str, Any]) -> None:
    """Write `summary.json` (all summaries, and where they come from), `systems.csv` and `systems.md` into `folder`."""
    whole = {**source, "systems": {report.name: report.summary for report in reports}}
    (folder / f"{SUMMARY}.json").write_text(json.dumps(whole, indent=1) + "\n", encoding="utf-8")
    header, rows = table(reports)
    with (folder / "systems.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(header)
        writer.writerows(rows)
    (folder / "systems.md").write_text(as_markdown(reports), encoding="utf-8")


def check_names(systems: Sequence[str]) -> None:
    """Raise `ConfigError` for two systems whose files would have one name, or one whose would have the summary's."""
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
    """Raise `ConfigError` where `folder` has results of other systems on other tasks than those of `source`: the page
    and `memalpha compare` would take them for one evaluation. The same systems are written over."""
    try:
        before = json.loads((folder / f"{SUMMARY}.json").read_text(encoding="utf-8"))
        others = sorted({file.stem for file in folder.glob("*.jsonl")} - {file_stem(name) for name in systems})
        same = before["tasks_sha256"] == source["tasks_sha256"]
    except FileNotFoundError:
        return
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"out: {folder / f'{SUMMARY}.json'} is not of an evaluation ({error}): name another"
        ) from error
    if others and not same:
        raise ConfigError(f"out: {folder} holds {', '.join(others)} on other tasks: name another folder, or remove it")


def provenance(config: EvalConfig, tasks: Sequence[Task]) -> dict[str, Any]:
    """What is needed to get the same figures again: configuration, versions, and SHA-256 of the data.

    `tasks_sha256` is of the tasks as they were asked, whatever files they came from.
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
        "data_sha256": {str(path): sha256(path) for path in dict.fromkeys(_files(config))},
        "tasks_sha256": digest.hexdigest(),
    }


def _files(config: EvalConfig) -> Iterator[Path]:
    """The files, or folders of them, that the tasks are read from; none of what ships or is made here."""
    path, known = None if config.data is None else Path(config.data), ()
    if config.benchmark != "tasks":
        of = data_set(config.benchmark)
        variant = config.variant or next(iter(of.variants), None)
        path, known = locate(of, variant, config.data), of.files_for(variant)
    # the last part of `folder/file` will do, as for the loaders
    found = [
        place
        for file in known
        if path is not None and path.is_dir()
        for place in sorted(path.glob(file.path)) or sorted(path.glob(Path(file.path).name))
    ]
    yield from found or ([path] if path is not None and path.exists() else [])
    for value in config.options.values():  # an option may name a file too: an audit, a table of candidates
        if isinstance(value, str | Path) and Path(value).exists():
            yield Path(value)
