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
_INHERITED: list[asyncio.AbstractEventLoop] = []  # loops of the parent, which closing would disturb


class LoopThread(ForkAware):
    """Run coroutines in one background thread, which starts with the first and ends with the last reference.

    A forked process starts a thread of its own.

    Args:
        name: Name in error messages and of the thread.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.waiting: set[futures.Future[Any]] = set()
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self.watch_forks()

    def reset_in_child(self, state: object) -> None:
        """Forget lock, loop and thread of the parent."""
        self._lock, self.waiting = threading.Lock(), set()
        if self._loop is not None:
            self._stop.detach()
            _INHERITED.append(self._loop)
            self._loop = None

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine and return its result. Raises `PolicyError` if `cancel` ends it."""
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
                thread = threading.Thread(target=self._loop.run_forever, name=f"memalpha {self.name}", daemon=True)
                thread.start()
                self._stop = weakref.finalize(self, _stop_loop, self._loop, thread)
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
            self.waiting.add(future)
        future.add_done_callback(self._forget)
        return future

    def cancel(self) -> None:
        """Cancel all that was started and has not ended."""
        with self._lock:
            waiting = list(self.waiting)
        for future in waiting:
            future.cancel()

    def close(self, last: Coroutine[Any, Any, Any] | None = None) -> None:
        """Run `last` in the loop, if it was ever started, and end the thread."""
        with self._lock:
            loop, self._loop = self._loop, None
        if loop is not None:
            if last is not None:
                asyncio.run_coroutine_threadsafe(last, loop).result()
            self._stop()
        elif last is not None:
            last.close()

    def _forget(self, future: futures.Future[Any]) -> None:
        with self._lock:
            self.waiting.discard(future)


def _stop_loop(loop: asyncio.AbstractEventLoop, thread: threading.Thread) -> None:
    """Stop a loop's thread and cancel its pending coroutines."""

    async def give_up() -> None:
        pending = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)
        loop.stop()

    asyncio.run_coroutine_threadsafe(give_up(), loop)
    if thread is not threading.current_thread():
        thread.join(_PATIENCE)
        if not thread.is_alive():
            loop.close()
