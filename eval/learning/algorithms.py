"""Compare the algorithms on equal sampled tokens: `python eval/learning/algorithms.py --start START --jobs 2`.

Every run starts from START (a checkpoint, or `tiny`) and uses the demo's tasks, reader, reward and learning-rate
schedule. Its number of steps is chosen so that its sampled tokens (attempts, reflections and second attempts) are near
those of the first variant; the table shows the actual number. `after` are the weights that validated best, evaluated
greedily on first attempts. Intervals are 95 % intervals of the mean over seeds (Student's t). Complete runs are reused.
"""

from __future__ import annotations

import statistics
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
from common import default_jobs, format_interval, make_parser, opening, read_metrics, run_memalpha, save

FED = ("algorithm=erl", "erl.reward_threshold=0.75", "erl.feedback_tokens=512")
ERL = (*FED, "erl.reflection_tokens=48")
"""Settings of presets/erl.yaml; without reflection there is no reflection length."""
VARIANTS: dict[str, tuple[str, ...]] = {
    "grpo": ("algorithm=grpo",),
    "rloo": ("algorithm=rloo",),
    "ppo": ("algorithm=ppo", "group_size=1", "tasks_per_step=64"),  # the demo has eight rollouts of eight tasks
    "dpo": ("algorithm=dpo",),
    "erl": ERL,
    "erl, algorithm 1": (*ERL, "erl.algorithm=1"),
    "erl, no memory": (*ERL, "erl.enable_memory=false"),
    "erl, no reflection": (*FED, "erl.enable_reflection=false"),
    "erl, no internalization": (*ERL, "erl.enable_internalization=false"),
}
"""Settings of each variant over presets/demo.yaml; choosing the algorithm sets the rest."""
FIGURES = ("accuracy", "update_accuracy", "retract_accuracy", "stale_rate", "valid_calls", "memory_tokens")
VALIDATED = "validation_accuracy"


def run(out: Path, start: str, seed: int, extra: tuple[str, ...]) -> dict[str, Any]:
    """Run one training in its own process; return its summary with token counts and CPU-minutes.

    Args:
        out: Folder of the run.
        start: Policy or checkpoint to start from.
        seed: Seed of the run.
        extra: Further settings, each KEY=VALUE.
    """
    # START may have unlearned to read, so the reader is always the shipped policy.
    words = ["train", "demo", f"policy={start}", "reader.policy=tiny", f"seed={seed}", f"out={out}", *extra]
    summary, lines = run_memalpha(words, out), read_metrics(out)
    summary["sampled_tokens"] = sum(line["sampled_tokens"] for line in lines)
    summary["trained_tokens"] = sum(line["tokens"] for line in lines)
    summary["last_validation"] = next((line[VALIDATED] for line in reversed(lines) if VALIDATED in line), None)
    return summary


PILOT = 20
"""Steps of a pilot run. Sampled tokens fall as fewer attempts fail, so the last five steps predict the later ones."""


def pilot(out: Path, start: str, extra: tuple[str, ...]) -> list[int]:
    """Return the sampled tokens of each step of a short run (seed 1000, used by no other run).

    Args:
        out: Folder of the run.
        start: Policy or checkpoint to start from.
        extra: Further settings, each KEY=VALUE.
    """
    run(out, start, 1000, (*extra, f"max_steps={PILOT}", "eval_tasks=1", "validation_tasks=0"))
    return [line["sampled_tokens"] for line in read_metrics(out)]


def steps_for(budget: float, tokens: list[int]) -> int:
    """Return the number of steps that sample about `budget` tokens."""
    later = statistics.mean(tokens[-5:])
    return max(1, round(len(tokens) + (budget - sum(tokens)) / later))


def table(runs: dict[str, list[dict[str, Any]]], start: str, jobs: int) -> str:
    """Format all results as Markdown.

    Args:
        runs: Summaries of the seeds by variant.
        start: Policy that all runs started from.
        jobs: Runs at a time.
    """
    first = next(iter(runs.values()))[0]
    seeds = [summary["seed"] for summary in next(iter(runs.values()))]
    lines = [
        *opening("The algorithms on equal sampled tokens"),
        f"The demo's world, {first['tasks']} held-out conversations ({first['questions']} questions), "
        f"{first['policy_parameters']:,} parameters, start `{start}`, seeds {seeds}. After training: mean",
        "over seeds ± half of its 95 % interval, of the weights that validated best; `last`: validation accuracy of",
        "the last ones. Tokens in thousands: sampled in training, and trained on; CPU-minutes",
        f"of the whole run with its evaluations, {jobs} runs at a time.",
        "",
        "| algorithm | " + " | ".join(FIGURES) + " | worst seed | last | steps | sampled | trained | CPU-min |",
        "|---|" + "---|" * (len(FIGURES) + 6),
        "| start | " + " | ".join(f"{first['before'][name]:.3f}" for name in FIGURES) + " | | | | | | |",
    ]
    for name, summaries in runs.items():
        cells = [format_interval([summary["after"][figure] for summary in summaries]) for figure in FIGURES]
        cells.append(f"{min(summary['after']['accuracy'] for summary in summaries):.3f}")
        cells.append(format_interval([summary["last_validation"] for summary in summaries]))
        cells.append(str(summaries[0]["steps"]))
        cells += [
            f"{statistics.mean(s[f'{kind}_tokens'] for s in summaries) / 1e3:.0f}" for kind in ("sampled", "trained")
        ]
        cells.append(f"{statistics.mean(summary['cpu_minutes'] for summary in summaries):.1f}")
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    for name, system in first["baselines"].items():
        lines.append(f"| {name} | " + " | ".join(f"{system[figure]:.3f}" for figure in FIGURES) + " | | | | | | |")
    lines += ["", "## Every seed (accuracy after)", "", "| algorithm | " + " | ".join(map(str, seeds)) + " |"]
    lines.append("|---|" + "---|" * len(seeds))
    for name, summaries in runs.items():
        lines.append(f"| {name} | " + " | ".join(f"{summary['after']['accuracy']:.3f}" for summary in summaries) + " |")
    below = [
        f"{name}, seed {summary['seed']}"
        for name, summaries in runs.items()
        for summary in summaries
        if summary["after"]["accuracy"] < summary["before"]["accuracy"]
    ]
    total = sum(summary["cpu_minutes"] for summaries in runs.values() for summary in summaries) / 60
    lines += ["", f"Below the start: {'; '.join(below) or 'none'}. CPU-hours of all runs: {total:.1f}."]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Run, record and print."""
    parser = make_parser(__doc__, out=Path("runs/algorithms"), seeds=[0, 1, 2, 3, 4], jobs=default_jobs())
    parser.add_argument("--start", required=True, help="the policy that all runs start from")
    parser.add_argument("--steps", type=int, default=30, help="of the first variant; the others' follow from tokens")
    parser.add_argument("--eval-tasks", type=int, default=100, help="held-out conversations")
    parser.add_argument("--only", nargs="+", choices=list(VARIANTS), default=list(VARIANTS))
    arguments = parser.parse_args()

    def folder(name: str) -> Path:
        return arguments.out / name.replace(", ", "-").replace(" ", "-")

    with ThreadPoolExecutor(arguments.jobs) as pool:
        variants = {name: VARIANTS[name] for name in arguments.only}
        pilots = dict(
            zip(
                variants,
                pool.map(lambda item: pilot(folder(item[0]) / "pilot", arguments.start, item[1]), variants.items()),
                strict=True,
            )
        )
        first_tokens = next(iter(pilots.values()))
        budget = sum(first_tokens) + (arguments.steps - PILOT) * statistics.mean(first_tokens[-5:])
        steps = {name: steps_for(budget, tokens) for name, tokens in pilots.items()}
        jobs = [(name, seed) for seed in arguments.seeds for name in variants]  # a whole seed first
        summaries = pool.map(
            lambda job: run(
                folder(job[0]) / f"seed-{job[1]}",
                arguments.start,
                job[1],
                (*variants[job[0]], f"schedule_steps={steps[job[0]]}", f"eval_tasks={arguments.eval_tasks}"),
            ),
            jobs,
        )
        runs: dict[str, list[dict[str, Any]]] = {name: [] for name in variants}
        for (name, _), summary in zip(jobs, summaries, strict=True):
            runs[name].append(summary)
    save(arguments.results / "algorithms", runs, table(runs, arguments.start, arguments.jobs))


if __name__ == "__main__":
    main()
