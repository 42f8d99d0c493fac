"""A pipeline runs requests one by one in the order of submission; each request has a future.

* Order: waiting for a future changes nothing, whoever waits. A request does what the same call would do in a plain
  program.
* Failure: the future of the first failed request raises its error. Nothing runs afterwards: every later future raises
  `TrainingError` with that error as `__cause__`. Half an update on top of a failed one would be worse than none, so
  resume from a checkpoint with a new pipeline.
* Cancelling: a cancelled `await`, or a `result(timeout)` that times out, does not withdraw the request. Others may
  depend on it.
* End: `close` waits for all requests (`drop=True`: for the running one). The interpreter's exit drops what has not
  started. `close` raises a failure that no future has reported.
"""

from __future__ import annotations

import asyncio
import threading
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
    """Result of a request: `await` it in any event loop, any number of times, or call `result`."""

    def __init__(self, pipeline: Pipeline, label: str) -> None:
        self._pipeline = pipeline  # keeps the pipeline alive until the request is done
        self._inner: futures.Future[T] = futures.Future()
        self._inner.set_running_or_notify_cancel()
        self.label = label

    def result(self, timeout: float | None = None) -> T:
        """Return the request's result, or raise its error.

        Args:
            timeout: Seconds to wait; None waits without limit.

        Raises:
            TimeoutError: The request did not finish in time.
            TrainingError: An earlier request failed, or the call comes from a request that runs before this one.
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
        """Return True if the request has finished, with a result or an error."""
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
    """Worker of the requests: a thread, or with `inline` the caller, before `submit` returns.

    Both run the same requests in the same order. As a context manager it calls `close()` on exit, and
    `close(drop=True)` after an exception.
    """

    def __init__(self, *, inline: bool = False, name: str = "memalpha pipeline") -> None:
        self.failure_reported = False
        """True once a future has raised its failure to a caller."""
        self._state = _WorkerState()
        self._closed = False
        self._lock = threading.RLock()
        self._requests: SimpleQueue[_Request | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        if not inline:
            # A daemon that the finalizer stops: a second Ctrl-C at exit can leave a thread that hangs in C code.
            worker_args = (self._requests, self._state)
            self._thread = threading.Thread(target=_run_worker, args=worker_args, name=name, daemon=True)
            self._thread.start()
            self._finalizer = weakref.finalize(self, _shut_down, *worker_args, self._thread)

    def submit(self, label: str, work: Callable[[], T]) -> Future[T]:
        """Queue `work` after all earlier requests and return its future at once, even after a failure.

        `label` names the request in messages.

        Raises:
            TrainingError: The pipeline is closed.
        """
        future: Future[T] = Future(self, label)
        with self._lock:
            if self._closed:
                raise TrainingError(f"{label}: this pipeline is closed")
            if self._thread is not None:
                self._requests.put((future, work))
            elif (error := _run_request(future, work, self._state)) is not None and not isinstance(error, Exception):
                raise error  # a Ctrl-C interrupts the caller, which runs the request inline
        return future

    def close(self, *, drop: bool = False) -> None:
        """Accept no more requests and wait for the queued ones, or with `drop` only for the running one.

        Futures of dropped requests raise `TrainingError`.

        Raises:
            TrainingError: A request failed and no future has reported it, or the caller is a request of this pipeline.
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

    def is_in_request(self) -> bool:
        """Return True if the caller runs inside a request."""
        return self._thread is not None and threading.current_thread() is self._thread

    def __enter__(self) -> Pipeline:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(drop=kind is not None)


_Request = tuple[Future[Any], Callable[[], Any]]


class _WorkerState:
    """State shared by worker and pipeline.

    Attributes:
        failure: Error of the first failed request.
        failed_label: Name of that request.
        dropped: True if queued requests are to be dropped.
    """

    def __init__(self) -> None:
        self.failure: BaseException | None = None
        self.failed_label = ""
        self.dropped = False


def _run_request(future: Future[Any], work: Callable[[], Any], state: _WorkerState) -> BaseException | None:
    """Run one request, or set the reason why it is not run; returns its error."""
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
        except BaseException as raised:  # noqa: BLE001  # exits too: the waiting caller gets them
            error = state.failure = raised
            state.failed_label = future.label
        else:
            future._inner.set_result(value)
            return None
    future._inner.set_exception(error)
    return error


def _run_worker(requests: SimpleQueue[_Request | None], state: _WorkerState) -> None:
    while (request := requests.get()) is not None:
        _run_request(*request, state)
        del request  # drop the reference: an unused pipeline is finalized here


def _shut_down(requests: SimpleQueue[_Request | None], state: _WorkerState, thread: threading.Thread) -> None:
    """Stop the worker at the interpreter's exit, or once the pipeline is garbage: no future can wait then."""
    state.dropped = True
    requests.put(None)
    if thread is not threading.current_thread():
        thread.join()
