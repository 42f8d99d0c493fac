"""Gold operations, and rollouts that make given calls, for tests of rewards, records and judges."""

from typing import Any

from memalpha.agent.parsing import format_call
from memalpha.agent.replies import act
from memalpha.store.embedding import HashEmbedder
from memalpha.store.memory import WorkingMemory
from memalpha.store.schema import load_schema
from memalpha.store.state import MemoryState
from memalpha.types import Completion, GoldOperation, Task, Trajectory

EMBEDDER = HashEmbedder(64)
SCHEMA = load_schema("mem-alpha")

Call = tuple[str, dict[str, Any]]
skip: Call = ("memory_skip", {})
broken: Call = ("", {})
"""A call that cannot be read."""


def insert(content: str, category: str = "semantic") -> Call:
    return "memory_insert", {"category": category, "content": content}


def update(old: str, new: str) -> Call:
    return "memory_update", {"of": old, "content": new}


def delete(old: str) -> Call:
    return "memory_delete", {"of": old}


def gold(kind: Any, chunk: int, content="", replaces=None, *, turn=None, category="semantic") -> GoldOperation:
    return GoldOperation(kind=kind, chunk=chunk, category=category, content=content, replaces=replaces, turn=turn)


def roll(task: Task, *turns: list[Call], rollout: int = 0) -> Trajectory:
    """Return a rollout whose turn i makes the calls `turns[i]`, and none at the chunks after them.

    The argument `of` of a call stands for the id of the entry with that content.
    """
    memory = WorkingMemory(MemoryState.empty(SCHEMA), EMBEDDER)
    made, states = [], []
    for chunk, calls in zip(task.chunks, [*turns, *[[]] * (len(task.chunks) - len(turns))], strict=True):
        text, ids = "", {entry.content: entry.id for entry in memory.list()}
        for name, arguments in calls:
            plain = {key: value for key, value in arguments.items() if key != "of"}
            if "of" in arguments:
                plain["id"] = ids.get(arguments["of"], "none#0")
            text += format_call(name, plain) if name else "<tool_call>{"
        made.append(act(memory, chunk, Completion(text)))
        states.append(memory.state)
    return Trajectory(task, rollout, tuple(made), tuple(states))
