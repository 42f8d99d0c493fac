"""A deadline for the statements of a block: the database stops what takes longer, and the block raises.

It belongs to the thread or task. SQLite stops a statement at its next step; PostgreSQL gets `statement_timeout`. Code
of Python between two statements is not stopped. Work that is done once for all later requests, such as building an
index, runs inside `no_deadline`: if it were stopped, each request would begin it anew.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from memalpha.errors import DeadlineExceeded

_END: ContextVar[float | None] = ContextVar("memalpha_deadline", default=None)
_STEPS = 20_000
"""Instructions of SQLite between two looks at the clock: well below a millisecond."""


@contextmanager
def deadline(seconds: float) -> Iterator[None]:
    """Stop statements of the block that would run on after `seconds`; a transaction then stores nothing.

    Raises:
        DeadlineExceeded: A statement was stopped.
    """
    token = _END.set(time.monotonic() + seconds)
    try:
        yield
    finally:
        _END.reset(token)


@contextmanager
def no_deadline() -> Iterator[None]:
    """Run the block without the deadline, which is put off by the time that the block takes.

    On PostgreSQL, no single statement of the block may take longer than the transaction had left when it began.
    """
    end, began = _END.get(), time.monotonic()
    _END.set(None)
    try:
        yield
    finally:
        _END.set(None if end is None else end + time.monotonic() - began)


def seconds_left() -> float | None:
    """Return the seconds until the deadline, None without one. Raises `DeadlineExceeded` after it."""
    end = _END.get()
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
    """Stop statements of a connection in the block at the deadline, if there is one."""
    if seconds_left() is None:
        yield
        return
    connection.set_progress_handler(_is_over, _STEPS)
    try:
        yield
    finally:
        connection.set_progress_handler(None, 0)


def _is_over() -> bool:
    end = _END.get()
    return end is not None and time.monotonic() > end
