"""HaluMem (Chen et al. 2025; CC BY-NC-ND 4.0): a user is a task, asked after each session.

Memory points are gold operations: an update where the point it replaces holds at that time, else an insert. Points of
source "interference" are false on purpose and are in `task.meta["interference"]` as (chunk, content). Questions of type
"Memory Boundary" ask for facts that were never stated: no answer, the official reply is in `meta["refused"]`. Evidence
are memory points, not turns: their texts are in `meta["memories"]`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from memalpha.tasks.chunking import TaskBuilder, read_question, require_iso_time, require_objects, to_iso_time
from memalpha.tasks.dataset_info import shipped_card
from memalpha.tasks.formats.files import find_file, iter_json_lines, read_turn, require_field
from memalpha.types import GoldOperation, Question, Task

DATA = shipped_card("halumem")

CATEGORIES = {"Persona Memory": "semantic", "Relationship Memory": "semantic", "Event Memory": "episodic"}
"""Category of a memory by its `memory_type`."""

BOUNDARY = "Memory Boundary"
"""Question type whose right answer is to abstain."""


def load(path: Path, variant: str | None = None, limit: int | None = None) -> list[Task]:
    """Load the users.

    Args:
        path: Folder or file.
        variant: "Medium" or "Long".
        limit: Return the first `limit` users only.

    Raises:
        DataError: The file does not fit; the message names file, line, session and field.
    """
    lines = iter_json_lines(find_file(path, DATA.files_for(variant)[0].path))
    return [_task(user, location) for location, user in islice(lines, limit)]


def _task(user: Any, location: str) -> Task:
    id = require_field(user, "uuid", str, location)
    builder = TaskBuilder()
    gold: list[GoldOperation] = []
    interference: list[list[Any]] = []
    live: dict[str, str] = {}  # content → category of the facts that hold now
    questions: list[Question] = []
    sessions = require_objects(require_field(user, "sessions", list, location), f"{location}: sessions")
    for number, session in enumerate(sessions):
        session_location = f"{location}: session {number}"
        start = require_iso_time(session.get("start_time"), f"{session_location}: start_time")
        dialogue_location = f"{session_location}: dialogue"
        dialogue = require_objects(require_field(session, "dialogue", list, session_location), dialogue_location)
        turns = [read_turn(turn, f"s{number}_{n}", f"{dialogue_location}[{n}]") for n, turn in enumerate(dialogue)]
        builder.add_session(turns, start)
        chunk = max(builder.last_index, 0)
        for n, point in enumerate(require_objects(session.get("memory_points"), f"{session_location}: memory_points")):
            point_location = f"{session_location}: memory_points[{n}]"
            if require_field(point, "memory_source", str, point_location) == "interference":
                interference.append([chunk, require_field(point, "memory_content", str, point_location)])
            else:
                gold.extend(_operations(point, chunk, live, point_location))
        for item in require_objects(session.get("questions"), f"{session_location}: questions"):
            questions.append(_question(item, len(questions), chunk, f"{session_location}: question {len(questions)}"))
    meta: dict[str, Any] = {"interference": interference} if interference else {}
    return builder.build(id, questions, location, gold_operations=tuple(gold), meta=meta)


def _operations(point: Mapping[str, Any], chunk: int, live: dict[str, str], location: str) -> Iterator[GoldOperation]:
    """Yield a perfect writer's operations for one memory point, and update `live`.

    A point that the memory holds already gives none.
    """
    content, kind = (require_field(point, key, str, location) for key in ("memory_content", "memory_type"))
    if content in live or not content.strip():
        return
    category = CATEGORIES.get(kind, "semantic")
    ended = []
    if str(point.get("is_update")) == "True":
        originals = point.get("original_memories")
        ended = [old for old in map(str, originals) if old in live] if isinstance(originals, list) else []
    timestamp = to_iso_time(str(point.get("timestamp") or ""))
    replaced = next((old for old in ended if live[old] == category), None)
    for old in dict.fromkeys(ended):
        if old != replaced:
            yield GoldOperation(kind="delete", chunk=chunk, category=live[old], replaces=old)
        del live[old]
    live[content] = category
    yield GoldOperation(
        kind="update" if replaced is not None else "insert",
        chunk=chunk,
        category=category,
        content=content,
        replaces=replaced,
        timestamp=timestamp,
    )


def _question(item: Any, number: int, chunk: int, location: str) -> Question:
    kind = require_field(item, "question_type", str, location)
    meta = {
        "metric": DATA.metric,
        "benchmark": "halumem",
        "memories": [str(point.get("memory_content", "")) for point in require_objects(item.get("evidence"), location)],
        "difficulty": item.get("difficulty", ""),
    }
    return read_question(
        item, f"q{number}", location, meta, abstains=kind == BOUNDARY, category=kind, asked_after_chunk=chunk
    )
