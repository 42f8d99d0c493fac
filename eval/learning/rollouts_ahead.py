"""Measure what sampling beside learning saves: `python eval/learning/rollouts_ahead.py`.

Sampler and learner are slow by sleeping, so the seconds say nothing about this machine's cores. The server is the
stand-in of the tests over the shipped policy `tiny`; each reply waits a time that its seed draws evenly from a range,
beside all others. The learner sleeps --learning seconds a step. First the demo's conversations of three chunks with
staleness 0, 1 and 2; then conversations of 3, 10 and 50 chunks, with episodes in lock-step, at their own pace, and at
their own pace with staleness 1 and 4. Figures are of the
time from the fourth update on, when the queue is as full as it gets.
Writes `rollouts-ahead.json` and `rollouts-ahead.md` to --results.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

from memalpha.config import WorldConfig
from memalpha.environments.memory_writing import WritingEpisode
from memalpha.policy.noise import request_seed
from memalpha.tasks.synthetic import worlds
from memalpha.train.algorithms.grpo import GRPO
from memalpha.train.api import train
from memalpha.train.rollouts.weight_sync import CANARY_PROMPTS
from memalpha.types import Chunk, Task

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(1, str(Path(__file__).parent))
sys.path.append(str(Path(__file__).parents[2] / "tests" / "support"))
from common import make_parser, opening, read_metrics, save

LENGTHS = (3, 10, 50)
FIRST = 3
"""Step whose start begins the window: before it a queue still fills."""

CANARY_SEEDS = frozenset(request_seed((index,)) for index in range(CANARY_PROMPTS))

STARTS: list[float] = []
"""Times at which the learner began a step."""
SLEEP = [0.0]
"""Seconds that the learner sleeps in a step."""


class SlowGRPO(GRPO):
    """GRPO whose steps take `SLEEP` longer."""

    def refresh(self, samples: Any, score: Any) -> Any:
        """Sleep, and change nothing."""
        STARTS.append(time.monotonic())
        time.sleep(SLEEP[0])
        return samples


def mean_in_flight(changes: Sequence[tuple[float, int]], start: float, end: float) -> float:
    """Return the mean number of requests under way in a window.

    Args:
        changes: (time, requests from then on), ascending.
        start: Start of the window.
        end: End of the window.
    """
    total, count, last = 0.0, 0, start
    for moment, requests in changes:
        if moment > start:
            total += count * (min(moment, end) - last)
            last = min(moment, end)
        count = requests
        if moment >= end:
            break
    return (total + count * max(0.0, end - last)) / (end - start)


def wait(seed: int, replies: tuple[float, float]) -> float:
    """Return the seconds that a reply waits; the canary's prompts wait for nothing."""
    return 0.0 if seed in CANARY_SEEDS else Random(seed).uniform(*replies)


def run(replies: tuple[float, float], arguments: argparse.Namespace, settings: dict[str, Any]) -> dict[str, Any]:
    """Train a run on a slow server and return its figures.

    Args:
        replies: Shortest and longest wait of a reply in seconds.
        arguments: Arguments of the command line.
        settings: Settings of the run beside those that all have.
    """
    import rollouts_ahead  # the module that the run imports the algorithm from
    from vllm_server import VllmServer

    rollouts_ahead.STARTS.clear()
    rollouts_ahead.SLEEP[0] = arguments.learning
    model = Path(__file__).parents[2] / "memalpha" / "weights" / "tiny"
    with (
        tempfile.TemporaryDirectory() as folder,
        VllmServer(model, delay=lambda body, _: wait(body.get("seed", 0), replies)) as server,
    ):
        out = Path(folder) / "run"
        shape: dict[str, Any] = {"policy": str(model), "out": out, "algorithm": "rollouts_ahead:SlowGRPO"}
        shape |= {"agent": {"max_new_tokens": 1}, "reader": {"kind": "extractive"}, "stop_unreadable": False}
        shape |= {
            "max_steps": arguments.steps,
            "schedule_steps": arguments.steps + 8,
            "warmup_steps": 0,
            "minibatches": 1,
        }
        shape |= {"eval_tasks": 1, "validation_tasks": 0, "save_every": 1000, "sample_dtype": None}
        shape |= {"sampler": {"url": server.url, "tolerance": 1e-3}, "keep_tokens": False}
        train("demo", **{**shape, **settings})
        metrics = read_metrics(out)
        changes = list(server.in_flight)
    start, end = rollouts_ahead.STARTS[FIRST], rollouts_ahead.STARTS[-1]
    replies_in_window = sum(after[1] < before[1] and start <= after[0] <= end for before, after in pairwise(changes))
    return {
        "seconds a step": (end - start) / (len(rollouts_ahead.STARTS) - 1 - FIRST),
        "waited": statistics.mean(line["wait_seconds"] for line in metrics[FIRST + 1 :]),
        "in flight": mean_in_flight(changes, start, end),
        "replies a second": replies_in_window / (end - start),
        "staleness": statistics.mean(line.get("staleness_mean", 0.0) for line in metrics[FIRST + 1 :]),
        "dropped groups": sum(line.get("dropped_groups", 0.0) for line in metrics[FIRST + 1 :]),
    }


def write_conversations(path: Path, count: int, lengths: Sequence[int] = LENGTHS) -> None:
    """Write tasks of different lengths.

    Args:
        path: Task file.
        count: Number of tasks.
        lengths: Chunks of the tasks, in turn.
    """
    lines = []
    for number in range(count):
        length = lengths[number % len(lengths)]
        parts = worlds.tasks(WorldConfig(), 5, number * max(lengths), length)
        chunks = [Chunk(text=chunk.render()) for part in parts for chunk in part.chunks][:length]
        questions = [question.model_copy(update={"asked_after_chunk": None}) for question in parts[0].questions]
        questions = [question.model_copy(update={"evidence": ()}) for question in questions]
        lines.append(Task(id=f"t{number}", chunks=tuple(chunks), questions=tuple(questions)).model_dump_json() + "\n")
    path.write_text("".join(lines), encoding="utf-8")


def table(results: Sequence[dict[str, Any]]) -> list[str]:
    """Format results as lines of a Markdown table."""
    names = list(results[0])
    lines = ["| " + " | ".join(names) + " |", "|" + "---|" * len(names)]
    for result in results:
        cells = [f"{value:.2f}" if isinstance(value, float) else str(value) for value in result.values()]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def main() -> None:
    """Measure, record and print."""
    parser = make_parser(__doc__)
    parser.add_argument("--steps", type=int, default=8, help="steps of a run")
    parser.add_argument("--learning", type=float, default=6.0, help="seconds that the learner sleeps in a step")
    parser.add_argument("--long", type=int, default=6, help="steps of a run on conversations of 3, 10 and 50 chunks")
    parser.add_argument("--reuse", action="store_true", help="take the first table from the record in --results")
    arguments = parser.parse_args()
    short: list[dict[str, Any]] = []
    if arguments.reuse:
        earlier = json.loads((arguments.results / "rollouts-ahead.json").read_text(encoding="utf-8"))
        short, arguments.learning = earlier["short"], earlier["learning"]
    for staleness in () if arguments.reuse else (0, 1, 2):
        shape = {"tasks_per_step": 2, "group_size": 4, "staleness": staleness}
        short.append({"staleness allowed": staleness, **run((0.8, 3.2), arguments, shape)})
        print(short[-1], file=sys.stderr, flush=True)
    unequal: list[dict[str, Any]] = []
    arguments.steps = arguments.long
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "tasks.jsonl"
        write_conversations(data, 60)
        for name, staleness in (("lock-step", 0), ("own pace", 0), ("own pace", 1), ("own pace", 4)):
            WritingEpisode.lock_step = name == "lock-step"
            shape = {"data": str(data), "tasks_per_step": 3, "group_size": 4, "staleness": staleness}
            unequal.append({"episodes": name, "staleness allowed": staleness, **run((0.1, 0.6), arguments, shape)})
            print(unequal[-1], file=sys.stderr, flush=True)
    WritingEpisode.lock_step = False
    record = {"short": short, "unequal": unequal, "learning": arguments.learning}
    text = [
        *opening("What sampling beside learning saves"),
        "Sampler and learner are slow by sleeping; the stand-in server computes little. A reply waits .8 to 3.2 s in",
        "the first table and .1 to .6 s in the second, beside all others; the learner sleeps",
        f"{arguments.learning:g} s a step. From the fourth update on. `in flight`: mean of the requests at the server;",
        "`waited`: seconds a step in which the learner waited for groups (staleness 0: for scores only, for it samples",
        "itself).",
        "",
        "Conversations of three chunks, 2 groups of 4 rollouts a step:",
        "",
        *table(short),
        "",
        "Conversations of 3, 10 and 50 chunks, 3 groups of 4 rollouts a step:",
        "",
        *table(unequal),
        "",
        "A group that takes longer than the allowed steps of the others is dropped: the longest conversations risk it",
        f"first. The second table is over {arguments.long - FIRST - 1} steps of each run. Server and learner share a",
        "process here, and the machine's two cores had other work.",
    ]
    save(arguments.results / "rollouts-ahead", record, "\n".join(text) + "\n")


if __name__ == "__main__":
    main()
