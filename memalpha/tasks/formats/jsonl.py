"""Tasks as JSON Lines: one task a line, UTF-8; a bad line is refused with file, line and field.

The shape is `memalpha.types.Task`: `{"id", "chunks": [{"text" | "turns": [{"speaker", "text", "id"}], "timestamp"}],
"questions": [{"id", "question", "answers", "category", "evidence", "asked_after_chunk", "meta"}], "gold_operations":
[…], "meta"}`. Blank lines are skipped; a chunk's `index` follows from its place and is not written.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from memalpha.errors import DataError
from memalpha.types import Chunk, GoldOperation, Question, SpeakerTurn, Task, is_iso_time

_PARTS: dict[str, type[BaseModel]] = {
    "chunks": Chunk,
    "turns": SpeakerTurn,
    "questions": Question,
    "gold_operations": GoldOperation,
}
_SHOWN = 3  # errors of one line that a message lists


def load_jsonl(path: str | Path) -> list[Task]:
    """All tasks of a file, in its order.

    Raises `DataError` naming `file:line` and the field for a line that is no task (unknown and repeated keys, NaN,
    empty ids and texts, evidence that names no turn, timestamps that are not ISO 8601, and gold operations that end a
    fact which does not hold included), for a task id that occurs twice, for a file that cannot be read, for one that
    is a single JSON value over several lines or a list, and for one without any task.
    """
    path = Path(path)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}): give the path of a JSON Lines file") from error
    tasks: list[Task] = []
    first_line: dict[str, int] = {}
    # Not splitlines(): JSON strings may hold U+2028 and the like.
    for number, raw in enumerate(data.removeprefix(b"\xef\xbb\xbf").split(b"\n"), start=1):
        if not raw.strip():
            continue
        where = f"{path}:{number}"
        try:
            task = _parse(raw, where)
        except DataError:
            if _is_one_value(data):
                raise DataError(
                    f"{path}: one JSON value, not JSON Lines: write one task a line, an object without line breaks"
                ) from None
            raise
        if task.id in first_line:
            raise DataError(f"{where}: id: task {task.id!r} is already on line {first_line[task.id]}: ids are unique")
        first_line[task.id] = number
        tasks.append(task)
    if not tasks:
        raise DataError(f"{path}: holds no task: write one JSON object a line")
    return tasks


def overview(tasks: Sequence[Task]) -> dict[str, Any]:
    """What training and evaluation will find in a file.

    Numbers of `tasks`, `chunks`, `questions` and of those `to_abstain` from, the `longest_chunk` in characters, the
    tasks `with_gold` operations, and how many gold operations each of their `categories` has.
    """
    asked = [question for task in tasks for question in task.questions]
    chunks = [chunk for task in tasks for chunk in task.chunks]
    gold = [operation for task in tasks for operation in task.gold_operations if operation.kind != "core_update"]
    return {
        "tasks": len(tasks),
        "chunks": len(chunks),
        "longest_chunk": max((len(chunk.render()) for chunk in chunks), default=0),
        "questions": len(asked),
        "to_abstain": sum(not question.answers for question in asked),
        "with_gold": sum(bool(task.gold_operations) for task in tasks),
        "categories": dict(sorted(Counter(operation.category for operation in gold).items())),
    }


def save_jsonl(tasks: Iterable[Task], path: str | Path) -> None:
    """Write one task a line (defaults left out); the file appears whole or not at all.

    `load_jsonl` reads back equal tasks. Raises `DataError` for a task that JSON cannot hold (NaN in `meta`) or that
    `load_jsonl` would refuse, and for a path that cannot be written.
    """
    path = Path(path)
    lines: list[str] = []
    seen: set[str] = set()
    for task in tasks:
        try:
            value = task.model_dump(exclude_defaults=True, exclude={"chunks": {"__all__": {"index"}}})
            line = json.dumps(value, ensure_ascii=False, allow_nan=False)
            line.encode()
        except (TypeError, ValueError) as error:
            raise DataError(f"task {task.id!r} cannot be written as JSON: {error}") from error
        for field, problem in problems(task):
            raise DataError(f"task {task.id!r}: {field}: {problem}")
        if task.id in seen:
            raise DataError(f"task {task.id!r} occurs twice: ids are unique")
        seen.add(task.id)
        lines.append(line + "\n")
    aside = path.with_name(path.name + ".part")
    try:
        aside.write_text("".join(lines), encoding="utf-8", newline="\n")
        aside.replace(path)
    except OSError as error:
        raise DataError(f"{path}: cannot be written ({error.strerror})") from error


def _parse(raw: bytes, where: str) -> Task:
    try:
        task = Task.model_validate_json(raw)
        # A second, stricter look: pydantic lets the last of two equal keys win and reads NaN.
        json.loads(raw, object_pairs_hook=_unique_keys, parse_constant=_refuse_constant)
    except ValidationError as error:
        items = error.errors()
        shown = "; ".join(_describe(item) for item in items[:_SHOWN])
        more = f"; and {len(items) - _SHOWN} more" if len(items) > _SHOWN else ""
        raise DataError(f"{where}: {shown}{more}") from error
    except ValueError as error:
        raise DataError(f"{where}: {error}") from error
    for field, problem in problems(task):
        raise DataError(f"{where}: {field}: {problem}")
    return task


def _is_one_value(data: bytes) -> bool:
    """Whether a file that is no JSON Lines is a list of tasks, or a single task over several lines."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return False
    return isinstance(value, list) or b"\n" in data.strip()


def _describe(item: Any) -> str:
    location: Sequence[str | int] = item["loc"]
    message = item["msg"].removeprefix("Value error, ")
    if item["type"] == "extra_forbidden":
        inside = next((_PARTS[part] for part in reversed(location[:-1]) if part in _PARTS), Task)
        message = f"unknown key: known are {', '.join(inside.model_fields)}"
    return f"{_field(location)}: {message}" if location else message


def _field(location: Sequence[str | int]) -> str:
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location)
    return text.removeprefix(".")


def problems(task: Task) -> Iterator[tuple[str, str]]:
    """What the types allow and a stream cannot have, as (field, problem)."""
    if not task.id.strip():
        yield "id", "empty: every task needs an id"
    turn_ids: set[str] = set()
    for i, chunk in enumerate(task.chunks):
        if not any(text.strip() for text in (chunk.text or "", *(turn.text for turn in chunk.turns))):
            yield f"chunks[{i}].{'text' if chunk.text is not None else 'turns'}", "empty: there is nothing to read"
        if chunk.timestamp is not None and not is_iso_time(chunk.timestamp):
            yield f"chunks[{i}].timestamp", f"{chunk.timestamp!r} is no ISO 8601 date or time (2024-05-01)"
        for j, turn in enumerate(chunk.turns):
            if turn.id is not None and turn.id in turn_ids:
                yield f"chunks[{i}].turns[{j}].id", f"turn id {turn.id!r} occurs twice in the task"
            if turn.id is not None:
                turn_ids.add(turn.id)
    for i, question in enumerate(task.questions):
        if not question.id.strip():
            yield f"questions[{i}].id", "empty: every question needs an id"
        if not question.question.strip():
            yield f"questions[{i}].question", "empty: nothing is asked"
        for j, answer in enumerate(question.answers):
            if not answer.strip():
                yield f"questions[{i}].answers[{j}]", "empty: where the right answer is to abstain, write answers: []"
        for j, turn_id in enumerate(question.evidence if turn_ids else ()):
            if turn_id not in turn_ids:
                yield f"questions[{i}].evidence[{j}]", f"no turn of the task has the id {turn_id!r}"
        if not isinstance(question.meta.get("stale", []), list | tuple):
            yield f"questions[{i}].meta.stale", "a list is needed: the values that no longer hold"
    for i, operation in enumerate(task.gold_operations):
        if not 0 <= operation.chunk < len(task.chunks):
            yield f"gold_operations[{i}].chunk", f"{operation.chunk} is outside 0..{len(task.chunks) - 1}"
        if operation.timestamp is not None and not is_iso_time(operation.timestamp):
            yield f"gold_operations[{i}].timestamp", f"{operation.timestamp!r} is no ISO 8601 date or time"
        if operation.kind in ("insert", "update") and not operation.content.strip():
            yield f"gold_operations[{i}].content", f"empty: what the {operation.kind} states"
        if turn_ids and operation.turn is not None and operation.turn not in turn_ids:
            yield f"gold_operations[{i}].turn", f"no turn of the task has the id {operation.turn!r}"
    live: set[tuple[str, str]] = set()
    for i, operation in sorted(enumerate(task.gold_operations), key=lambda item: item[1].chunk):
        if operation.kind == "core_update":
            continue
        if operation.kind != "insert":
            if (problem := _not_live(operation, live)) is not None:
                yield f"gold_operations[{i}].replaces", problem
            live.discard((operation.category, operation.replaces or ""))
        if operation.kind != "delete":
            live.add((operation.category, operation.content))


def _not_live(operation: GoldOperation, live: set[tuple[str, str]]) -> str | None:
    """Why an update or delete ends no fact that is live when it comes; None: it ends one."""
    if operation.replaces is None:
        return f"needed: the content that the {operation.kind} ends"
    if (operation.category, operation.replaces) in live:
        return None
    return f"no fact of {operation.category!r} says {operation.replaces!r} when the {operation.kind} comes"


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    keys: dict[str, Any] = {}
    for key, value in pairs:
        if key in keys:
            raise ValueError(f"{key}: the key occurs twice in one object")
        keys[key] = value
    return keys


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON: use null or a number")
