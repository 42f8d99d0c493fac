"""`LoopThread`: an event loop in a thread of its own, for clients that work from any thread or event loop."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Coroutine
from concurrent import futures
from typing import Any

from memalpha.errors import PolicyError
from memalpha.forks import ForkAware

_PATIENCE = 10.0  # seconds for coroutines that end late; one that blocks keeps its thread
_INHERITED: list[dict[str, Any]] = []  # loops and connections of the parent, which closing would disturb


class LoopThread(ForkAware):
    """Run coroutines in one background thread, which starts with the first and ends with the last reference.

    A forked process starts a thread of its own.

    Args:
        name: Name in error messages and of the thread.

    Attributes:
        waiting: Futures of what was started and has not ended.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._loop: asyncio.AbstractEventLoop | None = None
        self.reset_in_child(None)
        self.watch_forks()

    def reset_in_child(self, state: object) -> None:
        """Forget lock, loop and thread of the parent, which stay referenced, so that nothing closes them."""
        if self._loop is not None:
            self._stop.detach()
            _INHERITED.append(vars(self).copy())
        self._lock, self._loop = threading.Lock(), None
        self.waiting: set[futures.Future[Any]] = set()

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine and return its result. Raises `PolicyError` if `give_up` ends it."""
        future = self.start(work)
        try:
            return future.result()
        except futures.CancelledError:
            raise PolicyError(f"{self.name}: stopped") from None
        finally:
            future.cancel()  # a Ctrl-C may have ended the wait

    def start(self, work: Coroutine[Any, Any, Any]) -> futures.Future[Any]:
        """Run a coroutine in the background."""
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                thread = threading.Thread(
                    target=_run_loop, args=[self._loop], name=f"memalpha {self.name}", daemon=True
                )
                thread.start()
                self._stop = weakref.finalize(self, _stop_loop, self._loop, thread)
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
            self.waiting.add(future)
        future.add_done_callback(self.waiting.discard)
        return future

    def give_up(self) -> None:
        """Cancel all that was started and has not ended: a `run` of it raises `PolicyError`."""
        for future in list(self.waiting):
            future.cancel()

    def close(self) -> None:
        """Cancel all work and end the thread; the next call starts a new one."""
        with self._lock:
            loop, self._loop = self._loop, None
        if loop is not None:
            self._stop()


def _run_loop(loop: asyncio.AbstractEventLoop) -> None:
    """Run a loop until it is stopped, and cancel its pending coroutines."""
    loop.run_forever()
    if pending := asyncio.all_tasks(loop):
        for task in pending:
            task.cancel()
        loop.run_until_complete(asyncio.gather(*pending, return_exceptions=True))
    loop.close()


def _stop_loop(loop: asyncio.AbstractEventLoop, thread: threading.Thread) -> None:
    loop.call_soon_threadsafe(loop.stop)
    if thread is not threading.current_thread():
        thread.join(_PATIENCE)
