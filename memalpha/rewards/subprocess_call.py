"""A function in processes of its own, for work that a text can make endless: they are killed, and the run goes on.

Comparing `9^{9^{9^9}}` with 5, or checking a list of thousands for doubles, is done by libraries that cannot be
interrupted, and not in every thread. So a call has so many seconds of CPU time (the same on a busy machine) and so much
memory; what goes over ends with its process, the next call gets a new one.

This is no sandbox: the function is trusted, only its running time is not.
"""

from __future__ import annotations

import importlib
import json
import os
import queue
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import IO, Any

from memalpha.errors import RewardError

START_SECONDS = 120.0
"""Seconds that a process may take to import the function."""
PATIENCE = 15.0
"""Seconds that a call may take by the clock, for each second of CPU time: it may wait, but not for ever."""


@dataclass(frozen=True, slots=True)
class Killed:
    """What a call gives that did not end: `why` says what it ran into."""

    reason: str


class KillableFunction:
    """`function` ("module:name", of JSON values, which gives one) in up to `count` processes.

    `count` 0: one a core, 4 at most. `seconds` (CPU) and `megabytes` hold for each call; one with the arguments `warm`,
    if given, is made before the first that counts. It may be called from any thread. The processes start with the first
    calls and end with the object, or with this process.
    """

    def __init__(
        self,
        function: str,
        *,
        seconds: float,
        megabytes: int = 2048,
        count: int | None = None,
        warm: Sequence[Any] = (),
    ) -> None:
        self.seconds = seconds
        self._command = [function, str(seconds), str(megabytes), json.dumps(list(warm))]
        self.count = count or max(1, min(4, os.cpu_count() or 1))
        self._reset()

    def map(self, arguments: Sequence[Sequence[Any]]) -> list[Any]:
        """What the function gives for each, or `Killed`. Raises `RewardError` where it raises, or cannot be started."""
        if os.getpid() != self._pid:  # a fork: the processes are the parent's
            self._reset()
        with ThreadPoolExecutor(max(1, min(self.count, len(arguments)))) as pool:
            return list(pool.map(self._ask, arguments))

    def close(self) -> None:
        """End the processes; the next call starts new ones."""
        for process in self._processes:
            process.end()
        self._reset()

    def _reset(self) -> None:
        self._pid = os.getpid()
        self._processes: list[_Process] = []
        self._free: queue.LifoQueue[_Process] = queue.LifoQueue()
        self._lock = threading.Lock()

    def _ask(self, arguments: Sequence[Any]) -> Any:
        process = self._take_process()
        try:
            return process.ask(arguments)
        finally:
            self._free.put(process)

    def _take_process(self) -> _Process:
        with suppress(queue.Empty):
            return self._free.get_nowait()
        with self._lock:
            if len(self._processes) < self.count:
                self._processes.append(_Process(self._command, self.seconds))
                return self._processes[-1]
        return self._free.get()


class _Process:
    def __init__(self, command: Sequence[str], seconds: float) -> None:
        self.command, self.seconds = command, seconds
        self._child: subprocess.Popen[bytes] | None = None

    def ask(self, arguments: Sequence[Any]) -> Any:
        child = self._child or self._start()
        assert child.stdin is not None
        try:
            child.stdin.write(json.dumps(arguments).encode() + b"\n")
            child.stdin.flush()
            line = self._read_line(child, PATIENCE * self.seconds)
        except BrokenPipeError:
            line = b""
        except BaseException:
            self.end()  # interrupted: the answer to come would be taken for that of the next call
            raise
        if not line.endswith(b"\n"):
            return self._kill(child)
        answer = json.loads(line)
        if "error" in answer:
            raise RewardError(f"{self.command[0]} raised {answer['error']}")
        return Killed(answer["killed"]) if "killed" in answer else answer["value"]

    def end(self) -> None:
        if self._child is not None:
            self._stop()
            self._child = None

    def _start(self) -> subprocess.Popen[bytes]:
        stderr = tempfile.TemporaryFile()  # noqa: SIM115
        child = subprocess.Popen(
            [sys.executable, "-m", __name__, *self.command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        )
        self._child, self._said = child, stderr
        self._stop = weakref.finalize(self, _close_child, child, stderr)
        if self._read_line(child, START_SECONDS) != b"ready\n":
            child.kill()
            child.wait()
            stderr.seek(0)
            reason = stderr.read().decode(errors="replace").strip().splitlines()[-1:] or ["it said nothing"]
            self.end()
            raise RewardError(f"the process of {self.command[0]} did not start: {reason[0]}")
        return child

    def _kill(self, child: subprocess.Popen[bytes]) -> Killed:
        child.kill()
        status = child.wait()
        self.end()
        if status == -getattr(signal, "SIGPROF", 0):
            return Killed(f"over {self.seconds:g} s of CPU time")
        return Killed(f"no answer in {PATIENCE * self.seconds:g} s" if status == -9 else f"ended with status {status}")

    def _read_line(self, child: subprocess.Popen[bytes], seconds: float) -> bytes:
        """A line of the child's output; what came of it where the child ended, or the time did."""
        assert child.stdout is not None
        line, end = b"", time.monotonic() + seconds
        while not line.endswith(b"\n"):
            if not select.select([child.stdout], [], [], max(0.0, end - time.monotonic()))[0]:
                break
            if not (part := os.read(child.stdout.fileno(), 65536)):
                break
            line += part
        return line


def _close_child(child: subprocess.Popen[bytes], stderr: IO[bytes]) -> None:
    child.kill()
    child.wait()
    for pipe in (child.stdin, child.stdout, stderr):
        if pipe is not None:
            with suppress(OSError):
                pipe.close()


# --------------------------------------------------------------------------------------------------- in the process


def _serve(name: str, seconds: float, megabytes: int, warm: list[Any]) -> None:
    import resource

    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # what libraries print is no answer
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C is the parent's
    module, _, attribute = name.partition(":")
    function = getattr(importlib.import_module(module), attribute)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (megabytes << 20, megabytes << 20))
    if warm:
        function(*warm)
    answers.write(b"ready\n")
    for line in sys.stdin.buffer:
        signal.setitimer(signal.ITIMER_PROF, seconds)  # its signal ends the process, whatever that is doing
        try:
            answer = {"value": function(*json.loads(line))}
        except (MemoryError, RecursionError) as error:
            answer = {"killed": "too much memory" if isinstance(error, MemoryError) else "nested too deep"}
        except Exception as error:  # noqa: BLE001 - it is raised again in the parent
            answer = {"error": f"{type(error).__name__}: {error}"[:1000]}
        signal.setitimer(signal.ITIMER_PROF, 0)
        answers.write(json.dumps(answer).encode() + b"\n")


if __name__ == "__main__":
    _serve(sys.argv[1], float(sys.argv[2]), int(sys.argv[3]), json.loads(sys.argv[4]))
