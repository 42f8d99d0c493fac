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


def choose_example(tasks: Sequence[Task]) -> int:
    """Return the index of the first task whose gold operations hold an update and a delete.

    If there is none, the first with an update; else 0.
    """
    kinds = [{operation.kind for operation in task.gold_operations} for task in tasks]
    for required in ({"update", "delete"}, {"update"}):
        for index, present in enumerate(kinds):
            if required <= present:
                return index
    return 0


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


def write_example(path: Path, task: Task, systems: Mapping[str, tuple[Trajectory, Sequence[Record]]]) -> None:
    """Write `eval/example.json`: the task's chunks, and each system's walk by name.

    The file is ASCII: a model's text may hold half a surrogate pair, which UTF-8 cannot encode.

    Args:
        path: File to write.
        task: Task of the conversation.
        systems: Trajectory and records by system name (`before`, `after`).
    """
    value = {
        "task": task.id,
        "chunks": [{"timestamp": chunk.timestamp, "text": chunk.render()} for chunk in task.chunks],
        "systems": {name: walk_trajectory(trajectory, records) for name, (trajectory, records) in systems.items()},
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")


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
