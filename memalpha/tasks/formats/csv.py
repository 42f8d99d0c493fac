"""Tasks of one's own as CSV: one table of questions with their contexts, or a table of chunks and one of questions.

**One table.** `context`, `question` and `answer` (or `answers`). Rows with the same `task` are one task, whose stream
are their different contexts in the order in which they come; without a column `task`, each different context is one.

**Two tables**, `chunks.csv` and a table of questions in the same folder, named by the folder or by the questions' file.
Chunks: `text`; optional `task`, `chunk`, `timestamp`, `speaker`, `turn`. Rows that follow each other with the same
`chunk` are one chunk; without that column, each row is. With `speaker` or `turn`, a row is a turn, `turn` its id.
Questions: `question`, `answer` (or `answers`); `task`, where the chunks have it.

Columns of questions that may be there in both: `id`, `category`, `timestamp` (of the context; one table alone),
`evidence` (turn ids) and `asked_after_chunk` (a value of the column `chunk`, or a number from 0; both for two tables
alone); all others go to `Question.meta`. `answers` and `evidence` hold several values with `|` between them; an empty
answer means that the right answer is to abstain. Fields are separated by commas, semicolons or tabs. Texts longer than
a chunk (2,048 tokens) are cut.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from memalpha.errors import DataError
from memalpha.tasks.chunking import Stream
from memalpha.tasks.sources.streaming import csv_rows
from memalpha.types import Question, SpeakerTurn, Task, is_iso_time

SEPARATORS = ",;\t"
_CHUNK_COLUMNS = ("task", "chunk", "text", "speaker", "turn", "timestamp")
_QUESTION_COLUMNS = ("task", "id", "question", "answer", "answers", "category", "evidence", "asked_after_chunk")
_ONE_TABLE = ("context", "timestamp")

Row = tuple[str, Mapping[str, str]]


def load_table(path: str | Path) -> list[Task]:
    """The tasks of a CSV file, or of a folder with `chunks.csv` and `questions.csv`.

    Raises `DataError` naming file, line and column.
    """
    path = Path(path)
    questions = path / "questions.csv" if path.is_dir() else path
    asked = _rows(questions, ("question",))
    if "context" in asked[0][1] and not path.is_dir():
        return _one_table(asked, path)
    chunks = questions.with_name("chunks.csv")
    if not chunks.is_file():
        raise DataError(f"{questions}: no column 'context', and no chunks.csv beside it: one of them is needed")
    return _two_tables(_rows(chunks, ("text",)), asked, chunks, questions)


def _one_table(asked: Sequence[Row], path: Path) -> list[Task]:
    _refuse(asked, ("evidence", "asked_after_chunk"), "needs the turns of a chunks.csv")
    tasks: dict[str, tuple[Stream, list[Question]]] = {}
    numbers: dict[str, dict[str, int]] = {}
    for where, row in asked:
        context = row["context"].strip()
        if not context:
            raise DataError(f"{where}: context: empty")
        id = _task_id(row, where) if "task" in row else context
        stream, questions = tasks.setdefault(id, (Stream(), []))
        if context not in numbers.setdefault(id, {}):
            stream.text(context, _time(row, where))
            numbers[id][context] = stream.last
        questions.append(_question(row, where, len(questions)))
    named = "task" in asked[0][1]
    return [
        stream.task(id if named else f"{path.stem}-{number}", questions, str(path))
        for number, (id, (stream, questions)) in enumerate(tasks.items())
    ]


def _two_tables(told: Sequence[Row], asked: Sequence[Row], chunks: Path, path: Path) -> list[Task]:
    if unknown := [name for name in told[0][1] if name and name not in _CHUNK_COLUMNS]:
        raise DataError(f"{chunks}: unknown column {unknown[0]!r}; known are {', '.join(_CHUNK_COLUMNS)}")
    _refuse(asked, _ONE_TABLE, "belongs into chunks.csv (timestamp) or a table by itself (context)")
    if ("task" in told[0][1]) != ("task" in asked[0][1]):
        raise DataError(f"{path}: 'task' is a column of both tables, or of none")
    alone = path.parent.resolve().name
    streams: dict[str, tuple[Stream, dict[str, int]]] = {}
    for id, label, rows in _grouped(told, alone):
        stream, ends = streams.setdefault(id, (Stream(), {}))
        where, first = rows[0]
        if label in ends:
            raise DataError(f"{where}: chunk: {label!r} has come before; the rows of a chunk follow each other")
        _tell(stream, rows, _time(first, where))
        ends[label if label is not None else str(len(ends))] = stream.last
    questions: dict[str, list[Question]] = {id: [] for id in streams}
    for where, row in asked:
        id = _task_id(row, where) if "task" in row else alone
        if id not in streams:
            raise DataError(f"{where}: task: {id!r} has no chunk in {chunks}")
        questions[id].append(_placed(row, where, len(questions[id]), *streams[id]))
    return [stream.task(id, questions[id], str(path)) for id, (stream, _) in streams.items()]


def _grouped(told: Sequence[Row], alone: str) -> list[tuple[str, str | None, list[Row]]]:
    """(task, chunk's label, rows) of every run of rows that make a chunk."""
    found: list[tuple[str, str | None, list[Row]]] = []
    for where, row in told:
        id, label = _task_id(row, where) if "task" in row else alone, row.get("chunk")
        if label is not None and found and found[-1][:2] == (id, label):
            found[-1][2].append((where, row))
        else:
            found.append((id, label, [(where, row)]))
    return found


def _tell(stream: Stream, rows: Sequence[Row], timestamp: str | None) -> None:
    """One chunk: a text, or turns."""
    for where, row in rows:
        if not row["text"].strip():
            raise DataError(f"{where}: text: empty")
        if timestamp != _time(row, where):
            raise DataError(f"{where}: timestamp: differs from that of the chunk's first row")
    if "speaker" not in rows[0][1] and "turn" not in rows[0][1]:
        stream.text("\n".join(row["text"] for _, row in rows), timestamp)
        return
    turns = [
        SpeakerTurn(speaker=row.get("speaker") or "text", text=row["text"], id=row.get("turn") or None)
        for _, row in rows
    ]
    try:
        stream.session(turns, timestamp)
    except DataError as error:
        raise DataError(f"{rows[0][0]}: turn: {error}") from error


def _placed(row: Mapping[str, str], where: str, number: int, stream: Stream, ends: Mapping[str, int]) -> Question:
    """A question with its evidence and its place in the stream."""
    evidence, unknown = stream.evidence(_several(row.get("evidence", "")))
    if unknown:
        raise DataError(f"{where}: evidence: no turn of the task has the id {unknown[0]!r}")
    after = row.get("asked_after_chunk", "").strip()
    if after and after not in ends:
        raise DataError(f"{where}: asked_after_chunk: {after!r} is no chunk of the task")
    changed = {"evidence": evidence, "asked_after_chunk": ends[after] if after else None}
    return _question(row, where, number).model_copy(update=changed)


def _question(row: Mapping[str, str], where: str, number: int) -> Question:
    if ("answer" in row) == ("answers" in row):
        raise DataError(f"{where}: a column 'answer', or one 'answers' with | between them, is needed; not both")
    if not row["question"].strip():
        raise DataError(f"{where}: question: empty")
    answer = row.get("answer", "").strip()
    known = (*_QUESTION_COLUMNS, *_ONE_TABLE, "")
    return Question(
        id=row.get("id", "").strip() or f"q{number}",
        question=row["question"].strip(),
        answers=tuple(_several(row["answers"])) if "answers" in row else (answer,) if answer else (),
        category=row.get("category", "").strip() or None,
        meta={name: value for name, value in row.items() if name not in known},
    )


def _several(text: str) -> list[str]:
    return [part.strip() for part in text.split("|") if part.strip()]


def _task_id(row: Mapping[str, str], where: str) -> str:
    if not (id := row["task"].strip()):
        raise DataError(f"{where}: task: empty")
    return id


def _time(row: Mapping[str, str], where: str) -> str | None:
    time = row.get("timestamp", "").strip()
    if time and not is_iso_time(time):
        raise DataError(f"{where}: timestamp: {time!r} is no ISO 8601 date or time (2024-05-01)")
    return time or None


def _refuse(rows: Sequence[Row], columns: Sequence[str], why: str) -> None:
    if found := [name for name in columns if name in rows[0][1]]:
        raise DataError(f"{rows[0][0].rpartition(':')[0]}: column {found[0]!r} {why}")


def _rows(path: Path, columns: Sequence[str]) -> list[Row]:
    """All rows, separated by whatever splits the first line into a header with these columns."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as stream:
            first = stream.readline()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read as a CSV file in UTF-8 ({error})") from error
    fitting = [mark for mark in SEPARATORS if set(columns) <= set(next(csv.reader([first], delimiter=mark), ()))]
    rows: list[Any] = list(csv_rows(path, columns, fitting[0] if fitting else ","))
    if not rows:
        raise DataError(f"{path}: no row below its header")
    return rows
