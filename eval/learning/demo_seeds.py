"""Run the demo over several seeds, and its control: `python eval/learning/demo_seeds.py --out runs/seeds --jobs 2`.

Each seed is the run of `./scripts/demo --seed N`. The control differs in one thing: during training its reader takes
the newest of two live values instead of refusing both (`reward.reader.conflicts=newest`); it is evaluated by the
same reader as all others. Writes `demo-seeds.json` and `demo-seeds.md` to --results. Complete runs are
reused.
"""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
from common import default_jobs, format_deviation, make_parser, opening, run_memalpha, save

CONTROL = ("reward.reader.kind=policy", "reward.reader.prompt=compact", "reward.reader.conflicts=newest")
FIGURES = (
    *("accuracy", "update_accuracy", "retract_accuracy", "stale_rate", "update_hit", "delete_hit"),
    *("valid_calls", "memory_tokens", "update_share", "delete_share"),
)
PACKAGES = ("torch", "transformers", "numpy", "faiss-cpu", "memalpha")


def run(out: Path, seed: int, extra: tuple[str, ...]) -> dict[str, Any]:
    """Run one training in its own process and return its summary.

    Args:
        out: Folder of the run.
        seed: Seed of the run.
        extra: Further settings, each KEY=VALUE.
    """
    return run_memalpha(["train", "demo", f"seed={seed}", f"out={out}", *extra], out)


def gap_closed(summary: dict[str, Any], figure: str) -> float:
    """Return the share of the gap from the start to the oracle that training closed."""
    before, after = summary["before"][figure], summary["after"][figure]
    return (after - before) / (summary["baselines"]["oracle"][figure] - before)


def misses(summary: dict[str, Any]) -> list[str]:
    """Return the demo's promises that this run misses."""
    before, after = summary["before"], summary["after"]
    only, oracle = summary["baselines"]["append_only"], summary["baselines"]["oracle"]
    checks = {
        "half of the accuracy gap": gap_closed(summary, "accuracy") >= 0.5,
        "half of the update_accuracy gap": gap_closed(summary, "update_accuracy") >= 0.5,
        "above append_only": after["accuracy"] > only["accuracy"],
        "update_hit 0.60": after["update_hit"] >= 0.6,
        "update_hit +0.20": after["update_hit"] - before["update_hit"] >= 0.2,
        "delete_hit 0.60": after["delete_hit"] >= 0.6,
        "delete_hit +0.20": after["delete_hit"] - before["delete_hit"] >= 0.2,
        "stale answers halved": after["stale_rate"] <= before["stale_rate"] / 2,
        "valid calls 0.96": after["valid_calls"] >= 0.96,
        "memory 1.3 x oracle": after["memory_tokens"] <= 1.3 * oracle["memory_tokens"],
    }
    return [name for name, reached in checks.items() if not reached]


def row(label: str, system: dict[str, Any], rest: str = "") -> str:
    """Format a line of the table.

    Args:
        label: First cell.
        system: Metrics of a system.
        rest: Last cell.
    """
    return f"| {label} | " + " | ".join(f"{system[name]:.3f}" for name in FIGURES) + f" | {rest} |"


def spread(label: str, systems: list[dict[str, Any]]) -> str:
    """Format mean ± standard deviation over seeds."""
    cells = (format_deviation([system[name] for system in systems]) for name in FIGURES)
    return f"| {label} | " + " | ".join(cells) + " | |"


def table(runs: list[dict[str, Any]], control: list[dict[str, Any]], jobs: int) -> str:
    """Format all results as Markdown.

    Args:
        runs: Summaries of the seeds.
        control: Summaries of the control's seeds.
        jobs: Runs at a time.
    """
    first = runs[0]
    lines = [
        *opening("The demo over seeds, beside its control", PACKAGES),
        f"{first['tasks']} held-out conversations ({first['questions']} questions) whose values never occur in",
        f"training, {first['policy_parameters']:,} parameters, {first['steps']} steps, greedy evaluation. All seeds",
        "start from the shipped weights; the seed decides tasks, sampling and order. The standard error of an",
        f"accuracy over conversations is {first['after']['se']:.3f}. `control` is trained with newest-wins ties",
        f"in the reader and evaluated like the others. Minutes are wall time of learning, {jobs} at a time.",
        "",
        "| run | " + " | ".join(FIGURES) + " | steps kept, minutes |",
        "|---|" + "---|" * (len(FIGURES) + 1),
        row("start", first["before"]),
    ]
    for label, group in (("seed", runs), ("control", control)):
        for summary in group:
            note = f"{summary['best_step']}, {summary['learning_minutes']:.1f}"
            lines.append(row(f"{label} {summary['seed']}", summary["after"], note))
        lines += [spread(f"{label}s, mean ± sd", [summary["after"] for summary in group])] if group else []
    for name, system in first["baselines"].items():
        lines.append(row(name, system))
    lines += ["", "## By ability (accuracy)", ""]
    abilities = list(first["after"]["by_ability"])
    lines += ["| run | " + " | ".join(abilities) + " |", "|---|" + "---|" * len(abilities)]
    systems = [("start", first["before"]), *((f"seed {s['seed']}", s["after"]) for s in runs)]
    systems += [*((f"control {s['seed']}", s["after"]) for s in control), *first["baselines"].items()]
    for label, system in systems:
        cells = (f"{system['by_ability'][ability]['accuracy']:.3f}" for ability in abilities)
        lines.append(f"| {label} | " + " | ".join(cells) + " |")
    lines += ["", "## Against what the demo promises", ""]
    for summary in runs:
        missed = misses(summary)
        closed = ", ".join(f"{name} {gap_closed(summary, name):.2f}" for name in ("accuracy", "update_accuracy"))
        verdict = "all reached" if not missed else "missed: " + ", ".join(missed)
        lines.append(f"- seed {summary['seed']}: share of the gap to the oracle closed: {closed}; {verdict}")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Run, record and print."""
    parser = make_parser(__doc__, out=Path("runs/seeds"), seeds=[0, 1, 2, 3, 4], jobs=default_jobs())
    parser.add_argument("--control-seeds", type=int, nargs="*", default=[0, 1, 2])
    arguments = parser.parse_args()
    jobs = [(f"seed-{seed}", seed, ()) for seed in arguments.seeds]
    jobs += [(f"control-{seed}", seed, CONTROL) for seed in arguments.control_seeds]
    with ThreadPoolExecutor(arguments.jobs) as pool:
        summaries = list(pool.map(lambda job: run(arguments.out / job[0], job[1], job[2]), jobs))
    runs, control = summaries[: len(arguments.seeds)], summaries[len(arguments.seeds) :]
    record = {"seeds": runs, "control": control}
    save(arguments.results / "demo-seeds", record, table(runs, control, arguments.jobs))


if __name__ == "__main__":
    main()
