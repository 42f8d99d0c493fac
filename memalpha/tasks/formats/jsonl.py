"""Tasks as JSON Lines in UTF-8, one task a line, and as a `datasets.Dataset`, a row a task with the same keys.

An invalid line is refused with file, line and field. The format is that of `memalpha.types.Task`: `{"id", "chunks":
[{"text" | "turns": [{"speaker", "text", "id"}], "timestamp"}], "questions": [{"id", "question", "answers", "category",
"evidence", "asked_after_chunk", "meta"}], "gold_operations": […], "meta"}`. Blank lines are skipped. A chunk's `index`
follows from its position and is not written.

In a Dataset, chunks, turns, questions and gold operations are lists of structs. `meta`, whose keys differ from task to
task, is JSON in a text; rows of others may hold it as a struct. Empty values of a row are left out, as in JSON Lines.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ValidationError

from memalpha.arguments import (
    brief_repr,
    check_target,
    finite_float,
    locate_json_fault,
    refuse_constant,
    unique_keys,
)
from memalpha.errors import DataError, required_packages
from memalpha.text_files import NO_TEXT, UNFIT, split_json_items
from memalpha.types import Chunk, GoldOperation, Question, SpeakerTurn, Task, is_iso_time

_MODELS: dict[str, type[BaseModel]] = {
    "chunks": Chunk,
    "turns": SpeakerTurn,
    "questions": Question,
    "gold_operations": GoldOperation,
}
POSITIONS: Any = {"chunks": {"__all__": {"index"}}}
"""Fields that follow from positions and are not written."""
MESSAGES = (
    'messages in a .json file: [{"role": "user", "name": "Ana", "content": "Hi", "timestamp": "2024-05-01T10:30"}]'
)
"""How to write a chat, for error messages."""
_REMEDY = (
    f'write {{"id", "chunks": [{{"turns": [{{"speaker", "text"}}], "timestamp"}}], "questions"}}, or {MESSAGES}; for '
    "files of a published set give its name and data=FILE (memalpha data list)"
)
_MAX_ERRORS = 3  # errors of one line that a message lists


def load_jsonl(path: str | Path) -> list[Task]:
    """Load all tasks of a file, in its order: a task a line, or one JSON list of tasks.

    Raises:
        DataError: A line is no valid task; the message names `file:line` and the field. Unknown and repeated keys, NaN,
            empty ids and texts, unknown evidence, dates that are not ISO 8601 and gold operations that end a fact which
            does not hold are refused too. So are repeated task ids and a file without a task.
    """
    path = Path(path)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}): give the path of a JSON Lines file") from error
    tasks = parse_unique(split_json_items(data, str(path)))
    if not tasks:
        raise DataError(f"{path}: holds no task: write one JSON object a line")
    return tasks


def parse_unique(items: Iterable[tuple[str, Any]], parse: Callable[[Any, str], Task] | None = None) -> list[Task]:
    """Return the tasks of (location, JSON), whose ids must differ, as `parse` (default: `parse_task`) reads them."""
    places: dict[str, str] = {}
    tasks = []
    for location, raw in items:
        tasks.append(task := (parse or parse_task)(raw, location))
        if task.id in places:
            raise DataError(f"{location}: id: task {task.id!r} is at {places[task.id]} already: ids are unique")
        places[task.id] = location
    return tasks


def summarize_tasks(tasks: Sequence[Task]) -> dict[str, Any]:
    """Count what training and evaluation find in a task file.

    Returns:
        Numbers of `tasks`, `chunks`, `questions` and of those `to_abstain` from, the `longest_chunk` in characters, the
            number of tasks `with_gold` operations, and gold operations by category (`categories`).
    """
    questions = [question for task in tasks for question in task.questions]
    chunks = [chunk for task in tasks for chunk in task.chunks]
    gold = [operation for task in tasks for operation in task.gold_operations if operation.kind != "core_update"]
    return {
        "tasks": len(tasks),
        "chunks": len(chunks),
        "longest_chunk": max((len(chunk.render()) for chunk in chunks), default=0),
        "questions": len(questions),
        "to_abstain": sum(not question.answers for question in questions),
        "with_gold": sum(bool(task.gold_operations) for task in tasks),
        "categories": dict(sorted(Counter(operation.category for operation in gold).items())),
    }


def save_jsonl(tasks: Iterable[Task], path: str | Path) -> None:
    """Write one task a line, without default values.

    The file appears whole or not at all. `load_jsonl` reads back equal tasks.

    Raises:
        DataError: JSON cannot hold a task (NaN in `meta`), `load_jsonl` would refuse it, or the path is not writable.
    """
    path = Path(path)
    check_target(path, error=DataError)
    lines = [
        json.dumps(task.model_dump(exclude_defaults=True, exclude=POSITIONS), ensure_ascii=False) + "\n"
        for task in check_tasks(tasks)
    ]
    partial_file = path.with_name(path.name + ".part")
    try:
        partial_file.write_text("".join(lines), encoding="utf-8", newline="\n")
        partial_file.replace(path)
    except OSError as error:
        raise DataError(f"{path}: cannot be written ({error.strerror})") from error


def check_tasks(tasks: Iterable[Task]) -> Iterator[Task]:
    """Yield tasks that `load_jsonl` would read back as they are.

    Raises:
        DataError: An item is no `Task`, JSON cannot hold it (NaN in `meta`), `load_jsonl` would refuse it, or two have
            one id.
    """
    task_ids: set[str] = set()
    for task in tasks:
        if not isinstance(task, Task):
            raise DataError(f"{brief_repr(task)}: Task objects are needed; Task.model_validate makes one of a dict")
        for field, problem in find_problems(task):
            raise DataError(f"task {task.id!r}: {field}: {problem}")
        fields = task.model_dump(exclude=POSITIONS)
        try:
            json.dumps(fields, ensure_ascii=False, allow_nan=False).encode()
        except (TypeError, ValueError) as error:
            place = locate_json_fault(f"task {task.id!r}", fields)
            raise DataError(f"{place} cannot be written as JSON: {error}") from error
        if task.id in task_ids:
            raise DataError(f"task {task.id!r} occurs twice: ids are unique")
        task_ids.add(task.id)
        yield task


def iterate_lines(path: str | Path) -> Iterator[tuple[int, bytes]]:
    """Iterate over the numbers (from 1) and bytes of the lines of a file, without reading all of it at once.

    Blank lines are left out. Raises `DataError` if the file cannot be read.
    """
    try:
        with Path(path).open("rb") as file:
            for number, raw in enumerate(file, start=1):
                line = raw.removeprefix(b"\xef\xbb\xbf") if number == 1 else raw
                if line.strip():
                    yield number, line.rstrip(b"\n")
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}): give the path of a JSON Lines file") from error


def parse_task(raw: bytes, location: str) -> Task:
    """Parse and check one line of a task file.

    Args:
        raw: The line in UTF-8.
        location: `file:line`, for messages.

    Raises:
        DataError: The line is no valid task; the message names location and field. See `load_jsonl`.
    """
    try:
        raw.decode()
        task = Task.model_validate_json(raw)
        # A second, stricter look: pydantic lets the last of two equal keys win and reads NaN.
        json.loads(raw, object_pairs_hook=unique_keys, parse_constant=refuse_constant, parse_float=finite_float)
    except ValidationError as error:
        items = error.errors()
        if any((item["type"], item["loc"]) == ("missing", ("chunks",)) for item in items):
            raise DataError(f"{location}: no task, for it has no 'chunks': {_REMEDY}") from error
        descriptions = "; ".join(_describe(item) for item in items[:_MAX_ERRORS])
        remainder = f"; and {len(items) - _MAX_ERRORS} more" if len(items) > _MAX_ERRORS else ""
        raise DataError(f"{location}: {descriptions}{remainder}") from error
    except UnicodeDecodeError as error:
        problem = f"not UTF-8 text (byte {error.start} of the line): save the file as UTF-8"
        raise DataError(f"{location}: {problem}") from error
    except ValueError as error:
        raise DataError(f"{location}: {error}") from error
    for field, problem in find_problems(task):
        raise DataError(f"{location}: {field}: {problem}")
    return task


def _describe(item: Any) -> str:
    location: Sequence[str | int] = item["loc"]
    message = item["msg"].removeprefix("Value error, ").replace(" at line 1 column ", " at column ")
    if item["type"] == "extra_forbidden":
        model = next((_MODELS[key] for key in reversed(location[:-1]) if key in _MODELS), Task)
        message = f"unknown key: known are {', '.join(model.model_fields)}"
        message += " (for all else, such as choices)" if "meta" in model.model_fields else ""
    field = "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in location)
    return f"{field.removeprefix('.')}: {message}" if location else message


def find_problems(task: Task) -> Iterator[tuple[str, str]]:
    """Yield (field, problem) for values that the types allow and a task must not have."""
    if not task.id.strip():
        yield "id", "empty: every task needs an id"
    turn_ids: set[str] = set()
    for i, chunk in enumerate(task.chunks):
        field = f"chunks[{i}].{'text' if chunk.text is not None else 'turns'}"
        if not any(text.strip() for text in (chunk.text or "", *(turn.text for turn in chunk.turns))):
            yield field, "empty: there is nothing to read"
        if NO_TEXT.search(chunk.render()):
            yield field, UNFIT
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
        if NO_TEXT.search(operation.content):
            yield f"gold_operations[{i}].content", UNFIT
        if turn_ids and operation.turn is not None and operation.turn not in turn_ids:
            yield f"gold_operations[{i}].turn", f"no turn of the task has the id {operation.turn!r}"
    live: set[tuple[str, str]] = set()
    for i, operation in sorted(enumerate(task.gold_operations), key=lambda item: item[1].chunk):
        if operation.kind == "core_update":
            continue
        if operation.kind != "insert":
            field, old = f"gold_operations[{i}].replaces", (operation.category, operation.replaces)
            if operation.replaces is None:
                yield field, f"needed: the content that the {operation.kind} ends"
            elif old not in live:
                yield field, f"no fact of {old[0]!r} says {old[1]!r} when the {operation.kind} comes"
            live.discard((operation.category, operation.replaces or ""))
        if operation.kind != "delete":
            live.add((operation.category, operation.content))


if TYPE_CHECKING:
    from datasets import Dataset


def to_dataset(tasks: Iterable[Task]) -> Dataset:
    """Return tasks as a `datasets.Dataset`, which `load_tasks` reads back as equal tasks.

    Raises:
        DataError: datasets is not installed, there is no task, or a task cannot be written as JSON Lines either.
    """
    with required_packages("a Dataset", "datasets", error=DataError):
        import datasets
    rows = []
    for task in check_tasks(tasks):
        rows.append(task.model_dump(exclude=POSITIONS))
        for fields in (rows[-1], *rows[-1]["questions"]):
            fields["meta"] = json.dumps(fields["meta"], ensure_ascii=False, allow_nan=False)
    if not rows:
        raise DataError("there is no task: give at least one")
    text, number, list_of = datasets.Value("string"), datasets.Value("int64"), datasets.List
    turn = {"speaker": text, "text": text, "id": text}
    question = dict.fromkeys(Question.model_fields, text)
    question |= {"answers": list_of(text), "evidence": list_of(text), "asked_after_chunk": number}
    gold = dict.fromkeys(GoldOperation.model_fields, text) | {"chunk": number}
    chunks = list_of({"text": text, "turns": list_of(turn), "timestamp": text})
    features = {"id": text, "chunks": chunks, "questions": list_of(question), "gold_operations": list_of(gold)}
    return datasets.Dataset.from_list(rows, features=datasets.Features(features | {"meta": text}))


def from_dataset(rows: Iterable[Mapping[str, Any]]) -> list[Task]:
    """Return the tasks of the rows of a `datasets.Dataset`.

    Raises:
        DataError: A row is no task; names its number, from 0, and the field. There is none, or two have one id.
    """
    tasks = parse_unique((f"row {n}", json.dumps(drop_empty(row)).encode()) for n, row in enumerate(rows))
    if not tasks:
        raise DataError("the data set holds no row")
    return tasks


def drop_empty(value: Any) -> Any:
    """Return a row without the values that are None or empty lists, and with `meta` as a mapping."""
    if isinstance(value, Mapping):
        fields = {key: part if key == "meta" else drop_empty(part) for key, part in value.items()}
        if isinstance(meta := fields.get("meta"), str):
            with suppress(ValueError):  # is refused with its place, as any other text there
                fields["meta"] = json.loads(meta)
        return {key: part for key, part in fields.items() if part is not None and part != []}
    return [drop_empty(part) for part in value] if isinstance(value, list | tuple) else value
