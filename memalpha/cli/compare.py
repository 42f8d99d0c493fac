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
    from memalpha.qa.reporting.compare import ComparedSystem, Comparison


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
    system: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME", help="Of runs with several systems only this one, such as after; may be repeated."
        ),
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
    evaluated systems (a training run: before, after, ...) counts as several; --system chooses among them. Runs over
    different questions need --common.

    Example: memalpha compare runs/grpo runs/rloo --system after --out writer.md

    Raises:
        DataError: A run has no records or no such system, or `out` cannot be written.
    """
    from memalpha.qa.reporting import compare as comparing

    if out is not None and out.suffix not in (".json", ".csv", ".md"):
        raise DataError(f"--out {out}: write .json, .csv or .md")
    systems = _choose_systems(comparing.load_systems(runs), runs, system or [])
    comparison = comparing.compare(systems, baseline=baseline, common=common, value=value.value, seed=seed)
    if out is not None:
        formats = {".csv": comparing.as_csv, ".md": comparing.as_markdown, ".json": _as_json}
        _write(out, formats[out.suffix](comparison))
    print_result(comparison.as_json(), as_json, comparing.as_text(comparison))


def _choose_systems(systems: list[ComparedSystem], runs: list[str], names: list[str]) -> list[ComparedSystem]:
    """Return the systems with one of these names, and those of runs that have only one; without names, all.

    Raises:
        DataError: No run has a system of a name.
    """
    for name in names:
        if not any(_has_name(system, name) for system in systems):
            raise DataError(f"--system {name}: there are {', '.join(system.name for system in systems)}")
    if not names:
        return systems
    return [system for system in systems if system.name in runs or any(_has_name(system, name) for name in names)]


def _has_name(system: ComparedSystem, name: str) -> bool:
    return system.name == name or system.name.endswith(f":{name}")


def _as_json(comparison: Comparison) -> str:
    return json.dumps(comparison.as_json(), indent=1) + "\n"


def _write(out: Path, text: str) -> None:
    try:
        out.write_text(text, encoding="utf-8")
    except OSError as error:
        raise DataError(f"--out {out}: cannot be written: {error.strerror}") from error


COMMANDS = {"compare": compare}
