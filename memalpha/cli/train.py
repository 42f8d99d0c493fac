"""Commands that train and their results: demo, train, report, merge."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

import memalpha
from memalpha.cli.options import PROCESS_RANK, AsJson, Overrides, print_result
from memalpha.config import parse_overrides, training_config
from memalpha.config.training import AnyTraining
from memalpha.errors import ConfigError, DataError


def demo(
    seed: Annotated[int, typer.Option(help="Seed of tasks, sampling and order.")] = 0,
    out: Annotated[Path, typer.Option(help="Run directory; a checkpoint in it is resumed.")] = Path("runs/demo"),
    policy: Annotated[str, typer.Option(help="Policy to start from.")] = "tiny",
) -> None:
    """Train a tiny memory writer offline.

    It starts from weights shipped with memalpha and trains on synthetic conversations. Others, held out, evaluate it
    before and after. The run directory gets a page with the results.

    Example: memalpha demo --seed 1 --out runs/demo-1

    Raises:
        PolicyError: A library that training needs is missing.
        CheckpointError: The run directory holds another run.
    """
    from memalpha.cli.demo import run_demo

    run_demo(seed=seed, out=out, policy=policy, say=typer.echo)


def train(
    config: Annotated[str, typer.Argument(metavar="CONFIG", help="A shipped configuration's name or a YAML file.")],
    overrides: Overrides = None,
    as_json: AsJson = False,
    plan: Annotated[
        bool, typer.Option("--plan", help="Print tokens, memory and time; train and write nothing.")
    ] = False,
    gpu: Annotated[
        str | None, typer.Option(help="With --plan: a GPU that is not here (h100, a100, l4, 4090, ...).")
    ] = None,
    processes: Annotated[int | None, typer.Option(min=1, help="With --plan: processes that share the work.")] = None,
) -> None:
    """Train a memory writer, a text policy or a reward model.

    A memory writer by reinforcement learning (demo, dpo, ...), by imitation (sft), or on preference pairs
    (preferences). A text policy answers prompts (task: text; arithmetic, programs, gsm8k). A reward model scores
    replies (reward). A run directory with a checkpoint is resumed, and Ctrl-C saves one. With --plan nothing starts: it
    prints tokens, memory and time of the run, without loading the model's weights.

    Example: memalpha train demo seed=7 reward.beta=0.1 out=runs/seed-7

    Raises:
        ConfigError: A setting does not fit.
        DataError: The data are missing or do not fit.
        CheckpointError: The run directory holds another run.
    """
    settings = training_config(config, parse_overrides(overrides or []))
    _check_data_files(settings)
    if plan:
        _print_plan(settings, as_json, gpu, processes)
        return
    if gpu is not None or processes is not None:
        raise ConfigError("--gpu and --processes belong to --plan; a run takes compute.device and accelerate launch")
    summary = memalpha.train(settings)
    if PROCESS_RANK:
        return  # the process of rank 0 reports
    page = _write_page(settings.out)
    print_result(summary, as_json, f"{_format_summary(summary)}\n{page}")


def _print_plan(settings: AnyTraining, as_json: bool, gpu: str | None, processes: int | None) -> None:
    from memalpha.train.plan import format_plan, plan_run

    result = plan_run(settings, gpu=gpu, processes=processes)
    print_result(result, as_json, format_plan(result))


def _check_data_files(settings: AnyTraining) -> None:
    """Refuse an empty data file here: the trainer would do so only after loading torch."""
    evaluation = getattr(settings, "evaluation", None)
    paths = {"data": getattr(settings, "data", None), "evaluation.data": getattr(evaluation, "data", None)}
    for key, path in paths.items():
        if not isinstance(path, str | Path) or not Path(path).is_file():
            continue
        try:
            with Path(path).open("rb") as file:
                is_empty = not any(map(bytes.strip, file))
        except OSError:
            continue  # the trainer's message says why
        if is_empty:
            raise DataError(f"{key}: {path} is empty")


def _format_summary(summary: Mapping[str, Any]) -> str:
    before, after = summary.get("before"), summary.get("after")
    if "pairs" in summary:
        return _format_losses("pairs", "validation_pair_loss", before, after)
    if "rows" in summary and "accuracy" not in (after or {}):
        return _format_losses("rows", "validation_loss", before, after)
    if not before or not after:
        return "stopped before the evaluation; run the same command again to resume from the last checkpoint"
    baselines = [
        f"{name.replace('_', ' ')} {metrics['accuracy']:.3f}" for name, metrics in summary.get("baselines", {}).items()
    ]
    text = f"accuracy {before['accuracy']:.3f} before, {after['accuracy']:.3f} after"
    return f"{text} ({', '.join(baselines)})" if baselines else text


def _format_losses(unit: str, key: str, before: Mapping[str, Any] | None, after: Mapping[str, Any] | None) -> str:
    losses = [f"{metrics[key]:.3f} {when}" for when, metrics in (("before", before), ("after", after)) if metrics]
    return f"loss on held-out {unit} {', '.join(losses)}" if losses else "trained; no held-out data to validate on"


def report(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run or evaluation directory.")],
    as_json: AsJson = False,
) -> None:
    """Write the page of a run or an evaluation to RUN/report.html.

    One file that needs no network: metrics before and after, curves, where answers were lost, one conversation step by
    step.

    Example: memalpha report runs/demo
    """
    page = _write_page(run)
    print_result({"report": str(page)}, as_json, str(page))


def _write_page(run: Path) -> Path:
    from memalpha.report.page import write_report

    return write_report(run)


def merge(
    checkpoint: Annotated[str, typer.Argument(metavar="CHECKPOINT", help="A checkpoint's directory, or any policy.")],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="Directory to write; it must be new or empty.")],
    as_json: AsJson = False,
) -> None:
    """Write a trained writer as a plain transformers directory.

    Weights, configuration and tokenizer, without the optimizer's state. LoRA adapters are merged into their base model.

    Example: memalpha merge runs/demo/checkpoints/best my-writer

    Raises:
        PolicyError: The checkpoint cannot be loaded, or `out` is not empty.
    """
    from memalpha.policy.load import write_merged as merge_checkpoint

    folder = merge_checkpoint(checkpoint, out)
    files = sorted(path.name for path in folder.iterdir())
    print_result({"out": str(folder), "files": files}, as_json, f"{folder}: {', '.join(files)}")


COMMANDS = {"demo": demo, "train": train, "report": report, "merge": merge}
