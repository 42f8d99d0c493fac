"""Measure how often a reward model prefers the better of two memories: `python eval/learning/reward_model.py`.

Trains one on pairs of memories made from training conversations of the demo's world (`memalpha.qa.memory_pairs`), on
the trunk of the shipped tiny policy, and asks it about pairs of held-out conversations, whose values never occur in
training. Beside it what needs no model. Intervals are 95 % ones of the mean over seeds (Student's t). Runs that are
complete are not trained again.
"""

from __future__ import annotations

import json
import re
import statistics
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any

import memalpha
from memalpha.config import RewardModelConfig, WorldConfig, build_config
from memalpha.qa.memory_pairs import FAULTS, MemoryPair, memory_pairs, write_memory_pairs
from memalpha.tasks.synthetic import worlds as synthetic

sys.path.insert(0, str(Path(__file__).parents[1]))
from common import format_interval, make_parser, opening, save

TEST = 100
"""Number of held-out conversations, with six pairs each."""


def words(text: str) -> Counter[str]:
    """Count the words of a text."""
    return Counter(re.findall(r"\w+", text.lower()))


def overlap(conversation: str, memory: str) -> float:
    """Return the F1 of the words of both texts."""
    first, second = words(conversation), words(memory)
    shared = (first & second).total()
    return 2 * shared / (first.total() + second.total())


RANDOM = Random(0)
BASELINES: dict[str, Callable[[str, str], float]] = {
    "shorter is better": lambda conversation, memory: -len(memory),
    "longer is better": lambda conversation, memory: len(memory),
    "word overlap": overlap,
    "random": lambda conversation, memory: RANDOM.random(),
}


def train(out: Path, seed: int, tasks: int, each: int, pooling: str) -> dict[str, Any]:
    """Train one reward model and return its run's summary with CPU-minutes.

    Args:
        out: Folder of data and run.
        seed: Seed of data and run.
        tasks: Number of training conversations.
        each: Pairs of each conversation.
        pooling: Setting `pooling` of the reward model.
    """
    data, run, minutes_file = out / "train.jsonl", out / "run", out / "cpu-minutes.json"
    held_out = out / "test.jsonl"
    if not data.exists():
        world = WorldConfig(pseudo_values=0.6)  # as presets/demo.yaml
        write_memory_pairs(data, memory_pairs(synthetic.tasks(world, seed, 0, tasks), each, seed=seed))
        write_memory_pairs(held_out, memory_pairs(synthetic.tasks(WorldConfig(), -1, 0, 40), 3, seed=seed))
    settings = {
        "policy": "tiny",
        "data": data,
        "eval_data": held_out,
        "out": run,
        "seed": seed,
        "pooling": pooling,
        "learning_rate": 1e-3,
        "warmup_steps": 10,
        "validate_every": 50,
        "save_every": 50,
    }
    start = time.process_time()
    summary = memalpha.train(build_config(RewardModelConfig, settings, "reward_model"))
    if not minutes_file.exists():
        minutes_file.write_text(json.dumps((time.process_time() - start) / 60), encoding="utf-8")
    return {**summary, "cpu_minutes": json.loads(minutes_file.read_text(encoding="utf-8"))}


def shares(pairs: Sequence[MemoryPair], chosen: Sequence[float], rejected: Sequence[float]) -> dict[str, float]:
    """Return the share of pairs in the right order (a tie counts half): of all, by fault, by number of faults.

    Args:
        pairs: Pairs of memories.
        chosen: Scores of the better memories.
        rejected: Scores of the worse memories.
    """
    values_by_name: dict[str, list[float]] = defaultdict(list)
    for pair, chosen_score, rejected_score in zip(pairs, chosen, rejected, strict=True):
        credit = 1.0 if chosen_score > rejected_score else 0.5 if chosen_score == rejected_score else 0.0
        for name in ("all", pair.fault, f"{pair.grade} fault{'s' * (pair.grade > 1)}"):
            values_by_name[name].append(credit)
    return {name: statistics.mean(values) for name, values in values_by_name.items()}


def main() -> None:
    """Train, score and record."""
    parser = make_parser(__doc__, out=Path("runs/reward-model"), seeds=[0, 1, 2])
    parser.add_argument("--tasks", type=int, default=1200, help="training conversations")
    parser.add_argument("--each", type=int, default=6, help="pairs of each")
    parser.add_argument("--pooling", default="attention")
    args = parser.parse_args()
    runs = {s: train(args.out / f"seed-{s}", s, args.tasks, args.each, args.pooling) for s in args.seeds}
    pairs = memory_pairs(synthetic.tasks(WorldConfig(split="test"), -1, 0, TEST), 6)
    prompts, better, worse = ([getattr(p, name) for p in pairs] for name in ("prompt", "chosen", "rejected"))
    models: dict[int, dict[str, float]] = {}
    for seed in args.seeds:
        model = memalpha.load_reward_model(args.out / f"seed-{seed}" / "run")
        models[seed] = shares(pairs, model.score(prompts, better), model.score(prompts, worse))
    texts = [prompt[0]["content"] for prompt in prompts]
    plain = {
        name: shares(
            pairs,
            [rule(text, memory) for text, memory in zip(texts, better, strict=True)],
            [rule(text, memory) for text, memory in zip(texts, worse, strict=True)],
        )
        for name, rule in BASELINES.items()
    }
    names = ["all", *FAULTS, "1 fault", "2 faults", "3 faults"]
    first = runs[args.seeds[0]]
    minutes = ", ".join(f"{run['cpu_minutes']:.1f}" for run in runs.values())
    lines = [
        *opening("Reward models on memories of different quality"),
        f"Trunk: the shipped tiny policy ({first['policy_parameters']:,} parameters), pooling {args.pooling}; "
        f"{first['pairs']:,} pairs of {args.tasks} training conversations, {first['steps']} steps; "
        f"CPU-minutes by seed: {minutes}.",
        f"Share of {len(pairs)} pairs of {TEST} held-out conversations (values that never occur in training) in the "
        f"right order; seeds {args.seeds}, mean ± half of the 95 % interval over seeds.",
        "",
        "| | " + " | ".join(names) + " |",
        "|---|" + "---|" * len(names),
        "| **reward model** | "
        + " | ".join(format_interval([m[name] for m in models.values()]) for name in names)
        + " |",
    ]
    lines += [f"| {rule} | " + " | ".join(f"{of[name]:.3f}" for name in names) + " |" for rule, of in plain.items()]
    lines += ["", "Every seed (all pairs): " + ", ".join(f"{s}: {m['all']:.3f}" for s, m in models.items()) + "."]
    value = {"command": sys.argv, "runs": runs, "models": models, "baselines": plain, "pairs": len(pairs)}
    save(args.results / "reward-model", value, "\n".join(lines))
    print("\n".join(lines))


if __name__ == "__main__":
    main()
