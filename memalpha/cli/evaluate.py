"""The command eval: memories on questions, or replies to prompts."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from memalpha.cli.options import AsJson, Overrides, print_result
from memalpha.config import parse_overrides
from memalpha.qa.progress import show_progress

if TYPE_CHECKING:
    from memalpha.config import TextConfig


def evaluate(
    config: Annotated[
        str,
        typer.Argument(metavar="CONFIG", help="A configuration's name or file, a data set, or a run directory."),
    ],
    overrides: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Evaluate memory systems, or a policy's replies to prompts.

    After Ctrl-C the same command resumes with the systems that are left, if out=DIR is set.

    All systems get the same reader, budget and metric. A run directory repeats the evaluation of its run: the best
    checkpoint ("trained" among systems) with the run's prompts, reader and metric. out=DIR saves every answer, the
    tables, and a page that shows where answers were lost. A text run (task: text) is evaluated on its held-out tasks;
    policy=NAME evaluates another policy on them.

    Example: memalpha eval locomo data=locomo10.json 'systems=[empty,rag,my.module:Memory]' reader.kind=copy

    Raises:
        ConfigError: A setting does not fit.
        DataError: The tasks are missing or do not fit.
        EvaluationError: A system under evaluation raised (exit code 1).
    """
    from memalpha.train.trainers.text_eval import resolve_text_run

    keys = parse_overrides(overrides or [])
    text = resolve_text_run(config, keys)
    if text is not None:
        _evaluate_text(*text, as_json=as_json)
        return
    from memalpha.qa.from_config import load_settings, run_evaluation

    settings = load_settings(config, keys)
    if settings.benchmark == "search":
        from memalpha.qa.search_benchmark import format_search, run_search

        result = run_search(settings)
        print_result(result, as_json, format_search(result))
        return
    try:
        reports = run_evaluation(settings)
    except KeyboardInterrupt:
        hint = "name out=DIR to keep finished systems" if settings.out is None else _resume_hint(settings.out)
        typer.echo(f"memalpha: interrupted: {hint}", err=True)
        raise typer.Exit(130) from None
    page = None if settings.out is None else _write_page(settings.out)
    if as_json:
        print_result([report.summary for report in reports], as_json, "")
        return
    from memalpha.qa.reporting.tables import print_table

    print_table(reports)
    if page is not None:
        typer.echo(page)


def _write_page(out: Path) -> Path:
    from memalpha.report.page import write_report

    return write_report(out)


def _resume_hint(out: Path) -> str:
    return f"finished systems are kept in {out}, and the same command resumes with the others"


def _evaluate_text(settings: TextConfig, out: Path | None, name: str, *, as_json: bool) -> None:
    from memalpha.train.trainers.text_eval import evaluate_text_run

    with show_progress("tasks") as progress:
        report = evaluate_text_run(settings, out, name, lambda done, total: progress(name, done, total))
    if not as_json:
        report.table()
        means = report.summary["rewards"].items()
        typer.echo("rewards: " + ", ".join(f"{component} {mean:.3f}" for component, mean in means))
    if out is not None:
        page = _write_page(out)
        if not as_json:
            typer.echo(page)
    if as_json:
        print_result(report.summary, as_json, "")


COMMANDS = {"eval": evaluate}
