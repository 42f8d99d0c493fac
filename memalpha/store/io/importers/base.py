"""What the importers share: the events they read, SQLite files read from a copy, pickles read as plain data."""

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
from memalpha.store.filters import utc
from memalpha.types import Operation

_BAD_PICKLE = (pickle.UnpicklingError, EOFError, ValueError, LookupError, AttributeError, TypeError, ArithmeticError)


_BAD_PICKLE += (MemoryError, RecursionError)


SQLITE_MAGIC = b"SQLite format 3\x00"


class Event(NamedTuple):
    """One thing that happened in the other store: its file and row, its time (as logged; "" where it is not known),
    and what it did (an insert, update or delete; an id is that of the other store)."""

    where: str
    time: str
    operation: Operation


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A memory that is not in the store: one without text, or a copy of the live entry `same_as`."""

    namespace: str
    id: str | None
    content: str
    same_as: str | None


@dataclass(slots=True)
class Imported:
    """What an import did: the operations in each namespace, the memories that were left out, and what else is to be
    known of the source."""

    operations: dict[str, int] = field(default_factory=dict)
    left_out: list[LeftOut] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def log_time(where: str, value: object) -> str:
    """A time of the source as a log has it (UTC unless it says otherwise); "" for None. Raises `DataError`."""
    if value is None or value == "":
        return ""
    try:
        time = datetime.fromisoformat(str(value))
    except ValueError as error:
        raise DataError(f"{where}: {value!r} is no time") from error
    return utc(time.replace(tzinfo=UTC) if time.tzinfo is None else time)


@contextmanager
def sqlite_copy(path: Path) -> Iterator[sqlite3.Connection]:
    """A connection to a copy of an SQLite file and of what it has not yet taken in, so that the file's own folder stays
    as it is. Raises `DataError`."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "copy.db"
        try:
            for suffix in ("", "-wal", "-journal"):
                if not suffix or Path(f"{path}{suffix}").exists():
                    shutil.copyfile(f"{path}{suffix}", f"{copy}{suffix}")
        except OSError as error:
            raise DataError(f"{path}: cannot be read: {error.strerror}") from error
        rows = sqlite3.connect(copy)
        try:
            ((fault,),) = rows.execute("PRAGMA quick_check(1)")
            if fault != "ok":
                raise sqlite3.DatabaseError(fault)
            yield rows
        except sqlite3.Error as error:
            raise DataError(f"{path}: SQLite cannot read it ({error}): is something writing to it?") from error
        finally:
            rows.close()


def columns(path: Path, rows: sqlite3.Connection, table: str, needed: Sequence[str]) -> list[str]:
    """The columns of a table; raises `DataError` if it, or some that are needed, are not there."""
    there = [name for _, name, *_ in rows.execute(f"PRAGMA table_info({table})")]
    if not there:
        raise DataError(f"{path}: no table {table}")
    missing = [name for name in needed if name not in there]
    if missing:
        raise DataError(f"{path}: table {table}: no column {', '.join(missing)}")
    return there


class Inert:
    """What stands for an object in a pickle: its state, and nothing that it could do."""

    state: Any = None

    def __init__(self, *args: object) -> None: ...

    def __setstate__(self, state: object) -> None:
        self.state = state


class _Unpickler(pickle.Unpickler):
    """Reads plain data; no name in a pickle is ever looked up. Objects of some packages become `Inert`."""

    def __init__(self, file: BytesIO, packages: Sequence[str]) -> None:
        super().__init__(file)
        self._packages = packages

    def find_class(self, module: str, name: str) -> type[Inert]:
        """The stand-in for whatever is named, or a refusal."""
        if module.partition(".")[0] in self._packages:
            return Inert
        raise pickle.UnpicklingError(f"it names {module}.{name}, which is not data")


def unpickled(where: str, data: bytes, packages: Sequence[str] = ()) -> Any:
    """The value of a pickle that holds data alone, and objects of `packages` as `Inert`; raises `DataError`."""
    try:
        return _Unpickler(BytesIO(data), packages).load()
    except _BAD_PICKLE as error:
        raise DataError(f"{where}: a pickle that is not read: {error}") from error


def plain(where: str, value: Mapping[str, Any]) -> dict[str, Any]:
    """A mapping whose values are what JSON can hold; raises `DataError` naming the first that is not."""
    for name, item in value.items():
        if not isinstance(name, str) or not isinstance(item, str | int | float | bool | list | dict | None):
            raise DataError(f"{where}: {name}: {type(item).__name__} is not what JSON can hold")
    return dict(value)
