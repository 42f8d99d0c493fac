"""The command `compare`: evaluations side by side."""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from memalpha.cli.store import AsJson, print_result
from memalpha.errors import DataError

if TYPE_CHECKING:
    from memalpha.config import TextConfig
    from memalpha.qa.reporting.compare import Comparison


class Value(StrEnum):
    """What is averaged."""

    SCORE = "score"
    CORRECT = "correct"


def compare(
    runs: Annotated[
        list[str],
        typer.Argument(metavar="RUN RUN...", help="Directories of evaluations or runs; A,B,C are seeds of one."),
    ],
    baseline: Annotated[
        str | None, typer.Option(help="Whom the others are compared with (default: the first).")
    ] = None,
    common: Annotated[bool, typer.Option("--common", help="Only the questions that all of them answered.")] = False,
    value: Annotated[Value, typer.Option(help="A question's score, or whether it counts as correct.")] = Value.SCORE,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also write it: .json, .csv or .md (Markdown).")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the bootstrap.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Compare evaluations on the same questions, by ability.

    Every system beside the first, paired by question, with 95 % intervals over conversations. A run that evaluated
    several systems (a training run: before, after, ...) counts as several. Runs over different questions are refused
    unless --common is given.

    Example: memalpha compare runs/rag runs/writer --out writer.md
    """
    from memalpha.qa.reporting import compare as comparing

    if out is not None and out.suffix not in (".json", ".csv", ".md"):
        raise DataError(f"--out {out}: write .json, .csv or .md")
    systems = comparing.load_systems(runs)
    found = comparing.compare(systems, baseline=baseline, common=common, value=value.value, seed=seed)
    if out is not None:
        _write(out, found)
    print_result(found.as_json(), as_json, comparing.as_text(found))


COMMANDS = (compare,)


def evaluate_text(settings: TextConfig, out: Path | None, name: str, *, as_json: bool) -> None:
    """`memalpha eval` on text tasks."""
    from rich.console import Console
    from rich.progress import Progress

    from memalpha.train.trainers.text_eval import evaluate_run

    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bars:
        bar = bars.add_task(name)
        report = evaluate_run(settings, out, name, lambda done, total: bars.update(bar, completed=done, total=total))
    if not as_json:
        report.table()
        means = report.summary["rewards"].items()
        typer.echo("rewards: " + ", ".join(f"{part} {value:.3f}" for part, value in means))
    if out is not None:
        from memalpha.report.page import write_report

        page = write_report(out)
        if not as_json:
            typer.echo(page)
    if as_json:
        print_result(report.summary, as_json, "")


def _write(out: Path, found: Comparison) -> None:
    from memalpha.qa.reporting import compare as comparing

    if out.suffix == ".json":
        text = json.dumps(found.as_json(), indent=1) + "\n"
    else:
        text = comparing.as_csv(found) if out.suffix == ".csv" else comparing.as_markdown(found)
    try:
        out.write_text(text, encoding="utf-8")
    except OSError as error:
        raise DataError(f"--out {out}: cannot be written: {error.strerror}") from error
