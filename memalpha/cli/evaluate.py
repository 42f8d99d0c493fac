"""Commands that measure: eval (memories on questions, or replies to prompts), compare, judge check."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from typer import Argument, Option

from memalpha.cli.options import Result, print_note, to_json_value, write_page
from memalpha.config import JudgeConfig, build_config, merge, parse_overrides
from memalpha.errors import DataError
from memalpha.policy.base import format_bill
from memalpha.qa.progress import show_progress

if TYPE_CHECKING:
    from memalpha.qa.compare import ComparedSystem


def eval_(config: str, overrides: list[str] | None = None) -> Result:
    """Evaluate memory systems, or a policy's replies to prompts.

    After Ctrl-C the same command resumes with the systems that are left, if out=DIR is set.

    All systems get the same reader, budget and metric. A run directory repeats the evaluation of its run: the best
    checkpoint ("trained" among systems) with the run's prompts, reader and metric. out=DIR saves every answer, the
    tables, and a page that shows where answers were lost. A text run (task: text) is evaluated on its held-out tasks;
    policy=NAME evaluates another policy on them.

    Example: memalpha eval locomo data=locomo10.json systems=empty,rag,my.module:Memory reader.kind=copy

    Args:
        config: A configuration's name or file, a data set, or a run directory.

    Raises:
        ConfigError: A setting does not fit.
        DataError: The tasks are missing or do not fit.
        EvaluationError: A system under evaluation raised (exit code 1).
    """
    from memalpha.train.rollouts.text_tasks import evaluate_text_run, resolve_text_run

    keys = parse_overrides(overrides or [])
    if (text := resolve_text_run(config, keys)) is not None:
        run, out, name = text
        with show_progress("tasks") as progress:
            report = evaluate_text_run(run, out, name, lambda done, total: progress(name, done, total))
        page = None if out is None else write_page(out)

        def show_text() -> None:
            report.table()
            means = report.summary["rewards"].items()
            typer.echo("rewards: " + ", ".join(f"{component} {mean:.3f}" for component, mean in means))
            if page is not None:
                typer.echo(page)

        return Result(report.summary, show_text)
    from memalpha.qa.from_config import load_settings, run_evaluation

    settings = load_settings(config, keys)
    if settings.benchmark == "search":  # without a reader, as the next
        from memalpha.qa.search_benchmark import format_search, run_search

        result = run_search(settings)
        return Result(result, format_search(result))
    if settings.benchmark == "state":
        from memalpha.qa import state_suite

        if settings.data is None:
            result = state_suite.run_state(settings)
            return Result(result, state_suite.format_state(result))
        result = state_suite.score_memories(settings)
        return Result(result, state_suite.format_gold_scores(result))
    try:
        reports = run_evaluation(settings)
    except KeyboardInterrupt:
        hint = "name out=DIR to keep finished systems"
        if settings.out is not None:
            hint = f"finished systems are kept in {settings.out}, and the same command resumes with the others"
        print_note(f"interrupted: {hint}")
        raise typer.Exit(130) from None
    page = None if settings.out is None else write_page(settings.out)

    def show_table() -> None:
        from memalpha.qa.report import print_table

        print_table(reports)
        if page is not None:
            typer.echo(page)

    return Result([report.summary for report in reports], show_table)


def compare(
    runs: Annotated[list[str], Argument(metavar="RUN RUN...")],
    baseline: str | None = None,
    system: Annotated[list[str] | None, Option(metavar="NAME")] = None,
    common: bool = False,
    value: Literal["score", "correct"] = "score",
    out: Annotated[Path | None, Option(metavar="FILE")] = None,
    seed: int = 0,
) -> Result:
    """Compare evaluations on the same questions, by ability.

    Pairs every system with the baseline by question; intervals are 95 % over conversations. A run with several
    evaluated systems (a training run: before, after, ...) counts as several; --system chooses among them. Runs over
    different questions need --common.

    Example: memalpha compare runs/grpo runs/rloo --system after --out writer.md

    Args:
        runs: Directories of evaluations or runs; A,B,C are seeds of one system.
        baseline: System that the others are compared with (default: the first).
        system: Of runs with several systems only this one, such as after; may be repeated.
        common: Only the questions that all systems answered.
        value: Average the scores, or the share that is correct.
        out: Also write the table: .json, .csv or .md (Markdown).
        seed: Seed of the bootstrap.

    Raises:
        DataError: A run has no records or no such system, or `out` cannot be written.
    """
    from memalpha.qa import compare as comparing

    if out is not None and out.suffix not in (".json", ".csv", ".md"):
        raise DataError(f"--out {out}: write .json, .csv or .md")
    systems = comparing.load_systems(runs)
    for name in system or ():
        if not any(_has_name(compared, name) for compared in systems):
            raise DataError(f"--system {name}: there are {', '.join(compared.name for compared in systems)}")
    if system:  # those of a run that has only one, and the baseline, are compared, too
        names = [*system, *([baseline] if baseline else [])]
        chosen = [s for s in systems if s.name in runs or any(_has_name(s, name) for name in names)]
        for run in runs:
            held = [s.name for s in systems if s.name.startswith(f"{run}:")]
            if held and not any(s.name in held for s in chosen):
                problem = f"--system {', '.join(system)}: there are only {', '.join(held)}"
                raise DataError(f"{problem}: end the run, choose one of these, or leave the run out")
        systems = chosen
    comparison = comparing.compare(systems, baseline=baseline, common=common, value=value, seed=seed)
    if out is not None:
        formats = {".csv": comparing.as_csv, ".md": comparing.as_markdown}
        formats[".json"] = lambda comparison: json.dumps(to_json_value(comparison), indent=1) + "\n"
        try:
            out.write_text(formats[out.suffix](comparison), encoding="utf-8")
        except OSError as error:
            raise DataError(f"--out {out}: cannot be written: {error.strerror}") from error
    return Result(comparison, comparing.as_text(comparison))


def _has_name(system: ComparedSystem, name: str) -> bool:
    return system.name == name or system.name.endswith(f":{name}")


def check_judge(
    judge: Annotated[list[str], Option(metavar="NAME")],
    labels: Annotated[Path | None, Argument()] = None,
    overrides: Annotated[list[str] | None, Option("--set", metavar="KEY=VALUE")] = None,
) -> Result:
    """Measure how far a judge agrees with known labels.

    Accuracy, Cohen's kappa and leniency (mean score minus mean label), by benchmark and judge; the items it disagreed
    on, and its cost. The shipped items cover every template, vague answers above all.

    Example: memalpha judge check --judge http://localhost:8000/v1#my-model --set endpoint.cache=answers.sqlite

    Args:
        labels: Labelled items (.jsonl). [default: those shipped with memalpha]
        judge: http://HOST/v1#MODEL, openai:MODEL, or a model; may be repeated.
        overrides: Keys of JudgeConfig; dots for nested keys.

    Raises:
        DataError: The labels cannot be read.
        PolicyError: A judge cannot be loaded or asked.
    """
    from memalpha.qa.scoring import judge as judging

    items = judging.load_labels(labels)
    settings = merge(parse_overrides(overrides or []), {"judges": judge})
    result = judging.check_judge(judging.load_judge(build_config(JudgeConfig, settings, "--set")), items)
    columns = ("accuracy", "kappa", "leniency")

    def format_row(name: str, metrics: dict[str, Any]) -> str:
        cells = (f"{metrics[key]:>9.3f}" if metrics[key] is not None else f"{'-':>9}" for key in columns)
        return f"{name:<28}{metrics['items']:>6}{metrics['unreadable']:>11}{''.join(cells)}"

    header = f"{'':<28}{'items':>6}{'unreadable':>11}{''.join(f'{key:>9}' for key in columns)}"
    rows = {**result["by_benchmark"], **(result["by_judge"] if len(result["by_judge"]) > 1 else {}), "all": result}
    lines = [header, *(format_row(name, metrics) for name, metrics in rows.items())]
    if result["disagreed"]:
        lines.append(f"disagreed on: {', '.join(item['id'] for item in result['disagreed'])}")
    lines += [format_bill(name, bill) for name, bill in result["statistics"].items() if "paid" in bill]
    return Result(result, "\n".join(lines))
