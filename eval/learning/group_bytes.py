"""Measure what a group of rollouts takes between processes: `python eval/learning/group_bytes.py`.

The shipped policy `tiny` writes memories over conversations of 3, 10 and 50 chunks, 8 rollouts each. "pickled" is the
group with its task and all memories, as torch gathers objects; "tokens" is what `group_codec` sends: tokens, log-probs,
calls, operations and rewards, compressed. CPU-seconds of both ways, packing and unpacking, are the least of --repeats.
Writes `group-bytes.json` and `group-bytes.md` to --results.
"""

from __future__ import annotations

import pickle
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(1, str(Path(__file__).parent))
from common import make_parser, opening, save
from rollouts_ahead import write_conversations

from memalpha.config import TrainConfig, training_config
from memalpha.environments.memory_writing import memory_engine
from memalpha.policy.load import load_policy
from memalpha.store.embedding import load_embedder
from memalpha.tasks.formats.jsonl import load_jsonl
from memalpha.train.rollouts.group_codec import ScoredGroup, _build, empty_memory, pack_group, unpack
from memalpha.types import Reward, Task, Trajectory, TrajectoryGroup

LENGTHS = (3, 10, 50)
ROLLOUTS = 8


def measure(group: TrajectoryGroup[Task], empty: Any, repeats: int) -> dict[str, Any]:
    """Return bytes and CPU-seconds of a group by both ways.

    Args:
        group: Scored group.
        empty: Memory before the first chunk.
        repeats: Measurements of the CPU-seconds.
    """
    scored = ScoredGroup(0, group, [[] for _ in group.trajectories], 0)
    pickled, packed = pickle.dumps([group]), pack_group(scored, level=1)
    turns = [turn for trajectory in group.trajectories for turn in trajectory.turns]
    return {
        "turns": len(turns),
        "tokens": sum(len(turn.completion.prompt_ids) + len(turn.completion.completion_ids) for turn in turns),
        "entries": statistics.mean(len(trajectory.states[-1].list()) for trajectory in group.trajectories),
        "pickled bytes": len(pickled),
        "token bytes": len(packed),
        "pickled seconds": least(lambda: pickle.loads(pickle.dumps([group])), repeats),
        "token seconds": least(lambda: _build(unpack(pack_group(scored, level=1)), group.task, empty), repeats),
    }


def least(work: Callable[[], Any], repeats: int) -> float:
    """Return the least CPU-seconds of some calls."""
    seconds = []
    for _ in range(repeats):
        start = time.process_time()
        work()
        seconds.append(time.process_time() - start)
    return min(seconds)


def sample(tasks: Sequence[Task]) -> list[TrajectoryGroup[Task]]:
    """Return rollouts of the shipped policy over tasks, each with a reward."""
    config = training_config("demo", {"out": "unused"})
    assert isinstance(config, TrainConfig)
    policy = load_policy("tiny")
    engine = memory_engine(policy, config.agent, load_embedder("hash"))
    groups = engine.roll_out(tasks, ROLLOUTS, config.sampling.temperature)
    return [TrajectoryGroup(group.task, tuple(map(rewarded, group.trajectories))) for group in groups]


def rewarded(trajectory: Trajectory[Task]) -> Trajectory[Task]:
    """Return a trajectory with a reward of the usual shape."""
    totals = tuple(1.0 + index / 7 for index in range(len(trajectory.turns)))
    names = ("answers", "calls", "compression", "content")
    reward = Reward(totals, dict.fromkeys(names, totals), dict.fromkeys(names, 0.1), totals[-1], frozenset(names[:1]))
    return Trajectory(trajectory.task, trajectory.rollout, trajectory.turns, trajectory.states, reward)


def main() -> None:
    """Measure, record and print."""
    parser = make_parser(__doc__)
    parser.add_argument("--repeats", type=int, default=5, help="measurements of the CPU-seconds")
    parser.add_argument("--tasks", type=int, default=3, help="conversations of each length")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    empty = empty_memory(memory_engine(load_policy("tiny"), TrainConfig(out=Path("unused")).agent).environment)
    record, lines = {}, []
    with tempfile.TemporaryDirectory() as folder:
        for length in LENGTHS:
            path = Path(folder) / f"{length}.jsonl"
            write_conversations(path, arguments.tasks, (length,))
            results = [measure(group, empty, arguments.repeats) for group in sample(load_jsonl(path))]
            record[str(length)] = results
            means = {name: statistics.mean(result[name] for result in results) for name in results[0]}
            ratios = [result["pickled bytes"] / result["token bytes"] for result in results]
            lines.append(
                f"| {length} | {means['tokens']:,.0f} | {means['entries']:.0f} | {means['pickled bytes']:,.0f} | "
                f"{means['token bytes']:,.0f} | {min(ratios):.1f} to {max(ratios):.1f} | "
                f"{1000 * means['pickled seconds']:.0f} | {1000 * means['token seconds']:.0f} |"
            )
    text = [
        *opening("Bytes of a group between processes"),
        f"Means over {arguments.tasks} conversations of each length, {ROLLOUTS} rollouts; milliseconds are CPU time of "
        "packing and unpacking.",
        "",
        "| chunks | tokens | entries at the end | bytes pickled | bytes as tokens | ratio, least to most "
        "| ms pickled | ms as tokens |",
        "|" + "---|" * 8,
        *lines,
    ]
    save(arguments.results / "group-bytes", record, "\n".join(text) + "\n")


if __name__ == "__main__":
    main()
