"""Function calls in separate processes that can be killed, for work with unbounded running time.

Comparing `9^{9^{9^9}}` with 5, or checking a list of thousands for duplicates, happens in libraries that cannot be
interrupted in every thread. Each call therefore has a limit of CPU seconds, which holds on a busy machine too, and of
memory. A call that exceeds a limit loses its process, and the next call gets a new one.

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
"""Clock seconds for a process to import the function."""
PATIENCE = 15.0
"""Clock seconds of a call for each second of its CPU limit."""


@dataclass(frozen=True, slots=True)
class Killed:
    """Result of a call that was killed.

    Attributes:
        reason: The limit that was exceeded.
    """

    reason: str


class KillableFunction:
    """Run a function of JSON values in processes with time and memory limits.

    It may be called from any thread. The processes start on demand and end with this object or this process.

    Args:
        function: "module:name" of a function that takes and returns JSON values.
        seconds: CPU seconds of each call.
        megabytes: Memory of a process.
        count: Most processes (default: one per core, at most 4).
        warm: Arguments of an unlimited first call in each new process, if not empty.
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
        """Return the function's result for each argument list, or `Killed`.

        Raises:
            RewardError: The function raised, or its process did not start.
        """
        if os.getpid() != self._pid:  # after a fork the processes belong to the parent
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
            self.end()  # interrupted: the next call would read this call's late answer
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
        """Read a line of the child's output; an incomplete one if the child or the time ends."""
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
    os.dup2(2, 1)  # output of libraries must not mix with answers
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
    module, _, attribute = name.partition(":")
    function = getattr(importlib.import_module(module), attribute)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (megabytes << 20, megabytes << 20))
    if warm:
        function(*warm)
    answers.write(b"ready\n")
    for line in sys.stdin.buffer:
        signal.setitimer(signal.ITIMER_PROF, seconds)  # SIGPROF ends the process even inside native code
        try:
            answer = {"value": function(*json.loads(line))}
        except (MemoryError, RecursionError) as error:
            answer = {"killed": "too much memory" if isinstance(error, MemoryError) else "nested too deep"}
        except Exception as error:  # noqa: BLE001 - the parent raises it again
            answer = {"error": f"{type(error).__name__}: {error}"[:1000]}
        signal.setitimer(signal.ITIMER_PROF, 0)
        answers.write(json.dumps(answer).encode() + b"\n")


if __name__ == "__main__":
    _serve(sys.argv[1], float(sys.argv[2]), int(sys.argv[3]), json.loads(sys.argv[4]))
