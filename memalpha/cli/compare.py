"""The command compare: evaluations side by side."""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from memalpha.cli.options import AsJson, print_result
from memalpha.errors import DataError

if TYPE_CHECKING:
    from memalpha.qa.reporting.compare import Comparison


class Value(StrEnum):
    """Value of a question that is averaged."""

    SCORE = "score"
    CORRECT = "correct"


def compare(
    runs: Annotated[
        list[str],
        typer.Argument(metavar="RUN RUN...", help="Directories of evaluations or runs; A,B,C are seeds of one system."),
    ],
    baseline: Annotated[
        str | None, typer.Option(help="System that the others are compared with (default: the first).")
    ] = None,
    common: Annotated[bool, typer.Option("--common", help="Only the questions that all systems answered.")] = False,
    value: Annotated[Value, typer.Option(help="Average the scores, or the share that is correct.")] = Value.SCORE,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also write the table: .json, .csv or .md (Markdown).")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the bootstrap.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Compare evaluations on the same questions, by ability.

    Pairs every system with the baseline by question; intervals are 95 % over conversations. A run with several
    evaluated systems (a training run: before, after, ...) counts as several. Runs over different questions need
    --common.

    Example: memalpha compare runs/rag runs/writer --out writer.md

    Raises:
        DataError: A run has no records, or `out` cannot be written.
    """
    from memalpha.qa.reporting import compare as comparing

    if out is not None and out.suffix not in (".json", ".csv", ".md"):
        raise DataError(f"--out {out}: write .json, .csv or .md")
    systems = comparing.load_systems(runs)
    comparison = comparing.compare(systems, baseline=baseline, common=common, value=value.value, seed=seed)
    if out is not None:
        formats = {".csv": comparing.as_csv, ".md": comparing.as_markdown, ".json": _as_json}
        _write(out, formats[out.suffix](comparison))
    print_result(comparison.as_json(), as_json, comparing.as_text(comparison))


def _as_json(comparison: Comparison) -> str:
    return json.dumps(comparison.as_json(), indent=1) + "\n"


def _write(out: Path, text: str) -> None:
    try:
        out.write_text(text, encoding="utf-8")
    except OSError as error:
        raise DataError(f"--out {out}: cannot be written: {error.strerror}") from error


COMMANDS = {"compare": compare}
