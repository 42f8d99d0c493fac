"""Streaming of official files that are too large to load: JSON, JSON Lines, CSV, Parquet."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from memalpha.errors import DataError, install_command

_BLOCK = 1 << 22
"""Characters of the first read from a JSON list; doubled while a read ends within an item."""
_LARGEST = 1 << 29
_CUT_OFF = 32  # an error this close to the end of the buffer may come from its end


def iter_json_array(path: Path) -> Iterator[Any]:
    """Yield the items of a JSON list, one in memory at a time. Raises `DataError` naming file and item."""
    with _open(path) as stream:
        buffer = _read_block(stream, path, _BLOCK).lstrip()
        if not buffer.startswith("["):
            raise DataError(f"{path}: not a JSON list")
        buffer = buffer[1:]
        for number in range(1 << 62):
            buffer = _skip_whitespace(buffer, stream, path)
            if buffer.startswith("]"):
                if _skip_whitespace(buffer[1:], stream, path):
                    raise DataError(f"{path}: something follows the JSON list")
                return
            if number:
                if not buffer.startswith(","):
                    raise DataError(f"{path}: no comma or ']' after item {number - 1}: not a JSON list, or cut off")
                buffer = _skip_whitespace(buffer[1:], stream, path)
            item, buffer = _decode_item(buffer, stream, path, number)
            yield item


def iter_json_lines(path: Path) -> Iterator[tuple[str, Any]]:
    """Yield (`file:line`, value) for each line of a JSON Lines file. Raises `DataError` naming it."""
    with _open(path) as stream:
        try:
            for number, line in enumerate(stream, start=1):
                location = f"{path}:{number}"
                if not line.strip():
                    continue
                try:
                    yield location, json.loads(line)
                except (json.JSONDecodeError, RecursionError) as error:
                    raise DataError(f"{location}: not a JSON value: {error}") from error
        except UnicodeDecodeError as error:
            raise DataError(f"{path}: not a text in UTF-8: {error}") from error


def iter_csv_rows(
    path: Path, columns: Sequence[str] = (), separator: str = ","
) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield (`file:line`, row) for each row of a CSV file.

    Args:
        path: UTF-8 file with a header.
        columns: Columns that the header must have.
        separator: Character between two fields.

    Raises:
        DataError: The file cannot be read, a column is missing or named twice, or a row has another length.
    """
    limit = csv.field_size_limit(_LARGEST)
    line = 1
    try:
        with _open(path) as stream:
            rows = csv.reader(stream, strict=True, delimiter=separator)
            header = next(rows, [])
            if missing := [name for name in columns if name not in header]:
                raise DataError(f"{path}: no column {missing[0]!r} in its first line: {', '.join(header)}")
            if twice := [name for number, name in enumerate(header) if name in header[:number]]:
                raise DataError(f"{path}: two columns have the name {twice[0]!r}")
            while True:
                line = rows.line_num + 1
                if (row := next(rows, None)) is None:
                    return
                if not row:
                    continue
                if len(row) != len(header):
                    raise DataError(f"{path}:{line}: {len(row)} fields, where the header has {len(header)}")
                yield f"{path}:{line}", dict(zip(header, row, strict=True))
    except (csv.Error, UnicodeDecodeError) as error:
        raise DataError(f"{path}:{line}: not CSV in UTF-8: {error}") from error
    finally:
        csv.field_size_limit(limit)


def iter_parquet_rows(path: Path, columns: Sequence[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (file and row number, row) of a Parquet file with these columns. Raises `DataError`."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ModuleNotFoundError:
        raise DataError(f"{path}: pyarrow reads Parquet files: {install_command('eval')}") from None
    if not path.is_file():
        raise DataError(f"{path}: cannot be read (no such file)")
    try:
        with pq.ParquetFile(path) as file:
            if missing := [name for name in columns if name not in file.schema_arrow.names]:
                raise DataError(f"{path}: no column {missing[0]!r}; it has {', '.join(file.schema_arrow.names)}")
            number = 0
            for batch in file.iter_batches(batch_size=1, columns=list(columns)):
                for row in batch.to_pylist():
                    yield f"{path}: row {number}", row
                    number += 1
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{path}: not a Parquet file, or a damaged one: {error}") from error


def _open(path: Path) -> Any:
    try:
        return path.open(encoding="utf-8-sig", newline="")
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from error


def _read_block(stream: Any, path: Path, size: int) -> str:
    try:
        return stream.read(size)
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not a text in UTF-8: {error}") from error


def _skip_whitespace(buffer: str, stream: Any, path: Path) -> str:
    """Return the buffer without leading white space; empty at the end of the file."""
    while not (buffer := buffer.lstrip()):
        if not (buffer := _read_block(stream, path, _BLOCK)):
            return ""
    return buffer


def _decode_item(buffer: str, stream: Any, path: Path, number: int) -> tuple[Any, str]:
    """Decode the item at the start of the buffer.

    Returns:
        The item, and the rest of the buffer.
    """
    decoder = json.JSONDecoder()
    while True:
        try:
            value, end = decoder.raw_decode(buffer)
        except json.JSONDecodeError as error:
            inside = error.msg.startswith("Unterminated string") or error.pos >= len(buffer) - _CUT_OFF
            extension = _read_block(stream, path, max(_BLOCK, len(buffer))) if inside and len(buffer) < _LARGEST else ""
            if not extension:
                raise DataError(f"{path}: item {number}: not JSON, or cut off: {error.msg}") from error
            buffer += extension
            continue
        except RecursionError as error:
            raise DataError(f"{path}: item {number}: nested too deeply") from error
        if (
            isinstance(value, int | float)
            and end >= len(buffer) - 2
            and (extension := _read_block(stream, path, _BLOCK))
        ):
            buffer += extension  # a number may continue: 1, 1.5, 1.5e+9
            continue
        return value, buffer[end:]
