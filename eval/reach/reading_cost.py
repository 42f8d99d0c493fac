"""CPU time per chunk by the length of the conversation: `OMP_NUM_THREADS=1 python eval/reach/reading_cost.py`.

Writers without a model read synthetic conversations of the full world, session by session, into

- `store`: a `MemoryStore` file (`durability="normal"`), as `MemoryAgent.read` does;
- `memory`: a `WorkingMemory`, as the rollout engine does in training and evaluation.

A chunk costs the view of the memory (with its search), the writer's reply and the execution of its calls. Making the
conversation is not counted. Each measurement is a fresh process with one thread; the lengths take turns, and the
smallest time of the repeats counts. `ratio` is the time per chunk divided by that of the shortest conversation.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import tempfile
import time
from typing import Any

from memalpha.agent.agent import build_request
from memalpha.agent.apply import act
from memalpha.agent.observe import observe
from memalpha.config import AgentConfig, WorldConfig
from memalpha.environments import memory_engine
from memalpha.policy.scripted import ScriptedPolicy
from memalpha.store.store import MemoryStore
from memalpha.tasks.synthetic.worlds import generate
from memalpha.types import Task

WRITERS = ("add-all", "oracle")
MEMORIES = ("store", "memory")
LENGTHS = (8_000, 30_000, 120_000, 400_000)


def read_into_store(task: Task, policy: ScriptedPolicy, path: str) -> tuple[float, int]:
    """Read a task into a new store file and return (CPU seconds, live entries).

    Args:
        task: Conversation.
        policy: Writer.
        path: Path of the store's file.
    """
    config = AgentConfig()
    with MemoryStore.open(path, durability="normal") as store:
        store.search("warm up")
        start = time.process_time()
        for chunk in task.chunks:
            observation = observe(store, chunk, config, policy.count_tokens, task)
            [completion] = policy.sample([build_request(observation, config, store.schema)])
            act(store, chunk, completion, source=task.id)
        return time.process_time() - start, len(store.list())


def read_into_memory(task: Task, policy: ScriptedPolicy) -> tuple[float, int]:
    """Read a task into an in-memory state and return (CPU seconds, live entries)."""
    engine = memory_engine(policy, AgentConfig())
    engine.environment.embedder.encode(["warm up"])
    start = time.process_time()
    [group] = engine.roll_out([task])
    return time.process_time() - start, len(group.trajectories[0].states[-1].entries)


def measure(writer: str, memory: str, tokens: int) -> dict[str, Any]:
    """Read one conversation in this process and return its figures.

    Args:
        writer: One of `WRITERS`.
        memory: One of `MEMORIES`.
        tokens: Length of the conversation.
    """
    task = generate(WorldConfig(preset="full", split="test", tokens=tokens), 0, 0)
    policy = ScriptedPolicy(writer)
    if memory == "memory":
        seconds, entries = read_into_memory(task, policy)
    else:
        with tempfile.TemporaryDirectory() as folder:
            seconds, entries = read_into_store(task, policy, f"{folder}/memory.db")
    return {"chunks": len(task.chunks), "entries": entries, "seconds": seconds}


def measure_apart(writer: str, memory: str, tokens: int) -> dict[str, Any]:
    """Run `measure` in a process of its own.

    Args:
        writer: One of `WRITERS`.
        memory: One of `MEMORIES`.
        tokens: Length of the conversation.
    """
    command = [sys.executable, __file__, "--one", writer, memory, str(tokens)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return json.loads(done.stdout)


def main() -> None:
    """Measure every writer, memory and length, and print a table or JSON."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--writers", nargs="+", choices=WRITERS, default=WRITERS)
    parser.add_argument("--memories", nargs="+", choices=MEMORIES, default=MEMORIES)
    parser.add_argument("--lengths", nargs="+", type=int, default=LENGTHS, help="conversation lengths in tokens")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        writer, memory, tokens = options.one
        print(json.dumps(measure(writer, memory, int(tokens))))
        return
    rows = []
    for writer in options.writers:
        for memory in options.memories:
            runs: dict[int, list[dict[str, Any]]] = {tokens: [] for tokens in options.lengths}
            for _ in range(options.repeats):
                for tokens in options.lengths:
                    runs[tokens].append(measure_apart(writer, memory, tokens))
            shortest = None
            for tokens in options.lengths:
                best = min(runs[tokens], key=lambda run: run["seconds"])
                cost = 1000 * best["seconds"] / best["chunks"]
                shortest = cost if shortest is None else shortest
                row = {"writer": writer, "memory": memory, "tokens": tokens, "chunks": best["chunks"]}
                rows.append(
                    row
                    | {"entries": best["entries"], "ms_per_chunk": round(cost, 2), "ratio": round(cost / shortest, 2)}
                )
                if not options.json:
                    print("  ".join(f"{value:>9}" for value in rows[-1].values()), flush=True)
    if options.json:
        report = {"python": platform.python_version(), "machine": platform.machine(), "rows": rows}
        print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
