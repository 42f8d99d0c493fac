"""Run the jobs of `memalpha.workers` on a Ray cluster instead of processes of this machine (extra `ray`).

Ray places one actor for each worker on a machine. If one dies, another is started and does what it was doing. The
machines need memalpha, the policy's files under the same path, and a way to the store.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Generator, Iterable
from contextlib import AbstractContextManager
from typing import Any

from memalpha.errors import ConfigError, MemalphaError, WorkerError, install_command
from memalpha.workers import MAX_ATTEMPTS, MAX_FAILED_STARTS, Job, LostJob, Result, StartWork, limit_threads


class _Actor:
    """Worker on a Ray cluster: made ready by `start`, then does one job at a time."""

    def start(self, payload: bytes) -> MemalphaError | None:
        """Make the worker ready, or return the error that the caller is to raise."""
        limit_threads()
        start: Callable[[], AbstractContextManager[Callable[[Any], Any]]] = pickle.loads(payload)
        self._context = start()
        try:
            self._work = self._context.__enter__()
        except MemalphaError as error:
            return error
        return None

    def do(self, job: Any) -> Any:
        """Do one job. A MemalphaError is returned, for the caller to raise."""
        try:
            return self._work(job)
        except MemalphaError as error:
            return error


def run_on_ray(
    start: StartWork[Job, Result], jobs: Iterable[Job], *, address: str | None = None, workers: int = 2
) -> Generator[tuple[Job, Result | LostJob]]:
    """Yield every job with its result, as `run_jobs` does, from actors on a Ray cluster.

    Args:
        start: Makes a worker ready; picklable, importable on every machine.
        jobs: Jobs, fetched when an actor is free.
        address: `ray://HOST:PORT` of a cluster; None takes `RAY_ADDRESS`, or starts Ray on this machine.
        workers: Number of actors, of one CPU each.

    Yields:
        The job and its result, or `LostJob` if its actor died `MAX_ATTEMPTS` times while doing it.

    Raises:
        ConfigError: Ray is not installed, or there is no cluster at the address.
        MemalphaError: A worker raised it.
        WorkerError: Actors die before they are ready, or raised another error.
    """
    try:
        import ray  # pyright: ignore[reportMissingImports]
        from ray.exceptions import RayActorError, RayTaskError  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise ConfigError(f"workers on Ray need the package ray: {install_command('ray')}") from error
    was_running = ray.is_initialized()
    try:
        if not was_running:
            ray.init(address, log_to_driver=False)
    except (ConnectionError, ValueError, RuntimeError, TimeoutError) as error:
        raise ConfigError(f"ray: no cluster at {address or 'RAY_ADDRESS'}: {error}") from error
    payload = pickle.dumps(start)
    # A dead actor is replaced, not restarted by Ray: an actor that restarts refuses jobs for a while.
    actor_class = ray.remote(num_cpus=1, max_restarts=0)(_Actor)
    remaining = iter(jobs)
    retries: list[tuple[Job, int]] = []
    actors: set[Any] = set()
    running: dict[Any, tuple[Any, tuple[Job, int] | None]] = {}  # reference → actor and attempt; None: it starts

    def add_actor() -> None:
        actor = actor_class.remote()
        actors.add(actor)
        running[actor.start.remote(payload)] = (actor, None)

    failed_starts = 0
    try:
        for _ in range(workers):
            add_actor()
        while running:
            [reference], _ = ray.wait(list(running))
            actor, attempt = running.pop(reference)
            try:
                result: Any = ray.get(reference)
            except RayActorError as error:
                actors.discard(actor)
                failed_starts += attempt is None
                if failed_starts >= MAX_FAILED_STARTS:
                    raise WorkerError(f"workers on Ray do not start: {error}") from error
                add_actor()
                if attempt is not None and attempt[1] < MAX_ATTEMPTS:
                    retries.append((attempt[0], attempt[1] + 1))
                elif attempt is not None:
                    yield attempt[0], LostJob(f"its worker on Ray died, {attempt[1]} times: {error}")
                continue
            except RayTaskError as error:
                raise WorkerError(f"a worker on Ray raised an error: {error}") from error
            if isinstance(result, MemalphaError):
                raise result
            failed_starts = 0
            following = retries.pop() if retries else next(((job, 1) for job in remaining), None)
            if following is not None:
                running[actor.do.remote(following[0])] = (actor, following)
            if attempt is not None:
                yield attempt[0], result
    finally:
        for actor in actors:
            ray.kill(actor)
        if not was_running:
            ray.shutdown()
