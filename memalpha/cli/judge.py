"""The command judge check: agreement of a judge with known labels."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from memalpha.cli.options import AsJson, print_result
from memalpha.config import JudgeConfig, build_config, merge, parse_overrides


def check(
    labels: Annotated[
        Path | None,
        typer.Argument(metavar="[LABELS]", help="Labelled items (.jsonl). [default: those shipped with memalpha]"),
    ] = None,
    judge: Annotated[
        list[str], typer.Option(metavar="NAME", help="http://HOST/v1#MODEL, openai:MODEL, or a model; may be repeated.")
    ] = ...,  # type: ignore[assignment]
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Keys of JudgeConfig; dots for nested keys."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Measure how far a judge agrees with known labels.

    Accuracy, Cohen's kappa and leniency (mean score minus mean label), by benchmark and judge; the items it disagreed
    on, and its cost. The shipped items cover every template, vague answers above all.

    Example: memalpha judge check --judge http://localhost:8000/v1#my-model --set endpoint.cache=answers.sqlite

    Raises:
        DataError: The labels cannot be read.
        PolicyError: A judge cannot be loaded or asked.
    """
    from memalpha.qa.scoring.judge import check_judge, load_judge, load_labels

    items = load_labels(labels)
    settings = merge(parse_overrides(overrides or []), {"judges": judge})
    result = check_judge(load_judge(build_config(JudgeConfig, settings, "--set")), items)
    print_result(result, as_json, "\n".join(_format_result(result)))


def _format_result(result: dict[str, Any]) -> list[str]:
    columns = ("accuracy", "kappa", "leniency")

    def format_row(name: str, metrics: dict[str, Any]) -> str:
        cells = (f"{metrics[key]:>9.3f}" if metrics[key] is not None else f"{'-':>9}" for key in columns)
        return f"{name:<28}{metrics['items']:>6}{metrics['unreadable']:>11}{''.join(cells)}"

    header = f"{'':<28}{'items':>6}{'unreadable':>11}{''.join(f'{key:>9}' for key in columns)}"
    rows = {**result["by_benchmark"], **(result["by_judge"] if len(result["by_judge"]) > 1 else {}), "all": result}
    lines = [header, *(format_row(name, metrics) for name, metrics in rows.items())]
    if result["disagreed"]:
        lines.append(f"disagreed on: {', '.join(item['id'] for item in result['disagreed'])}")
    for name, usage in result["statistics"].items():
        if "paid" in usage:
            cost = "" if usage["cost"] is None else f", cost {usage['cost']:.4f}"
            tokens = f"{usage['prompt_tokens']} + {usage['completion_tokens']} tokens"
            lines.append(f"{name}: {usage['paid']} answers paid, {usage['cached']} from the cache, {tokens}{cost}")
    return lines


COMMANDS = {"check": check}
