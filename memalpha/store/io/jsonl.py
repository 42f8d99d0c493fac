"""A namespace's log as JSON Lines: a header line, then one operation per line, oldest first.

A file made by hand needs no header, and a line only `{"category": "semantic", "content": "..."}`.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import fields as fields_of
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, create_model

from memalpha.arguments import check_target
from memalpha.errors import DataError, DuplicateContent, StoreError
from memalpha.store.backends.sqlite import hidden_file
from memalpha.store.fields import FIELDS, Kind, check_content_size, check_timestamp, clean_content, format_utc
from memalpha.store.schema import MemorySchema
from memalpha.text_files import parse_json, read_text
from memalpha.types import LoggedKind, Operation, parse_iso_time

if TYPE_CHECKING:
    from memalpha.store.store import MemoryStore

VERSION = 1
_SURROGATES = re.compile("[\ud800-\udfff]")
_DATABASE = b"SQLite format 3\0"


def _require_offset(text: str) -> str:
    time = parse_iso_time(text)
    if time.tzinfo is None:
        raise ValueError("an ISO time with its offset is needed, such as 2024-05-01T12:00:00+00:00")
    return format_utc(time)


class _Line(BaseModel):
    """One operation of a file; an exported log adds its position (`seq`), time and effective position (`head`)."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    seq: int | None = Field(default=None, ge=1)
    time: Annotated[str, AfterValidator(_require_offset)] | None = None
    head: int | None = Field(default=None, ge=0)
    kind: LoggedKind = "insert"
    id: str | None = None
    category: str | None = None
    content: str | None = None
    timestamp: str | None = None

    def operation(self) -> Operation:
        """Return the operation of the line."""
        return Operation(**self.model_dump(exclude={"seq", "time", "head"}))


_TYPES: dict[Kind, Any] = {"number": float | None, "whole": int | None, "json": dict[str, Any] | None}
_FIELDS: dict[str, Any] = {field.name: (_TYPES.get(field.kind, str | None), None) for field in FIELDS}
_FIELDS["reason"] = str | None, None
Line: type[_Line] = create_model("Line", __base__=_Line, **_FIELDS)


def write_jsonl(
    path: Path, schema: MemorySchema, namespace: str, log: Iterable[tuple[int, str, int, Operation]]
) -> int:
    """Write a log to a file that appears when complete.

    Args:
        path: File to write.
        schema: Schema of the store, for the header.
        namespace: Name of the namespace, for the header.
        log: Rows of position, time, effective position and operation.

    Returns:
        Number of operations.
    """
    header = {"memalpha": VERSION, "namespace": namespace, "schema": json.loads(schema.to_json())}
    count, names = 0, [field.name for field in fields_of(Operation)]
    with atomic_writer(path) as file:
        file.write(to_json(header) + "\n")
        for position, time, effective_position, operation in log:
            fields = {name: value for name in names if (value := getattr(operation, name)) is not None}
            row = {"seq": position, "time": time, "head": effective_position, **fields}
            file.write(to_json(row) + "\n")
            count += 1
    return count


def to_json(value: Any, **options: Any) -> str:
    """Return readable JSON text; only lone surrogates, which no file can hold, are escaped."""
    text = json.dumps(value, ensure_ascii=False, **options)
    return _SURROGATES.sub(lambda half: f"\\u{ord(half[0]):04x}", text)


@contextmanager
def atomic_writer(path: Path) -> Iterator[TextIO]:
    """Yield a text file that appears at `path`, complete, only if the block succeeds.

    Raises `StoreError`.
    """
    check_target(path)
    if path.is_dir():
        raise StoreError(f"{path} is a folder: give the path of a file")
    # Neither a database nor a file that SQLite keeps beside one is replaced.
    for database in (path, path.with_name(re.sub(r"-(wal|shm|journal)$", "", path.name) or path.name)):
        with suppress(OSError), database.open("rb") as file:  # writing says what else is wrong
            if file.read(len(_DATABASE)) == _DATABASE:
                raise StoreError(f"{path}: a database is there, which may be a store: give another path")
    try:
        with (
            hidden_file(path) as (_, descriptor),
            open(descriptor, "w", encoding="utf-8", newline="\n", closefd=False) as file,
        ):
            yield file
            file.flush()
            os.fsync(descriptor)
    except OSError as error:
        raise StoreError(f"{path}: cannot be written: {error.strerror}") from error


def read_jsonl(path: Path) -> list[tuple[int, _Line]]:
    """Return the operations of a file with their line numbers.

    Raises `DataError` naming file, line and field.
    """
    lines: list[tuple[int, _Line]] = []
    for number, text in enumerate(read_text(path, keep_line_ends=True).split("\n"), 1):
        if not text.strip():
            continue
        location = f"{path}:{number}"
        data = parse_json(text, location)
        if number == 1 and isinstance(data, dict) and "memalpha" in data:
            if data["memalpha"] != VERSION:
                raise DataError(f"{location}: file format {data['memalpha']!r}, this memalpha reads {VERSION}")
            continue
        lines.append((number, _parse_line(location, data)))
    return lines


def parse_fields(location: str, text: str, names: Sequence[str]) -> dict[str, Any]:
    """Parse a JSON object of operation fields.

    Args:
        location: Prefix of error messages, such as `file:line`.
        text: JSON object.
        names: Names of allowed fields.

    Returns:
        The fields that are not null.

    Raises:
        DataError: The JSON or a field is invalid.
    """
    data = parse_json(text, location)
    for name in data if isinstance(data, dict) else ():
        if name not in names:
            raise DataError(f"{location}: {name}: the fields are {', '.join(names)}")
    return {
        name: value
        for name, value in _parse_line(location, data).model_dump(include=set(names)).items()
        if value is not None
    }


def _parse_line(location: str, data: Any) -> _Line:
    try:
        return Line.model_validate(data)
    except ValidationError as error:
        first_error = error.errors()[0]
        field = ".".join(map(str, first_error["loc"])) or "line"
        problem = {
            "extra_forbidden": f"no field of a line: there are {', '.join(Line.model_fields)}",
            "model_type": 'a JSON object is needed, such as {"category": "semantic", "content": "..."}',
        }.get(first_error["type"], first_error["msg"])
        raise DataError(f"{location}: {field}: {problem}") from error


def import_lines(store: MemoryStore, path: str | Path, lines: Sequence[tuple[int, _Line]]) -> int:
    """Apply the lines of a file, from `read_jsonl`, as `MemoryStore.import_jsonl` does.

    A pipe can be read only once, so whoever checks a file first passes on what was read. Exact duplicates without an id
    are skipped. Returns the number of appended operations.
    """
    contents = set()
    for number, line in lines:
        if line.kind in ("insert", "update"):
            with locate_errors(f"{path}:{number}"):
                if line.seq is None:  # logged timestamps are kept unchecked
                    check_timestamp(line.timestamp)
                contents.add(content := clean_content(line.content))
                check_content_size(content, store.max_content)
    vectors, log = store.recorded_embedder.embed(sorted(contents), store.rows), store.rows.log
    with store.exclusive() as log_end:
        for number, line in lines:
            operation, position, head = line.operation(), log.position + 1, line.head
            # Positions, times and heads of an exported log apply only if the target log equals it so far.
            as_logged = (
                log_end.position == 0
                and line.seq == position
                and head is not None
                and (head == position or log.effective_position(head) == head)
            )
            if operation.kind == "erased" and not as_logged:
                continue  # a stub has no effect
            duplicates = suppress(DuplicateContent) if operation.id is None else nullcontext()
            with locate_errors(f"{path}:{number}"), duplicates:
                if as_logged:
                    store.rows.write(operation, vectors, effective_position=head, time=line.time)
                else:
                    store.rows.write(operation, vectors)
        return log.position - log_end.position


@contextmanager
def locate_errors(location: str) -> Iterator[None]:
    """Re-raise a `StoreError` as a `DataError` that names the location in a file."""
    try:
        yield
    except StoreError as error:
        raise DataError(f"{location}: {error}") from error
