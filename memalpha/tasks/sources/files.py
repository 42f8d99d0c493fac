"""Reading official files: the file in a folder, its JSON, a field of the right kind; errors name file, place, field.

And what loaders share once they have read one: turns packed into chunks.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from memalpha.errors import DataError
from memalpha.types import Chunk, SpeakerTurn, Task

CHUNK_TOKENS = 2048
"""Longest chunk that loaders cut a stream into, in tokens (characters / 4)."""


def file_in(path: Path, name: str) -> Path:
    """`path` if it is a file, else the file `name` (`folder/file`: its last part will do) in the folder `path`.

    Raises `DataError` where there is none.
    """
    if not path.is_dir():
        return path
    for place in (path / name, path / Path(name).name):
        if place.is_file():
            return place
    raise DataError(f"{path}: no file {name} in this folder")


def read_text(path: Path) -> str:
    """A UTF-8 file. Raises `DataError` for one that cannot be read or is something else."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not a text in UTF-8: {error}") from error


def read_json(path: Path) -> Any:
    """The value of a JSON file. Raises `DataError` for one that cannot be read or is none."""
    try:
        return json.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: not a JSON file: {error}") from error


def field(item: Any, key: str, kind: type | tuple[type, ...], where: str) -> Any:
    """`item[key]`, which must be there and of the kind; `where` is the place that the `DataError` names."""
    if not isinstance(item, Mapping) or not isinstance(item.get(key), kind):
        names = " or ".join(k.__name__ for k in (kind if isinstance(kind, tuple) else (kind,)))
        raise DataError(f"{where}: field {key!r} is missing or not {names}")
    return item[key]


def strings(value: Any, where: str) -> list[str]:
    """A list of texts. Raises `DataError` for anything else."""
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise DataError(f"{where}: a list of texts is needed, not {value!r}")
    return value


def filled(value: Any, items: str, where: str) -> list[Any]:
    """A list with something in it. Raises `DataError` for anything else."""
    if not isinstance(value, list) or not value:
        raise DataError(f"{where}: a JSON list of {items} is needed, and this is none or empty")
    return value


def sha256(path: Path) -> str:
    """Hexadecimal, of a file of any size; of a folder, that of the lines `CHECKSUM  NAME` of all files below it."""
    if path.is_dir():
        files = sorted(file for file in path.rglob("*") if file.is_file())
        lines = [f"{sha256(file)}  {file.relative_to(path).as_posix()}\n" for file in files]
        return hashlib.sha256("".join(lines).encode()).hexdigest()
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def packed(turns: Iterable[SpeakerTurn], tokens: int = CHUNK_TOKENS) -> list[Chunk]:
    """Turns in order, as many to a chunk as fit into `tokens`; one that is longer is a chunk by itself."""
    chunks: list[Chunk] = []
    held: list[SpeakerTurn] = []
    size = 0
    for turn in turns:
        length = len(turn.speaker) + len(turn.text) + 3  # as rendered: "speaker: text" and the end of the line
        if held and size + length > 4 * tokens:
            chunks.append(Chunk(turns=tuple(held)))
            held, size = [], 0
        held.append(turn)
        size += length
    return [*chunks, Chunk(turns=tuple(held))] if held else chunks


def task(where: str, **parts: Any) -> Task:
    """A task of these parts. Raises `DataError` for what no task can be: without chunks, or with an id twice."""
    try:
        return Task(**parts)
    except ValidationError as error:
        raise DataError(f"{where}: task {parts['id']!r}: {error.errors()[0]['msg']}") from error
