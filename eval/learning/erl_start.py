"""Measure the value of advice to a start for ERL.

    python eval/learning/erl_start.py --start runs/erl-start/checkpoints/best

The conversations are of the demo's training world, and no run trains on them or holds them out. After the attempts come
second attempts with the policy's own advice, with gold advice (from the gold operations), with another conversation's
gold advice, and without advice. All attempts below an accuracy of 1 are retried; both accuracies are over these. Second
attempts have seen feedback, so their accuracy is no test accuracy. Writes `erl-start.json` and `.md`.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch

from memalpha import load_policy
from memalpha.config import ERLSettings, TrainConfig, load_config
from memalpha.environments import RolloutEngine, Start
from memalpha.environments.memory_writing import MemoryWriting
from memalpha.policy.transformers import TransformersPolicy
from memalpha.qa.evaluate import MemoryScorer
from memalpha.qa.memory_reward import MemoryReward
from memalpha.qa.reader import load_reader
from memalpha.qa.report import mean_and_error
from memalpha.qa.scoring.memory import evaluate_memory
from memalpha.tasks.synthetic import worlds as synthetic
from memalpha.train.rollouts.reflection import (
    MemoryReflection,
    extract_advice,
    reflection_requests,
)
from memalpha.train.trainers.reflection_demos import evidence_operations, format_advice
from memalpha.types import TrajectoryGroup

sys.path.insert(0, str(Path(__file__).parents[1]))
from common import make_parser, opening, save

SEED = 0
TASKS_SEED = 77
"""Seed of conversations that no run is evaluated with, so choices made on them are not fitted to held-out ones."""


def figure(values: list[list[float]]) -> dict[str, float | None]:
    """Return the mean over all questions and its standard error over conversations."""
    return dict(zip(("accuracy", "se"), mean_and_error(values), strict=True))


def measure(name: str, count: int, temperature: float) -> dict[str, Any]:
    """Measure attempts and second attempts of one policy.

    Args:
        name: Policy or checkpoint.
        count: Number of conversations.
        temperature: Sampling temperature; 0 is greedy.
    """
    config = load_config(TrainConfig, "erl")
    policy, tiny = load_policy(name), load_policy("tiny")
    assert isinstance(policy, TransformersPolicy)
    reader = load_reader(config.reader.model_copy(update={"policy": None, "conflicts": "refuse"}), tiny)
    writing = MemoryWriting(config.agent, policy.count_tokens)
    engine = RolloutEngine(policy, writing)
    scorer = MemoryScorer(reader, MemoryReward(config.reward, policy.count_tokens), writing.embedder)
    reflection = MemoryReflection(writing, scorer)
    tasks = synthetic.tasks(config.world.model_copy(update={"pseudo_values": 0.0}), TASKS_SEED, 0, count)

    groups = engine.roll_out(tasks, 1, temperature, SEED)
    records = evaluate_memory(groups, reader, embedder=writing.embedder)
    task_records = [item for group in records for item in group]
    settings = ERLSettings(feedback_tokens=512, reflection_tokens=48)
    candidates = reflection.candidates(groups, records, 0, settings)
    earlier: list[tuple[str, ...]] = [()] * len(candidates)
    tokens = settings.reflection_tokens
    requests = reflection_requests(policy, reflection.prompt, candidates, earlier, tokens, temperature, SEED, 0)
    own_advice = [extract_advice(reply.text) for reply in policy.sample(requests)]
    gold_advice = [
        format_advice(
            evidence_operations(item.attempt.task, [r for r in task_records[item.task_index] if not r.correct]),
            "compact",
        )
        for item in candidates
    ]
    first = [[float(record.correct) for record in task_records[item.task_index]] for item in candidates]
    result: dict[str, Any] = {
        "policy": Path(name).parts[-3] if "checkpoints" in Path(name).parts else Path(name).name,
        "temperature": temperature,
        "attempts": figure([[float(record.correct) for record in item] for item in task_records]),
        "tried_again": len(candidates),
        "first": figure(first),
    }
    pairs = [(set(a.split(",")) - {""}, set(b.split(",")) - {""}) for a, b in zip(own_advice, gold_advice, strict=True)]
    shared_count, own_count = sum(len(a & b) for a, b in pairs), sum(len(a) for a, _ in pairs)
    result["advice_precision"] = shared_count / max(1, own_count)
    result["advice_recall"] = shared_count / max(1, sum(len(b) for _, b in pairs))
    for kind, advice in {
        "own": own_advice,
        "gold": gold_advice,
        "another's": gold_advice[1:] + gold_advice[:1],
        "none": [""] * len(own_advice),
    }.items():
        starts = [
            Start(item.attempt.task, item.task_index, 0, text) for item, text in zip(candidates, advice, strict=True)
        ]
        retries = [TrajectoryGroup(t.task, (t,)) for t in engine.run(starts, temperature, SEED, 0, role="retry")]
        answers = evaluate_memory(retries, reader, embedder=writing.embedder)
        second = [[float(r.correct) for r in item] for group in answers for item in group]
        gains = [[b - a for a, b in zip(x, y, strict=True)] for x, y in zip(first, second, strict=True)]
        gain = dict(zip(("gain", "gain_se"), mean_and_error(gains), strict=True))
        passed = sum(sum(item) / len(item) >= 0.75 for item in second) / len(second)
        result[kind] = {**figure(second), **gain, "at_least_0.75": passed}
    return result


def table(rows: list[dict[str, Any]], count: int) -> str:
    """Format all results as Markdown."""
    kinds = ("own", "gold", "another's", "none")
    lines = [
        *opening("What advice is worth to a start for ERL"),
        f"{count} conversations of the demo's training world; ± is the standard error over conversations. Second",
        "attempts were told what had been wrong, so their accuracy is none of a test.",
        "",
        "| policy | temperature | attempts | those tried again | "
        + " | ".join(f"advice: {kind}" for kind in kinds)
        + " |",
        "|---|---|---|---|" + "---|" * len(kinds),
    ]

    def cell(value: dict[str, Any]) -> str:
        return f"{value['accuracy']:.3f} ± {value['se']:.3f}"

    for row in rows:
        cells = [row["policy"], f"{row['temperature']:g}", cell(row["attempts"]), f"{cell(row['first'])}"]
        lines.append("| " + " | ".join([*cells, *(cell(row[kind]) for kind in kinds)]) + " |")
    lines += ["", "What the start's own advice names of what the gold operations would: "]
    lines += [
        f"* {row['policy']}, temperature {row['temperature']:g}: precision {row['advice_precision']:.2f}, recall "
        f"{row['advice_recall']:.2f}"
        for row in rows
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure, write and print."""
    parser = make_parser(__doc__)
    parser.add_argument("--start", default="runs/erl-start/checkpoints/best")
    parser.add_argument("--tasks", type=int, default=100)
    args = parser.parse_args()
    torch.set_num_threads(1)
    rows = [measure(name, args.tasks, heat) for name in ("tiny", args.start) for heat in (0.0, 1.0)]
    save(args.results / "erl-start", rows, table(rows, args.tasks))


if __name__ == "__main__":
    main()
