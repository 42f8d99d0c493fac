"""One conversation walked through, as plain JSON values: what the run directory keeps in `eval/example.json`.

Written by the training loop, which alone holds the trajectories; read by the report page. The conversation is chosen by
what happens in it, never by how well a writer did.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from memalpha.qa.records import Record
from memalpha.types import Task, ToolResult, Trajectory


def choose_example(tasks: Sequence[Task]) -> int:
    """Index of the first task whose gold operations hold an update and a delete (else an update, else the first)."""
    kinds = [{operation.kind for operation in task.gold_operations} for task in tasks]
    for required in ({"update", "delete"}, {"update"}):
        for index, present in enumerate(kinds):
            if required <= present:
                return index
    return 0


def walk_trajectory(trajectory: Trajectory, records: Sequence[Record]) -> dict[str, Any]:
    """One writer's way through its task: `chunks` (calls with results, memory after) and `answers`."""
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
    """Write `eval/example.json`: the task's chunks, and `walk` of each system by name (`before`, `after`).

    ASCII only: a model's text may hold half a surrogate pair, which UTF-8 cannot.
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
