"""The command `memalpha`: a thin skin over the library's functions.

Results go to stdout (with `--json` as one JSON value), progress to stderr. Whatever the user can mend (a bad key, file,
name or value) is a message on stderr and exit code 2, a system under test that raised one with exit code 1; anything
else is a fault of ours and keeps its traceback.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from pydantic import ValidationError

from memalpha import __version__
from memalpha.cli import audit as cli_audit
from memalpha.cli import compare as cli_eval
from memalpha.cli import data as cli_data
from memalpha.cli import judge as cli_judge
from memalpha.cli import serve as cli_serve
from memalpha.cli import store as cli_store
from memalpha.cli import transfer as cli_transfer
from memalpha.cli.store import AsJson, print_result
from memalpha.config import parse_overrides, training_config
from memalpha.errors import EvaluationError, MemalphaError, PolicyError

app = typer.Typer(
    name="memalpha",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
data_app = typer.Typer(help="List, prepare, check and compare data sets.", no_args_is_help=True)
app.add_typer(data_app, name="data")
app.add_typer(cli_judge.app, name="judge")

PROCESS = int(os.environ.get("RANK", "0"))
"""This process among those that a launcher (`accelerate launch`) started."""

Pairs = Annotated[list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Overrides, nested keys with dots.")]


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def common(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and stop.")
    ] = False,
) -> None:
    """Train, evaluate and use memory agents."""


def main() -> NoReturn:
    """Entry point of the console script: runs the command and turns a `MemalphaError` into exit code 2, 1 where it is
    somebody else's code that failed."""
    try:
        app()
    except EvaluationError as error:
        _refuse(str(error), 1)
    except MemalphaError as error:
        _refuse(str(error))
    except ValidationError as error:
        _refuse("; ".join(f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors()))
    sys.exit(0)


def _refuse(message: str, code: int = 2) -> NoReturn:
    who = f"memalpha (process {PROCESS})" if PROCESS else "memalpha"
    print(f"{who}: {message}", file=sys.stderr)
    sys.exit(code)


# ---------------------------------------------------------------------------------------------------------- training


@app.command()
def demo(
    seed: Annotated[int, typer.Option(help="Seed of tasks, sampling and order.")] = 0,
    out: Annotated[Path, typer.Option(help="Run directory; one that holds a checkpoint is resumed.")] = Path(
        "runs/demo"
    ),
    policy: Annotated[str, typer.Option(help="The policy to start from.")] = "tiny",
) -> None:
    """Train a tiny memory writer, offline.

    It starts from weights that come with memalpha, practises on made-up conversations, is tested on others before and
    after, and leaves a page with the results in the run directory.

    Example: memalpha demo --seed 1 --out runs/demo-1
    """
    from memalpha.cli.demo import run_demo

    run_demo(seed=seed, out=out, policy=policy, say=typer.echo)


@app.command()
def train(
    config: Annotated[str, typer.Argument(metavar="CONFIG", help="A shipped configuration's name or a YAML file.")],
    pairs: Pairs = None,
    as_json: AsJson = False,
) -> None:
    """Train a memory writer: by reinforcement (demo, dpo, ...), by imitation (sft), on plain pairs (preferences).

    Or replies to prompts (task: text; arithmetic, programs, gsm8k), or a reward model (reward).
    A run directory that holds a checkpoint is resumed. Ctrl-C leaves one.

    Example: memalpha train demo seed=7 reward.beta=0.1 out=runs/seed-7
    """
    settings = training_config(config, parse_overrides(pairs or []))
    import memalpha
    from memalpha.report.page import write_report

    summary = memalpha.train(settings)
    if PROCESS:
        return  # the main one reports
    page = write_report(settings.out)
    print_result(summary, as_json, f"{_one_line(summary)}\n{page}")


def _one_line(summary: Mapping[str, Any]) -> str:
    before, after = summary.get("before"), summary.get("after")
    if "pairs" in summary:
        losses = [
            f"{of['validation_pair_loss']:.3f} {when}" for when, of in (("before", before), ("after", after)) if of
        ]
        return f"loss on held-out pairs {', '.join(losses)}" if losses else "trained; nothing was held out to validate"
    if "rows" in summary and "accuracy" not in (after or {}):
        losses = [f"{of['validation_loss']:.3f} {when}" for when, of in (("before", before), ("after", after)) if of]
        return f"loss on held-out rows {', '.join(losses)}" if losses else "trained; nothing was held out to validate"
    if not before or not after:
        return "stopped before the evaluation; the same command goes on from the last checkpoint"
    baselines = [f"{name.replace('_', ' ')} {of['accuracy']:.3f}" for name, of in summary.get("baselines", {}).items()]
    text = f"accuracy {before['accuracy']:.3f} before, {after['accuracy']:.3f} after"
    return f"{text} ({', '.join(baselines)})" if baselines else text


@app.command(name="eval")
def evaluate(
    config: Annotated[
        str,
        typer.Argument(metavar="CONFIG", help="A configuration's name or file, a data set, or a run directory."),
    ],
    pairs: Pairs = None,
    as_json: AsJson = False,
) -> None:
    """Evaluate memories: several systems, one reader, one budget, one metric; or replies to prompts.

    A run directory stands for the evaluation that the run made: its best checkpoint ("trained" among systems), its
    prompts, reader and metric. With out=DIR every answer, the tables and a page that shows where answers were lost are
    written there. A text run's directory or configuration (task: text) stands for its held-out tasks, and policy=NAME
    for who replies.

    Example: memalpha eval locomo data=locomo10.json 'systems=[empty,rag,my.module:Memory]' reader.kind=copy
    """
    overrides = parse_overrides(pairs or [])
    from memalpha.train.trainers.text_eval import text_settings

    text = text_settings(config, overrides)
    if text is not None:
        cli_eval.evaluate_text(*text, as_json=as_json)
        return
    from memalpha.qa.from_config import run_evaluation, settings_of

    settings = settings_of(config, overrides)
    if settings.benchmark == "locomo-search":
        from memalpha.qa.locomo_search import format_locomo_search, run_locomo_search

        result = run_locomo_search(settings)
        print_result(result, as_json, format_locomo_search(result))
        return
    reports = run_evaluation(settings)
    page = None
    if settings.out is not None:
        from memalpha.report.page import write_report

        page = write_report(settings.out)
    if as_json:
        print_result([report.summary for report in reports], as_json, "")
    else:
        from memalpha.qa.reporting.tables import print_table

        print_table(reports)
        if page is not None:
            typer.echo(page)


@app.command()
def report(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run or evaluation directory.")],
    as_json: AsJson = False,
) -> None:
    """Write the page of a run or an evaluation, RUN/report.html.

    One file that needs no network: before and after, curves, where answers were lost, one conversation walked through.

    Example: memalpha report runs/demo
    """
    from memalpha.report.page import write_report

    page = write_report(run)
    print_result({"report": str(page)}, as_json, str(page))


@app.command()
def merge(
    checkpoint: Annotated[str, typer.Argument(metavar="CHECKPOINT", help="A checkpoint's directory, or any policy.")],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The directory to write; it must not hold anything yet.")],
    as_json: AsJson = False,
) -> None:
    """Write a trained writer as a plain transformers directory.

    Weights, configuration and tokenizer, without what only training needs; LoRA adapters are merged into their base.

    Example: memalpha merge runs/demo/checkpoints/best my-writer
    """
    try:
        from memalpha.policy.transformers import merge as write
    except ModuleNotFoundError as error:
        if error.name not in ("torch", "transformers"):
            raise
        raise PolicyError(f"merge needs {error.name}: pip install 'memalpha[train]'") from error

    written = write(checkpoint, out)
    files = sorted(path.name for path in written.iterdir())
    print_result({"out": str(written), "files": files}, as_json, f"{written}: {', '.join(files)}")


# ------------------------------------------------------------------------------------------------- the other modules

for _command in (
    *cli_eval.COMMANDS,
    *cli_store.COMMANDS,
    *cli_transfer.COMMANDS,
    *cli_audit.COMMANDS,
    *cli_serve.COMMANDS,
):
    app.command(name=_command.__name__.rstrip("_"))(_command)


# -------------------------------------------------------------------------------------------------------------- data

for _command in cli_data.COMMANDS:
    data_app.command(name=_command.__name__.rstrip("_"))(_command)
