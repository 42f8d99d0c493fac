"""Work in processes: every job once also if workers are killed, and calls that exceed a limit are killed."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from random import Random

import pytest

from memalpha.errors import PolicyError, RewardError, WorkerError
from memalpha.workers import KillableFunction, Killed, LocalPool, run_jobs


@contextmanager
def start_squaring(folder: Path) -> Iterator[Callable[[int], tuple[int, str | None]]]:
    """Square numbers; -1 kills its worker once, -2 always, -3 is a bug."""

    def square(number: int) -> tuple[int, str | None]:
        mark = folder / "killed"
        if number == -2 or (number == -1 and not mark.exists()):
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        if number == -3:
            raise ZeroDivisionError("no such thing")
        return number * number, os.environ.get("OMP_NUM_THREADS")

    yield square


@contextmanager
def start_failing(_: Path) -> Iterator[Callable[[int], int]]:
    raise PolicyError("no such policy")
    yield abs


@contextmanager
def start_dying(_: Path) -> Iterator[Callable[[int], int]]:
    os.kill(os.getpid(), signal.SIGKILL)
    yield abs


def test_every_job_is_done_once_though_workers_are_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    results = dict(run_jobs(partial(start_squaring, tmp_path), iter([1, 2, -1, 3, -2, 4]), LocalPool(2)))
    lost = results.pop(-2)
    assert isinstance(lost, Killed) and "worker died" in lost.reason and "2 times" in lost.reason
    assert results == {number: (number * number, "1") for number in (1, 2, -1, 3, 4)}


def test_a_worker_that_dies_between_two_jobs_is_replaced(tmp_path: Path) -> None:
    def jobs() -> Iterator[int]:
        for number in range(1, 4):
            yield number
            for child in multiprocessing.active_children():
                os.kill(child.pid, signal.SIGKILL)
                child.join()

    results = run_jobs(partial(start_squaring, tmp_path), jobs(), LocalPool(1))
    assert {job: result[0] for job, result in results} == {1: 1, 2: 4, 3: 9}


def test_workers_killed_at_any_moment_hold_up_no_other(tmp_path: Path) -> None:
    def kill_some() -> None:
        while not ended.wait(0.02):
            for child in multiprocessing.active_children():
                if random.random() < 0.03:
                    os.kill(child.pid, signal.SIGKILL)

    def jobs() -> Iterator[int]:
        killer.start()  # when a worker is ready
        yield from range(400)

    ended, random = threading.Event(), Random(0)
    killer = threading.Thread(target=kill_some)
    try:
        results = dict(run_jobs(partial(start_squaring, tmp_path), jobs(), LocalPool(3)))
    finally:
        ended.set()
        killer.join()
    assert sorted(results) == list(range(400))
    assert all(isinstance(result, Killed) or result[0] == number**2 for number, result in results.items())


def test_jobs_are_fetched_when_a_worker_is_free(tmp_path: Path) -> None:
    fetched: list[int] = []

    def jobs() -> Iterator[int]:
        for number in range(1000):
            fetched.append(number)
            yield number

    with closing(run_jobs(partial(start_squaring, tmp_path), jobs())) as results:
        assert next(results)[0] == 0
    assert len(fetched) == 1
    with closing(run_jobs(partial(start_squaring, tmp_path), jobs(), LocalPool(2))) as results:
        next(results)
    assert len(fetched) == 1 + 3


@pytest.mark.parametrize("workers", [0, 2])
def test_an_error_of_the_start_reaches_the_caller_before_a_job_is_fetched(tmp_path: Path, workers: int) -> None:
    jobs = iter([1])
    with pytest.raises(PolicyError, match="no such policy"):
        list(run_jobs(partial(start_failing, tmp_path), jobs, LocalPool(workers) if workers else None))
    assert list(jobs) == [1]


def test_a_bug_stops_all(tmp_path: Path) -> None:
    with pytest.raises(WorkerError, match=r"raised ZeroDivisionError\('no such thing'\)"):
        list(run_jobs(partial(start_squaring, tmp_path), [1, -3], LocalPool(2)))


def test_workers_that_die_while_they_start_stop_all(tmp_path: Path) -> None:
    with pytest.raises(WorkerError, match="do not start"):
        list(run_jobs(partial(start_dying, tmp_path), [-1, -2], LocalPool(2)))


# --------------------------------------------------------------------------------------------------- limited calls


@pytest.fixture(scope="module")
def work():
    function = KillableFunction(job, seconds=0.3, megabytes=1024, count=1)
    yield function
    function.close()


def job(kind, value=None):
    if kind == "power":
        return len(str(7**10**9))
    if kind == "sleep":
        time.sleep(60)
    if kind == "memory":
        return len(b"x" * (4 << 30))
    if kind == "deep":
        return job(kind)
    if kind == "exit":
        os._exit(7)
    if kind == "print":
        print("noise")
        os.system("echo noise")
    if kind == "pid":
        return os.getpid()
    if kind == "raise":
        raise ValueError(value)
    return value


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ("power", "over 0.3 s of CPU time"),
        ("memory", "too much memory"),
        ("deep", "nested too deep"),
        ("exit", "ended with status 7"),
    ],
)
def test_what_does_not_end_is_killed_and_the_next_call_is_answered(work, kind, why):
    assert work.map([(kind,), ("echo", [1, "é\n"])]) == [Killed(why), [1, "é\n"]]


def test_a_call_that_waits_for_ever_is_killed_too(work, monkeypatch):
    monkeypatch.setattr("memalpha.workers.PATIENCE", 2)
    assert work.map([("sleep",), ("echo", 5)]) == [Killed("no answer in 0.6 s"), 5]


def test_a_process_is_used_again(work):
    [first], [second] = work.map([("pid",)]), work.map([("pid",)])
    assert first == second != os.getpid()


def test_an_error_is_raised_here(work):
    with pytest.raises(RewardError, match=r":job raised ValueError: no"):
        work.map([("raise", "no")])


def test_what_does_not_start_says_so():
    function = KillableFunction(job, seconds=1, count=1, warm=("exit",))
    with pytest.raises(RewardError, match=r":job: its processes do not start"):
        function.map([("echo",)])
    function.close()


def test_a_process_that_was_killed_between_calls_is_replaced(work):
    [pid] = work.map([("pid",)])
    os.kill(pid, signal.SIGKILL)
    time.sleep(0.5)
    [other] = work.map([("pid",)])
    assert other != pid


def test_a_script_needs_no_guard(tmp_path):
    """Nor do its processes outlive it."""
    script = tmp_path / "script.py"
    script.write_text(
        "import sys\nfrom memalpha.rewards.format import SchemaReward\nprint('once', flush=True)\n"
        "print(SchemaReward({'type': 'integer'})(['p'] * 2, ['3', 'x']))\nassert sys.modules['__main__'].__file__\n"
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=120, cwd=Path.cwd())
    assert (done.stdout, done.stderr, done.returncode) == ("once\n[1.0, 0.0]\n", "", 0)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_fork_has_processes_of_its_own(work):
    [mine] = work.map([("pid",)])
    child = os.fork()
    if child == 0:
        try:
            [other] = work.map([("pid",)])
            work.close()
            os._exit(0 if other != mine else 3)
        finally:
            os._exit(4)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert work.map([("pid",)]) == [mine]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
def test_a_fork_that_ends_leaves_the_processes_of_its_parent():
    code = """
import os, sys
from memalpha.workers import KillableFunction
function = KillableFunction(os.getpid, seconds=5, count=1)
[before] = function.map([()])
if (child := os.fork()) == 0:
    sys.exit()
os.waitpid(child, 0)
assert function.map([()]) == [before]
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "workers.py" not in done.stderr, done.stderr
