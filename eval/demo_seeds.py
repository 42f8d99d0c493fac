"""Run the demo over several seeds, and its control: `python eval/demo_seeds.py --out runs/seeds --jobs 2`.

Each seed is the run of `./scripts/demo --seed N`. The control differs in one thing: during training its reader takes
the newest of two live values instead of refusing both (`reward.reader.conflicts=newest`); it is evaluated by the
same reader as all others. Writes `demo-seeds.json` and `demo-seeds.md` to --results. Complete runs are
reused.
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

CONTROL = ("reward.reader.kind=policy", "reward.reader.prompt=compact", "reward.reader.conflicts=newest")
FIGURES = (
    *("accuracy", "update_accuracy", "retract_accuracy", "stale_rate", "update_hit", "delete_hit"),
    *("valid_calls", "memory_tokens", "update_share", "delete_share"),
)
PACKAGES = ("torch", "transformers", "numpy", "faiss-cpu", "memalpha")


def run(out: Path, seed: int, extra: tuple[str, ...]) -> dict[str, Any]:
    """Run one training in its own process and return its summary."""
    words = ["train", "demo", f"seed={seed}", f"out={out}", *extra]
    done = subprocess.run([sys.executable, "-m", "memalpha", *words], stdout=subprocess.DEVNULL, check=False)
    if done.returncode:
        raise SystemExit(f"memalpha {' '.join(words)} ended with {done.returncode}")
    print(f"finished {out}", file=sys.stderr)
    return json.loads((out / "summary.json").read_text(encoding="utf-8"))


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
    """Format a line of the table."""
    return f"| {label} | " + " | ".join(f"{system[name]:.3f}" for name in FIGURES) + f" | {rest} |"


def spread(label: str, systems: list[dict[str, Any]]) -> str:
    """Format mean ± standard deviation over seeds."""
    cells = []
    for name in FIGURES:
        values = [system[name] for system in systems]
        cells.append(f"{statistics.mean(values):.3f} ± {statistics.stdev(values) if len(values) > 1 else 0:.3f}")
    return f"| {label} | " + " | ".join(cells) + " | |"


def table(runs: list[dict[str, Any]], control: list[dict[str, Any]], jobs: int) -> str:
    """Format all results as Markdown."""
    first = runs[0]
    lines = [
        "# The demo over seeds, beside its control",
        "",
        "```",
        "python " + " ".join(sys.argv),
        "```",
        "",
        f"Python {platform.python_version()}, " + ", ".join(f"{name} {version(name)}" for name in PACKAGES) + ".",
        f"{first['tasks']} held-out conversations ({first['questions']} questions) whose values never occur in",
        f"training, {first['policy_parameters']:,} parameters, {first['steps']} steps, greedy evaluation. All seeds",
        "start from the shipped weights; the seed decides tasks, sampling and order. The standard error of an",
        f"accuracy over conversations is {first['after']['se']:.3f}. `control` is trained with newest-wins ties",
        f"in the reader and evaluated like the others. Minutes are wall time of learning, {jobs} runs at a time.",
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
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/seeds"))
    parser.add_argument("--results", type=Path, default=Path("eval/results"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--control-seeds", type=int, nargs="*", default=[0, 1, 2])
    parser.add_argument("--jobs", type=int, default=min(2, os.cpu_count() or 1), help="runs at a time, a core each")
    arguments = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    jobs = [(f"seed-{seed}", seed, ()) for seed in arguments.seeds]
    jobs += [(f"control-{seed}", seed, CONTROL) for seed in arguments.control_seeds]
    with ThreadPoolExecutor(arguments.jobs) as pool:
        summaries = list(pool.map(lambda job: run(arguments.out / job[0], job[1], job[2]), jobs))
    runs, control = summaries[: len(arguments.seeds)], summaries[len(arguments.seeds) :]
    arguments.results.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"seeds": runs, "control": control}, indent=1)
    (arguments.results / "demo-seeds.json").write_text(text + "\n", encoding="utf-8")
    (arguments.results / "demo-seeds.md").write_text(table(runs, control, arguments.jobs), encoding="utf-8")
    print(table(runs, control, arguments.jobs))


if __name__ == "__main__":
    main()
