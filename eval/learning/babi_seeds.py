"""Train bAbI with several seeds and compare append-only memories.

    python eval/learning/babi_seeds.py --out runs/babi-seeds --jobs 2

Each seed is the run of `memalpha train babi seed=N`. The trained writers are then evaluated again, beside memories that
append every gold fact and never update: one without a limit, and one with only the most recent E entries, where E is
the trained writers' mean number of entries. Each memory is read under two rules. `refuse`, the rule of training: two
live values of one slot give no right answer. `newest`, which suits an append-only memory: the newest value counts.
Writes `babi-seeds.json` and `babi-seeds.md` to --results. Completed runs and readings are not repeated.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from memalpha.config import TrainConfig, load_config
from memalpha.environments import memory_engine
from memalpha.policy.base import Policy
from memalpha.policy.load import load_policy
from memalpha.policy.scripted import ScriptedPolicy
from memalpha.qa.reader import load_reader
from memalpha.qa.records import Record
from memalpha.qa.report import mean_and_error
from memalpha.qa.scoring.memory import evaluate_memory
from memalpha.store.embedding import load_embedder
from memalpha.store.schema import load_schema
from memalpha.store.state import MemoryState
from memalpha.tasks.datasets import babi
from memalpha.types import Operation, Task, Trajectory, TrajectoryGroup

sys.path.insert(0, str(Path(__file__).parents[1]))
from common import default_jobs, format_deviation, make_parser, opening, run_memalpha, save

RULES = ("refuse", "newest")
PACKAGES = ("torch", "transformers", "numpy", "faiss-cpu", "memalpha")


def write_memories(policy: Policy, tasks: Sequence[Task], config: TrainConfig) -> list[TrajectoryGroup]:
    """Return the memories that a policy writes greedily.

    Args:
        policy: Policy to sample from.
        tasks: Streams to read.
        config: Configuration of the agent.
    """
    return memory_engine(policy, config.agent).roll_out(tasks)


def append_gold_facts(tasks: Sequence[Task], config: TrainConfig, max_entries: int | None) -> list[TrajectoryGroup]:
    """Return memories of all gold facts in the order in which they became true.

    Args:
        tasks: Streams to read.
        config: Configuration of the agent.
        max_entries: Number of most recent entries to keep; None keeps all.
    """
    schema, groups = load_schema(config.agent.memory_schema), []
    for task in tasks:
        state, states = MemoryState.empty(schema), []
        for chunk in task.chunks:
            for gold in task.gold_at(chunk.index):
                if gold.kind == "delete":
                    continue
                duplicate = state.find(gold.category, gold.content)
                if duplicate is not None:  # said again: it is the most recent now
                    state = state.apply(Operation("delete", id=duplicate.id))
                state = state.apply(Operation("insert", category=gold.category, content=gold.content))
            for entry in state.list()[: max(0, len(state.list()) - max_entries) if max_entries else 0]:
                state = state.apply(Operation("delete", id=entry.id))
            states.append(state)
        groups.append(TrajectoryGroup(task, (Trajectory(task, 0, (), tuple(states)),)))
    return groups


def mean_entries(groups: Iterable[TrajectoryGroup]) -> float:
    """Return the mean number of live entries at the end of a stream."""
    return statistics.mean(len(group.trajectories[0].states[-1].entries) for group in groups)


def scores(records: Iterable[Record]) -> dict[str, Any]:
    """Return (accuracy, standard error over streams) of all questions, by task, and by time of asking."""
    parts: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for record in records:
        asking_time = "again at the end" if ":again" in record.question_id else "in the stream"
        for part in ("all", record.ability, asking_time):
            parts[part][record.task].append(float(record.correct))
    return {part: mean_and_error(by_task.values()) for part, by_task in parts.items()}


def read_memories(
    name: str, out: Path, make: Callable[[], Sequence[TrajectoryGroup]], config: TrainConfig, start: Policy
) -> dict[str, Any]:
    """Evaluate the memories that `make` builds under both rules, and count their entries; results are cached in `out`.

    Args:
        name: Name of the system, and of its result file.
        out: Folder of result files.
        make: Builds the memories; called if there is no result file.
        config: Configuration of reader, reward and agent.
        start: Policy for a reader that needs one.
    """
    path = out / f"{name.replace(' ', '-')}.json"
    if path.exists():
        return json.loads(path.read_text(encoding="utf-8"))
    groups = make()
    results: dict[str, Any] = {"entries": mean_entries(groups)}
    for rule in RULES:
        reader = load_reader(config.reader.model_copy(update={"conflicts": rule}), start)
        evaluated = evaluate_memory(groups, reader, config.reward.metric, embedder=load_embedder(config.agent.embedder))
        results[rule] = scores(record for group in evaluated for records in group for record in records)
    path.write_text(json.dumps(results) + "\n", encoding="utf-8")
    print(f"read {name}", file=sys.stderr)
    return results


def table_row(label: str, system: dict[str, Any], columns: Sequence[str], rule: str = "refuse") -> str:
    """Return a table row: accuracy ± standard error over streams.

    Args:
        label: First cell.
        system: Result of `read_memories`.
        columns: Parts of `scores`.
        rule: One of `RULES`.
    """
    cells = [f"{mean:.3f} ± {error:.3f}" for mean, error in (system[rule][column] for column in columns)]
    return f"| {label} | " + " | ".join(cells) + f" | {system['entries']:.1f} |"


def seed_spread_row(label: str, systems: Sequence[dict[str, Any]], columns: Sequence[str], rule: str = "refuse") -> str:
    """Return a table row: mean ± standard deviation over seeds.

    Args:
        label: First cell.
        systems: Results of `read_memories`, one per seed.
        columns: Parts of `scores`.
        rule: One of `RULES`.
    """
    cells = [format_deviation([system[rule][column][0] for system in systems]) for column in columns]
    entry_count = statistics.mean(system["entries"] for system in systems)
    return f"| {label} | " + " | ".join(cells) + f" | {entry_count:.1f} |"


def table(summaries: Sequence[dict[str, Any]], systems: dict[str, Any], budget: int, jobs: int) -> str:
    """Return the report as Markdown.

    Args:
        summaries: Summaries of the runs.
        systems: Results of `read_memories` by name.
        budget: Entries of the limited append-only memory.
        jobs: Runs at a time.
    """
    first, seeds = summaries[0], [systems[f"seed {summary['seed']}"] for summary in summaries]
    tasks = sorted((name for name in seeds[0]["refuse"] if name.startswith("qa")), key=lambda name: int(name[2:]))
    parts = ["all", "in the stream", "again at the end"]
    lines = [
        *opening("bAbI over seeds, beside append-only memories", PACKAGES),
        f"{first['tasks']} held-out streams of official test stories ({first['questions']} questions),",
        f"{first['policy_parameters']:,} parameters, {first['steps']} steps, greedy evaluation. All seeds start from",
        "the shipped weights; the seed decides streams, sampling and order. ± is the standard error over streams; in",
        "the lines of means, the standard deviation over seeds. Entries are live entries at the end of a stream.",
        "",
        "## By task (two live values of one slot: no right answer)",
        "",
        "| memory | " + " | ".join(["all", *tasks]) + " | entries |",
        "|---|" + "---|" * (len(tasks) + 2),
        table_row("start", systems["start"], ["all", *tasks]),
        *(table_row(name, system, ["all", *tasks]) for name, system in systems.items() if name.startswith("seed")),
        seed_spread_row("seeds, mean ± sd", seeds, ["all", *tasks]),
    ]
    references = ["oracle", "append-only", f"append-only, last {budget}"]
    lines += [table_row(name, systems[name], ["all", *tasks]) for name in references]
    for rule, rule_text in (
        ("refuse", "no right answer from two live values"),
        ("newest", "the newest live value counts"),
    ):
        lines += ["", f"## By time of asking: {rule_text}", ""]
        lines += ["| memory | " + " | ".join(parts) + " | entries |", "|---|" + "---|" * (len(parts) + 1)]
        lines += [
            table_row("start", systems["start"], parts, rule),
            seed_spread_row("seeds, mean ± sd", seeds, parts, rule),
        ]
        lines += [table_row(name, systems[name], parts, rule) for name in references]
    lines += ["", "## What it took", ""]
    gain = [seed["refuse"]["all"][0] - systems["start"]["refuse"]["all"][0] for seed in seeds]
    for summary, seed_gain in zip(summaries, gain, strict=True):
        after = summary["after"]
        lines.append(
            f"- seed {summary['seed']}: gain {seed_gain:+.3f}; {summary['learning_minutes']:.1f} minutes of learning "
            f"(wall, {jobs} runs at a time), {summary['cpu_minutes']:.1f} CPU minutes with all evaluations; step "
            f"{summary['best_step']} kept; updates by the right id {summary['before']['update_hit']:.2f} → "
            f"{after['update_hit']:.2f}, valid calls {after['valid_calls']:.3f}"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    """Run the trainings, evaluate the memories, write the report."""
    parser = make_parser(__doc__, out=Path("runs/babi-seeds"), seeds=[0, 1, 2], jobs=default_jobs())
    parser.add_argument("extra", nargs="*", metavar="KEY=VALUE", help="overrides for all runs")
    arguments = parser.parse_args()
    with ThreadPoolExecutor(arguments.jobs) as pool:
        jobs = [(arguments.out / f"seed-{seed}", seed) for seed in arguments.seeds]
        words = {out: ["train", "babi", f"seed={seed}", f"out={out}", *arguments.extra] for out, seed in jobs}
        summaries = list(pool.map(lambda out: run_memalpha(words[out], out), words))
    config = load_config(TrainConfig, jobs[0][0] / "config.yaml")
    start = load_policy(config.policy)
    shape = config.evaluation.babi or config.babi
    tasks = babi.streams(shape, "test", 0, 0, min(config.evaluation.tasks, babi.streams_per_epoch(shape)))
    systems: dict[str, dict[str, Any]] = {}

    def add_system(name: str, make: Callable[[], Sequence[TrajectoryGroup]]) -> None:
        systems[name] = read_memories(name, arguments.out, make, config, start)

    add_system("start", lambda: write_memories(start, tasks, config))
    for out, seed in jobs:
        add_system(
            f"seed {seed}", lambda out=out: write_memories(load_policy(out / "checkpoints" / "best"), tasks, config)
        )
    budget = round(statistics.mean(systems[f"seed {seed}"]["entries"] for seed in arguments.seeds))
    add_system("oracle", lambda: write_memories(ScriptedPolicy("oracle"), tasks, config))
    add_system("append-only", lambda: append_gold_facts(tasks, config, None))
    add_system(f"append-only, last {budget}", lambda: append_gold_facts(tasks, config, budget))
    record = {"runs": summaries, "systems": systems}
    save(arguments.results / "babi-seeds", record, table(summaries, systems, budget, arguments.jobs))


if __name__ == "__main__":
    main()
