"""What a store's database offers, be it an SQLite file (`sqlite`) or PostgreSQL (`postgres`)."""

from __future__ import annotations

import sqlite3
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, MutableMapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, get_args

from memalpha.arguments import brief_repr
from memalpha.errors import DamagedStore, DeadlineExceeded, StoreError
from memalpha.store.fields import damaged_row, format_utc, is_text

Clock = Callable[[], datetime]
Durability = Literal["full", "normal"]
_RELEASE, _MOST_YEARS = "2026-11-01", 10  # a clock further ahead of both the release and the log is wrong
CANNOT_WRITE = "a reading transaction cannot write: write after its block"


def system_clock() -> datetime:
    """Return the current time in UTC."""
    return datetime.now(UTC)


def time_since_boot() -> float:
    """Return seconds that no setting of the clock changes, those of a suspended machine included."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if sys.platform == "linux" else time.monotonic()


class Backend(ABC):
    """Open database, `sqlite.SQLiteDatabase` or `postgres.database.PostgresDatabase`.

    Attributes:
        path: File path, ":memory:", or the URL without its secrets.
        clock: Returns the current time.
        meta: Recorded metadata of the store.
        is_remote: True for a database on a server, which may be away.
        is_read_only: True if nothing may be written, caches included.
        is_scrub_due: True if entries were erased and their bytes not yet; a server keeps them until vacuum.
        rollbacks: Number of transactions and operations that were undone; what was read in them may not exist.
        losses: Number of servers or files that another one took the place of; what was read may be gone from it.
        namespace_ids: Ids of namespaces by name, as the current transaction sees them.
        connection: Executor of the statements of the open transaction.
    """

    is_remote = is_read_only = is_scrub_due = False
    namespace_ids: MutableMapping[str, int]
    connection: Any

    def __init__(self, path: str, durability: Durability, clock: Clock) -> None:
        if not isinstance(durability, str) or durability not in get_args(Durability):
            raise StoreError(f"durability {brief_repr(durability)}: 'full' or 'normal' is needed")
        self.path, self.clock = path, clock
        self.rollbacks = self.losses = 0
        self.meta: dict[str, str] = {}
        self._opened = time_since_boot(), system_clock()

    @abstractmethod
    def transaction(self, *namespaces: str, write: bool = True) -> AbstractContextManager[Any]:
        """Open a transaction: all writes happen or none, and all reads see one moment."""

    @contextmanager
    def without_waiting(self) -> Iterator[bool]:
        """Yield True if transactions of this thread in the block wait for no other thread and no network."""
        yield False

    @abstractmethod
    def atomic(self, *namespaces: str) -> AbstractContextManager[None]:
        """Open a caller's transaction: writing transactions inside join it, and one that fails is undone alone.

        Inside, a transaction on other namespaces raises `StoreError`.
        """

    @property
    @abstractmethod
    def is_atomic(self) -> bool:
        """True inside `atomic`, in its thread."""

    @property
    @abstractmethod
    def is_writing(self) -> bool:
        """True inside a writing transaction of this thread."""

    def refuse_in_transaction(self, call: str) -> None:
        """Raise `StoreError` inside `atomic`, for a call that cannot be undone."""
        if self.is_atomic:
            raise StoreError(f"{call} cannot be undone, so not inside `with store.transaction()`: call it afterwards")

    @abstractmethod
    def close(self) -> None:
        """Close all connections; closing again does nothing."""

    @abstractmethod
    def integrity_errors(self) -> Iterable[str]:
        """Iterate over the faults that the database finds in itself."""

    def ping(self) -> None:
        """Check that the database's server answers; a file needs none. Raises `StoreUnavailable` otherwise."""
        return

    def now(self) -> str:
        """Return the current time as the log stores it."""
        return format_utc(self._read_clock())

    def _read_clock(self) -> datetime:
        now = self.clock()
        if not isinstance(now, datetime) or now.tzinfo is None:
            raise StoreError(f"clock: it returned {brief_repr(now)}: a datetime with its zone is needed")
        return now

    def checked_now(self, log_end: str) -> str:
        """Return the clock's time, if it can be right: the log's times never go back, so a wrong one would stay.

        Args:
            log_end: Last time of the log; "" for an empty one.

        Raises:
            StoreError: It is over ten years after this release and after the log's end. Or, since the store was opened,
                the system's clock has gone more than a day further than time, and is a day after the log's end.
            DamagedStore: The log's end has no year.
        """
        now, latest = self._read_clock(), max(log_end, _RELEASE)
        if not (latest.isascii() and latest[:4].isdigit()):
            raise DamagedStore(
                f"the last time of the log is {latest[:40]!r}: run `memalpha doctor`, or go back to a copy"
            )
        text = format_utc(now)
        if self.clock is system_clock:
            elapsed, opened = time_since_boot() - self._opened[0], self._opened[1]
            day_before = now - timedelta(days=1)
            if day_before > opened + timedelta(seconds=elapsed) and format_utc(day_before) > log_end:
                raise StoreError(
                    f"the clock reads {text[:19]}, but {elapsed:.0f} s ago, when the store was opened, it "
                    f"read {format_utc(opened)[:19]}: nothing was written, since the log's times never go back. If the "
                    "clock is right now, open the store again"
                )
        if int(text[:4]) - int(latest[:4]) > _MOST_YEARS:
            raise StoreError(
                f"the clock reads {text[:19]}, more than {_MOST_YEARS} years after {latest[:10]}: set it right; the "
                "log's times never go back, so nothing was written"
            )
        return text

    def namespaces(self) -> list[str]:
        """Return the names of all written namespaces that may be seen. Raises `DamagedStore`."""
        names = [name for (name,) in self.connection.execute("SELECT name FROM namespaces ORDER BY name")]
        for name in names:
            if not is_text(name):
                raise damaged_row(name, "a namespace's name is not text in UTF-8")
        return names

    def warnings(self) -> list[str]:
        """Return warnings about the server and the role."""
        return []

    def expiry_transaction(self, namespace: str) -> AbstractContextManager[Any]:
        """Open a transaction that ends expired entries, which a read needs."""
        return self.transaction(namespace)

    def mark_for_scrub(self) -> None:  # noqa: B027
        """Record, in the erasing transaction, that the file must be rewritten afterwards."""

    def scrub(self, *, wait: bool = True) -> None:  # noqa: B027
        """Rewrite the file if due, so that free pages and the write-ahead log hold nothing erased.

        Args:
            wait: Wait for other processes that use the file.

        Raises:
            ScrubPending: The file cannot be rewritten now.
        """

    def unlock_log(self) -> AbstractContextManager[None]:
        """Allow the block, inside a writing transaction, to delete rows of the log. Raises `StoreError`."""
        return nullcontext()


DEADLINE: ContextVar[float | None] = ContextVar("memalpha_deadline", default=None)
_STEPS = 20_000
"""Instructions of SQLite between two looks at the clock: well below a millisecond."""


@contextmanager
def deadline(seconds: float) -> Iterator[None]:
    """Stop statements of the block that would run on after `seconds`; a transaction then stores nothing.

    Raises:
        DeadlineExceeded: A statement was stopped.
    """
    token = DEADLINE.set(time.monotonic() + seconds)
    try:
        yield
    finally:
        DEADLINE.reset(token)


@contextmanager
def no_deadline() -> Iterator[None]:
    """Run the block without the deadline, which is put off by the time that the block takes.

    On PostgreSQL, no single statement of the block may take longer than the transaction had left when it began.
    """
    end, began = DEADLINE.get(), time.monotonic()
    DEADLINE.set(None)
    try:
        yield
    finally:
        DEADLINE.set(None if end is None else end + time.monotonic() - began)


def seconds_left() -> float | None:
    """Return the seconds until the deadline, None without one. Raises `DeadlineExceeded` after it."""
    end = DEADLINE.get()
    if end is None:
        return None
    if (left := end - time.monotonic()) <= 0:
        raise DeadlineExceeded
    return left


def timeout_setting() -> str:
    """Return the statement that sets PostgreSQL's timeout for the transaction, after a semicolon; "" without one."""
    left = seconds_left()
    return "" if left is None else f"; SET LOCAL statement_timeout = {max(1, int(1000 * left))}"


@contextmanager
def watched(connection: sqlite3.Connection) -> Iterator[None]:
    """Stop statements of a connection in the block at the deadline. Raises `DeadlineExceeded` after it."""
    seconds_left()

    def is_over() -> bool:
        end = DEADLINE.get()
        return end is not None and time.monotonic() > end

    connection.set_progress_handler(is_over, _STEPS)
    try:
        yield
    finally:
        connection.set_progress_handler(None, 0)
