"""Work that does not end is killed, and what comes after it is done."""

from __future__ import annotations

import os
import threading
import time

import pytest

from memalpha.errors import RewardError
from memalpha.rewards.subprocess_call import KillableFunction, Killed


@pytest.fixture(scope="module")
def work():
    made = KillableFunction(f"{__name__}:job", seconds=0.3, megabytes=1024, count=1)
    yield made
    made.close()


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
    monkeypatch.setattr("memalpha.rewards.subprocess_call.PATIENCE", 2)
    assert work.map([("sleep",), ("echo", 5)]) == [Killed("no answer in 0.6 s"), 5]


def test_what_it_prints_is_no_answer(work):
    assert work.map([("print", 1), ("print", 2)]) == [1, 2]


def test_a_process_is_used_again(work):
    [first], [second] = work.map([("pid",)]), work.map([("pid",)])
    assert first == second != os.getpid()


def test_what_does_not_start_says_why(tmp_path, monkeypatch):
    """The reason is the last line that the process wrote, whatever blank lines follow."""
    (tmp_path / "broken_job.py").write_text(r"raise ValueError('no such thing\n\n')")
    monkeypatch.syspath_prepend(str(tmp_path))
    function = KillableFunction("broken_job:job", seconds=1, megabytes=64, count=1)
    with pytest.raises(RewardError, match=r"the process of broken_job:job did not start: .*no such thing$"):
        function.map([()])


def test_an_error_is_raised_here(work):
    with pytest.raises(RewardError, match=r":job raised ValueError: no"):
        work.map([("raise", "no")])
    with pytest.raises(RewardError, match=r"the process of nowhere_at_all:f did not start: .*nowhere_at_all"):
        KillableFunction("nowhere_at_all:f", seconds=1).map([()])


def test_many_threads_share_the_processes():
    shared = KillableFunction(f"{__name__}:job", seconds=5, count=2)
    found = {}

    def ask(number, processes):
        found[number] = processes.map([("echo", [number, i]) for i in range(9)])

    threads = [threading.Thread(target=ask, args=(number, shared)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {n: [[n, i] for i in range(9)] for n in range(4)}
    children = [process._child for process in shared._processes]
    assert len(children) == 2
    shared.close()
    assert all(child.poll() is not None for child in children)
    assert shared.map([("echo", 3)]) == [3]
    [child] = [process._child for process in shared._processes]
    del shared, threads
    assert child.wait(10) is not None, "the process ends with the object"


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
