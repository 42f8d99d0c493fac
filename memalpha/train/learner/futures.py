"""Requests to one worker, which does them one after the other in the order they were submitted, and their futures.

* Order: whoever waits for a future, and whether anybody does, changes nothing. What a request does is what the same
  call would have done in a plain program.
* Poison: the first request that fails raises its error from its own future. Nothing after it is done: every later
  future, of requests submitted before or after the failure, raises a `TrainingError` whose `__cause__` is that error.
  Half an update on top of a failed one would be worse than none; go on from a checkpoint, with a new pipeline.
* Cancelling: a request is not withdrawn by whoever waits. A task that is cancelled in `await`, or a `result(timeout)`
  that ran out of time, leaves it as it was: others may build on it.
* End: `close` waits until all is done (`drop=True`: until the request under way is), so does the interpreter's end,
  which drops the rest. Nothing fails in silence: `close` raises what no future has told anybody.
"""

from __future__ import annotations

import asyncio
import threading
import time
import weakref
from collections.abc import Callable, Generator
from concurrent import futures
from contextlib import suppress
from queue import SimpleQueue
from types import TracebackType
from typing import Any, Generic, TypeVar

from memalpha.errors import TrainingError

T = TypeVar("T")


class Future(Generic[T]):
    """What a request will return: `await` it, in any event loop and any number of times, or ask for its `result`."""

    def __init__(self, pipeline: Pipeline, label: str) -> None:
        self._pipeline = pipeline  # which lives as long as a request is not done
        self._inner: futures.Future[T] = futures.Future()
        self._inner.set_running_or_notify_cancel()
        self.label = label

    def result(self, timeout: float | None = None) -> T:
        """What the request returned, or the error it raised. `TimeoutError` after `timeout` seconds.

        Raises `TrainingError` where an earlier request failed, and in a request's own code, which cannot wait for what
        comes after it.
        """
        self._raise_if_in_request()
        try:
            return self._inner.result(timeout)
        except BaseException:
            self._pipeline.failure_reported |= self.done()
            raise

    def _raise_if_in_request(self) -> None:
        if not self.done() and self._pipeline.is_in_request():
            raise TrainingError(f"{self.label}: a request cannot wait for one that is done after it")

    def done(self) -> bool:
        """Whether it is over, with a result or an error."""
        return self._inner.done()

    def __await__(self) -> Generator[Any, None, T]:
        self._raise_if_in_request()
        if not self.done():
            loop = asyncio.get_running_loop()
            wakeup = loop.create_future()

            def wake(_: Any) -> None:
                with suppress(RuntimeError):  # that loop was closed in the meantime
                    loop.call_soon_threadsafe(lambda: wakeup.done() or wakeup.set_result(None))

            self._inner.add_done_callback(wake)
            yield from wakeup.__await__()
        return self.result()

    def __repr__(self) -> str:
        return f"<Future of {self.label}, {'done' if self.done() else 'not done'}>"


class Pipeline:
    """The worker: a thread, or with `inline` none, where a request is done before `submit` returns.

    Both do the same in the same order. A context manager: `close()` at its end, `close(drop=True)` after an exception.
    """

    def __init__(self, *, inline: bool = False, name: str = "memalpha pipeline") -> None:
        self.failure_reported = False
        """Whether somebody has been told of a failure."""
        self._state = _WorkerState()
        self._closed = False
        self._lock = threading.RLock()
        self._requests: SimpleQueue[_Request | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        if not inline:
            # A daemon, which the finalizer ends: what hangs in C code can be left by a second Ctrl-C at the very end.
            worker_args = (self._requests, self._state)
            self._thread = threading.Thread(target=_run_worker, args=worker_args, name=name, daemon=True)
            self._thread.start()
            self._finalizer = weakref.finalize(self, _shut_down, *worker_args, self._thread)

    def submit(self, label: str, work: Callable[[], T]) -> Future[T]:
        """Have `work` done after all that was submitted before it; `what` names it in messages.

        Returns at once, also after a failure (see above). Raises `TrainingError` once the pipeline is closed.
        """
        future: Future[T] = Future(self, label)
        with self._lock:
            if self._closed:
                raise TrainingError(f"{label}: this pipeline is closed")
            if self._thread is not None:
                self._requests.put((future, work))
            elif (error := _run_request(future, work, self._state)) is not None and not isinstance(error, Exception):
                raise error  # a Ctrl-C: it hit the caller
        return future

    def close(self, *, drop: bool = False) -> None:
        """Take no more requests and wait for those that are here, or drop those that have not begun.

        Futures of dropped ones raise `TrainingError`. Raises one too where a request failed and nobody has been told.
        """
        if self.is_in_request():
            raise TrainingError("a request cannot close the pipeline that it is done in")
        with self._lock:
            self._closed = True
        self._state.dropped |= drop
        if self._thread is not None:
            self._requests.put(None)
            self._thread.join()
        failure = self._state.failure
        if failure is not None and not drop and not self.failure_reported:
            self.failure_reported = True
            raise TrainingError(f"{self._state.failed_label} failed ({failure})") from failure

    @property
    def idle_since(self) -> float | None:
        """When the worker ran out of requests, by `time.monotonic`; None while it has some."""
        return self._state.idle_since

    def is_in_request(self) -> bool:
        """Whether the caller is itself part of a request."""
        return self._thread is not None and threading.current_thread() is self._thread

    def __enter__(self) -> Pipeline:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(drop=kind is not None)


_Request = tuple[Future[Any], Callable[[], Any]]


class _WorkerState:
    """What the worker and its pipeline share: the first failure, whether to drop what has not begun, since when it has
    nothing to do."""

    def __init__(self) -> None:
        self.failure: BaseException | None = None
        self.failed_label = ""
        self.dropped = False
        self.idle_since: float | None = time.monotonic()


def _run_request(future: Future[Any], work: Callable[[], Any], state: _WorkerState) -> BaseException | None:
    """Do one request, or say why not; returns its error."""
    if state.failure is not None:
        reason = " ".join(str(state.failure).split()) or type(state.failure).__name__
        error: BaseException = TrainingError(
            f"{future.label} was not done: {state.failed_label} before it failed ({reason})"
        )
        error.__cause__ = state.failure
    elif state.dropped:
        error = TrainingError(f"{future.label} was not done: its pipeline was closed before")
    else:
        try:
            value = work()
        except BaseException as raised:  # noqa: BLE001  # an exit too: it is for whoever waits
            error = state.failure = raised
            state.failed_label = future.label
        else:
            future._inner.set_result(value)
            return None
    future._inner.set_exception(error)
    return error


def _run_worker(requests: SimpleQueue[_Request | None], state: _WorkerState) -> None:
    while (request := requests.get()) is not None:
        state.idle_since = None
        _run_request(*request, state)
        del request  # a pipeline that nobody holds ends here
        if requests.empty():
            state.idle_since = time.monotonic()


def _shut_down(requests: SimpleQueue[_Request | None], state: _WorkerState, thread: threading.Thread) -> None:
    """At the interpreter's end, or when nobody holds the pipeline any more (then nothing is left to be done)."""
    state.dropped = True
    requests.put(None)
    if thread is not threading.current_thread():
        thread.join()
