"""Memory tasks as a `datasets.Dataset`, and back: a row a task, with the keys of `formats.jsonl`.

Chunks, turns, questions and gold operations are lists of structs. `meta`, whose keys differ from task to task, is JSON
in a text; rows of others may hold it as a struct. Empty values of a row are left out, as in JSON Lines.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from memalpha.errors import DataError, install_command
from memalpha.tasks.formats.jsonl import POSITIONS, check_tasks, parse_task
from memalpha.types import Task

if TYPE_CHECKING:
    from datasets import Dataset


def to_dataset(tasks: Iterable[Task]) -> Dataset:
    """Return tasks as a `datasets.Dataset`, which `load_tasks` reads back as equal tasks.

    Raises:
        DataError: datasets is not installed, there is no task, or a task cannot be written as JSON Lines either.
    """
    try:
        import datasets
    except ModuleNotFoundError:
        raise DataError(f"a Dataset needs the package datasets: {install_command('train')}") from None
    rows = [_row(task) for task in check_tasks(tasks)]
    if not rows:
        raise DataError("there is no task: give at least one")
    return datasets.Dataset.from_list(rows, features=datasets.Features(_features(datasets.Value, datasets.List)))


def from_dataset(rows: Iterable[Mapping[str, Any]]) -> list[Task]:
    """Return the tasks of the rows of a `datasets.Dataset`.

    Raises:
        DataError: A row is no task; names its number, from 0, and the field. There is none, or two have one id.
    """
    tasks, first_row = [], {}
    for number, row in enumerate(rows):
        location = f"row {number}"
        task = parse_task(json.dumps(_drop_empty(row)).encode(), location)
        if task.id in first_row:
            raise DataError(f"{location}: id: task {task.id!r} is already in row {first_row[task.id]}: ids are unique")
        first_row[task.id] = number
        tasks.append(task)
    if not tasks:
        raise DataError("the data set holds no row")
    return tasks


def _row(task: Task) -> dict[str, Any]:
    row = task.model_dump(exclude=POSITIONS)
    for fields in (row, *row["questions"]):
        fields["meta"] = json.dumps(fields["meta"], ensure_ascii=False, allow_nan=False)
    return row


def _drop_empty(value: Any) -> Any:
    """Return a row without the values that are None or empty lists, and with `meta` as a mapping."""
    if isinstance(value, Mapping):
        fields = {key: _parse_meta(part) if key == "meta" else _drop_empty(part) for key, part in value.items()}
        return {key: part for key, part in fields.items() if part is not None and part != []}
    return [_drop_empty(part) for part in value] if isinstance(value, list | tuple) else value


def _parse_meta(meta: Any) -> Any:
    if not isinstance(meta, str):
        return meta
    try:
        return json.loads(meta)
    except ValueError:
        return meta  # refused with its place, as any other text there


def _features(value: Any, list_of: Any) -> dict[str, Any]:
    text, number = value("string"), value("int64")
    turn = {"speaker": text, "text": text, "id": text}
    question = {
        "id": text,
        "question": text,
        "answers": list_of(text),
        "category": text,
        "evidence": list_of(text),
        "asked_after_chunk": number,
        "meta": text,
    }
    gold = {"kind": text, "chunk": number, "category": text, "content": text, "replaces": text, "timestamp": text}
    return {
        "id": text,
        "chunks": list_of({"text": text, "turns": list_of(turn), "timestamp": text}),
        "questions": list_of(question),
        "gold_operations": list_of({**gold, "turn": text}),
        "meta": text,
    }
