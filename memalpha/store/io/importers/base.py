"""Shared parts of the importers: source events, reading SQLite copies, loading pickles as plain data."""

from __future__ import annotations

import pickle
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

from memalpha.errors import DataError
from memalpha.store.filters import format_utc
from memalpha.types import Operation

_PICKLE_ERRORS = (pickle.UnpicklingError, EOFError, ValueError, LookupError, AttributeError, TypeError, ArithmeticError)


_PICKLE_ERRORS += (MemoryError, RecursionError)


SQLITE_MAGIC = b"SQLite format 3\x00"


class SourceEvent(NamedTuple):
    """One event in the other store.

    Attributes:
        location: File and row, for error messages.
        time: Log time; "" if unknown.
        operation: Insert, update or delete, with the other store's id.
    """

    location: str
    time: str
    operation: Operation


@dataclass(frozen=True, slots=True)
class SkippedMemory:
    """Memory that was not imported: one without text, or a copy of the live entry `same_as`."""

    namespace: str
    id: str | None
    content: str
    same_as: str | None


@dataclass(slots=True)
class ImportReport:
    """Result of an import.

    Attributes:
        operations: Number of operations by namespace.
        left_out: Memories that were not imported.
        notes: Remarks about the source.
    """

    operations: dict[str, int] = field(default_factory=dict)
    left_out: list[SkippedMemory] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def parse_log_time(location: str, value: object) -> str:
    """Return a time of the source as a log time (UTC unless it says otherwise); "" for None.

    Raises `DataError`.
    """
    if value is None or value == "":
        return ""
    try:
        time = datetime.fromisoformat(str(value))
    except ValueError as error:
        raise DataError(f"{location}: {value!r} is no time") from error
    return format_utc(time.replace(tzinfo=UTC) if time.tzinfo is None else time)


@contextmanager
def open_sqlite_copy(path: Path) -> Iterator[sqlite3.Connection]:
    """Yield a connection to a copy of an SQLite file and its journal; the original folder stays unchanged.

    Raises `DataError`.
    """
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "copy.db"
        try:
            for suffix in ("", "-wal", "-journal"):
                if not suffix or Path(f"{path}{suffix}").exists():
                    shutil.copyfile(f"{path}{suffix}", f"{copy}{suffix}")
        except OSError as error:
            raise DataError(f"{path}: cannot be read: {error.strerror}") from error
        connection = sqlite3.connect(copy)
        try:
            ((verdict,),) = connection.execute("PRAGMA quick_check(1)")
            if verdict != "ok":
                raise sqlite3.DatabaseError(verdict)
            yield connection
        except sqlite3.Error as error:
            raise DataError(f"{path}: SQLite cannot read it ({error}): is something writing to it?") from error
        finally:
            connection.close()


def require_columns(path: Path, connection: sqlite3.Connection, table: str, required: Sequence[str]) -> list[str]:
    """Return the columns of a table.

    Args:
        path: File, for error messages.
        connection: Connection to the copy.
        table: Name of the table.
        required: Columns that must exist.

    Raises:
        DataError: The table or a required column is missing.
    """
    names = [name for _, name, *_ in connection.execute(f"PRAGMA table_info({table})")]
    if not names:
        raise DataError(f"{path}: no table {table}")
    missing = [name for name in required if name not in names]
    if missing:
        raise DataError(f"{path}: table {table}: no column {', '.join(missing)}")
    return names


class InertObject:
    """Stand-in for an object of a pickle: its state, without its behaviour."""

    state: Any = None

    def __init__(self, *args: object) -> None: ...

    def __setstate__(self, state: object) -> None:
        self.state = state


class _PlainUnpickler(pickle.Unpickler):
    """Unpickler of plain data; names are never imported. Objects of `packages` become `InertObject`."""

    def __init__(self, file: BytesIO, packages: Sequence[str]) -> None:
        super().__init__(file)
        self._packages = packages

    def find_class(self, module: str, name: str) -> type[InertObject]:
        """Return the stand-in for a named class, or refuse it."""
        if module.partition(".")[0] in self._packages:
            return InertObject
        raise pickle.UnpicklingError(f"it refers to {module}.{name}, which is not plain data")


def load_plain_pickle(location: str, data: bytes, packages: Sequence[str] = ()) -> Any:
    """Load a pickle of plain data; objects of `packages` become `InertObject`.

    Args:
        location: Prefix of error messages.
        data: Bytes of the pickle.
        packages: Top-level packages whose objects are allowed.

    Raises:
        DataError: The pickle is invalid or names anything else.
    """
    try:
        return _PlainUnpickler(BytesIO(data), packages).load()
    except _PICKLE_ERRORS as error:
        raise DataError(f"{location}: the pickle is refused: {error}") from error


def require_json_fields(location: str, value: Mapping[str, Any]) -> dict[str, Any]:
    """Return the mapping if JSON can hold its values.

    Raises `DataError` naming the first that it cannot.
    """
    for name, item in value.items():
        if not isinstance(name, str) or not isinstance(item, str | int | float | bool | list | dict | None):
            raise DataError(f"{location}: {name}: {type(item).__name__} is not what JSON can hold")
    return dict(value)
