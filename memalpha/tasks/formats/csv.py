"""Task files as CSV: one table of questions with contexts, or two tables.

**One table.** Columns `context`, `question` and `answer` (or `answers`). Rows with the same `task` are one task, whose
chunks are their different contexts in order. Without a column `task`, each different context is a task.

**Two tables**, `chunks.csv` and a table of questions in the same folder; `chunks.csv` alone holds conversations without
questions. The path names the folder or one of the files. Chunks have `text` and optionally `task`, `chunk`,
`timestamp`, `speaker`, `turn`. Consecutive rows with the same `chunk` are one chunk; without that column, each row is.
With `speaker` or `turn`, a row is a turn and `turn` its id. Questions have `question`, `answer` (or `answers`), and
`task` if the chunks have it.

Further columns of questions are `id`, `category`, `timestamp` (of the context; one table only), `evidence` (turn ids)
and `asked_after_chunk` (a value of the column `chunk`, or a number from 0; both for two tables only). All others go to
`Question.meta`. `answers` and `evidence` hold several values with `|` between them. An empty answer means that the
right answer is to abstain. Fields are separated by commas, semicolons or tabs. Texts longer than a chunk (2,048 tokens)
are split.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from memalpha.errors import DataError
from memalpha.tasks.chunking import TaskBuilder
from memalpha.tasks.formats.files import iter_csv_rows
from memalpha.text_files import parse_json_or_none
from memalpha.types import Question, SpeakerTurn, Task, is_iso_time

_CHUNK_COLUMNS = ("task", "chunk", "text", "speaker", "turn", "timestamp")
_QUESTION_COLUMNS = ("task", "id", "question", "answer", "answers", "category", "evidence", "asked_after_chunk")
_ONE_TABLE = ("context", "timestamp")

Row = tuple[str, Mapping[str, str]]


def load_csv(path: str | Path) -> list[Task]:
    """Load the tasks of a CSV file, or of a folder with `chunks.csv` and, if there are questions, `questions.csv`.

    Raises:
        DataError: The file does not fit; the message names file, line and column.
    """
    path = Path(path)
    if path.name == "chunks.csv":
        path = path.parent
    questions = path / "questions.csv" if path.is_dir() else path
    chunks = questions.with_name("chunks.csv")
    if path.is_dir() and not questions.is_file() and not chunks.is_file():
        raise DataError(
            f"{path} is a folder without a chunks.csv: name a task file in it, write that table, "
            "or put exported chats there (.txt, .json)"
        )
    question_rows = _rows(questions, ("question",)) if questions.is_file() or not path.is_dir() else []
    if question_rows and "context" in question_rows[0][1] and not path.is_dir():
        return _one_table(question_rows, path)
    if not chunks.is_file():
        raise DataError(
            f"{questions}: no column 'context', and no chunks.csv beside it: write one of them; messages go into the "
            f"chunks.csv of a folder ({', '.join(_CHUNK_COLUMNS)}), questions into its questions.csv"
        )
    chunk_rows = _rows(chunks, ("text",))
    if unknown := [name for name in chunk_rows[0][1] if name and name not in _CHUNK_COLUMNS]:
        raise DataError(f"{chunks}: unknown column {unknown[0]!r}; known are {', '.join(_CHUNK_COLUMNS)}")
    if question_rows:
        _refuse_columns(question_rows, _ONE_TABLE, "belongs into chunks.csv (timestamp) or a table by itself (context)")
        if ("task" in chunk_rows[0][1]) != ("task" in question_rows[0][1]):
            raise DataError(f"{questions}: 'task' is a column of both tables, or of none")
    default_task = questions.parent.resolve().name
    groups: list[tuple[str, str | None, list[Row]]] = []  # consecutive rows of a chunk, with its task and label
    for location, row in chunk_rows:
        id, label = _task_id(row, location) if "task" in row else default_task, row.get("chunk")
        if label is not None and groups and groups[-1][:2] == (id, label):
            groups[-1][2].append((location, row))
        else:
            groups.append((id, label, [(location, row)]))
    streams: dict[str, tuple[TaskBuilder, dict[str, int], list[Question]]] = {}
    for id, label, rows in groups:
        builder, ends, _ = streams.setdefault(id, (TaskBuilder(), {}, []))
        location, first_row = rows[0]
        if label in ends:
            raise DataError(f"{location}: chunk: {label!r} has come before; the rows of a chunk follow each other")
        _add_chunk(builder, rows, _time(first_row, location))
        ends[label if label is not None else str(len(ends))] = builder.last_index
    for location, row in question_rows:
        id = _task_id(row, location) if "task" in row else default_task
        if id not in streams:
            raise DataError(f"{location}: task: {id!r} has no chunk in {chunks}")
        builder, ends, task_questions = streams[id]
        evidence, unknown = builder.resolve_evidence(_split_values(row.get("evidence", "")))
        if unknown:
            raise DataError(f"{location}: evidence: no turn of the task has the id {unknown[0]!r}")
        label = row.get("asked_after_chunk", "").strip()
        if label and label not in ends:
            raise DataError(f"{location}: asked_after_chunk: {label!r} is no chunk of the task")
        placed = {"evidence": evidence, "asked_after_chunk": ends[label] if label else None}
        task_questions.append(_question(row, location, len(task_questions)).model_copy(update=placed))
    return [builder.build(id, asked, str(questions)) for id, (builder, _, asked) in streams.items()]


def _one_table(question_rows: Sequence[Row], path: Path) -> list[Task]:
    _refuse_columns(question_rows, ("evidence", "asked_after_chunk"), "needs the turns of a chunks.csv")
    tasks: dict[str, tuple[TaskBuilder, list[Question]]] = {}
    times: dict[tuple[str, str], str | None] = {}
    for location, row in question_rows:
        context = row["context"].strip()
        if not context:
            raise DataError(f"{location}: context: empty")
        id = _task_id(row, location) if "task" in row else context
        builder, questions = tasks.setdefault(id, (TaskBuilder(), []))
        time = _time(row, location)
        if (id, context) not in times:
            builder.add_text(context, time)
        if times.setdefault((id, context), time) != time:
            raise DataError(f"{location}: timestamp: differs from that of the same context before: write a chunks.csv")
        questions.append(_question(row, location, len(questions)))
    has_task_column = "task" in question_rows[0][1]
    return [
        builder.build(id if has_task_column else f"{path.stem}-{number}", questions, str(path))
        for number, (id, (builder, questions)) in enumerate(tasks.items())
    ]


def _add_chunk(builder: TaskBuilder, rows: Sequence[Row], timestamp: str | None) -> None:
    """Add one chunk to the task: a text, or turns."""
    for location, row in rows:
        if not row["text"].strip():
            raise DataError(f"{location}: text: empty")
        if timestamp != _time(row, location):
            problem = f"differs from that of the first row of chunk {rows[0][1].get('chunk')!r}"
            raise DataError(f"{location}: timestamp: {problem}: write the same in both, or another chunk")
    if "speaker" not in rows[0][1] and "turn" not in rows[0][1]:
        builder.add_text("\n".join(row["text"] for _, row in rows), timestamp)
        return
    fields = [(row.get("speaker") or "text", row["text"], row.get("turn") or None) for _, row in rows]
    try:
        builder.add_session((SpeakerTurn(speaker=who, text=said, id=id) for who, said, id in fields), timestamp)
    except DataError as error:
        raise DataError(f"{rows[0][0]}: turn: {error}") from error


def _question(row: Mapping[str, str], location: str, number: int) -> Question:
    if ("answer" in row) == ("answers" in row):
        raise DataError(f"{location}: a column 'answer', or one 'answers' with | between them, is needed; not both")
    if not row["question"].strip():
        raise DataError(f"{location}: question: empty")
    listed, value = row.get("answers", "").strip(), None
    if listed.startswith("[") and "|" not in listed:
        value = parse_json_or_none(listed)
        with suppress(ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
            value = ast.literal_eval(listed)
    if isinstance(value, list):
        raise DataError(f"{location}: answers: {listed} is a printed list: write its values with | between them")
    answer = row.get("answer", "").strip()
    own_columns = (*_QUESTION_COLUMNS, *_ONE_TABLE, "")
    return Question(
        id=row.get("id", "").strip() or f"q{number}",
        question=row["question"].strip(),
        answers=tuple(_split_values(row["answers"])) if "answers" in row else (answer,) if answer else (),
        category=row.get("category", "").strip() or None,
        meta={name: value for name, value in row.items() if name not in own_columns},
    )


def _split_values(text: str) -> list[str]:
    return [value.strip() for value in text.split("|") if value.strip()]


def _task_id(row: Mapping[str, str], location: str) -> str:
    if not (id := row["task"].strip()):
        raise DataError(f"{location}: task: empty")
    return id


def _time(row: Mapping[str, str], location: str) -> str | None:
    time = row.get("timestamp", "").strip()
    if time and not is_iso_time(time):
        raise DataError(f"{location}: timestamp: {time!r} is no ISO 8601 date or time (2024-05-01)")
    return time or None


def _refuse_columns(rows: Sequence[Row], columns: Sequence[str], why: str) -> None:
    if refused := [name for name in columns if name in rows[0][1]]:
        raise DataError(f"{rows[0][0].rpartition(':')[0]}: column {refused[0]!r} {why}")


def _rows(path: Path, columns: Sequence[str]) -> list[Row]:
    """Read all rows."""
    hint = (
        ". A table of messages is the chunks.csv of a folder, with or without questions: its columns are "
        + ", ".join(_CHUNK_COLUMNS)
    ) * ("question" in columns)
    all_rows: Any = iter_csv_rows(path, columns, hint=hint)
    rows: list[Row] = [row for row in all_rows if any(row[1].values())]  # a spreadsheet keeps rows that were emptied
    if not rows:
        raise DataError(f"{path}: no row below its header")
    return rows
