"""What a store needs of the database it lies in, which is an SQLite file (`sqlite`) or PostgreSQL (`postgres`)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, MutableMapping, Sequence
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from typing import Any, Literal, Protocol

Clock = Callable[[], datetime]
Durability = Literal["full", "normal"]


def system_clock() -> datetime:
    """The present."""
    return datetime.now(UTC)


class Found(Protocol):
    """The rows that a statement found."""

    def fetchone(self) -> Any: ...
    def fetchmany(self, size: int = ..., /) -> list[Any]: ...
    def fetchall(self) -> list[Any]: ...
    def __iter__(self) -> Iterator[Any]: ...


class Statements(Protocol):
    """Where statements are executed: in SQLite's language, with `?` or `?1` for values."""

    def execute(self, sql: str, values: Sequence[Any] = (), /) -> Found: ...
    def executemany(self, sql: str, rows: Iterable[Sequence[Any]], /) -> Any: ...


class Backend(Protocol):
    """An open database; see `sqlite.Database` and `postgres.PostgresDatabase`, which are the two there are."""

    path: str
    clock: Clock
    meta: dict[str, str]

    @property
    def numbers(self) -> MutableMapping[str, int]: ...
    @property
    def _connection(self) -> Any: ...
    @property
    def scrub_due(self) -> bool: ...
    def transaction(self, *of: str, write: bool = True) -> AbstractContextManager[Any]: ...
    def now(self) -> str: ...
    def namespaces(self) -> list[str]: ...
    def must_scrub(self) -> None: ...
    def scrub(self) -> None: ...
    def close(self) -> None: ...
