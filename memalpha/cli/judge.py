"""The command `judge`: how far a judge is to be trusted."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from memalpha.cli.store import AsJson, print_result
from memalpha.config import JudgeConfig, build_config, merge, parse_overrides

app = typer.Typer(help="Check language models that judge answers.", no_args_is_help=True)


@app.command(name="check")
def check(
    labels: Annotated[
        Path | None, typer.Argument(metavar="[LABELS]", help="Items whose score is known (.jsonl). [default: our own]")
    ] = None,
    judge: Annotated[
        list[str], typer.Option(metavar="NAME", help="http://HOST/v1#MODEL, openai:MODEL, or a model; may be repeated.")
    ] = ...,  # type: ignore[assignment]
    set: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Of JudgeConfig, nested keys with dots.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Say how far a judge agrees with known labels.

    Accuracy, Cohen's kappa and leniency (mean score less mean label), by benchmark and judge; what it disagreed on and
    what it cost. The items that come with memalpha cover every template, vague answers above all.

    Example: memalpha judge check --judge http://localhost:8000/v1#my-model --set endpoint.cache=answers.sqlite
    """
    from memalpha.qa.scoring.judge import check_judge, load_judge, load_labels

    labelled = load_labels(labels)
    settings = merge(parse_overrides(set or []), {"judges": judge})
    found = check_judge(load_judge(build_config(JudgeConfig, settings, "--set")), labelled)
    print_result(found, as_json, "\n".join(_lines(found)))


def _lines(found: dict[str, Any]) -> list[str]:
    def row(name: str, one: dict[str, Any]) -> str:
        figures = (f"{one[key]:>9.3f}" if one[key] is not None else f"{'-':>9}" for key in FIGURES)
        return f"{name:<28}{one['items']:>6}{one['unreadable']:>11}{''.join(figures)}"

    head = f"{'':<28}{'items':>6}{'unreadable':>11}{''.join(f'{key:>9}' for key in FIGURES)}"
    parts = {**found["by_benchmark"], **(found["by_judge"] if len(found["by_judge"]) > 1 else {}), "all": found}
    lines = [head, *(row(name, one) for name, one in parts.items())]
    if found["disagreed"]:
        lines.append(f"disagreed on: {', '.join(one['id'] for one in found['disagreed'])}")
    for name, bill in found["statistics"].items():
        if "paid" in bill:
            cost = "" if bill["cost"] is None else f", cost {bill['cost']:.4f}"
            tokens = f"{bill['prompt_tokens']} + {bill['completion_tokens']} tokens"
            lines.append(f"{name}: {bill['paid']} answers paid, {bill['cached']} from the cache, {tokens}{cost}")
    return lines


FIGURES = ("accuracy", "kappa", "leniency")
