"""Measure the value of a supervised start: `python eval/learning/sft_start.py --out runs/sft-start --jobs 2`.

From the shipped tiny policy, over seeds: `gold` imitates the gold operations of 256 conversations of the demo's world
(`memalpha train sft`); `best` is rejection sampling, four rounds of 32 conversations with 8 rollouts each, the best of
which is imitated. Beside them the start, the append-only writer and the oracle on the same held-out conversations,
whose values never occur in training, with the same frozen reader. Writes `sft.json` and `sft.md` to --results. Runs
that are complete are not run again.
"""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from memalpha import evaluate, load_policy
from memalpha.config import SFTConfig, training_config
from memalpha.policy.base import with_prompt_style
from memalpha.qa.reader import load_reader
from memalpha.train.rollouts.memory_tasks import TaskSource

sys.path.insert(0, str(Path(__file__).parents[1]))
from common import default_jobs, format_deviation, make_parser, opening, run_memalpha, save

KINDS = {"gold": (), "best": ("source=best", "tasks=32", "rounds=4", "schedule_steps=48")}
FIGURES = ("accuracy", "update_accuracy", "retract_accuracy", "stale_rate", "update_hit", "delete_hit", "valid_calls")


def run(out: Path, seed: int, extra: tuple[str, ...]) -> dict[str, Any]:
    """Run one supervised training in its own process and return its summary.

    Args:
        out: Folder of the run.
        seed: Seed of the run.
        extra: Further settings, each KEY=VALUE.
    """
    return run_memalpha(["train", "sft", f"seed={seed}", f"out={out}", *extra], out)


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
    """Format a line of the table: mean over systems, ± standard deviation if there are several.

    Args:
        label: First cell.
        systems: Metrics of each seed.
        rest: Last cell.
    """
    cells = (format_deviation([system[name] for system in systems]) for name in FIGURES)
    return f"| {label} | " + " | ".join(cells) + f" | {rest} |"


def table(runs_by_kind: dict[str, list[dict[str, Any]]], reference_systems: dict[str, dict[str, Any]]) -> str:
    """Format all results as Markdown."""
    first = runs_by_kind["gold"][0]
    lines = [
        *opening("A supervised start"),
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
    parser = make_parser(__doc__, out=Path("runs/sft-start"), seeds=[0, 1, 2], jobs=default_jobs())
    arguments = parser.parse_args()
    jobs = [(kind, seed) for seed in arguments.seeds for kind in KINDS]
    with ThreadPoolExecutor(arguments.jobs) as pool:
        done = list(pool.map(lambda job: run(arguments.out / f"{job[0]}-{job[1]}", job[1], KINDS[job[0]]), jobs))
    runs_by_kind = {kind: [s for (name, _), s in zip(jobs, done, strict=True) if name == kind] for kind in KINDS}
    reference_systems = references()
    record = {**runs_by_kind, "references": reference_systems}
    save(arguments.results / "sft", record, table(runs_by_kind, reference_systems))


if __name__ == "__main__":
    main()
