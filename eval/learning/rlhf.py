"""Train against a reward model alone: `python eval/learning/rlhf.py --judge runs/reward-model/seed-0/run`.

The demo's writer learns only from the score that a reward model of `eval/learning/reward_model.py` gives its final
memory: the weights of r1 to r4 are 0. The true reward, accuracy of answers from the memory (r1), is measured on
the very same rollouts, so the curve shows where it stops following. The KL to the start is in the loss with weight
1e-6: it is there to be measured. Held out: weights that validated best by the true reward, so stopped in time by
somebody who can measure it; `last` is validation accuracy of the last weights. Runs that are complete are not run
again.
"""

from __future__ import annotations

import json
import statistics
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from memalpha.report.charts import Series, line_chart

sys.path.insert(0, str(Path(__file__).parents[1]))
from common import default_jobs, format_error, make_parser, opening, read_metrics, run_memalpha, save

VARIANTS: dict[str, tuple[str, ...]] = {
    "grpo": ("schedule_steps=30", "validate_every=10"),
    "ppo": ("algorithm=ppo", "group_size=1", "tasks_per_step=64", "schedule_steps=15", "validate_every=5"),
}
"""Settings of each variant over those below."""
ALONE = ("reward.accuracy=0", "reward.calls=0", "reward.beta=0", "reward.gamma=0", "beta=0.000001")
SMALL = ("sample_dtype=null", "eval_tasks=60", "validation_tasks=24", "reader.policy=tiny")
COLOURS = {"before": "#8a8a8a", "after": "#1f77b4"}
"""Colours of the chart's lines: the model's reward, the true one."""


def run(out: Path, judge: Path, variant: str, seed: int) -> dict[str, Any]:
    """Train one run in its own process; return summary, metrics and the memory of a rollout of the last step.

    Args:
        out: Folder of the run.
        judge: Folder of the reward model's run.
        variant: One of `VARIANTS`.
        seed: Seed of the run.
    """
    words = ["train", "demo", f"reward.model.path={judge}", *ALONE, *SMALL, *VARIANTS[variant]]
    summary = run_memalpha([*words, f"seed={seed}", f"out={out}"], out)
    rollout = json.loads((out / "trajectories.jsonl").read_text(encoding="utf-8").splitlines()[-1])
    return {
        "variant": variant,
        "seed": seed,
        "summary": summary,
        "metrics": read_metrics(out),
        "wrote": {"score": rollout["components"]["model"][0], "memory": rollout["memory"]},
    }


def curve(runs: list[dict[str, Any]], width: int = 3) -> list[dict[str, float]]:
    """Return means over runs and `width` steps.

    Each row has the step, KL to the start, the model's reward, the true reward with its standard error over runs,
    calls, and the share of writes that repeat an entry.
    """
    rows = []
    for first in range(0, min(len(run["metrics"]) for run in runs), width):
        parts = [run["metrics"][first : first + width] for run in runs]

        def mean(name: str, parts: list[list[dict[str, float]]] = parts) -> list[float]:
            return [statistics.mean(line[name] for line in part) for part in parts]

        true = mean("accuracy")
        row = {
            name: statistics.mean(mean(name)) for name in ("reference_kl", "model", "calls", "duplicates", "r2", "r4")
        }
        spread = statistics.stdev(true) / len(true) ** 0.5 if len(true) > 1 else 0.0
        rows.append({"step": first + width // 2, "accuracy": statistics.mean(true), "se": spread, **row})
    return rows


def chart(rows: list[dict[str, float]]) -> str:
    """Draw both rewards over steps, each scaled to its own range."""
    series = []
    for kind, name, label in (("before", "model", "model's reward"), ("after", "accuracy", "true reward")):
        values = [row[name] for row in rows]
        low, high = min(values), max(values)
        points = tuple((row["step"], (row[name] - low) / ((high - low) or 1.0)) for row in rows)
        series.append(Series(kind, f"{label} ({low:.2f} to {high:.2f})", points))
    style = "text{font:11px sans-serif;fill:#555}.grid{stroke:#ddd}.line{fill:none;stroke-width:2}"
    style += "".join(f".k-{kind}{{stroke:{colour}}}" for kind, colour in COLOURS.items())
    svg = line_chart(series, low=0.0, high=1.0)
    opening, rest = svg.split(">", 1)
    opening += "" if "xmlns" in opening else ' xmlns="http://www.w3.org/2000/svg"'
    legend = "".join(
        f'<text x="52" y="{24 + 14 * n}" style="fill:{COLOURS[line.kind]}">{line.label}</text>'
        for n, line in enumerate(series)
    )
    return f"{opening}><style>{style}</style>{legend}{rest}\n"


def before_after(runs: list[dict[str, Any]], name: str) -> str:
    """Format mean over runs ± standard error, before → after."""
    return " → ".join(format_error([run["summary"][when][name] for run in runs]) for when in ("before", "after"))


def main() -> None:
    """Run, record and draw."""
    parser = make_parser(__doc__, out=Path("runs/rlhf"), jobs=default_jobs())
    parser.add_argument("--judge", type=Path, required=True, help="a reward model's run directory")
    parser.add_argument("--runs", nargs="+", default=["grpo:0", "grpo:1", "grpo:2", "ppo:0"], help="VARIANT:SEED ...")
    args = parser.parse_args()
    jobs = [(name, int(seed)) for name, _, seed in (word.partition(":") for word in args.runs)]
    with ThreadPoolExecutor(args.jobs) as pool:
        results = list(pool.map(lambda result: run(args.out / f"{result[0]}-{result[1]}", args.judge, *result), jobs))
    by_name = {name: [result for result in results if result["variant"] == name] for name in VARIANTS}
    first = results[0]["summary"]
    lines = [
        *opening("Reinforcement against a reward model alone"),
        f"The demo's world, {first['tasks']} held-out conversations, {first['questions']} questions. One reward model; "
        "seeds are of the writer's runs; ± is the standard error over them.",
        "",
        "| | held-out accuracy | model's reward | best step | last (validation) | runs |",
        "|---|---|---|---|---|---|",
    ]
    for name, runs in by_name.items():
        if runs:
            last = statistics.mean(
                next(
                    line["validation_accuracy"] for line in reversed(result["metrics"]) if "validation_accuracy" in line
                )
                for result in runs
            )
            steps = ", ".join(str(result["summary"]["best_step"]) for result in runs)
            seeds = ", ".join(str(result["seed"]) for result in runs)
            lines.append(
                f"| {name} | {before_after(runs, 'accuracy')} | {before_after(runs, 'reward')} | {steps} | {last:.3f} "
                f"| seeds {seeds} |"
            )
    for name in ("append_only", "oracle"):
        if name in first["baselines"]:
            of = first["baselines"][name]
            lines.append(f"| {name.replace('_', ' ')} | {of['accuracy']:.3f} | {of['reward']:.3f} | | | |")
    curves = {name: curve(runs) for name, runs in by_name.items() if runs}
    for name, rows in curves.items():
        lines += ["", f"## {name}: both rewards of the sampled rollouts, means over three steps", ""]
        lines += [
            "| step | KL to the start | model's reward | true accuracy | calls | repeated writes | valid calls (r2) | "
            "true content (r4) |",
            "|---|---|---|---|---|---|---|---|",
        ]
        lines += [
            f"| {row['step']} | {row['reference_kl']:.3f} | {row['model']:.2f} "
            f"| {row['accuracy']:.3f} ± {row['se']:.3f} "
            + "".join(f"| {row[name]:.2f} " for name in ("calls", "duplicates", "r2", "r4"))
            + "|"
            for row in rows
        ]
    args.results.mkdir(parents=True, exist_ok=True)
    for name, rows in curves.items():
        file = "rlhf.svg" if name == "grpo" else f"rlhf-{name}.svg"
        (args.results / file).write_text(chart(rows), encoding="utf-8")
    record = {"command": sys.argv, "curves": curves, "runs": [{**result, "metrics": None} for result in results]}
    save(args.results / "rlhf", record, "\n".join(lines))


if __name__ == "__main__":
    main()
