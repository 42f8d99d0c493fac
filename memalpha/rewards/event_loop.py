"""Event loop of async reward functions, in its own thread."""

from __future__ import annotations

import asyncio
import atexit
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

from memalpha.errors import RewardError
from memalpha.forks import ForkAware


class EventLoop(ForkAware):
    """Event loop in its own thread, started on first use.

    It stays open between calls, so clients that belong to the loop can be reused.
    """

    def __init__(self) -> None:
        self.reset_in_child(None)
        self.watch_forks()

    def reset_in_child(self, state: object) -> None:
        """Forget loop and thread without stopping them."""
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def submit(self, work: Coroutine[Any, Any, Any]) -> Future[Any]:
        """Schedule a coroutine on the loop and return its future.

        Raises:
            RewardError: The caller runs on this loop, where waiting for the future would deadlock.
        """
        if threading.current_thread() is self._thread:
            work.close()
            raise RewardError("an async reward function cannot call others and wait: await them in it")
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=self._loop.run_forever, name="memalpha rewards", daemon=True)
                self._thread.start()
            return asyncio.run_coroutine_threadsafe(work, self._loop)

    def close(self) -> None:
        """Cancel pending work and stop the loop; the next call starts a new one."""
        with self._lock:
            loop, thread, self._loop, self._thread = self._loop, self._thread, None, None
        if loop is None or thread is None:
            return
        with suppress(TimeoutError):
            asyncio.run_coroutine_threadsafe(self._cancel_all(), loop).result(5)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(5)
        if not thread.is_alive():
            loop.close()

    async def _cancel_all(self) -> None:
        pending = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)
        await asyncio.get_running_loop().shutdown_asyncgens()
        await asyncio.get_running_loop().shutdown_default_executor()


LOOP = EventLoop()
close_loop = LOOP.close
"""Stop the event loop of async reward functions; called at exit too."""
atexit.register(close_loop)
