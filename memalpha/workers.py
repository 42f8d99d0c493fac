"""Run work in processes that may be killed: by the machine, by what they do, or because they exceed a limit.

Each process has a pipe of its own and shares no lock, so one that is killed at any moment holds up no other; the next
call starts another in its place. Each has one thread for numerical libraries. None imports the caller's script, which
therefore needs no guard `if __name__ == "__main__":`.

This is no sandbox: the functions are trusted, only their running time and memory are not.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
import threading
import traceback
import weakref
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from multiprocessing import Pipe, util
from multiprocessing.context import SpawnProcess
from queue import LifoQueue
from typing import Any, TypeVar

from memalpha.errors import MemalphaError, RewardError, WorkerError

Job = TypeVar("Job")
Result = TypeVar("Result")
StartWork = Callable[[], AbstractContextManager[Callable[[Job], Result]]]
"""Called once in each worker; the context yields the function that does one job. Must be picklable."""

MAX_ATTEMPTS = 2
"""Workers that one job may take with it before it counts as lost."""
PATIENCE = 15.0
"""Clock seconds of a limited call for each second of its CPU limit."""


@dataclass(frozen=True, slots=True)
class Killed:
    """Result of work whose process was killed, or that exceeded a limit; `reason` says which."""

    reason: str


_STARTING = threading.Lock()


class _Process(SpawnProcess):
    """Process that does not import the script that started it."""

    def start(self) -> None:
        main = sys.modules["__main__"].__dict__
        with _STARTING:  # of one process at a time, for all see the same module
            saved = {name: main[name] for name in ("__file__", "__spec__") if name in main}
            main.pop("__file__", None)
            main["__spec__"] = None
            try:
                super().start()
            finally:
                main.update(saved)


class _Died(MemalphaError):
    """A process died.

    Attributes:
        exitcode: Its exit status; negative for a signal.
        ready: False if it died before its first call.
    """

    def __init__(self, exitcode: int | None, ready: bool) -> None:
        super().__init__(f"exit status {exitcode}")
        self.exitcode, self.ready = exitcode, ready


class _Worker:
    """One process, started by the first call and again by the next one after it died."""

    def __init__(self, start: Callable[[], object]) -> None:
        self._start = start
        self._process: SpawnProcess | None = None
        self._pipe: Any = None
        self._busy, self._stopped = threading.Lock(), False

    def call(self, function: Callable[..., Any], arguments: Sequence[Any], timeout: float | None) -> Any:
        """Return what the function returns there.

        Raises:
            _Died: The process died.
            TimeoutError: It took longer than `timeout` seconds, and its process was killed.
            Exception: What the function raised.
        """
        with self._busy:
            process = self._process
            if not (ready := process is not None and process.is_alive()):
                self._pipe, end = Pipe()
                process = _Process(target=_serve, args=(end, self._start))
                process.start()
                end.close()  # the process has the only copy: its death ends the pipe
                self._process = process
            assert process is not None
            try:
                if self._stopped:  # while it started
                    raise EOFError
                ready = ready or self._pipe.recv()
                self._pipe.send((function, arguments))
                if not self._pipe.poll(timeout):
                    raise TimeoutError
                succeeded, value = self._pipe.recv()
            except (EOFError, OSError) as error:
                process.kill()
                process.join()
                if isinstance(error, TimeoutError):
                    raise
                raise _Died(process.exitcode, ready) from error
        if succeeded:
            return value
        raise value

    def stop(self) -> None:
        """End the process: an idle one by itself, if it does so in three seconds."""
        self._stopped = True
        process = self._process
        if process is None:
            return
        if self._busy.acquire(blocking=False):
            self._pipe.close()
            process.join(3)
            self._busy.release()
        process.kill()
        process.join()


def _serve(pipe: Any, start: Callable[[], object]) -> None:
    """Call in this process what comes through the pipe, until the other end is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    start()
    try:
        pipe.send(True)
        while True:
            message = pipe.recv_bytes()
            try:
                function, arguments = pickle.loads(message)
                answer = True, function(*arguments)
            except Exception as error:  # noqa: BLE001 - whatever it is, the caller is to see it
                answer = False, error
            try:
                pipe.send(answer)
            except (pickle.PicklingError, TypeError, AttributeError) as error:
                pipe.send((False, WorkerError(f"a result cannot be sent: {error}")))
    except (EOFError, ConnectionError):
        pass  # the caller stopped, or died


def limit_threads() -> None:
    """Set one thread for numerical libraries that are not loaded yet, unless the environment sets a number."""
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ.setdefault(name, "1")


class LocalPool:
    """Worker processes of this machine, and a thread for each that waits for it.

    Args:
        workers: Number of processes.
        start: Makes a process ready.
    """

    def __init__(self, workers: int, start: Callable[[], object] = limit_threads) -> None:
        self.workers = workers
        processes = [_Worker(start) for _ in range(workers)]
        self._idle: LifoQueue[_Worker] = LifoQueue()  # last first: a single caller needs a single process
        for worker in processes:
            self._idle.put(worker)
        self._threads = ThreadPoolExecutor(workers, "memalpha worker")
        self.stop = weakref.finalize(self, _stop, self._threads, processes, os.getpid())
        """End the processes and what they do; also called when Python ends."""

    def submit(self, function: Callable[..., Any], *args: Any, timeout: float | None = None) -> Future[Any]:
        """Call a function in one of the processes.

        Args:
            function: Function that can be pickled.
            args: Its arguments.
            timeout: Seconds after which the process is killed; None for no limit.

        Returns:
            Future of the result. It raises what the function raised, or `TimeoutError`.
        """
        return self._threads.submit(self._call, function, args, timeout)

    def _call(self, *call: Any) -> Any:
        worker = self._idle.get()
        try:
            return worker.call(*call)
        finally:
            self._idle.put(worker)


def _stop(threads: ThreadPoolExecutor, workers: Sequence[_Worker], pid: int) -> None:
    if os.getpid() != pid:  # the processes are those of the one that forked
        return
    threads.shutdown(wait=False, cancel_futures=True)
    for worker in workers:
        worker.stop()


# ------------------------------------------------------------------------------------------------------- many jobs


def run_jobs(
    start: StartWork[Job, Result], jobs: Iterable[Job], pool: LocalPool | None = None
) -> Generator[tuple[Job, Result | Killed]]:
    """Yield every job with its result, in the order in which they end.

    A process that dies loses the job it was doing, which another process does. Closing the iterator stops the pool.

    Args:
        start: Makes a process ready; for a pool a picklable function, such as a `partial` of one of a module.
        jobs: Jobs, fetched when a process is free.
        pool: Processes; None does the jobs in this one.

    Yields:
        The job and its result, or `Killed` if `MAX_ATTEMPTS` processes died while doing it.

    Raises:
        MemalphaError: `start` or a job raised it.
        WorkerError: Processes die before they are ready, or raised another error.
    """
    if pool is None:
        with start() as work:
            for job in jobs:
                yield job, work(job)
        return
    remaining, retries = iter(jobs), deque[tuple[Job, int]]()
    running: dict[Future[Any], tuple[Job, int]] = {}

    def give_job() -> None:
        attempt = retries.popleft() if retries else next(((job, 1) for job in remaining), None)
        if attempt is not None:
            running[pool.submit(_do, start, attempt[0])] = attempt

    try:
        if isinstance(problem := _result(pool.submit(_do, start)), Killed):
            raise WorkerError(f"worker processes do not start: {problem.reason}")
        for _ in range(pool.workers):
            give_job()
        while running:
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                job, number = running.pop(future)
                result = _result(future)
                is_lost = isinstance(result, Killed)
                if is_lost and number < MAX_ATTEMPTS:
                    retries.append((job, number + 1))
                give_job()
                if not is_lost or number == MAX_ATTEMPTS:
                    yield job, result
    finally:
        pool.stop()


def _result(future: Future[Any]) -> Any:
    try:
        result = future.result()
    except _Died as error:
        remedy = "look at the memory of the machine, or take fewer workers"
        return Killed(f"its worker died ({error}), {MAX_ATTEMPTS} times: {remedy}")
    except RuntimeError as error:
        raise WorkerError(f"worker processes do not start, or cannot be reached: {error}") from error
    if isinstance(result, MemalphaError):
        raise result
    return result


_STARTED: list[Any] = []
"""In a worker: the context that makes it ready, and the function that does one job."""


def _do(start: StartWork[Any, Any], *jobs: Any) -> Any:
    """Do a job in a worker, which the first one makes ready, or return the error that the caller is to raise."""
    try:
        if not _STARTED:
            context = start()
            work = context.__enter__()
            _STARTED.extend((context, work))
            util.Finalize(None, context.__exit__, (None, None, None), exitpriority=0)  # if there is time to
        return _STARTED[1](*jobs) if jobs else None
    except MemalphaError as error:
        return error
    except Exception as error:  # noqa: BLE001 - a bug: the traceback may not be picklable
        traceback.print_exc()
        return WorkerError(f"a worker process raised {error!r}: its traceback is above")


# --------------------------------------------------------------------------------------------------- limited calls


class KillableFunction:
    """Run a function in processes with limits of time and memory.

    Comparing `9^{9^{9^9}}` with 5, or checking a list of thousands for duplicates, happens in libraries that cannot be
    interrupted in every thread. A call that exceeds a limit loses its process, and another takes its place. CPU seconds
    are counted, so the limit holds on a busy machine too. The processes start with the first call.

    Args:
        function: Function of a module, of picklable values.
        seconds: CPU seconds of each call.
        megabytes: Memory of a process.
        count: Processes (default: one per core, at most 4).
        warm: Arguments of an unlimited first call in each new process, if not empty.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        seconds: float,
        megabytes: int = 2048,
        count: int | None = None,
        warm: Sequence[Any] = (),
    ) -> None:
        self.function, self.seconds, self.count = function, seconds, count or max(1, min(4, os.cpu_count() or 1))
        self._name = f"{function.__module__}:{function.__qualname__}"
        self._start = partial(_limit_memory, function, megabytes, warm)
        self._processes: LocalPool | None = None
        self._pid, self._lock = 0, threading.Lock()

    def map(self, arguments: Sequence[Sequence[Any]]) -> list[Any]:
        """Return the function's result for each argument list, or `Killed`.

        Raises:
            RewardError: The function raised, or its processes do not start.
        """
        with self._lock:
            if self._processes is None or os.getpid() != self._pid:  # a fork has not its parent's processes
                self._processes, self._pid = LocalPool(self.count, self._start), os.getpid()
            submit, patience = self._processes.submit, PATIENCE * self.seconds
        calls = [submit(_call, self.function, self.seconds, args, timeout=patience) for args in arguments]
        return [self._outcome(call) for call in calls]

    def close(self) -> None:
        """End the processes; the next call starts new ones."""
        if self._processes is not None and os.getpid() == self._pid:
            self._processes.stop()
        self._processes = None

    def _outcome(self, call: Future[Any]) -> Any:
        try:
            return call.result()
        except TimeoutError:
            return Killed(f"no answer in {PATIENCE * self.seconds:g} s")
        except _Died as error:
            if not error.ready:
                raise RewardError(f"{self._name}: its processes do not start: {error}") from error
            if error.exitcode == -signal.SIGPROF:
                return Killed(f"over {self.seconds:g} s of CPU time")
            return Killed(f"ended with status {error.exitcode}")
        except (MemoryError, RecursionError) as error:
            return Killed("too much memory" if isinstance(error, MemoryError) else "nested too deep")
        except Exception as error:
            raise RewardError(f"{self._name} raised {type(error).__name__}: {error}") from error


def _limit_memory(function: Callable[..., Any], megabytes: int, warm: Sequence[Any]) -> None:
    import resource

    devnull = os.open(os.devnull, os.O_RDWR)  # what libraries say is not for the caller's output
    os.dup2(devnull, 1)
    os.dup2(devnull, 2)
    limit_threads()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (megabytes << 20, megabytes << 20))
    if warm:
        function(*warm)


def _call(function: Callable[..., Any], seconds: float, arguments: Sequence[Any]) -> Any:
    signal.setitimer(signal.ITIMER_PROF, seconds)  # SIGPROF ends the process even inside native code
    try:
        return function(*arguments)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
