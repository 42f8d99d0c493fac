"""Measure the value of a supervised start: `python eval/sft_start.py --out runs/sft-start --jobs 2`.

From the shipped tiny policy, over seeds: `gold` imitates the gold operations of 256 conversations of the demo's world
(`memalpha train sft`); `best` is rejection sampling, four rounds of 32 conversations with 8 rollouts each, the best of
which is imitated. Beside them the start, the append-only writer and the oracle on the same held-out conversations,
whose values never occur in training, with the same frozen reader. Writes `sft.json` and `sft.md` to --results. Runs
that are complete are not run again.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path
from typing import Any

from memalpha import evaluate, load_policy
from memalpha.config import SFTConfig, training_config
from memalpha.policy.base import with_prompt_style
from memalpha.qa.reader import load_reader
from memalpha.train.rollouts.memory_tasks import TaskSource

KINDS = {"gold": (), "best": ("source=best", "tasks=32", "rounds=4", "schedule_steps=48")}
FIGURES = ("accuracy", "update_accuracy", "retract_accuracy", "stale_rate", "update_hit", "delete_hit", "valid_calls")
PACKAGES = ("torch", "transformers", "numpy", "memalpha")


def run(out: Path, seed: int, extra: tuple[str, ...]) -> dict[str, Any]:
    """One supervised run in a process of its own; its summary."""
    words = ["train", "sft", f"seed={seed}", f"out={out}", *extra]
    done = subprocess.run([sys.executable, "-m", "memalpha", *words], stdout=subprocess.DEVNULL, check=False)
    if done.returncode:
        raise SystemExit(f"memalpha {' '.join(words)} ended with {done.returncode}")
    return json.loads((out / "summary.json").read_text(encoding="utf-8"))


def references() -> dict[str, dict[str, Any]]:
    """Evaluate the append-only writer and the oracle on the runs' held-out tasks."""
    config = training_config("sft")
    assert isinstance(config, SFTConfig)
    policy = load_policy(config.policy)
    reader = load_reader(config.reader.model_copy(update={"conflicts": "refuse"}), policy)
    agent, tasks = with_prompt_style(config.agent, policy), TaskSource(config).held_out
    writers = {name: load_policy(f"scripted:{name}") for name in ("append-only", "oracle")}
    return {
        name: evaluate(writer, tasks, reader, config=agent, count_tokens=policy.count_tokens).summary
        for name, writer in writers.items()
    }


def row(label: str, systems: list[dict[str, Any]], rest: str = "") -> str:
    """Format a line of the table: mean over systems, ± standard deviation if there are several."""
    cells = []
    for name in FIGURES:
        values = [system[name] for system in systems]
        spread = f" ± {statistics.stdev(values):.3f}" if len(values) > 1 else ""
        cells.append(f"{statistics.mean(values):.3f}{spread}")
    return f"| {label} | " + " | ".join(cells) + f" | {rest} |"


def table(runs_by_kind: dict[str, list[dict[str, Any]]], reference_systems: dict[str, dict[str, Any]]) -> str:
    """Format all results as Markdown."""
    first = runs_by_kind["gold"][0]
    lines = [
        "# A supervised start",
        "",
        "```",
        "python " + " ".join(sys.argv),
        "```",
        "",
        f"Python {platform.python_version()}, " + ", ".join(f"{name} {version(name)}" for name in PACKAGES) + ".",
        f"{first['tasks']} held-out conversations ({first['questions']} questions), {first['policy_parameters']:,}",
        f"parameters, greedy. The standard error of an accuracy over conversations is {first['after']['se']:.3f}.",
        "All seeds start from the shipped weights. Tokens are completion tokens trained on, minutes those of learning",
        "(wall time on a shared machine).",
        "",
        "| run | " + " | ".join(FIGURES) + " | step kept; tokens; minutes |",
        "|---|" + "---|" * (len(FIGURES) + 1),
        row("start", [first["before"]]),
        *(row(name, [summary]) for name, summary in reference_systems.items()),
    ]
    for kind, summaries in runs_by_kind.items():
        for s in summaries:
            rest = f"{s['best_step']} of {s['steps']}; {s['tokens']:,}; {s['learning_minutes']:.1f}"
            lines.append(row(f"{kind}, seed {s['seed']}", [s["after"]], rest))
        lines.append(row(f"{kind}, mean ± sd", [s["after"] for s in summaries]))
    losses = [
        f"{s['before']['validation_loss']:.3f} → {s['after']['validation_loss']:.3f}" for s in runs_by_kind["gold"]
    ]
    lines += ["", f"Cross-entropy per token on held-out gold rows, by seed: {', '.join(losses)}."]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Run, record and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/sft-start"))
    parser.add_argument("--results", type=Path, default=Path("eval/results"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--jobs", type=int, default=min(2, os.cpu_count() or 1), help="runs at a time, a core each")
    arguments = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    jobs = [(kind, seed) for seed in arguments.seeds for kind in KINDS]
    with ThreadPoolExecutor(arguments.jobs) as pool:
        done = list(pool.map(lambda job: run(arguments.out / f"{job[0]}-{job[1]}", job[1], KINDS[job[0]]), jobs))
    runs_by_kind = {kind: [s for (name, _), s in zip(jobs, done, strict=True) if name == kind] for kind in KINDS}
    reference_systems = references()
    text = json.dumps({**runs_by_kind, "references": reference_systems}, indent=1)
    (arguments.results / "sft.json").write_text(text + "\n", encoding="utf-8")
    (arguments.results / "sft.md").write_text(table(runs_by_kind, reference_systems), encoding="utf-8")
    print(table(runs_by_kind, reference_systems))


if __name__ == "__main__":
    main()
