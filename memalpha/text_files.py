"""Texts of files and pipes: UTF-8 with or without a byte order mark, or UTF-16 with one; nothing is guessed.

`lock_file` keeps a second process from writing to the same files.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from memalpha.arguments import finite_float, unique_keys
from memalpha.errors import DataError, MemalphaError

UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
"""Byte order marks of UTF-16."""
NO_TEXT = re.compile("[\0\ud800-\udfff]")
"""What no memory stores: NUL, and halves of surrogate pairs, as of a cut emoji."""
UNFIT = "holds a NUL character or half of a surrogate pair, which no memory can store: take it out"
_PACKED = {
    b"PK\x03\x04": "an archive: unpack it and name a text in it, such as a chat's .txt or conversations.json, or save "
    "a document as text",
    b"\x1f\x8b": "compressed: unpack it first (gunzip)",
    b"SQLite format 3\0": "a database: `memalpha copy` copies a store, `memalpha export` writes it as text",
    b"PAR1": "a Parquet file: write its rows as JSON Lines or CSV first",
}
"""What to do with files that are no texts, by their first bytes."""


@contextmanager
def lock_file(path: Path, user: str, error: type[MemalphaError]) -> Iterator[None]:
    """Keep other processes that call this out of a file, or out of the folder in which it is `.lock`.

    Args:
        path: File; created, with its folder, if it is missing.
        user: Who else may hold it, for the error.
        error: Raised if somebody does, or if the file cannot be written.
    """
    import fcntl  # Windows has none

    place = path.parent if path.name == ".lock" else path
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("a")  # never deleted: two processes could lock two files
    except OSError as problem:
        raise error(f"out: cannot write to {place}: {problem.strerror}") from problem
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as held:
            raise error(f"{place} is in use by {user}: wait for it, or name another out") from held
        yield


def read_text(path: Path, *, keep_line_ends: bool = False) -> str:
    """Return the text of a file.

    Args:
        path: File.
        keep_line_ends: Leave line ends as they are; otherwise each is one "\\n".

    Raises:
        DataError: The file cannot be read or decoded.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {(error.strerror or str(error)).lower()}") from error
    text = decode_text(data, str(path))
    return text if keep_line_ends else text.replace("\r\n", "\n").replace("\r", "\n")


def decode_text(data: bytes, name: str) -> str:
    """Return the text of bytes.

    Args:
        data: Content of a file or a pipe.
        name: What messages call it.

    Raises:
        DataError: It is text of another encoding, or none.
    """
    refuse_packed(data, name)
    try:
        text = data.decode("utf-16" if data.startswith(UTF_16) else "utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{name}: not UTF-8 text (byte {error.start} is invalid): save it as UTF-8") from error
    if "\0" in text:
        raise DataError(f"{name}: holds NUL characters, as UTF-16 read as UTF-8 does: save it as UTF-8")
    return text


def refuse_packed(data: bytes, name: str) -> None:
    """Raise `DataError` with what to do if bytes are an archive, a database or a Parquet file; the first 16 do."""
    for signature, advice in _PACKED.items():
        if data.startswith(signature):
            raise DataError(f"{name}: {advice}")


class _UniqueKeyLoader(yaml.SafeLoader):
    def compose_mapping_node(self, anchor: Any) -> Any:
        node = super().compose_mapping_node(anchor)
        keys = [key.value for key, _ in node.value]
        for index, (key, _) in enumerate(node.value):
            if key.value in keys[:index]:
                raise yaml.MarkedYAMLError(None, None, f"the key {key.value!r} occurs twice", key.start_mark)
        return node


def parse_yaml(text: str) -> Any:
    """Parse YAML of plain values. Raises `yaml.YAMLError` for a key that occurs twice, too."""
    return yaml.load(text, Loader=_UniqueKeyLoader)


def parse_json(text: str | bytes, location: str) -> Any:
    """Return the value of a JSON text.

    Raises `DataError` naming the location if it is none, repeats a key or holds a number beyond a float.
    """
    try:
        return json.loads(text, object_pairs_hook=unique_keys, parse_float=finite_float)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{location}: not JSON: {error}") from error


def split_json_items(data: bytes, name: str) -> list[tuple[str, bytes]]:
    """Return (place, JSON) of the items of a file: its lines, or the rows of one JSON list or object over lines.

    Raises `DataError` if the file is no text, or a list that is no JSON.
    """
    refuse_packed(data, name)
    data = decode_text(data, name).encode() if data.startswith(UTF_16) else data.removeprefix(codecs.BOM_UTF8)
    # Not splitlines(): JSON strings may hold U+2028 and the like.
    lines = [(f"{name}:{number}", line) for number, line in enumerate(data.split(b"\n"), 1) if line.strip()]
    is_list = data.lstrip().startswith(b"[")
    if not is_list and (len(lines) < 2 or parse_json_or_none(data) is None):
        return lines
    value = parse_json(data, name)
    rows = enumerate(value if is_list else [value])
    return [(f"{name}: row {number}", json.dumps(row).encode()) for number, row in rows]


def write_json(path: Path, value: Any) -> None:
    """Write JSON atomically, as ASCII: model output may contain lone surrogates, which UTF-8 cannot encode."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(path, f"{json.dumps(value, indent=1)}\n".encode())


def write_bytes(path: Path, data: bytes) -> None:
    """Write a file atomically: an interrupted write leaves the file that was there."""
    temporary = path.with_name(f".{path.name}.part")
    temporary.write_bytes(data)
    temporary.replace(path)


def parse_json_or_none(text: str | bytes) -> Any:
    """Return the value of a JSON text; None for another text."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
