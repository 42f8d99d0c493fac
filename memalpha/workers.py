"""Run many independent jobs over worker processes, each restarted if it is killed.

A worker is a process started with `spawn`, with one thread for numerical libraries. It gets one job at a time, so a
killed worker loses at most the job it was doing; that job is given to its replacement. Jobs and results are pickled.
"""

from __future__ import annotations

import os
import pickle
import signal
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import Any, Generic, Protocol, TypeVar

from memalpha.errors import MemalphaError, WorkerError

Job = TypeVar("Job")
Result = TypeVar("Result")
Work = Callable[[Job], Result]
StartWork = Callable[[], AbstractContextManager[Work[Job, Result]]]
"""Called once in each worker; the context yields the function that does one job. Must be picklable."""

MAX_ATTEMPTS = 2
"""Workers that one job may take with it before it counts as lost."""
MAX_FAILED_STARTS = 3
"""Workers killed one after another before they were ready, after which the run stops."""
_THREAD_SETTINGS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
_STOP_SECONDS = 5.0  # time that stopped workers get before they are killed


@dataclass(frozen=True, slots=True)
class LostJob:
    """Result of a job whose workers were all killed: the reason in words."""

    reason: str


class RunJobs(Protocol):
    """Function that runs jobs: `run_jobs` with its number of workers set, or an adapter to a cluster."""

    def __call__(
        self, start: StartWork[Job, Result], jobs: Iterable[Job]
    ) -> Generator[tuple[Job, Result | LostJob]]: ...


def run_jobs(
    start: StartWork[Job, Result], jobs: Iterable[Job], workers: int = 1
) -> Generator[tuple[Job, Result | LostJob]]:
    """Yield every job with its result, in the order in which they end.

    With one worker, jobs run in this process. Closing the iterator stops the workers. A script that calls this with
    more needs the guard `if __name__ == "__main__":`, as everything that starts processes with `spawn`.

    Args:
        start: Makes a worker ready; with more than one worker a picklable function, such as a `partial` of one of a
            module.
        jobs: Jobs, fetched when a worker is free.
        workers: Number of processes, 1 or more.

    Yields:
        The job and its result, or `LostJob` if `MAX_ATTEMPTS` workers were killed while doing it.

    Raises:
        MemalphaError: `start` raised it in a worker.
        WorkerError: `MAX_FAILED_STARTS` workers in a row were killed before they were ready, or a worker raised another
            error.
    """
    if workers > 1:
        yield from _Pool(start, jobs, workers).run()
        return
    with start() as work:
        for job in jobs:
            yield job, work(job)


@dataclass(slots=True)
class _Attempt(Generic[Job]):
    job: Job
    number: int = 1


class _Worker(Generic[Job]):
    """One process, the parent's end of its pipe, and the job it is doing."""

    def __init__(self, payload: bytes) -> None:
        context = get_context("spawn")
        self.connection, child_end = context.Pipe()
        self.process: SpawnProcess = context.Process(target=_serve, args=(child_end, payload), daemon=True)
        self.process.start()
        child_end.close()  # the parent then reads the end of the pipe as soon as the process is gone
        self.is_ready = False
        self.attempt: _Attempt[Job] | None = None


class _Pool(Generic[Job, Result]):
    """Workers, and the jobs that wait for them."""

    def __init__(self, start: StartWork[Job, Result], jobs: Iterable[Job], workers: int) -> None:
        self._payload = pickle.dumps(start)
        self._jobs, self._retries = iter(jobs), deque[_Attempt[Job]]()
        self._count = workers
        self._failed_starts = 0
        self._workers: list[_Worker[Job]] = []

    def run(self) -> Iterator[tuple[Job, Result | LostJob]]:
        try:
            self._workers = [_Worker(self._payload) for _ in range(self._count)]
            while self._workers:
                for connection in wait([worker.connection for worker in self._workers]):
                    worker = next(item for item in self._workers if item.connection is connection)
                    yield from self._receive(worker)
        finally:
            self._stop()

    def _receive(self, worker: _Worker[Job]) -> Iterator[tuple[Job, Result | LostJob]]:
        """Take a message from a worker, or its death, and give it the next job."""
        try:
            kind, value = worker.connection.recv()
        except (EOFError, OSError):  # OSError: killed in the middle of a message
            yield from self._replace(worker)
            return
        if kind == "error":
            raise value
        worker.is_ready, self._failed_starts = True, 0
        attempt, worker.attempt = worker.attempt, None
        self._give_job(worker)
        if attempt is not None:
            yield attempt.job, value

    def _give_job(self, worker: _Worker[Job]) -> None:
        """Give a worker the next job, or let it end if there is none."""
        attempt = self._retries.popleft() if self._retries else next(map(_Attempt, self._jobs), None)
        if attempt is None:
            self._workers.remove(worker)
            worker.connection.close()  # the worker reads the end of the pipe and ends
            worker.process.join()
            return
        worker.attempt = attempt
        with suppress(OSError):  # the worker is gone: the next wait says so
            worker.connection.send(attempt.job)

    def _replace(self, worker: _Worker[Job]) -> Iterator[tuple[Job, LostJob]]:
        """Start another worker instead of one that ended, and let it do the same job."""
        worker.process.join()
        worker.connection.close()
        self._workers.remove(worker)
        code = worker.process.exitcode or 0
        if code >= 0:
            raise WorkerError(f"a worker process ended with exit code {code}: its error is above")
        reason = f"its worker was killed by {_signal_name(-code)}"
        self._failed_starts += not worker.is_ready
        if self._failed_starts >= MAX_FAILED_STARTS:
            raise WorkerError(f"worker processes do not start: the last was killed by {_signal_name(-code)}: {_REMEDY}")
        attempt = worker.attempt
        if attempt is not None and attempt.number >= MAX_ATTEMPTS:
            yield attempt.job, LostJob(f"{reason}, {attempt.number} times: {_REMEDY}")
        elif attempt is not None:
            self._retries.append(_Attempt(attempt.job, attempt.number + 1))
        self._workers.append(_Worker(self._payload))

    def _stop(self) -> None:
        """End all workers at once; their jobs are lost."""
        for worker in self._workers:
            worker.process.terminate()
        for worker in self._workers:
            worker.process.join(_STOP_SECONDS)
            if worker.process.is_alive():
                worker.process.kill()
                worker.process.join()
            worker.connection.close()
        self._workers.clear()


_REMEDY = "look at the memory of the machine, or take fewer workers"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _serve(connection: Connection, payload: bytes) -> None:
    """Do jobs from a pipe until its other end is closed: the main function of a worker process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # on Ctrl-C the parent stops its workers
    limit_threads()
    try:
        # Unpickling imports the libraries that read the number of threads.
        start: StartWork[Any, Any] = pickle.loads(payload)
        with start() as work:
            connection.send(("ready", None))
            while True:
                connection.send(("done", work(connection.recv())))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return  # the parent needs this worker no longer, or is gone
    except MemalphaError as error:
        connection.send(("error", error))


def limit_threads() -> None:
    """Set one thread for numerical libraries that are not loaded yet, unless the environment sets a number."""
    for name in _THREAD_SETTINGS:
        os.environ.setdefault(name, "1")
