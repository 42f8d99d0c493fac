"""Walk through held-out conversations as plain JSON values: `eval/example.json` of a run directory.

The training loop writes the file, because it alone holds the trajectories; the report page reads it. Conversations are
chosen by their gold operations, never by a writer's result.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from memalpha.qa.records import Record
from memalpha.types import Task, ToolResult, Trajectory

EXAMPLES = 4
"""Conversations that a run records."""
MAX_CHARACTERS = 200_000
"""Text of all recorded conversations; the first is recorded whatever its length."""

Systems = Mapping[str, tuple[Trajectory, Sequence[Record]]]


def choose_examples(tasks: Sequence[Task], count: int = EXAMPLES) -> list[int]:
    """Return indices of tasks to walk through, by their gold operations.

    Tasks with an update and a delete come first, then tasks with an update, then the others, each in order. After the
    first, a task is skipped if it would bring the text of all beyond `MAX_CHARACTERS`.

    Args:
        tasks: Held-out tasks.
        count: Number of tasks, at most.
    """
    kinds = [{operation.kind for operation in task.gold_operations} for task in tasks]
    order = sorted(
        range(len(tasks)), key=lambda index: (not {"update", "delete"} <= kinds[index], "update" not in kinds[index])
    )
    chosen: list[int] = []
    size = 0
    for index in order:
        if len(chosen) == count:
            break
        length = sum(len(chunk.render()) for chunk in tasks[index].chunks)
        if not chosen or size + length <= MAX_CHARACTERS:
            chosen.append(index)
            size += length
    return chosen


def walk_trajectory(trajectory: Trajectory, records: Sequence[Record]) -> dict[str, Any]:
    """Return one writer's walk: `chunks` (calls with results, memory after each) and `answers`."""
    steps = []
    for chunk, state in enumerate(trajectory.states):
        turns = [turn for turn in trajectory.turns if turn.chunk == chunk]
        steps.append(
            {
                "calls": [_call_fields(result) for turn in turns for result in turn.results],
                "core": state.core,
                "memory": [
                    {"id": entry.id, "category": entry.category, "content": entry.content, "timestamp": entry.timestamp}
                    for entry in state.list()
                ],
            }
        )
    asked_after = {question.id: question.asked_after_chunk for question in trajectory.task.questions}
    last = len(trajectory.task.chunks) - 1
    answers = [
        {
            "question_id": record.question_id,
            "ability": record.ability,
            "question": record.question,
            "asked_after_chunk": last if asked_after[record.question_id] is None else asked_after[record.question_id],
            "gold": list(record.gold),
            "answer": record.answer,
            "correct": record.correct,
        }
        for record in records
        if record.task == trajectory.task.id
    ]
    return {"chunks": steps, "answers": answers}


def write_examples(path: Path, examples: Sequence[tuple[Task, Systems]]) -> None:
    """Write `eval/example.json`: chunks and walks of the first task, the others under "more".

    The file is ASCII: a model's text may hold half a surrogate pair, which UTF-8 cannot encode.

    Args:
        path: File to write.
        examples: Tasks, each with trajectory and records by system name (`before`, `after`).
    """
    first, *more = (_example(task, systems) for task, systems in examples)
    _write(path, {**first, "more": more} if more else first)


def add_walks(path: Path, system: str, walks: Mapping[str, tuple[Trajectory, Sequence[Record]]]) -> None:
    """Add one system's walks to `eval/example.json`.

    Args:
        path: File of `write_examples`.
        system: Name of the system.
        walks: Trajectory and records by task id; tasks of the file that are missing here stay as they are.
    """
    value = json.loads(path.read_text(encoding="utf-8"))
    for example in (value, *value.get("more", ())):
        if example["task"] in walks:
            example["systems"][system] = walk_trajectory(*walks[example["task"]])
    _write(path, value)


def _example(task: Task, systems: Systems) -> dict[str, Any]:
    return {
        "task": task.id,
        "chunks": [{"timestamp": chunk.timestamp, "text": chunk.render()} for chunk in task.chunks],
        "systems": {name: walk_trajectory(trajectory, records) for name, (trajectory, records) in systems.items()},
    }


def _write(path: Path, value: Mapping[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.part")  # an interrupted write leaves the file that is there
    part.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
    part.replace(path)


def _call_fields(result: ToolResult) -> dict[str, Any]:
    return {
        "name": result.call.name,
        "arguments": dict(result.call.arguments),
        "raw": result.call.raw,
        "ok": result.ok,
        "code": result.code,
        "message": result.message,
        "entry_id": result.entry_id,
        "category": result.category,
        "content": result.content,
        "before": result.before,
    }
