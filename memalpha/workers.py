"""Run work in processes that may be killed: by the machine, by what they do, or because they exceed a limit.

The processes are those of Pebble, which replaces one that dies. Each has one thread for numerical libraries. None
imports the caller's script, which therefore needs no guard `if __name__ == "__main__":`.

This is no sandbox: the functions are trusted, only their running time and memory are not.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager
from dataclasses import dataclass
from multiprocessing import util
from multiprocessing.context import SpawnContext, SpawnProcess
from typing import Any, Protocol, TypeVar

from memalpha.errors import ConfigError, MemalphaError, RewardError, WorkerError, install_command

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


class _Process(SpawnProcess):
    """Process that does not import the script that started it."""

    def start(self) -> None:
        main = sys.modules["__main__"].__dict__
        saved = {name: main[name] for name in ("__file__", "__spec__") if name in main}
        main.pop("__file__", None)
        main["__spec__"] = None
        try:
            super().start()
        finally:
            main.update(saved)


class _Context(SpawnContext):
    Process = _Process


def _start_pool(workers: int, initializer: Callable[..., None], *arguments: Any) -> Any:
    from pebble import ProcessPool

    return ProcessPool(workers, initializer=initializer, initargs=arguments, context=_Context())


# ------------------------------------------------------------------------------------------------------- many jobs


class Pool(Protocol):
    """Processes for `run_jobs`, on this machine or a cluster.

    Attributes:
        workers: Jobs done at the same time.
        died: Raised by the future of a call whose process died.
    """

    workers: int
    died: tuple[type[Exception], ...]

    def schedule(self, function: Callable[..., Any], *args: Any) -> Future[Any]:
        """Call a function in one of the processes."""
        ...

    def stop(self) -> None:
        """End the processes and what they do."""
        ...


class LocalPool:
    """Processes of this machine.

    A process that dies between two jobs breaks all of pebble's pool. The next job starts another one then.
    """

    def __init__(self, workers: int) -> None:
        from pebble import ProcessExpired

        self.workers = workers
        self.died: tuple[type[Exception], ...] = (ProcessExpired, BrokenProcessPool)
        self._pool = _start_pool(workers, limit_threads)

    def schedule(self, function: Callable[..., Any], *args: Any) -> Future[Any]:
        """Call a function in one of the processes."""
        if not self._pool.active:
            self.stop()
            self._pool = _start_pool(self.workers, limit_threads)
        return self._pool.schedule(function, args)

    def stop(self) -> None:
        """End the processes and what they do."""
        self._pool.stop()
        self._pool.join()


class RayPool:
    """Worker processes of a Ray cluster, of one CPU each (extra `ray`).

    The machines need memalpha, the policy's files under the same path, and a way to the store.

    Args:
        address: `ray://HOST:PORT` of a cluster; None takes `RAY_ADDRESS`, or starts Ray on this machine.
        workers: Jobs done at the same time.

    Raises:
        ConfigError: Ray is not installed, or there is no cluster at the address.
    """

    def __init__(self, address: str | None = None, workers: int = 2) -> None:
        try:
            import ray  # pyright: ignore[reportMissingImports]
            from ray.exceptions import RayError  # pyright: ignore[reportMissingImports]
        except ImportError:
            raise ConfigError(f"workers on Ray need the package ray: {install_command('ray')}") from None
        self._ray: Any = ray
        self.workers, self.died = workers, (RayError,)
        self._was_running = ray.is_initialized()
        try:
            if not self._was_running:
                ray.init(address, log_to_driver=False)
        except (ConnectionError, ValueError, RuntimeError, TimeoutError) as error:
            raise ConfigError(f"ray: no cluster at {address or 'RAY_ADDRESS'}: {error}") from error
        self._calls: list[Any] = []

    def schedule(self, function: Callable[..., Any], *args: Any) -> Future[Any]:
        """Call a function in one of the processes, which Ray keeps for the next call."""
        call = self._ray.remote(num_cpus=1, max_retries=0)(function).remote(*args)
        self._calls = [item for item in self._calls if item not in self._ray.wait(self._calls, timeout=0)[0]] + [call]
        return call.future()

    def stop(self) -> None:
        """End what the processes do."""
        for call in self._calls:
            self._ray.cancel(call, force=True)
        if not self._was_running:
            self._ray.shutdown()


def run_jobs(
    start: StartWork[Job, Result], jobs: Iterable[Job], pool: Pool | None = None
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
            running[pool.schedule(_do, start, attempt[0])] = attempt

    try:
        if isinstance(problem := _result(pool.schedule(_do, start), pool), Killed):
            raise WorkerError(f"worker processes do not start: {problem.reason}")
        for _ in range(pool.workers):
            give_job()
        while running:
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                job, number = running.pop(future)
                result = _result(future, pool)
                is_lost = isinstance(result, Killed)
                if is_lost and number < MAX_ATTEMPTS:
                    retries.append((job, number + 1))
                give_job()
                if not is_lost or number == MAX_ATTEMPTS:
                    yield job, result
    finally:
        pool.stop()


def _result(future: Future[Any], pool: Pool) -> Any:
    try:
        result = future.result()
    except pool.died as error:
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


def limit_threads() -> None:
    """Set one thread for numerical libraries that are not loaded yet, unless the environment sets a number."""
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ.setdefault(name, "1")


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
        self._name, self._arguments = f"{function.__module__}:{function.__qualname__}", (function, megabytes, warm)
        self._pool, self._pid, self._lock = None, 0, threading.Lock()

    def map(self, arguments: Sequence[Sequence[Any]]) -> list[Any]:
        """Return the function's result for each argument list, or `Killed`.

        Raises:
            RewardError: The function raised, or its processes do not start.
        """
        with self._lock:
            if self._pool is None or os.getpid() != self._pid or not self._pool.active:
                self._pool, self._pid = _start_pool(self.count, _limit_memory, *self._arguments), os.getpid()
            pool, patience = self._pool, PATIENCE * self.seconds
        calls = [pool.schedule(_call, (self.function, self.seconds, args), timeout=patience) for args in arguments]
        return [self._outcome(call) for call in calls]

    def close(self) -> None:
        """End the processes; the next call starts new ones."""
        if self._pool is not None and os.getpid() == self._pid:
            self._pool.stop()
            self._pool.join()
        self._pool = None

    def _outcome(self, call: Future[Any]) -> Any:
        from pebble import ProcessExpired

        try:
            return call.result()
        except TimeoutError:
            return Killed(f"no answer in {PATIENCE * self.seconds:g} s")
        except ProcessExpired as error:
            if error.exitcode == -signal.SIGPROF:
                return Killed(f"over {self.seconds:g} s of CPU time")
            return Killed(f"ended with status {error.exitcode}")
        except (MemoryError, RecursionError) as error:
            return Killed("too much memory" if isinstance(error, MemoryError) else "nested too deep")
        except BrokenProcessPool as error:
            raise RewardError(f"{self._name}: its processes do not start: {error}") from error
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
