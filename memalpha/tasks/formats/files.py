"""Reading of official files: find, parse and validate; errors name file, location and field.

Large files are read in steps: JSON lists, JSON Lines, CSV and Parquet, one item in memory at a time. Also the helpers
that all loaders share: packing of turns into chunks, building of tasks.
"""

from __future__ import annotations

import ast
import csv
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from importlib import resources
from itertools import count
from pathlib import Path
from types import NoneType
from typing import IO, Any

import yaml
from pydantic import ValidationError

from memalpha.arguments import check_count, check_path, check_seed, finite_float
from memalpha.errors import DataError, required_packages
from memalpha.text_files import UTF_16, parse_json, read_text, refuse_packed, unique_keys
from memalpha.types import Chunk, SpeakerTurn, Task

try:
    from yaml import CSafeLoader as _YAML_LOADER  # 15 times faster
except ImportError:
    from yaml import SafeLoader as _YAML_LOADER

CHUNK_TOKENS = 2048
"""Longest chunk that loaders make, in tokens (characters / 4)."""


def find_file(path: Path, name: str) -> Path:
    """Return `path` if it is a file, else the file `name` in the folder `path`.

    Args:
        path: File or folder.
        name: `folder/file` inside the official source; the file name alone is enough.

    Raises:
        DataError: The folder has no such file.
    """
    if not path.is_dir():
        return path
    for candidate in (path / name, path / Path(name).name):
        if candidate.is_file():
            return candidate
    raise DataError(f"{path}: no file {name} in this folder")


def find_sibling(path: Path, name: str) -> Path:
    """Return the file `name` in the folder of `path`, or in `path` if that is a folder."""
    return find_file(path if path.is_dir() else path.parent, name)


def check_selection(seed: int, data: str | Path | None, limit: int | None, chunk_tokens: int | None = None) -> None:
    """Check arguments that all loaders take.

    Args:
        seed: Integer seed.
        data: File or folder; None if the data set needs none.
        limit: Number of tasks, at least 1; None for all.
        chunk_tokens: Maximum tokens of a chunk, at least 1; None for the chunks as they are.

    Raises:
        DataError: An argument is invalid; names it.
    """
    check_seed(seed, error=DataError)
    if data is not None:
        check_path("data", data, error=DataError)
    if limit is not None:
        check_count("limit", limit, error=DataError)
        if limit < 1:
            raise DataError(f"limit {limit}: at least one task is needed")
    if chunk_tokens is not None and (type(chunk_tokens) is not int or chunk_tokens < 1):
        raise DataError(f"chunk_tokens={chunk_tokens!r}: a whole number from 1 is needed")


def read_json(path: Path) -> Any:
    """Read a JSON file. Raises `DataError` if it cannot be read or parsed."""
    try:
        return json.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: not a JSON file: {error}") from error


def load_shipped_yaml(name: str) -> Any:
    """Load a YAML file of the package's `data` folder."""
    text = (resources.files("memalpha") / "data" / name).read_text(encoding="utf-8")
    return yaml.load(text, Loader=_YAML_LOADER)


def require_field(item: Any, key: str, kind: type | tuple[type, ...], location: str) -> Any:
    """Return `item[key]`, checked for its type.

    Args:
        item: Parsed JSON value.
        key: Key of the value.
        kind: Type or types of the value; with `NoneType` among them, the key may be missing.
        location: Place that an error names.

    Raises:
        DataError: `item` is no object, or the key is missing or of another type.
    """
    if not isinstance(item, Mapping) or not isinstance(item.get(key), kind):
        names = " or ".join(k.__name__ for k in (kind if isinstance(kind, tuple) else (kind,)) if k is not NoneType)
        raise DataError(f"{location}: field {key!r} is missing or not {names}")
    return item.get(key)


def require_strings(value: Any, location: str) -> list[str]:
    """Return a list of texts unchanged. Raises `DataError` for anything else."""
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise DataError(f"{location}: a list of texts is needed, not {value!r}")
    return value


def require_items(value: Any, items: str, location: str) -> list[Any]:
    """Return a list that is not empty.

    Args:
        value: Parsed JSON value.
        items: Name of the items for the error message.
        location: Place that an error names.

    Raises:
        DataError: The value is no list, or an empty one.
    """
    if not isinstance(value, list) or not value:
        raise DataError(f"{location}: a JSON list of {items} is needed, and this is none or empty")
    return value


def compute_sha256(path: Path) -> str:
    """Return the hexadecimal SHA-256 of a file or folder.

    For a folder it is that of the lines `CHECKSUM  NAME` of all files below it.
    """
    if path.is_dir():
        files = sorted(file for file in path.rglob("*") if file.is_file())
        lines = [f"{compute_sha256(file)}  {file.relative_to(path).as_posix()}\n" for file in files]
        return hashlib.sha256("".join(lines).encode()).hexdigest()
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def pack_turns(turns: Iterable[SpeakerTurn], tokens: int = CHUNK_TOKENS, timestamp: str | None = None) -> list[Chunk]:
    """Pack turns, in order, into chunks of at most `tokens` tokens with this timestamp.

    A longer turn is a chunk by itself.
    """
    packs: list[list[SpeakerTurn]] = []
    size = 0
    for turn in turns:
        length = len(turn.speaker) + len(turn.text) + 3  # as rendered: "speaker: text" and the end of the line
        if not packs or size + length > 4 * tokens:
            packs.append([])
            size = 0
        packs[-1].append(turn)
        size += length
    return [Chunk(turns=tuple(pack), timestamp=timestamp) for pack in packs]


def read_turn(item: Any, id: str, location: str, **keys: str) -> SpeakerTurn:
    """Return the turn in a JSON object.

    Args:
        item: Parsed JSON value.
        id: Id of the turn.
        location: Place that an error names.
        **keys: Keys of `speaker` and `text`, in the order of their checks; default: role and content.

    Raises:
        DataError: `item` is no object, or a key is missing or no text.
    """
    keys = keys or {"speaker": "role", "text": "content"}
    return SpeakerTurn(id=id, **{field: require_field(item, key, str, location) for field, key in keys.items()})


def parse_printed(text: str) -> Any:
    """Parse a printed JSON or Python value. Raises `ValueError` for other texts."""
    with suppress(ValueError, RecursionError):
        return json.loads(text)
    try:
        return ast.literal_eval(text.strip())
    except (SyntaxError, MemoryError, RecursionError) as error:
        raise ValueError(str(error)) from error


def build_task(location: str, **fields: Any) -> Task:
    """Build a `Task`. Raises `DataError` for missing chunks or repeated ids."""
    try:
        return Task(**fields)
    except ValidationError as error:
        problem = error.errors()[0]["msg"].removeprefix("Value error, ")
        raise DataError(f"{location}: task {fields['id']!r}: {problem}") from error


_BLOCK = 1 << 22
"""Characters of the first read from a JSON list; doubled while a read ends within an item."""
_LARGEST = 1 << 29
_CUT_OFF = 32  # an error this close to the end of the buffer may come from its end


def iter_json_array(path: Path) -> Iterator[Any]:
    """Yield the items of a JSON list, one in memory at a time. Raises `DataError` naming file and item."""
    with open_text(path) as stream:
        try:
            buffer = stream.read(_BLOCK).lstrip()
            if not buffer.startswith("["):
                raise DataError(f"{path}: not a JSON list")
            buffer = buffer[1:]
            for number in count():
                buffer = _skip_whitespace(buffer, stream)
                if buffer.startswith("]"):
                    if _skip_whitespace(buffer[1:], stream):
                        raise DataError(f"{path}: something follows the JSON list")
                    return
                if number:
                    if not buffer.startswith(","):
                        raise DataError(f"{path}: no comma or ']' after item {number - 1}: not a JSON list, or cut off")
                    buffer = _skip_whitespace(buffer[1:], stream)
                item, buffer = _decode_item(buffer, stream, f"{path}: item {number}")
                yield item
        except UnicodeDecodeError as error:
            raise DataError(f"{path}: not a text in UTF-8: {error}") from error


def iter_json_lines(path: Path) -> Iterator[tuple[str, Any]]:
    """Yield (`file:line`, value) for each line of a JSON Lines file. Raises `DataError` naming it."""
    with open_text(path) as stream:
        try:
            for number, line in enumerate(stream, start=1):
                location = f"{path}:{number}"
                if not line.strip():
                    continue
                yield location, parse_json(line, location)
        except UnicodeDecodeError as error:
            raise DataError(f"{path}: not a text in UTF-8: {error}") from error


def iter_csv_rows(
    path: Path, columns: Sequence[str] = (), separator: str = ",", hint: str = ""
) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield (`file:line`, row) for each row of a CSV file.

    Args:
        path: UTF-8 file with a header.
        columns: Columns that the header must have.
        separator: Character between two fields; if the header lacks it or `columns`, a comma, semicolon or tab that
            gives them.
        hint: What a message on a missing column ends with.

    Raises:
        DataError: The file cannot be read, a column is missing or named twice, a row has another length or holds a NUL.
    """
    limit = csv.field_size_limit(_LARGEST)
    line = 1
    try:
        with open_text(path) as stream:
            first_line = stream.readline()
            stream.seek(0)
            marks = [mark for mark in dict.fromkeys((separator, *",;\t")) if mark in first_line] or [separator]
            headers = {mark: next(csv.reader([first_line], delimiter=mark), []) for mark in marks}
            mark = next((mark for mark in marks if set(columns) <= {*map(str.strip, headers[mark])}), marks[0])
            rows = csv.reader(stream, strict=True, delimiter=mark)
            header = [name.strip() for name in next(rows, [])]
            if missing := [name for name in columns if name not in header]:
                raise DataError(f"{path}: no column {missing[0]!r} in its first line: {', '.join(header)}{hint}")
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
                if any("\0" in cell for cell in row):  # no store holds one
                    raise DataError(f"{path}:{line}: holds a NUL character")
                yield f"{path}:{line}", dict(zip(header, row, strict=True))
    except (csv.Error, UnicodeError) as error:
        hint = ": save it as UTF-8" if isinstance(error, UnicodeError) else ""
        raise DataError(f"{path}:{line}: not CSV in UTF-8: {error}{hint}") from error
    finally:
        csv.field_size_limit(limit)


def iter_parquet_rows(
    path: Path, columns: Sequence[str], optional: Sequence[str] = ()
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (file and row number, row) of a Parquet file with these columns. Raises `DataError`."""
    with required_packages(f"{path}: a Parquet file", "pyarrow", extra="eval", error=DataError):
        import pyarrow as pa
        import pyarrow.parquet as pq
    if not path.is_file():
        raise DataError(f"{path}: cannot be read (no such file)")
    try:
        with pq.ParquetFile(path) as file:
            if missing := [name for name in columns if name not in file.schema_arrow.names]:
                raise DataError(f"{path}: no column {missing[0]!r}; it has {', '.join(file.schema_arrow.names)}")
            number = 0
            for batch in file.iter_batches(batch_size=1, columns=[*columns, *optional]):
                for row in batch.to_pylist():
                    yield f"{path}: row {number}", row
                    number += 1
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{path}: not a Parquet file, or a damaged one: {error}") from error


def open_text(path: Path) -> IO[str]:
    """Open a text in UTF-8, or in UTF-16 with a byte order mark. Raises `DataError` if it cannot be read."""
    try:
        with path.open("rb") as stream:  # spreadsheets save "Unicode text" as UTF-16 with a byte order mark
            start = stream.read(16)
        refuse_packed(start, str(path))
        encoding = "utf-16" if start.startswith(UTF_16) else "utf-8-sig"
        return path.open(encoding=encoding, newline="")
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from error


def _skip_whitespace(buffer: str, stream: IO[str]) -> str:
    """Return the buffer without leading white space; empty at the end of the file."""
    while not (buffer := buffer.lstrip()) and (buffer := stream.read(_BLOCK)):
        pass
    return buffer


def _decode_item(buffer: str, stream: IO[str], location: str) -> tuple[Any, str]:
    """Decode the item at the start of the buffer.

    Returns:
        The item, and the rest of the buffer.
    """
    decoder = json.JSONDecoder(object_pairs_hook=unique_keys, parse_float=finite_float)
    while True:
        try:
            value, end = decoder.raw_decode(buffer)
        except json.JSONDecodeError as error:
            inside = error.msg.startswith("Unterminated string") or error.pos >= len(buffer) - _CUT_OFF
            extension = stream.read(max(_BLOCK, len(buffer))) if inside and len(buffer) < _LARGEST else ""
            if not extension:
                raise DataError(f"{location}: not JSON, or cut off: {error.msg}") from error
        except (ValueError, RecursionError) as error:  # a repeated key, thousands of digits, or too deep
            raise DataError(f"{location}: not JSON: {error}") from error
        else:
            may_continue = isinstance(value, int | float) and end >= len(buffer) - 2  # 1, 1.5, 1.5e+9
            extension = stream.read(_BLOCK) if may_continue else ""
            if not extension:
                return value, buffer[end:]
        buffer += extension
