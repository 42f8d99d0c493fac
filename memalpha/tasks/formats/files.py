"""Reading of official files: find, parse and validate; errors name file, location and field.

Also the helpers that all loaders share: packing of turns into chunks, building of tasks.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from importlib import resources
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from memalpha.errors import DataError
from memalpha.text_files import read_text
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
        key: Key that must be there.
        kind: Type or types of the value.
        location: Place that an error names.

    Raises:
        DataError: `item` is no object, or the key is missing or of another type.
    """
    if not isinstance(item, Mapping) or not isinstance(item.get(key), kind):
        names = " or ".join(k.__name__ for k in (kind if isinstance(kind, tuple) else (kind,)))
        raise DataError(f"{location}: field {key!r} is missing or not {names}")
    return item[key]


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


def pack_turns(turns: Iterable[SpeakerTurn], tokens: int = CHUNK_TOKENS) -> list[Chunk]:
    """Pack turns, in order, into chunks of at most `tokens` tokens.

    A longer turn is a chunk by itself.
    """
    chunks: list[Chunk] = []
    chunk_turns: list[SpeakerTurn] = []
    size = 0
    for turn in turns:
        length = len(turn.speaker) + len(turn.text) + 3  # as rendered: "speaker: text" and the end of the line
        if chunk_turns and size + length > 4 * tokens:
            chunks.append(Chunk(turns=tuple(chunk_turns)))
            chunk_turns, size = [], 0
        chunk_turns.append(turn)
        size += length
    return [*chunks, Chunk(turns=tuple(chunk_turns))] if chunk_turns else chunks


def build_task(location: str, **fields: Any) -> Task:
    """Build a `Task`. Raises `DataError` for missing chunks or repeated ids."""
    try:
        return Task(**fields)
    except ValidationError as error:
        raise DataError(f"{location}: task {fields['id']!r}: {error.errors()[0]['msg']}") from error
