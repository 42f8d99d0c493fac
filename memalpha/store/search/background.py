"""Work that goes on beside searches: in one thread, its result fetched by whoever asked for it."""

from __future__ import annotations

import atexit
from collections.abc import Callable
from threading import Event, Thread
from typing import Any
from weakref import WeakSet


class Stopped(Exception):
    """Work was told to stop."""


class Background:
    """At most one piece of work at a time. Not for concurrent use but by the thread that does the work."""

    def __init__(self) -> None:
        self._thread: Thread | None = None
        self._stop = Event()
        self._outcome: Any = None
        self._error: BaseException | None = None

    @property
    def is_busy(self) -> bool:
        """Whether there is work that has not been fetched."""
        return self._thread is not None

    def start(self, work: Callable[[Callable[[], bool]], Any]) -> None:
        """Begin `work(stopped)`, which should look at `stopped()` often and raise `Stopped`; what was there before is
        stopped and forgotten."""
        self.stop()
        self._stop = stop = Event()

        def run() -> None:
            try:
                self._outcome = work(stop.is_set)
            except Stopped:
                pass
            except BaseException as error:  # noqa: BLE001 - it is raised where the result is fetched
                self._error = error

        # A daemon, lest an interpreter that ends waits for it; `_stop_all` sees that it ends in good order.
        self._thread = Thread(target=run, name="memalpha-index", daemon=True)
        _RUNNING.add(self)
        self._thread.start()

    def fetch(self, *, wait: bool = False) -> Any:
        """The result, once, when it is there (with `wait`: waited for); else None. Raises what the work raised."""
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
        """Have the work stop soon and forget it; returns when the thread has ended. Raises what the work raised."""
        self._stop.set()
        self.fetch(wait=True)


_RUNNING: WeakSet[Background] = WeakSet()


@atexit.register
def _stop_all() -> None:
    for one in list(_RUNNING):
        one.stop()
