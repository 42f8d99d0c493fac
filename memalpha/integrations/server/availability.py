"""Answers of the store within a deadline while its database is away, and the errors that a client may see.

A request of a store in PostgreSQL may wait long for two reasons: it has much to do, or the server has gone without a
word (a cut network, a stopped machine). So a request that takes longer than `PATIENCE` looks whether a new connection
is answered. If it is not, the client is told to come back; the thread ends with its connection.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import TypeVar

from memalpha.errors import (
    DeadlineExceeded,
    DuplicateContent,
    InvalidContent,
    MemalphaError,
    PolicyError,
    ReviewConflict,
    StoreError,
    StoreUnavailable,
    UnknownCategory,
    UnknownEntry,
)
from memalpha.integrations.server.schemas import ServiceError

T = TypeVar("T")

PATIENCE = 0.75
"""Seconds that a request may take before the database is looked at, and between two looks."""
PING_SECONDS = 1.0
"""Seconds for the database to answer a new connection."""
LATE_SECONDS = 0.1
"""Seconds for an answer that has come to be noticed."""
AWAY_RETRY_SECONDS = 2
"""After how long a client may ask again while the database is away."""

log = logging.getLogger("memalpha.serve")

_STATUS = {
    UnknownEntry: 404,
    DuplicateContent: 409,
    UnknownCategory: 422,
    InvalidContent: 422,
    ReviewConflict: 409,
    DeadlineExceeded: 504,
}


class Availability:
    """Wait for requests of one database; all requests of a server share the looks at it."""

    def __init__(self, ping: Callable[[], None] | None) -> None:
        """Watch a database.

        Args:
            ping: Returns if the database answers, and raises `StoreError` if it does not. None for a file, which is
                never away.
        """
        self._ping = ping
        self._look: asyncio.Task[None] | None = None
        self._is_away = False

    async def check(self) -> None:
        """Look before a thread is used, if the last look got no answer. Raises `ServiceError` (503)."""
        if self._is_away and not await self._is_answering():
            raise _away("nothing was done")

    async def wait(self, work: Future[T]) -> T:
        """Return the result of `work`, which runs in a thread. Work that has not begun is dropped on every failure.

        Raises:
            ServiceError: The database is away (503). A write that had begun may be stored, and the message says so.
        """
        result = asyncio.wrap_future(work)
        try:
            while self._ping is not None and not (await asyncio.wait({result}, timeout=PATIENCE))[0]:
                if not await self._is_answering() and not result.done():
                    state = "nothing was done" if work.cancel() else "whether a write was stored is not known"
                    raise _away(state)
            return await result
        except BaseException:
            result.cancel()
            raise

    async def _is_answering(self) -> bool:
        if self._ping is None:
            return True
        if self._look is None or self._look.done() or self._look.get_loop() is not asyncio.get_running_loop():
            self._look = asyncio.create_task(asyncio.to_thread(self._ping))
            self._look.add_done_callback(lambda look: look.cancelled() or look.exception())  # read: it is no surprise
        look = self._look
        done, _ = await asyncio.wait({look}, timeout=PING_SECONDS)
        if not done:  # a loop that was late itself has not yet heard of an answer that came in time
            done, _ = await asyncio.wait({look}, timeout=LATE_SECONDS)
        self._is_away = not done or look.cancelled() or look.exception() is not None
        return not self._is_away


@contextmanager
def service_errors() -> Iterator[None]:
    """Convert every exception to `ServiceError`.

    Errors that the client did not cause get a general message; the log has the traceback.
    """
    try:
        yield
    except ServiceError:
        raise
    except MemalphaError as error:
        raise to_service_error(error) from error
    except Exception as error:
        log.exception("a request failed")
        raise ServiceError("internal_error", "the server failed; its log says why", 500) from error


def to_service_error(error: MemalphaError) -> ServiceError:
    """Return the error for the client."""
    if isinstance(error, StoreUnavailable):
        log.error("the database is away: %s", error)
        return _away(error.outcome)
    if isinstance(error, StoreError) and type(error) in _STATUS:
        return ServiceError(error.code, str(error), _STATUS[type(error)])
    log.error("a request failed", exc_info=error)
    if isinstance(error, PolicyError):
        return ServiceError("policy_error", "the policy did not answer; the server's log says why", 502)
    return ServiceError("store_error", "the store did not do it; the server's log says why", 503)


def _away(outcome: str) -> ServiceError:
    message = "the database is away" + (f" ({outcome})" if outcome else "") + ": try again later"
    return ServiceError(StoreUnavailable.code, message, 503, retry_after=AWAY_RETRY_SECONDS)
