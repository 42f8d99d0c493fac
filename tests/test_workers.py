"""`run_jobs`: every job once, also if workers are killed; errors of a worker reach the caller."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path

import pytest

from memalpha.errors import PolicyError, WorkerError
from memalpha.workers import LostJob, run_jobs


@contextmanager
def start_squaring(folder: Path) -> Iterator[Callable[[int], tuple[int, str | None]]]:
    """Square numbers; -1 kills its worker once, -2 always, -3 is a bug."""

    def square(number: int) -> tuple[int, str | None]:
        mark = folder / "killed"
        if number == -2 or (number == -1 and not mark.exists()):
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        if number == -3:
            raise ZeroDivisionError
        return number * number, os.environ.get("OMP_NUM_THREADS")

    yield square


@contextmanager
def start_failing(_: Path) -> Iterator[Callable[[int], int]]:
    raise PolicyError("no such policy")
    yield abs


def test_every_job_is_done_once_though_workers_are_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS")
    results = dict(run_jobs(partial(start_squaring, tmp_path), iter([1, 2, -1, 3, -2, 4]), workers=2))
    lost = results.pop(-2)
    assert isinstance(lost, LostJob) and "SIGKILL, 2 times" in lost.reason
    assert results == {number: (number * number, "1") for number in (1, 2, -1, 3, 4)}


def test_jobs_are_fetched_when_a_worker_is_free(tmp_path: Path) -> None:
    fetched: list[int] = []

    def jobs() -> Iterator[int]:
        for number in range(1000):
            fetched.append(number)
            yield number

    with closing(run_jobs(partial(start_squaring, tmp_path), jobs())) as results:
        assert next(results)[0] == 0
    assert len(fetched) == 1


@pytest.mark.parametrize("workers", [1, 2])
def test_an_error_of_the_start_reaches_the_caller(tmp_path: Path, workers: int) -> None:
    with pytest.raises(PolicyError, match="no such policy"):
        list(run_jobs(partial(start_failing, tmp_path), [1], workers=workers))


def test_a_bug_stops_all(tmp_path: Path) -> None:
    with pytest.raises(WorkerError, match="exit code 1: its error is above"):
        list(run_jobs(partial(start_squaring, tmp_path), [1, -3], workers=2))


@contextmanager
def start_dying(folder: Path) -> Iterator[Callable[[int], int]]:
    """Kill the process at its first two starts, or always where the folder says so."""
    starts = len(list(folder.glob("start-*")))
    (folder / f"start-{starts}").touch()
    if starts < 2 or (folder / "always").exists():
        os.kill(os.getpid(), signal.SIGKILL)
    yield abs


def test_a_worker_killed_while_it_starts_is_replaced_a_few_times(tmp_path: Path) -> None:
    assert sorted(run_jobs(partial(start_dying, tmp_path), [-1, -2], workers=2)) == [(-2, 2), (-1, 1)]
    (tmp_path / "always").touch()
    with pytest.raises(WorkerError, match="do not start: the last was killed by SIGKILL"):
        list(run_jobs(partial(start_dying, tmp_path), [-1, -2], workers=2))
