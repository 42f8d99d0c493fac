"""Work in a background thread, beside searches, with a result to fetch."""

from __future__ import annotations

import atexit
from collections.abc import Callable
from threading import Event, Thread
from typing import Any
from weakref import WeakSet


class Stopped(Exception):
    """Raised by work that was told to stop."""


class Background:
    """Run at most one piece of work at a time. Not safe for concurrent use."""

    def __init__(self) -> None:
        self._thread: Thread | None = None
        self._stop = Event()
        self._outcome: Any = None
        self._error: BaseException | None = None

    @property
    def is_busy(self) -> bool:
        """True if there is work whose result has not been fetched."""
        return self._thread is not None

    def start(self, work: Callable[[Callable[[], bool]], Any]) -> None:
        """Start `work(stopped)` after stopping earlier work.

        The work should call `stopped()` often and raise `Stopped` once it returns True.
        """
        self.stop()
        self._stop = stop = Event()

        def run() -> None:
            try:
                self._outcome = work(stop.is_set)
            except Stopped:
                pass
            except BaseException as error:  # noqa: BLE001 - raised where the result is fetched
                self._error = error

        # A daemon, so that an interpreter that exits does not wait for it; `_stop_all` ends it in good order.
        self._thread = Thread(target=run, name="memalpha-index", daemon=True)
        _RUNNING.add(self)
        self._thread.start()

    def fetch(self, *, wait: bool = False) -> Any:
        """Return the result once it is ready, else None; raise what the work raised.

        A result is returned only once. With `wait`, wait for it.
        """
        thread = self._thread
        if thread is None or (thread.is_alive() and not wait):
            return None
        thread.join()
        outcome, error = self._outcome, self._error
        self._thread = self._outcome = self._error = None
        if error is not None:
            raise error
        return outcome

    def stop(self) -> None:
        """Stop the work, wait for its thread to end, and drop the result; raise what the work raised."""
        self._stop.set()
        self.fetch(wait=True)


_RUNNING: WeakSet[Background] = WeakSet()


@atexit.register
def _stop_all() -> None:
    for background in list(_RUNNING):
        background.stop()
