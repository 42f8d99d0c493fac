"""A namespace's log as JSON Lines: a header line, then one operation a line, oldest first.

A file made by hand needs no header, and a line no more than `{"category": "semantic", "content": "..."}`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, TextIO

import numpy as np
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from memalpha.errors import DataError, DuplicateContent, StoreError
from memalpha.store.backends.namespace import Namespace
from memalpha.store.backends.sqlite import temporary_path
from memalpha.store.filters import format_utc
from memalpha.store.schema import MemorySchema
from memalpha.store.validation import check_timestamp, clean_content
from memalpha.types import LoggedKind, Operation

VERSION = 1
_SURROGATES = re.compile("[\ud800-\udfff]")


def _require_offset(text: str) -> str:
    time = datetime.fromisoformat(text)
    if time.tzinfo is None:
        raise ValueError("an ISO time with its offset is needed, such as 2024-05-01T12:00:00+00:00")
    return format_utc(time)


class Line(BaseModel):
    """One operation in a file: its fields, and, in an exported log, its position, time and head."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    seq: int | None = Field(default=None, ge=1)
    time: Annotated[str, AfterValidator(_require_offset)] | None = None
    head: int | None = Field(default=None, ge=0)
    kind: LoggedKind = "insert"
    id: str | None = None
    category: str | None = None
    content: str | None = None
    timestamp: str | None = None
    importance: float | None = None
    metadata: dict[str, Any] | None = None
    source: str | None = None
    chunk: int | None = None
    turn: str | None = None
    expires: str | None = None

    def operation(self) -> Operation:
        """The operation the line stands for."""
        return Operation(**self.model_dump(exclude={"seq", "time", "head"}))


def write_jsonl(
    path: Path, schema: MemorySchema, namespace: str, log: Iterable[tuple[int, str, int, Operation]]
) -> int:
    """Write a log (position, time, head, operation), under another name first; the number of operations."""
    header = {"memalpha": VERSION, "namespace": namespace, "schema": json.loads(schema.to_json())}
    count = 0
    with atomic_writer(path) as file:
        file.write(to_json(header) + "\n")
        for position, time, head, operation in log:
            fields = {name: value for name, value in asdict(operation).items() if value is not None}
            row = {"seq": position, "time": time, "head": head, **fields}
            file.write(to_json(row) + "\n")
            count += 1
    return count


def to_json(value: Any, **options: Any) -> str:
    """JSON to be read by people too; only halves of surrogate pairs, which no file can hold, are written as escapes."""
    text = json.dumps(value, ensure_ascii=False, **options)
    return _SURROGATES.sub(lambda half: f"\\u{ord(half[0]):04x}", text)


@contextmanager
def atomic_writer(path: Path) -> Iterator[TextIO]:
    """A text file to write, which is at `path` when the block has ended well, and whole; raises `StoreError`."""
    temporary = None
    try:
        temporary = temporary_path(path)
        with temporary.open("w", encoding="utf-8", newline="\n") as file:
            yield file
        temporary.replace(path)
    except OSError as error:
        raise StoreError(f"{path}: cannot be written: {error.strerror}") from error
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)


def read_text(path: Path) -> str:
    """The text of a file, line ends as they are; raises `DataError`."""
    try:
        return path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not UTF-8 text: {error}") from error


def read_jsonl(path: Path) -> list[tuple[int, Line]]:
    """The operations of a file with their line numbers; raises `DataError` naming file, line and field."""
    lines: list[tuple[int, Line]] = []
    for number, text in enumerate(read_text(path).split("\n"), 1):
        if not text.strip():
            continue
        location = f"{path}:{number}"
        data = _parse_json(location, text)
        if number == 1 and isinstance(data, dict) and "memalpha" in data:
            if data["memalpha"] != VERSION:
                raise DataError(f"{location}: file format {data['memalpha']!r}, this memalpha reads {VERSION}")
            continue
        lines.append((number, _parse_line(location, data)))
    return lines


def parse_fields(location: str, text: str, names: Sequence[str]) -> dict[str, Any]:
    """The fields of an operation that a JSON object gives, of those in `names`; raises `DataError` beginning with
    `where`."""
    data = _parse_json(location, text)
    for name in data if isinstance(data, dict) else ():
        if name not in names:
            raise DataError(f"{location}: {name}: the fields are {', '.join(names)}")
    return {
        name: value
        for name, value in _parse_line(location, data).model_dump(include=set(names)).items()
        if value is not None
    }


def _parse_json(location: str, text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise DataError(f"{location}: not JSON: {error}") from error


def _parse_line(location: str, data: Any) -> Line:
    try:
        return Line.model_validate(data)
    except ValidationError as error:
        first_error = error.errors()[0]
        field = ".".join(map(str, first_error["loc"])) or "line"
        raise DataError(f"{location}: {field}: {first_error['msg']}") from error


def stored_contents(path: str | Path, lines: Iterable[tuple[int, Line]]) -> list[str]:
    """The contents that the lines of a file will store; raises `DataError` for one that cannot be."""
    contents = set()
    for number, line in lines:
        if line.kind in ("insert", "update"):
            with locate_errors(f"{path}:{number}"):
                if line.seq is None:  # what was logged once is taken as it is
                    check_timestamp(line.timestamp)
                contents.add(clean_content(line.content))
    return sorted(contents)


def apply_lines(
    namespace: Namespace, path: str | Path, lines: Iterable[tuple[int, Line]], vectors: Mapping[str, np.ndarray]
) -> int:
    """Append the operations of a file's lines to a log, exact duplicates without an id left out; their number."""
    before = namespace.position
    for number, line in lines:
        operation, head, position = line.operation(), line.head, namespace.position + 1
        # Positions, times and heads of an exported log mean something only where it is all there is.
        as_logged = (
            before == 0
            and line.seq == position
            and head is not None
            and (head == position or namespace.effective_position(head) == head)
        )
        if operation.kind == "erased" and not as_logged:
            continue  # a stub that changes nothing
        duplicates = suppress(DuplicateContent) if operation.id is None else nullcontext()
        with locate_errors(f"{path}:{number}"), duplicates:
            if as_logged:
                namespace.write(operation, vectors, effective_position=head, time=line.time)
            else:
                namespace.write(operation, vectors)
    return namespace.position - before


@contextmanager
def locate_errors(location: str) -> Iterator[None]:
    """What the store refuses is an error of this place in a file."""
    try:
        yield
    except StoreError as error:
        raise DataError(f"{location}: {error}") from error
